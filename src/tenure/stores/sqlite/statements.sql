-- Statements of SQLite: additions to common.sql, and replacements.

-- name: load_revs
-- Differs: one writer holds the lock, so that reading revisions and then writing is one step;
-- PostgreSQL compares and writes in one statement.
SELECT id, rev FROM {t}job WHERE id {among_ids};

-- name: load_previews
-- Differs: substr would read the whole payload; see load_previews of the store.
SELECT id, rowid FROM {t}job WHERE id {among_ids};

-- name: update_jobs
-- Differs: see load_revs.
UPDATE {t}job SET {assignments} FROM json_each(:rows) AS i
 WHERE {t}job.id = json_extract(i.value, '$[0]');

-- name: insert_jobs
-- Differs: see load_revs.
INSERT INTO {t}job ({inserted_columns}) SELECT {inserted_values} FROM json_each(:rows) AS i;

-- name: insert_events
-- Differs: see load_revs.
INSERT INTO {t}job_event ({logged_columns})
SELECT {logged_values} FROM json_each({logged_rows}) AS i;

-- name: delete_last_position
-- Differs: see begin_positions.
DELETE FROM sqlite_sequence WHERE name = '{t}job_event';

-- name: begin_positions
-- Differs: readers of a lost file may have received higher positions than the restored file has. So the
-- positions of each epoch start with the epoch's number, as on PostgreSQL.
INSERT INTO sqlite_sequence (name, seq) SELECT '{t}job_event', epoch + 1 << 44 FROM {t}meta;

-- name: insert_edges
-- Differs: see load_revs.
INSERT INTO {t}job_edge ({edge_columns})
SELECT json_extract(i.value, '$[0]'), json_extract(i.value, '$[1]'), json_extract(i.value, '$[2]'),
       json_extract(i.value, '$[3]'), json_extract(i.value, '$[4]'), json_extract(i.value, '$[5]'),
       NULL
  FROM json_each(:rows) AS i;

-- name: take_key
-- Differs: see load_revs. No row if another job has the key. [I17]
INSERT INTO {t}dedupe (namespace, kind, key, job_id) VALUES (:namespace, :kind, :dedupe_key, :job_id)
    ON CONFLICT DO NOTHING RETURNING job_id;

-- name: give_key
-- Differs: see load_revs. A job that has ended releases its key to a new one. [D14]
DELETE FROM {t}dedupe
 WHERE namespace = :namespace AND kind = :kind AND key = :dedupe_key AND job_id = :giver;

-- name: delayed_levels
-- Differs: PostgreSQL has a function of this name, whose plan it keeps. The priorities of the
-- delayed jobs of each kind and lane, highest first, and when the first job of each is due: from
-- priority to priority through the index, however many jobs are not due yet.
WITH RECURSIVE level (kind, lane, priority, nth) AS (
    SELECT k.value ->> 0, k.value ->> 1, (SELECT max(j.priority) FROM {t}job AS j {by_delayed}
                     WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before > 0
                       AND j.lane = k.value ->> 1 AND j.kind = k.value ->> 0), 1
      FROM json_each(:places) AS k
     UNION ALL
    SELECT l.kind, l.lane, (SELECT max(j.priority) FROM {t}job AS j {by_delayed}
                     WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before > 0
                       AND j.lane = l.lane AND j.kind = l.kind AND j.priority < l.priority), l.nth + 1
      FROM level AS l WHERE l.priority IS NOT NULL AND l.nth < :levels)
SELECT l.kind, l.lane, l.priority, l.nth,
       (SELECT min({claim_place}) FROM {t}job AS j {by_delayed}
         WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before > 0
           AND j.lane = l.lane AND j.kind = l.kind AND j.priority = l.priority) AS first_at
  FROM level AS l WHERE l.priority IS NOT NULL;

-- name: note_dirty_key
-- Differs: many at once in PostgreSQL; here a statement costs no round trip. What claims write is stored once.
INSERT INTO {t}dirty_key (namespace, kind, is_rate, key, at, noted_at)
VALUES (:namespace, :kind, :is_rate, :key, :at, :noted_at) ON CONFLICT DO NOTHING;

-- name: set_slot
-- Differs: see note_dirty_key.
INSERT INTO {t}slot (namespace, scope, name, key, tat)
VALUES (:namespace, :scope, :name, :key, :tat)
    ON CONFLICT (namespace, scope, name, key) DO UPDATE SET tat = excluded.tat;

-- name: take_dirty_keys
-- Differs: see note_dirty_key; there is one writer, so that no kind must be left out. (SQLite starts with the
-- first of the two conditions on noted_at; the other one is the index's.)
DELETE FROM {t}dirty_key
 WHERE id IN (
       SELECT id FROM (SELECT d.id FROM {t}dirty_key AS d INDEXED BY {t}dirty_key_due
                        WHERE d.namespace = :namespace AND d.kind = :kind AND d.at = 0
                        ORDER BY d.id LIMIT :page)
        UNION ALL
       SELECT id FROM (SELECT d.id FROM {t}dirty_key AS d INDEXED BY {t}dirty_key_due
                        WHERE d.namespace = :namespace AND d.kind = :kind
                          AND d.at > 0 AND d.at <= (SELECT {t}clock())
                        ORDER BY d.at, d.id LIMIT :page)
        UNION ALL
       SELECT id FROM (SELECT d.id FROM {t}dirty_key AS d INDEXED BY {t}dirty_key_noted
                        WHERE d.namespace = :namespace AND d.kind = :kind
                          AND d.noted_at > (SELECT {t}clock()) AND d.noted_at > 0
                        ORDER BY d.noted_at LIMIT :page))
RETURNING kind, is_rate, key, at, noted_at;

-- name: used_of_key
-- Differs: see jobs_of_key.
SELECT {uses};

-- name: jobs_of_key
-- Differs: PostgreSQL asks for all keys in one statement. The first jobs of a key in one queue: jobs that are
-- ready since they were queued, or, with :delayed, due delayed jobs.
SELECT {key_columns} FROM {t}job AS j {by_waiting}
 WHERE j.namespace = :namespace AND j.kind = :kind AND {key} = :key AND {waits} AND j.queue = :queue
   AND min(j.not_before, 1) = :delayed AND j.not_before <= :now
   AND (j.start_by IS NULL OR j.start_by > :now)
 ORDER BY j.priority DESC, j.run_at, j.id LIMIT :most;

-- name: admitted_of_key
-- Differs: see jobs_of_key.
SELECT {key_columns} FROM {t}job AS j {by_place}
 WHERE j.namespace = :namespace AND j.kind = :kind AND {places};

-- name: dirty_kinds
-- Differs: see take_dirty_keys.
SELECT DISTINCT kind FROM {t}dirty_key WHERE namespace = :namespace;

-- name: queues_of_kind
-- Differs: see jobs_of_key.
SELECT queue FROM {t}keyed_kind WHERE namespace = :namespace AND kind = :kind AND is_rate = :is_rate;

-- name: remember_session
-- Differs: many at once in PostgreSQL; here a statement costs no round trip.
INSERT INTO {t}worker ({session_columns})
VALUES (:namespace, :actor, :worker, :claim_seq, :request_id, :fingerprint, :claimed_at,
        :is_repeated)
    ON CONFLICT (namespace, worker, actor) DO UPDATE
   SET claim_seq = excluded.claim_seq, request_id = excluded.request_id,
       fingerprint = excluded.fingerprint, claimed_at = excluded.claimed_at,
       is_repeated = excluded.is_repeated;

-- name: fold_begin
-- Differs: to count events, SQLite would read them. Positions are rows that follow each other within an
-- epoch, so that the place is found from epoch to epoch: from the highest position of each as far down as
-- is left.
WITH RECURSIVE epochs (top, base, most) AS (
    SELECT max(position), max(position) >> 44 << 44, :catch_up FROM {t}job_event
     UNION ALL
    SELECT (SELECT max(e.position) FROM {t}job_event AS e WHERE e.position < n.base),
           (SELECT max(e.position) FROM {t}job_event AS e WHERE e.position < n.base) >> 44 << 44,
           n.most - (n.top - n.base)
      FROM epochs AS n WHERE n.top - n.base <= n.most)
SELECT position, ts FROM {t}job_event
 WHERE position <= (SELECT n.top - n.most FROM epochs AS n WHERE n.top - n.base > n.most)
 ORDER BY position DESC LIMIT 1;
