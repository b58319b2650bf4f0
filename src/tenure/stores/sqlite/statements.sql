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
-- Differs: readers of a lost file may have seen higher positions than the restored file has. So the
-- positions of each epoch begin with the epoch's number, as on PostgreSQL.
INSERT INTO sqlite_sequence (name, seq) SELECT '{t}job_event', epoch + 1 << 44 FROM {t}meta;

-- name: insert_edges
-- Differs: see load_revs.
INSERT INTO {t}job_edge ({edge_columns})
SELECT json_extract(i.value, '$[0]'), json_extract(i.value, '$[1]'), json_extract(i.value, '$[2]'),
       json_extract(i.value, '$[3]'), json_extract(i.value, '$[4]'), json_extract(i.value, '$[5]'),
       NULL
  FROM json_each(:rows) AS i;

-- name: take_key
-- Differs: see load_revs. No row if another job holds the key. [I17]
INSERT INTO {t}dedupe (namespace, kind, key, job_id) VALUES (:namespace, :kind, :dedupe_key, :job_id)
    ON CONFLICT DO NOTHING RETURNING job_id;

-- name: give_key
-- Differs: see load_revs. A job that has ended gives its key to a new one. [D14]
DELETE FROM {t}dedupe
 WHERE namespace = :namespace AND kind = :kind AND key = :dedupe_key AND job_id = :giver;

-- name: delayed_levels
-- Differs: PostgreSQL has a function of this name, whose plan it keeps. The priorities of the
-- delayed jobs of each kind, highest first, and when the first job of each is due: from priority to
-- priority through the index, however many jobs are not due yet.
WITH RECURSIVE level (kind, priority, nth) AS (
    SELECT k.kind, (SELECT max(j.priority) FROM {t}job AS j {by_delayed}
                     WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before > 0
                       AND {keyless} AND j.kind = k.kind), 1
      FROM (SELECT value AS kind FROM json_each(:kinds)) AS k
     UNION ALL
    SELECT l.kind, (SELECT max(j.priority) FROM {t}job AS j {by_delayed}
                     WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before > 0
                       AND {keyless} AND j.kind = l.kind AND j.priority < l.priority), l.nth + 1
      FROM level AS l WHERE l.priority IS NOT NULL AND l.nth < :levels)
SELECT l.kind, l.priority, l.nth,
       (SELECT min(j.run_at) FROM {t}job AS j {by_delayed}
         WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before > 0
           AND {keyless} AND j.kind = l.kind AND j.priority = l.priority) AS first_at
  FROM level AS l WHERE l.priority IS NOT NULL;

-- name: note_key_change
-- Differs: many at once in PostgreSQL; here a statement costs no round trip. That a rate key has room
-- from an instant on is noted once.
INSERT INTO {t}key_change (namespace, key_group, key, at, noted_at)
VALUES (:namespace, :key_group, :key, :at, :noted_at) ON CONFLICT DO NOTHING;

-- name: set_served
-- Differs: see note_key_change.
INSERT INTO {t}key_served (namespace, concurrency_group, concurrency_key, served, served_at)
VALUES (:namespace, :concurrency_group, :concurrency_key, :served, :served_at)
    ON CONFLICT (namespace, concurrency_group, concurrency_key)
    DO UPDATE SET served = excluded.served, served_at = excluded.served_at;

-- name: set_rate_state
-- Differs: see note_key_change.
INSERT INTO {t}rate_state (namespace, scope, name, key, tat)
VALUES (:namespace, :scope, :name, :key, :tat)
    ON CONFLICT (namespace, scope, name, key) DO UPDATE SET tat = excluded.tat;

-- name: take_key_changes
-- Differs: see note_key_change. Only claims call this, and there is one writer. The last ones wait for
-- a rate and were noted later than now: the clock was set back. (The first of the two conditions on
-- noted_at is the one that SQLite begins by; the other one is that of the index.)
DELETE FROM {t}key_change
 WHERE id IN (
       SELECT id FROM (SELECT c.id FROM {t}key_change AS c INDEXED BY {t}key_change_order
                        WHERE c.namespace = :namespace AND c.key_group = :key_group AND c.at = 0
                        ORDER BY c.id LIMIT :changes)
        UNION ALL
       SELECT id FROM (SELECT c.id FROM {t}key_change AS c INDEXED BY {t}key_change_order
                        WHERE c.namespace = :namespace AND c.key_group = :key_group
                          AND c.at > 0 AND c.at <= (SELECT {t}clock())
                        ORDER BY c.at, c.id LIMIT :changes)
        UNION ALL
       SELECT id FROM (SELECT c.id FROM {t}key_change AS c INDEXED BY {t}key_change_noted
                        WHERE c.namespace = :namespace AND c.key_group = :key_group
                          AND c.noted_at > (SELECT {t}clock()) AND c.noted_at > 0
                        ORDER BY c.noted_at LIMIT :changes))
RETURNING key_group, key, at, noted_at;

-- name: give_turns
-- Differs: see note_key_change. Those of one key, queue and kind.
INSERT INTO {t}key_turn (job_id, namespace, queue, kind, concurrency_group, concurrency_key,
                         rate_key, is_rated, is_open, served, priority, run_at)
SELECT f.id, :namespace, :queue, :kind, :concurrency_group, :concurrency_key,
       coalesce(f.rate_key, ''), f.rate_key IS NOT NULL, f.rate_key IS NULL,
       coalesce((SELECT s.served FROM {t}key_served AS s
                  WHERE s.namespace = :namespace AND s.concurrency_group = :concurrency_group
                    AND s.concurrency_key = :concurrency_key), 0),
       f.priority, f.run_at
  FROM (
    SELECT * FROM (
      SELECT j.priority, j.run_at, j.id, j.rate_key FROM {t}job AS j INDEXED BY {t}job_ready_by_key
       WHERE j.namespace = :namespace AND j.concurrency_group = :concurrency_group
         AND j.concurrency_key = :concurrency_key AND j.concurrency_key IS NOT NULL
         AND j.queue = :queue AND j.kind = :kind AND j.not_before = 0
         AND (j.start_by IS NULL OR j.start_by > (SELECT {t}clock()))
       ORDER BY j.priority DESC, j.run_at, j.id LIMIT :room)
     UNION ALL
    SELECT * FROM (
      SELECT j.priority, j.run_at, j.id, j.rate_key FROM {t}job AS j INDEXED BY {t}job_delayed_by_key
       WHERE j.namespace = :namespace AND j.concurrency_group = :concurrency_group
         AND j.concurrency_key = :concurrency_key AND j.concurrency_key IS NOT NULL
         AND j.queue = :queue AND j.kind = :kind AND j.not_before > 0
         AND j.run_at <= (SELECT {t}clock())
         AND (j.start_by IS NULL OR j.start_by > (SELECT {t}clock()))
       ORDER BY j.priority DESC, j.run_at, j.id LIMIT :room)
     ORDER BY 1 DESC, 2, 3 LIMIT :room) AS f
 WHERE TRUE
    ON CONFLICT DO NOTHING
RETURNING queue, kind, rate_key;

-- name: open_turns
-- Differs: see note_key_change. Those of one rate key and queue: of jobs that have no concurrency key,
-- and turns of those that have one.
INSERT INTO {t}key_turn (job_id, namespace, queue, kind, concurrency_group, concurrency_key,
                         rate_key, is_rated, is_open, served, priority, run_at)
SELECT f.id, :namespace, :queue, :kind, '', '', :rate_key, 1, 1, 0, f.priority, f.run_at
  FROM (
    SELECT * FROM (
      SELECT j.priority, j.run_at, j.id FROM {t}job AS j INDEXED BY {t}job_ready_by_rate
       WHERE j.namespace = :namespace AND j.kind = :kind AND j.rate_key = :rate_key
         AND j.rate_key IS NOT NULL AND j.concurrency_key IS NULL AND j.queue = :queue
         AND j.not_before = 0 AND (j.start_by IS NULL OR j.start_by > (SELECT {t}clock()))
       ORDER BY j.priority DESC, j.run_at, j.id LIMIT :room)
     UNION ALL
    SELECT * FROM (
      SELECT j.priority, j.run_at, j.id FROM {t}job AS j INDEXED BY {t}job_delayed_by_rate
       WHERE j.namespace = :namespace AND j.kind = :kind AND j.rate_key = :rate_key
         AND j.rate_key IS NOT NULL AND j.concurrency_key IS NULL AND j.queue = :queue
         AND j.not_before > 0 AND j.run_at <= (SELECT {t}clock())
         AND (j.start_by IS NULL OR j.start_by > (SELECT {t}clock()))
       ORDER BY j.priority DESC, j.run_at, j.id LIMIT :room)
     UNION ALL
    SELECT * FROM (
      SELECT t.priority, t.run_at, t.job_id FROM {t}key_turn AS t INDEXED BY {t}key_turn_rate
       WHERE t.namespace = :namespace AND t.kind = :kind AND t.rate_key = :rate_key
         AND t.rate_key <> '' AND t.concurrency_key <> '' AND t.queue = :queue
       ORDER BY t.priority DESC, t.run_at, t.job_id LIMIT :room)
     ORDER BY 1 DESC, 2, 3 LIMIT :room) AS f
 WHERE TRUE
    ON CONFLICT (job_id) DO UPDATE SET is_open = 1
RETURNING queue, kind, rate_key;

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
