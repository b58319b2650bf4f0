-- Statements of PostgreSQL: additions to common.sql, and replacements.

-- name: settings
-- Differs: a server has timeouts to set, and they are set per transaction: a session's settings
-- would leak to others behind a pooler. Every statement of ours has an index to go by; a planner
-- whose statistics are behind, as they are in a queue, would rather scan a table for 200 ids.
-- JIT costs more than any of these statements.
SELECT set_config('statement_timeout', :statement_timeout, TRUE),
       set_config('lock_timeout', :lock_timeout, TRUE),
       set_config('idle_in_transaction_session_timeout', :idle_timeout, TRUE),
       set_config('enable_seqscan', 'off', TRUE),
       set_config('random_page_cost', '1.1', TRUE),
       set_config('jit', 'off', TRUE),
       {t}require_timeline(CAST(:timeline AS bigint));

-- name: server_state
-- Differs: only a server that has standbys fails over. Which server this is, and what the store
-- knows of its servers.
SELECT s.system_identifier, {t}timeline(), m.system_identifier, m.timeline,
       {t}clock(), m.epoch, m.tick
  FROM {t}meta AS m, pg_control_system() AS s;

-- name: acknowledged_changes
-- Differs: see server_state. Which of the acknowledged changes the server has.
SELECT a.job_id, a.seq, e.ts, j.rev
  FROM unnest(CAST(:ids AS uuid[]), CAST(:seqs AS integer[])) AS a(job_id, seq)
  LEFT JOIN {t}job_event AS e ON e.job_id = a.job_id AND e.seq = a.seq
  LEFT JOIN {t}job AS j ON j.id = a.job_id;

-- name: note_timeline
-- Differs: see server_state.
UPDATE {t}meta SET timeline = :timeline, settling_since = {t}clock() WHERE timeline < :timeline;

-- name: raise_epoch_to
-- Differs: see server_state. The first process that finds a loss raises the epoch.
UPDATE {t}meta SET epoch = :epoch, losses = losses + 1, lost_at = {t}clock()
 WHERE epoch < :epoch RETURNING epoch;

-- name: adopt_server
-- Differs: see server_state. Records the server that the store is on now.
UPDATE {t}meta SET timeline = {t}timeline(), settling_since = NULL,
       system_identifier = (SELECT s.system_identifier FROM pg_control_system() AS s);

-- name: lock_exclusive
-- Differs: claimers of one queue run side by side, SQLite has one writer.
SELECT pg_advisory_xact_lock(CAST(:key AS bigint));

-- name: lock_in_order
-- Differs: see lock_exclusive. All that a claim locks, in one statement and in the order given.
SELECT CASE WHEN l.is_shared THEN pg_advisory_xact_lock_shared(l.key)
            ELSE pg_advisory_xact_lock(l.key) END
  FROM unnest(CAST(:keys AS bigint[]), CAST(:are_shared AS boolean[])) AS l(key, is_shared);

-- name: remember_sessions
-- Differs: many at once. A statement for each of twenty workers that claim
-- together was a third of the CPU of their claim.
INSERT INTO {t}worker ({session_columns})
SELECT s.* FROM unnest(CAST(:namespaces AS text[]), CAST(:actors AS text[]),
                       CAST(:workers AS text[]), CAST(:claim_seqs AS bigint[]),
                       CAST(:request_ids AS text[]), CAST(:fingerprints AS text[]),
                       CAST(:claimed_ats AS bigint[]), CAST(:are_repeated AS boolean[])) AS s
    ON CONFLICT (namespace, worker, actor) DO UPDATE
   SET claim_seq = excluded.claim_seq, request_id = excluded.request_id,
       fingerprint = excluded.fingerprint, claimed_at = excluded.claimed_at,
       is_repeated = excluded.is_repeated;

-- name: delayed_levels
-- Differs: the server keeps the plan of a function, see the migration.
SELECT l.kind, l.lane, l.priority, l.nth, l.first_at
  FROM {t}delayed_levels(:namespace, :queue, CAST(:kinds AS text[]), CAST(:lanes AS smallint[]),
                         CAST(:levels AS integer)) AS l;

-- name: note_dirty_keys
-- Differs: many at once. Rows are only added, so that no process waits for a transaction of a caller's own.
INSERT INTO {t}dirty_key (namespace, kind, is_rate, key, at, noted_at)
SELECT d.* FROM unnest(CAST(:namespaces AS text[]), CAST(:kinds AS text[]),
                       CAST(:are_rates AS boolean[]), CAST(:keys AS text[]),
                       CAST(:instants AS bigint[]), CAST(:noted_ats AS bigint[])) AS d
    ON CONFLICT DO NOTHING;

-- name: set_slots
-- Differs: many at once.
INSERT INTO {t}slot (namespace, scope, name, key, tat)
SELECT :namespace, s.*
  FROM unnest(CAST(:scopes AS text[]), CAST(:names AS text[]), CAST(:keys AS text[]),
              CAST(:tats AS bigint[])) AS s
    ON CONFLICT (namespace, scope, name, key) DO UPDATE SET tat = excluded.tat;

-- name: take_dirty_keys
-- Differs: leaves out kinds that another transaction is deciding about, see the migration.
SELECT d.kind, d.is_rate, d.key, d.at, d.noted_at
  FROM {t}take_dirty_keys(:namespace, CAST(:kinds AS text[]), CAST(:page AS integer)) AS d;

-- name: moment_to_admit
-- Differs: see take_dirty_keys. Also returns the revision of the settings.
SELECT {t}clock(), epoch, settings_rev FROM {t}meta;

-- name: jobs_of_keys
-- Differs: all keys in one statement, and so from one snapshot: a job that is claimed meanwhile counts once.
-- SQLite has no LATERAL. For each key: its use ({uses}), the first ready and due jobs in each queue of its
-- kind, and its admitted jobs. OFFSET 0 stops a planner with old statistics from joining whole tables.
SELECT k.kind, k.key, k.uses, j.*
  FROM (SELECT k.kind, k.key, k.most, {uses} AS uses
          FROM unnest(CAST(:kinds AS text[]), CAST(:keys AS text[]), CAST(:most AS bigint[]))
               AS k(kind, key, most)) AS k
  LEFT JOIN LATERAL (
    SELECT first.* FROM (
        SELECT q.queue FROM {t}keyed_kind AS q
         WHERE q.namespace = :namespace AND q.kind = k.kind AND q.is_rate = {is_rate} OFFSET 0) AS q
     CROSS JOIN LATERAL (
       (SELECT {key_columns} FROM {t}job AS j
         WHERE j.namespace = :namespace AND j.kind = k.kind AND {key} = k.key AND {waits}
           AND j.queue = q.queue AND least(j.not_before, 1) = 0
           AND (j.start_by IS NULL OR j.start_by > CAST(:now AS bigint))
         ORDER BY j.priority DESC, j.run_at, j.id LIMIT k.most)
        UNION ALL
       (SELECT {key_columns} FROM {t}job AS j
         WHERE j.namespace = :namespace AND j.kind = k.kind AND {key} = k.key AND {waits}
           AND j.queue = q.queue AND least(j.not_before, 1) = 1 AND j.run_at <= CAST(:now AS bigint)
           AND (j.start_by IS NULL OR j.start_by > CAST(:now AS bigint))
         ORDER BY j.priority DESC, j.run_at, j.id LIMIT k.most)) AS first
     UNION
    SELECT {key_columns} FROM {t}job AS j
     WHERE j.namespace = :namespace AND j.kind = k.kind AND {places}) AS j ON TRUE;

-- name: hold_job
-- Differs: a purge skips rows that are locked; nothing else waits for this lock.
SELECT 1 FROM {t}job WHERE id = :job_id FOR KEY SHARE;

-- name: present_parents
-- Differs: a purge skips rows that are locked. Rows of live jobs are not locked: no process purges them, and
-- their workers would wait for the end of a caller's own transaction.
WITH ended AS MATERIALIZED (
    SELECT j.id FROM {t}job AS j WHERE j.id {among_ids} AND j.finished_at IS NOT NULL
     ORDER BY j.id FOR KEY SHARE)
SELECT id FROM ended
 UNION ALL
SELECT j.id FROM {t}job AS j WHERE j.id {among_ids} AND j.finished_at IS NULL;

-- name: lock_jobs
-- Differs: rows are locked in id order before several statements change them, so that two batches
-- never wait for each other.
SELECT count(*) FROM (SELECT j.id FROM {t}job AS j WHERE j.id {among_ids}
                       ORDER BY j.id FOR UPDATE) AS locked;

-- name: give_keys
-- Differs: many at once. Jobs that have ended release their keys to new ones. [D14] From here on the epoch
-- cannot change before the commit, so the jobs that take these keys are written, too.
WITH judged AS MATERIALIZED (SELECT j.epoch FROM {t}judge(0, CAST(:epoch_lock AS bigint)) AS j)
DELETE FROM {t}dedupe AS d
 USING unnest(CAST(:namespaces AS text[]), CAST(:kinds AS text[]), CAST(:keys AS text[]),
              CAST(:ids AS uuid[])) AS g(namespace, kind, key, job_id), judged
 WHERE d.namespace = g.namespace AND d.kind = g.kind AND d.key = g.key AND d.job_id = g.job_id
   AND judged.epoch = CAST(:epoch AS bigint);

-- name: update_jobs
-- Differs: comparing, writing rows and writing events is one statement, and so one round trip.
-- Only columns that the events touch are sent: those equal over the batch as scalars, the others
-- as arrays of one unnest (two that are joined are quadratic). Each guard is on the locked row, or
-- read after the rows were locked.
-- The CASE hides the comparison from the planner: statistics of rev are always behind, and for a rev without
-- statistics it expects one row, for which it scans the table and compares with every id.
WITH {held},
judged AS MATERIALIZED (
    SELECT j.now, j.epoch FROM held, LATERAL {t}judge(held.n, CAST(:epoch_lock AS bigint)) AS j),
written AS (
    UPDATE {t}job AS j SET {assignments}
      FROM {job_input}, judged
     WHERE j.id = i.id AND CASE WHEN j.rev = {expected_rev} THEN TRUE ELSE FALSE END
       AND judged.epoch = CAST(:epoch AS bigint) AND {in_time}
       AND judged.now BETWEEN CAST(:earliest AS bigint) AND CAST(:latest AS bigint)
    RETURNING j.id, j.event_position{returned}),
logged AS (
    INSERT INTO {t}job_event ({logged_columns})
    SELECT {logged_values} FROM {event_source})
SELECT judged.now, {unless_all_applied} FROM judged, (SELECT {applied} FROM written) AS w;

-- name: update_jobs_alone
-- Differs: update_jobs for a statement that is the whole of a transaction of ours. It writes first,
-- in id order, which locks the rows, and then compares clock and epoch; if one change is too late, veto rolls
-- the transaction back, and update_jobs applies the changes that are in time.
WITH written AS (
    UPDATE {t}job AS j SET {assignments}
      FROM {job_input}
     WHERE j.id = i.id AND CASE WHEN j.rev = {expected_rev} THEN TRUE ELSE FALSE END
    RETURNING j.id, j.event_position{returned}),
logged AS (
    INSERT INTO {t}job_event ({logged_columns})
    SELECT {logged_values} FROM {event_source})
SELECT judged.now, {unless_all_applied}
  FROM (SELECT {applied} FROM written) AS w,
       LATERAL {t}veto(w.n, CAST(:epoch_lock AS bigint), CAST(:epoch AS bigint),
                       CAST(:first_end AS bigint), CAST(:earliest AS bigint),
                       CAST(:latest AS bigint)) AS judged;

-- name: insert_jobs
-- Differs: see update_jobs. A job with a dedupe key is written if it can take the key.
WITH judged AS MATERIALIZED (
    SELECT j.now, j.epoch FROM {t}judge(0, CAST(:epoch_lock AS bigint)) AS j),
{taken}
written AS (
    INSERT INTO {t}job ({inserted_columns})
    SELECT {inserted_values} FROM {job_input}, judged
     WHERE judged.epoch = CAST(:epoch AS bigint) AND {in_time}
       AND judged.now BETWEEN CAST(:earliest AS bigint) AND CAST(:latest AS bigint)
       {has_key}
        ON CONFLICT DO NOTHING
    RETURNING id),
logged AS (
    INSERT INTO {t}job_event ({logged_columns})
    SELECT {logged_values} FROM {event_source})
SELECT judged.now, {unless_all_applied} FROM judged, (SELECT {applied} FROM written) AS w;

-- name: taken_keys
-- Differs: part of insert_jobs, if jobs have keys. [I17] If the id exists already, nothing is written.
taken AS (
    INSERT INTO {t}dedupe (namespace, kind, key, job_id)
    SELECT {key_values}, i.id FROM {job_input}, judged
     WHERE judged.epoch = CAST(:epoch AS bigint) AND {in_time}
       AND judged.now BETWEEN CAST(:earliest AS bigint) AND CAST(:latest AS bigint)
       AND {dedupe_key} IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM {t}job AS j WHERE j.id = i.id)
        ON CONFLICT DO NOTHING RETURNING job_id),

-- name: has_taken_key
-- Differs: see taken_keys.
AND ({dedupe_key} IS NULL OR i.id IN (SELECT job_id FROM taken))

-- name: insert_jobs_alone
-- Differs: insert_jobs for a statement that is the whole of a transaction of ours, applied all or
-- nothing: ON CONFLICT looks every row up first and logs the insertion twice, a sixth of its cost.
WITH written AS (
    INSERT INTO {t}job ({inserted_columns})
    SELECT {inserted_values} FROM {job_input}
    RETURNING id),
logged AS (
    INSERT INTO {t}job_event ({logged_columns})
    SELECT {logged_values} FROM {event_input})
SELECT judged.now, NULL
  FROM (SELECT count(*) AS n FROM written) AS w,
       LATERAL {t}veto(w.n, CAST(:epoch_lock AS bigint), CAST(:epoch AS bigint),
                       CAST(:first_end AS bigint), CAST(:earliest AS bigint),
                       CAST(:latest AS bigint)) AS judged;

-- name: insert_edges
-- Differs: see update_jobs.
INSERT INTO {t}job_edge ({edge_columns})
SELECT e.*, NULL FROM unnest(CAST(:children AS uuid[]), CAST(:positions AS integer[]),
                             CAST(:parents AS uuid[]), CAST(:steps AS text[]),
                             CAST(:needed AS text[]), CAST(:are_outside AS boolean[])) AS e;

-- name: rows_to_lock
-- Differs: part of update_jobs, for a statement that is alone in its transaction.
locked AS MATERIALIZED (
    SELECT j.id FROM {t}job AS j WHERE j.id {among_ids} ORDER BY j.id FOR UPDATE),
held AS MATERIALIZED (SELECT count(*) AS n FROM locked);

-- name: rows_are_held
-- Differs: part of update_jobs, for rows that this transaction has locked already.
held AS MATERIALIZED (SELECT 0::bigint AS n);

-- name: applied
-- Differs: part of update_jobs and insert_jobs. The ids are sent only if not all were applied.
count(*) AS n, array_agg(id) AS ids;

-- name: unless_all_applied
-- Differs: see applied.
CASE WHEN w.n = CAST(:count AS bigint) THEN NULL ELSE coalesce(array_to_string(w.ids, ','), '') END;

-- name: notify
-- Differs: on SQLite a process that waits sees every commit in the file itself. A hint that is lost
-- with the server is no loss: the commit does not wait for the disk.
SELECT set_config('synchronous_commit', 'off', TRUE), pg_notify(:channel, p.payload)
  FROM unnest(CAST(:payloads AS text[])) AS p(payload);

-- name: notify_at_once
-- Differs: see notify. For a caller that waits for it: lock_timeout, so that it does not wait long for other
-- notifiers.
SELECT set_config('synchronous_commit', 'off', TRUE), set_config('lock_timeout', '10ms', TRUE),
       pg_notify(:channel, :payload);

-- name: notify_within
-- Differs: see notify.
SELECT pg_notify(:channel, p.payload) FROM unnest(CAST(:payloads AS text[])) AS p(payload);

-- name: list_some_jobs
-- Differs: the large indexes have no id, so that their entries for jobs of one instant share a key. The caller
-- sorts these: here nothing need be sorted, see list_all_jobs.
SELECT * FROM (
    SELECT id AS job_id, enqueued_at AS at FROM {t}job
     WHERE namespace = :namespace {clauses}
     ORDER BY enqueued_at DESC FETCH FIRST (:reads) ROWS WITH TIES) AS arm;

-- name: list_all_jobs
-- Differs: an index of the log has the order. An index of the job table would be written again with every claim
-- and every end (docs/adr/0090). The caller sorts jobs of the same instant: here nothing need be sorted, so
-- that the planner goes by the index whether or not it has statistics.
SELECT * FROM (
    SELECT listed_id AS job_id, listed_at AS at
      FROM (SELECT e.job_id AS listed_id, e.ts AS listed_at FROM {t}job_event AS e
             WHERE e.type = 'enqueued') AS listed
      JOIN {t}job ON id = listed_id
     WHERE namespace = :namespace {clauses}
     ORDER BY listed_at DESC FETCH FIRST (:reads) ROWS WITH TIES) AS arm;

-- name: tail_delay
-- Differs: transactions overlap, also with transactions of other databases, which share their ids. Every role
-- may read backend_xid and application_name of others.
SELECT CAST(CAST(o.xid AS text) AS bigint), o.pid, o.name, o.state,
       CAST(extract(epoch FROM clock_timestamp() - o.since) * 1000000 AS bigint)
  FROM (SELECT backend_xid AS xid, pid, application_name AS name, state, xact_start AS since
          FROM pg_stat_activity WHERE backend_xid IS NOT NULL
         UNION ALL
        SELECT transaction, NULL, gid, 'prepared', prepared FROM pg_prepared_xacts) AS o
 WHERE EXISTS (SELECT 1 FROM {t}job_event WHERE NOT ({committed}))
 ORDER BY age(o.xid) DESC LIMIT 1;
