-- Statements that every dialect shares. {t} is the prefix of each name of ours, {among_...} compares with a
-- packed list, {lock} and {skip_locked} are empty where there is only one writer. Times come from {t}clock(),
-- the store's clock, in a sub-select where one reading must serve all rows.

-- name: moment
SELECT {t}clock(), epoch FROM {t}meta;

-- name: moment_to_decide
-- Also returns when another server took over, if one did.
SELECT {t}clock(), epoch, settling_since FROM {t}meta;

-- name: moment_to_claim
-- Also returns the revision of the settings, and whether keys of the kinds that are asked for ({kinds}) are
-- dirty.
SELECT {t}clock(), epoch, settling_since, settings_rev,
       EXISTS (SELECT 1 FROM ({kinds}) AS k
                WHERE EXISTS (SELECT 1 FROM {t}dirty_key AS d
                               WHERE d.namespace = :namespace AND d.kind = k.kind
                                 AND d.at <= (SELECT {t}clock()) {one_by_one})
                   OR EXISTS (SELECT 1 FROM {t}dirty_key AS d
                               WHERE d.namespace = :namespace AND d.kind = k.kind
                                 AND d.noted_at > (SELECT {t}clock()) AND d.noted_at > 0 {one_by_one}))
  FROM {t}meta;

-- name: count_losses
SELECT losses FROM {t}meta;

-- name: load_jobs
SELECT {columns} FROM {t}job WHERE id {among_ids};

-- name: load_bodies
SELECT id, payload, checkpoint FROM {t}job WHERE id {among_ids};

-- name: load_body_sizes
SELECT j.id, {body_bytes} FROM {t}job AS j WHERE j.id {among_ids};

-- name: load_previews
SELECT id, substr(payload, 1, CAST(:chars AS integer)) FROM {t}job WHERE id {among_ids};

-- name: load_holder
SELECT {columns} FROM {t}job
 WHERE id = (SELECT d.job_id FROM {t}dedupe AS d
              WHERE d.namespace = :namespace AND d.kind = :kind AND d.key = :dedupe_key);

-- name: free_keys
-- Frees the keys of jobs that have ended, unless these keys stay taken. [D2]
DELETE FROM {t}dedupe
 WHERE (namespace, kind, key, job_id) IN (
       SELECT j.namespace, j.kind, j.dedupe_key, j.id FROM {t}job AS j
        WHERE j.id {among_ids} AND j.finished_at IS NOT NULL AND j.unique_for_us IS NULL);

-- name: keep_keys
-- For jobs that have ended and whose keys stay taken. [D13]
UPDATE {t}dedupe AS d SET until = j.finished_at + j.unique_for_us
  FROM {t}job AS j
 WHERE j.id {among_ids} AND j.finished_at IS NOT NULL AND j.unique_for_us IS NOT NULL
   AND d.namespace = j.namespace AND d.kind = j.kind AND d.key = j.dedupe_key AND d.job_id = j.id;

-- name: delete_keys
DELETE FROM {t}dedupe
 WHERE (namespace, kind, key, job_id) IN (
       SELECT j.namespace, j.kind, j.dedupe_key, j.id FROM {t}job AS j WHERE j.id {among_ids});

-- name: load_leased
SELECT {columns} FROM {t}job {by_leases}
 WHERE namespace = :namespace AND lease_id IS NOT NULL
   AND principal = :actor AND owner = :worker
 ORDER BY id;

-- name: load_leases
SELECT id, lease_id, principal, cancel_requested_at FROM {t}job WHERE id {among_ids};

-- name: load_histories
SELECT {event_columns} FROM {t}job_event WHERE job_id {among_ids} ORDER BY job_id, seq;

-- name: load_decision_history
-- Reads the key backwards until there are enough of them.
SELECT {event_columns} FROM {t}job_event WHERE job_id = :job_id AND seq = 1
 UNION ALL
SELECT {event_columns} FROM (
    SELECT * FROM {t}job_event
     WHERE job_id = :job_id AND seq > 1 AND type NOT IN ({renewals})
     ORDER BY seq DESC LIMIT :events) AS latest
 ORDER BY seq;

-- name: load_observations
SELECT {observation_columns} FROM {t}observation
 WHERE job_id {among_ids} ORDER BY job_id, ts, ordinal {limit};

-- name: keep_observation
-- The ordinal is part of the key, so that no race keeps an eleventh, or one request twice. [U1] [U5]
INSERT INTO {t}observation
       (lease, ordinal, job_id, type, ts, actor, lease_id, request_id, cause, size, sha256, body)
SELECT :lease, kept.last + 1, CAST(:job_id AS {uuid}), :type, :ts, :actor, :lease_id, :request_id,
       :cause, CAST(:size AS bigint), :sha256, CAST(:body AS {bytes})
  FROM (SELECT coalesce(max(ordinal), 0) AS last FROM {t}observation
         WHERE job_id = :job_id AND lease = :lease) AS kept
 WHERE kept.last < :most AND EXISTS (SELECT 1 FROM {t}job WHERE id = :job_id)
   AND NOT EXISTS (SELECT 1 FROM {t}observation AS same
                    WHERE same.job_id = :job_id AND same.lease = :lease AND same.type = :type
                      AND same.actor = :actor AND same.request_id = :request_id)
    ON CONFLICT DO NOTHING
RETURNING ordinal;

-- name: observation_room
SELECT 1 FROM {t}job AS j
 WHERE j.id = :job_id
   AND (SELECT count(*) FROM {t}observation AS o
         WHERE o.job_id = j.id AND o.lease = :lease) < :most
   AND NOT EXISTS (SELECT 1 FROM {t}observation AS same
                    WHERE same.job_id = :job_id AND same.lease = :lease AND same.type = :type
                      AND same.actor = :actor AND same.request_id = :request_id);

-- name: load_sessions
-- Labels are compared here, principals by the caller: few sessions share a label.
SELECT {session_columns} FROM {t}worker WHERE namespace = :namespace AND worker {among_workers};

-- name: page_of_sessions
SELECT w.namespace, w.worker, w.actor,
       w.claimed_at < (SELECT {t}clock()) - :older_than_us
       AND (w.namespace, w.worker, w.actor) NOT IN (
           SELECT j.namespace, j.owner, j.principal FROM {t}job AS j WHERE j.lease_id IS NOT NULL)
  FROM {t}worker AS w {after_session}
 ORDER BY w.namespace, w.worker, w.actor LIMIT :limit;

-- name: delete_session
-- Keeps a session that has claimed since or is claiming now, so that no claim waits for this.
WITH old AS MATERIALIZED (
    SELECT w.namespace, w.worker, w.actor FROM {t}worker AS w
     WHERE w.namespace = :namespace AND w.worker = :worker AND w.actor = :actor
       AND w.claimed_at < (SELECT {t}clock()) - :older_than_us {skip_locked})
DELETE FROM {t}worker
 WHERE (namespace, worker, actor) IN (SELECT namespace, worker, actor FROM old)
RETURNING worker;

-- name: load_queue_settings
SELECT {queue_columns} FROM {t}queue WHERE namespace = :namespace AND name {among_queues};

-- name: load_unusual_queues
SELECT {queue_columns} FROM {t}queue
 WHERE namespace = :namespace
   AND (paused = {true} OR concurrency_limit IS NOT NULL OR rate_grants IS NOT NULL);

-- name: delete_idle_slots
-- The outer condition: a claim may have used the key since.
DELETE FROM {t}slot
 WHERE (namespace, scope, name, key) IN (
       SELECT s.namespace, s.scope, s.name, s.key FROM {t}slot AS s
        WHERE s.key <> '' AND s.tat <= (SELECT {t}clock()) ORDER BY s.tat LIMIT :limit)
   AND tat <= (SELECT {t}clock())
RETURNING key;

-- name: candidates
-- The jobs of one arm (see stores/sql/candidates.py), in claim order, with their place in it and the rate
-- of their rate key ({tat}). Columns are qualified: a bare `id` in ORDER BY would name the output column
-- and force a sort. Where there are many writers, {begin_counted} and {with_count_…} add a row without an id if these
-- are fewer than wanted: how many there are, including jobs that others have locked.
{begin_counted}SELECT {job_columns_to_claim}, {claim_place} AS place, {tat} FROM {t}job AS j {index}
 WHERE j.namespace = :namespace AND j.queue = :queue AND {arm}
 ORDER BY j.priority DESC, {claim_place}, j.run_at, j.id
 LIMIT :wanted {skip_locked}{with_count_of_arm};

-- name: merged_candidates
-- The jobs of several arms, merged in claim order: keys first, and of each arm only as many as are
-- needed. A job that was claimed since its key was read is left out.
{begin_counted}SELECT {job_columns_to_claim}, f.since, NULL FROM (
    SELECT job_id, level, since, began FROM ({arms}) AS found
     ORDER BY level DESC, since, began, job_id LIMIT :most) AS f
 CROSS JOIN {t}job AS j
 WHERE j.id = f.job_id AND j.not_before <= (SELECT {t}clock()) AND j.lane = 0
 ORDER BY f.level DESC, f.since, f.began, f.job_id
 LIMIT :wanted {skip_locked_jobs}{with_count_of_arms};

-- name: lock_slots
-- The limits and rates that no other claim has locked, and the states of these rates.
SELECT s.scope, s.name, s.key, s.tat FROM {t}slot AS s
 WHERE s.namespace = :namespace AND s.key = ''
   AND ((s.scope = 'queue' AND s.name {among_queues}) OR (s.scope = 'kind' AND s.name {among_kinds}))
{skip_locked};

-- name: correct_slot
-- Lowers a rate key's state that is more than one burst ahead of now, unless a claim has changed it since.
UPDATE {t}slot SET tat = :least
 WHERE namespace = :namespace AND scope = :scope AND name = :name AND key = :key AND tat = :tat;

-- name: make_slot
-- The row of a limit or rate that claims lock while they count.
INSERT INTO {t}slot (namespace, scope, name, key, tat) VALUES (:namespace, :scope, :name, '', 0)
    ON CONFLICT DO NOTHING;

-- name: register_keyed_kind
INSERT INTO {t}keyed_kind (namespace, kind, queue, is_rate)
VALUES (:namespace, :kind, :queue, :is_rate) ON CONFLICT DO NOTHING;

-- name: rate_waits
-- The kinds among these that have had jobs with rate keys, and when the first key of each has room. Not
-- min(at): both databases may read all of them for it.
SELECT r.kind, (SELECT d.at FROM {t}dirty_key AS d {by_rate_waits}
                 WHERE d.namespace = :namespace AND d.kind = r.kind AND d.noted_at > 0
                   AND d.is_rate = {true} ORDER BY d.at LIMIT 1)
  FROM (SELECT DISTINCT k.kind FROM {t}keyed_kind AS k
         WHERE k.namespace = :namespace AND k.kind {among_kinds} AND k.is_rate = {true}) AS r;

-- name: columns_of_key
-- A fragment, like the next seven: the columns that admission needs of a job. The conditions are written like the
-- ones of the indexes.
j.id, j.queue, j.priority, j.run_at, j.not_before, j.start_by, j.admitted_at, j.rate_key;

-- name: waits_for_key
j.concurrency_key IS NOT NULL AND j.not_before IS NOT NULL;

-- name: places_of_key
j.concurrency_key = {this_key} AND j.concurrency_key IS NOT NULL
AND (j.lease_id IS NOT NULL OR j.admitted_at IS NOT NULL) AND j.admitted_at IS NOT NULL;

-- name: uses_of_key
(SELECT count(*) FROM {t}job AS j {by_place_of_key}
  WHERE j.namespace = :namespace AND j.kind = {this_kind} AND j.concurrency_key = {this_key}
    AND j.concurrency_key IS NOT NULL AND (j.lease_id IS NOT NULL OR j.admitted_at IS NOT NULL)
    AND j.lease_id IS NOT NULL);

-- name: columns_of_rate_key
-- A job that waits for its rate key may have been admitted under its concurrency key.
j.id, j.queue, j.priority, j.run_at, j.not_before, j.start_by,
CASE WHEN j.lane < 2 THEN j.admitted_at END AS admitted_at, j.rate_key;

-- name: waits_for_rate_key
j.rate_key IS NOT NULL AND j.not_before IS NOT NULL AND j.lane <> 2;

-- name: places_of_rate_key
j.rate_key = {this_key} AND j.rate_key IS NOT NULL AND j.admitted_at IS NOT NULL AND j.lane < 2;

-- name: uses_of_rate_key
(SELECT s.tat FROM {t}slot AS s
  WHERE s.namespace = :namespace AND s.scope = 'kind' AND s.name = {this_kind} AND s.key = {this_key});

-- name: move_jobs
-- Into another lane, if they are still in one of these ({lanes}) and no other transaction has locked them.
UPDATE {t}job AS j SET lane = :lane, admitted_at = {admitted_at}
 WHERE j.id IN (SELECT j.id FROM {t}job AS j
                 WHERE j.id {among_ids} AND j.not_before IS NOT NULL AND {lanes} {skip_locked})
RETURNING id;

-- name: raise_watermark
-- The watermark of a kind: the latest time at which delayed jobs were found due or admitted. It is stored under
-- the empty key and is never due: it is read only when noted_at is in the future, after the clock was set back.
INSERT INTO {t}dirty_key AS d (namespace, kind, is_rate, key, at, noted_at)
VALUES (:namespace, :kind, {false}, '', :never, :until)
    ON CONFLICT (namespace, kind, at, is_rate, key) WHERE noted_at > 0
    DO UPDATE SET noted_at = excluded.noted_at WHERE d.noted_at < excluded.noted_at;

-- name: mark_keys_again
-- After the clock was set back (core/concurrency.py), marks dirty: the keys of delayed jobs that become due
-- between now and the watermark, at their run_at; the keys of jobs that expire in that time, now and at their
-- start_by; the keys of delayed jobs whose admitted_at is in the future, now.
INSERT INTO {t}dirty_key (namespace, kind, is_rate, key, at, noted_at)
SELECT j.namespace, j.kind, {is_rate}, {key}, j.run_at, 0 FROM {t}job AS j {by_waiting}
 WHERE j.namespace = :namespace AND j.kind = :kind AND {waits} AND j.not_before > 0
   AND j.run_at > CAST(:since AS bigint) AND j.run_at <= CAST(:until AS bigint)
 UNION
SELECT j.namespace, j.kind, {is_rate}, {key}, CASE WHEN m.at_once = 1 THEN 0 ELSE j.start_by END, 0
  FROM (SELECT 0 AS at_once UNION ALL SELECT 1) AS m CROSS JOIN {t}job AS j {by_waiting}
 WHERE j.namespace = :namespace AND j.kind = :kind AND {waits}
   AND j.start_by > CAST(:since AS bigint) AND j.start_by <= CAST(:until AS bigint)
 UNION
SELECT j.namespace, j.kind, {is_rate}, {key}, 0, 0 FROM {t}job AS j {by_waiting}
 WHERE j.namespace = :namespace AND j.kind = :kind AND {waits} AND j.not_before > 0
   AND j.admitted_at > CAST(:since AS bigint);

-- name: mark_keys_of_kind
-- Every key of the kind that has a job that waits: from key to key through the index.
WITH RECURSIVE known (key) AS (
    SELECT (SELECT min({key}) FROM {t}job AS j {by_waiting}
             WHERE j.namespace = :namespace AND j.kind = :kind AND {waits})
     UNION ALL
    SELECT (SELECT min({key}) FROM {t}job AS j {by_waiting}
             WHERE j.namespace = :namespace AND j.kind = :kind AND {waits} AND {key} > k.key)
      FROM known AS k WHERE k.key IS NOT NULL)
INSERT INTO {t}dirty_key (namespace, kind, is_rate, key, at, noted_at)
SELECT CAST(:namespace AS text), CAST(:kind AS text), {is_rate}, k.key, 0, 0
  FROM known AS k WHERE k.key IS NOT NULL;

-- name: count_live
SELECT count(*) FROM {t}job {by_leases}
 WHERE namespace = :namespace AND queue = :queue AND lease_id IS NOT NULL;

-- name: waiting_kinds
-- From kind to kind through the two indexes of jobs that wait, however many jobs each has.
WITH RECURSIVE ready (kind) AS (
    SELECT (SELECT min(j.kind) FROM {t}job AS j {by_ready}
             WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before = 0)
     UNION ALL
    SELECT (SELECT min(j.kind) FROM {t}job AS j {by_ready}
             WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before = 0
               AND j.kind > r.kind)
      FROM ready AS r WHERE r.kind IS NOT NULL),
delayed (kind) AS (
    SELECT (SELECT min(j.kind) FROM {t}job AS j {by_delayed}
             WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before > 0)
     UNION ALL
    SELECT (SELECT min(j.kind) FROM {t}job AS j {by_delayed}
             WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before > 0
               AND j.kind > d.kind)
      FROM delayed AS d WHERE d.kind IS NOT NULL)
SELECT r.kind FROM ready AS r WHERE r.kind IS NOT NULL
 UNION
SELECT d.kind FROM delayed AS d WHERE d.kind IS NOT NULL;

-- name: due
-- Leases that are over, and jobs that should have been started by now: an index each.
SELECT {columns} FROM (
    SELECT due_id, since FROM (
        SELECT l.id AS due_id, l.due_at AS since FROM {t}job AS l {by_due}
         WHERE l.due_at <= (SELECT {t}clock())
         ORDER BY l.due_at, l.id LIMIT :limit) AS leased
     UNION ALL
    SELECT due_id, since FROM (
        SELECT w.id AS due_id, w.start_by AS since FROM {t}job AS w
         WHERE w.start_by IS NOT NULL AND w.not_before IS NOT NULL
           AND w.start_by <= (SELECT {t}clock())
         ORDER BY w.start_by LIMIT :limit) AS waited) AS found
 CROSS JOIN {t}job AS j
 WHERE j.id = found.due_id
 ORDER BY found.since, found.due_id
 LIMIT :limit;

-- name: register_queue
INSERT INTO {t}queue (namespace, name) VALUES (:namespace, :name) ON CONFLICT DO NOTHING;

-- name: park_keys_of_kind
UPDATE {t}job AS j SET lane = 2, admitted_at = NULL
 WHERE j.namespace = :namespace AND j.kind = :kind AND j.concurrency_key IS NOT NULL
   AND (j.lease_id IS NOT NULL OR j.admitted_at IS NOT NULL) AND j.admitted_at IS NOT NULL;

-- name: park_rate_keys_of_kind
UPDATE {t}job AS j SET lane = 3, admitted_at = NULL
 WHERE j.namespace = :namespace AND j.kind = :kind AND j.rate_key IS NOT NULL
   AND j.admitted_at IS NOT NULL AND j.lane < 2;

-- name: set_queue_paused
UPDATE {t}queue SET paused = :paused WHERE namespace = :namespace AND name = :name;

-- name: set_queue_limit
UPDATE {t}queue SET concurrency_limit = :concurrency_limit
 WHERE namespace = :namespace AND name = :name;

-- name: set_queue_rate
UPDATE {t}queue SET rate_grants = :rate_grants, rate_per = :rate_per, rate_burst = :rate_burst,
       rate_since = :rate_since
 WHERE namespace = :namespace AND name = :name;

-- name: load_queues
SELECT {queue_columns} FROM {t}queue WHERE namespace = :namespace AND name > :after
 ORDER BY name LIMIT :limit;

-- name: load_kinds
SELECT {kind_columns} FROM {t}kind_setting WHERE namespace = :namespace ORDER BY kind;

-- name: load_kind
SELECT {kind_columns} FROM {t}kind_setting WHERE namespace = :namespace AND kind = :kind;

-- name: delete_kind
DELETE FROM {t}kind_setting WHERE namespace = :namespace AND kind = :kind;

-- name: insert_kind
INSERT INTO {t}kind_setting (namespace, {kind_columns})
VALUES (:namespace, :kind, :rate_grants, :rate_per, :rate_burst, :rate_since, :concurrency_limit,
        :concurrency_since, :limits_set, :policy);

-- name: load_kinds_among
SELECT {kind_columns} FROM {t}kind_setting
 WHERE namespace = :namespace AND kind {among_names} ORDER BY kind;

-- name: queue_rates_in_force
SELECT namespace, {queue_columns} FROM {t}queue WHERE rate_grants IS NOT NULL;

-- name: kind_rates_in_force
SELECT namespace, {kind_columns} FROM {t}kind_setting WHERE rate_grants IS NOT NULL;

-- name: grants
-- In the order of commits: claims count under one rate one after the other, so that an event of a lower
-- position was granted before.
SELECT e.position, e.job_id, e.seq, e.ts, j.namespace, j.queue, j.kind, j.rate_key,
       (SELECT b.ts FROM {t}job_event AS b WHERE b.job_id = e.job_id AND b.seq = e.seq - 1)
  FROM {t}job_event AS e JOIN {t}job AS j ON j.id = e.job_id
 WHERE e.type = {claimed} AND e.ts > :since
   AND (e.position, e.job_id, e.seq) > (:position, CAST(:job_id AS {uuid}), :seq)
 ORDER BY e.position, e.job_id, e.seq LIMIT :limit;

-- name: raise_settings_rev
UPDATE {t}meta SET settings_rev = settings_rev + 1;

-- name: load_slots
SELECT scope, name, key, tat FROM {t}slot
 WHERE namespace = :namespace AND scope = :scope AND name {among_names} AND key = :key;

-- name: count_live_by_queue
-- For the queues of a page.
SELECT queue, count(*) FROM {t}job {by_leases}
 WHERE namespace = :namespace AND lease_id IS NOT NULL
   AND queue IN (SELECT q.name FROM {t}queue AS q
                  WHERE q.namespace = :namespace AND q.name > :after ORDER BY q.name LIMIT :limit)
 GROUP BY queue;

-- name: lock_tick
SELECT tick FROM {t}meta {lock};

-- name: last_tick
SELECT tick, {t}clock() FROM {t}meta;

-- name: work_for_sweepers
-- Whether a pass has something to do besides schedules: one index probe each.
SELECT EXISTS (SELECT 1 FROM {t}job AS l {by_due} WHERE l.due_at <= (SELECT {t}clock()))
    OR EXISTS (SELECT 1 FROM {t}job AS w
                WHERE w.start_by IS NOT NULL AND w.not_before IS NOT NULL
                  AND w.start_by <= (SELECT {t}clock()))
    OR EXISTS (SELECT 1 FROM {t}edge_check)
    OR EXISTS (SELECT 1 FROM {t}job_edge AS e JOIN {t}job AS j ON j.id = e.parent_id
                WHERE e.outcome IS NULL AND {is_outside} AND j.finished_at IS NOT NULL);

-- name: set_tick
UPDATE {t}meta SET tick = :tick;

-- name: record_outage
INSERT INTO {t}outage (began_at, ended_at, is_jump) VALUES (:began_at, :ended_at, :is_jump)
    ON CONFLICT DO NOTHING;

-- name: load_outages
SELECT began_at, ended_at, is_jump FROM {t}outage WHERE ended_at > :since
 ORDER BY began_at, ended_at, is_jump;

-- name: delete_old_outages
-- An outage that ended before a lease was granted cannot excuse its expiry.
WITH old AS MATERIALIZED (
    SELECT o.began_at, o.ended_at, o.is_jump FROM {t}outage AS o
     WHERE o.ended_at < (SELECT {t}clock()) - :older_than_us
       AND o.ended_at <= (SELECT coalesce(min(j.claimed_at), {t}clock()) FROM {t}job AS j
                           WHERE j.lease_id IS NOT NULL)
     ORDER BY o.began_at, o.ended_at LIMIT :limit {skip_locked})
DELETE FROM {t}outage
 WHERE (began_at, ended_at, is_jump) IN (SELECT began_at, ended_at, is_jump FROM old)
RETURNING began_at;

-- name: raise_epoch
UPDATE {t}meta SET epoch = epoch + 1 RETURNING epoch;

-- name: page_of_renewals
-- Walks the renewals in index order. From a live or young one it jumps to the next job: the job's later
-- renewals are live or young too, and a job that runs for days has thousands. Step by step through the index: a
-- planner with old statistics would sort them all for a page.
WITH RECURSIVE paged (job_id, seq, nth) AS (
    SELECT (SELECT e.job_id FROM {t}job_event AS e WHERE e.type IN ({renewals}) {after_renewal}
             ORDER BY e.job_id, e.seq LIMIT 1),
           (SELECT e.seq FROM {t}job_event AS e WHERE e.type IN ({renewals}) {after_renewal}
             ORDER BY e.job_id, e.seq LIMIT 1), 1
     UNION ALL
    SELECT (SELECT n.job_id FROM {t}job_event AS n
             WHERE n.type IN ({renewals}) AND (n.job_id, n.seq) >
                   (e.job_id, CASE WHEN e.lease_id = j.lease_id
                                     OR e.ts > (SELECT {t}clock()) - :older_than_us
                                   THEN 2147483647 ELSE e.seq END)
             ORDER BY n.job_id, n.seq LIMIT 1),
           (SELECT n.seq FROM {t}job_event AS n
             WHERE n.type IN ({renewals}) AND (n.job_id, n.seq) >
                   (e.job_id, CASE WHEN e.lease_id = j.lease_id
                                     OR e.ts > (SELECT {t}clock()) - :older_than_us
                                   THEN 2147483647 ELSE e.seq END)
             ORDER BY n.job_id, n.seq LIMIT 1), l.nth + 1
      FROM paged AS l
      JOIN {t}job_event AS e ON e.job_id = l.job_id AND e.seq = l.seq
      LEFT JOIN {t}job AS j ON j.id = e.job_id
     WHERE l.nth < :limit)
SELECT e.job_id, e.seq, j.id IS NOT NULL AND (j.lease_id IS NULL OR e.lease_id <> j.lease_id)
       AND e.ts <= (SELECT {t}clock()) - :older_than_us
  FROM paged AS l
  JOIN {t}job_event AS e ON e.job_id = l.job_id AND e.seq = l.seq
  LEFT JOIN {t}job AS j ON j.id = e.job_id
 ORDER BY l.nth;

-- name: prune_renewals
DELETE FROM {t}job_event 
 WHERE type IN ({renewals}) AND job_id = :job_id AND seq <= :seq
RETURNING seq;

-- name: delete_old_observations
WITH old AS MATERIALIZED (
    SELECT o.job_id, o.lease, o.ordinal FROM {t}observation AS o
     WHERE o.body IS NOT NULL AND o.ts < (SELECT {t}clock()) - :older_than_us
     ORDER BY o.ts LIMIT :limit {skip_locked})
UPDATE {t}observation SET body = NULL
 WHERE (job_id, lease, ordinal) IN (SELECT job_id, lease, ordinal FROM old) RETURNING ordinal;

-- name: purgeable
-- Keeps a job while one exists that its end enqueued, whose id is derived from the job's. [M4] [HK11]
-- Keeps it while its flow, or a flow that waits for it, is kept: see kept_by_flows. [FL6]
-- Keeps it while its key stays taken. [D15]
SELECT j.id, j.flow_id FROM {t}job AS j
 WHERE {is_due}
   AND (j.unique_for_us IS NULL OR j.finished_at + j.unique_for_us <= (SELECT {t}clock()))
   AND NOT {is_kept_by_flow}
   AND NOT EXISTS (SELECT 1 FROM {t}job AS c
                    WHERE c.origin_id = j.id AND c.origin_cause IN ({made_by_an_end}))
 ORDER BY {due_first} LIMIT :limit {skip_locked};

-- name: is_kept_by_flow
-- A part of purgeable and of kept_by_flows: whether a job of the flow, or of a flow that waits for it, is
-- live or not due yet. Three probes instead of one condition with OR: each is one entry of an index.
(EXISTS (
    SELECT 1 FROM (
        SELECT j.flow_id AS id
         UNION ALL
        SELECT c.flow_id FROM {t}job_edge AS e JOIN {t}job AS c ON c.id = e.child_id
         WHERE e.parent_id = j.id AND {is_outside}) AS f
     WHERE COALESCE(
        (SELECT m.id FROM {t}job AS m
          WHERE m.flow_id = f.id AND m.flow_id IS NOT NULL
            AND m.delete_at IS NULL AND m.finished_at IS NULL LIMIT 1),
        (SELECT m.id FROM {t}job AS m
          WHERE m.flow_id = f.id AND m.flow_id IS NOT NULL
            AND m.delete_at IS NULL AND m.finished_at >= (SELECT {t}clock()) - :older_than_us LIMIT 1),
        (SELECT m.id FROM {t}job AS m
          WHERE m.flow_id = f.id AND m.flow_id IS NOT NULL
            AND m.delete_at >= (SELECT {t}clock()) LIMIT 1)) IS NOT NULL));

-- name: kept_by_flows
-- From these jobs, the ones that a flow still needs. Asked again once the rows are locked: the statement that
-- found them may not see a flow that was committed after it started. From here on no new flow can need them.
SELECT j.id FROM {t}job AS j WHERE j.id {among_ids} AND {is_kept_by_flow};

-- name: delete_jobs
DELETE FROM {t}job WHERE id {among_ids};

-- name: delete_events
DELETE FROM {t}job_event WHERE job_id {among_ids};

-- name: delete_edges
DELETE FROM {t}job_edge WHERE child_id {among_ids};

-- name: delete_checks_of_jobs
DELETE FROM {t}edge_check WHERE job_id {among_ids};

-- name: delete_flows
-- Deletes these flows, except flows that still have a job.
DELETE FROM {t}flow WHERE id {among_ids}
   AND NOT EXISTS (SELECT 1 FROM {t}job AS j
                    WHERE j.flow_id = {t}flow.id AND j.flow_id IS NOT NULL);

-- name: insert_flow
INSERT INTO {t}flow (id, namespace, name, made_at, jobs)
VALUES (:id, :namespace, :name, :made_at, :jobs);

-- name: insert_flow_redrive
INSERT INTO {t}flow_redrive (flow_id, number, ts, actor, request_id, jobs)
VALUES (:flow_id, :number, :ts, :actor, :request_id, :jobs);

-- name: load_flow_redrives
SELECT flow_id, number, ts, actor, request_id, jobs FROM {t}flow_redrive
 WHERE flow_id = :flow_id ORDER BY number;

-- name: delete_flow_redrives
-- Deletes the redrives of these flows, except flows that still have a job.
DELETE FROM {t}flow_redrive WHERE flow_id {among_ids}
   AND NOT EXISTS (SELECT 1 FROM {t}job AS j
                    WHERE j.flow_id = {t}flow_redrive.flow_id AND j.flow_id IS NOT NULL);

-- name: present_parents
-- With one writer no row needs a lock.
SELECT id FROM {t}job WHERE id {among_ids};

-- name: mark_edges
-- Copies the status of parents that have ended. Safe whether or not they ended in this transaction.
UPDATE {t}job_edge AS e SET outcome = j.status FROM {t}job AS j
 WHERE j.id = e.parent_id AND e.parent_id {among_ids}
   AND j.finished_at IS NOT NULL AND e.outcome IS NULL;

-- name: mark_edges_of
-- The same for the edges of new children only. If it wrote outcomes on edges of other flows, the children of
-- those flows would have to be checked, too, and no process would know that.
UPDATE {t}job_edge AS e SET outcome = j.status FROM {t}job AS j
 WHERE j.id = e.parent_id AND e.child_id {among_ids}
   AND j.finished_at IS NOT NULL AND e.outcome IS NULL;

-- name: note_ended_parents
INSERT INTO {t}edge_check (job_id, noted_at)
SELECT DISTINCT e.parent_id, (SELECT {t}clock()) FROM {t}job_edge AS e
 WHERE e.parent_id {among_ids} AND e.outcome IS NOT NULL
    ON CONFLICT DO NOTHING;

-- name: note_children
INSERT INTO {t}edge_check (job_id, noted_at)
SELECT DISTINCT e.child_id, (SELECT {t}clock()) FROM {t}job_edge AS e
 WHERE e.child_id {among_ids}
    ON CONFLICT DO NOTHING;

-- name: unblocked_by_all
-- Jobs all of whose parents have ended, and the ends that were not the needed ones. One index probe for each
-- child first checks for an unmet edge: so a join costs the same at the end of each parent, even if a child has
-- many parents.
WITH near AS MATERIALIZED (
    SELECT e.child_id FROM {t}job_edge AS e WHERE e.parent_id {among_ids}
     UNION
    SELECT w.id FROM {t}job AS w WHERE w.id {among_ids} AND w.status = {waiting_status}),
complete AS MATERIALIZED (
    SELECT n.child_id FROM near AS n
     WHERE (SELECT u.child_id FROM {t}job_edge AS u
             WHERE u.child_id = n.child_id AND u.outcome IS NULL LIMIT 1) IS NULL
       AND (SELECT c.status FROM {t}job AS c WHERE c.id = n.child_id) = {waiting_status})
SELECT d.child_id, f.parent_id, f.outcome
  FROM complete AS d
  LEFT JOIN {t}job_edge AS f ON f.child_id = d.child_id AND f.outcome <> f.needs
 ORDER BY d.child_id, f.position LIMIT :limit;

-- name: unblocked_by_one
-- Jobs with a parent that ended in another way than needed, whatever the others do. The status of each
-- child is asked by a probe: PostgreSQL, before it had analysed the tables, started a join with every job of
-- the store that waits, which took five seconds for a flow of 10,000 jobs.
SELECT e.child_id, e.parent_id, e.outcome FROM {t}job_edge AS e
 WHERE e.parent_id {among_ids} AND e.outcome <> e.needs
   AND (SELECT c.status FROM {t}job AS c WHERE c.id = e.child_id) = {waiting_status}
 UNION
SELECT e.child_id, e.parent_id, e.outcome FROM {t}job AS c
  JOIN {t}job_edge AS e ON e.child_id = c.id
 WHERE c.id {among_ids} AND c.status = {waiting_status} AND e.outcome <> e.needs
 ORDER BY 1, 2 LIMIT :limit;

-- name: ended_outside
-- Parents outside their children's flow that have ended since the edge was written.
SELECT DISTINCT e.parent_id FROM {t}job_edge AS e JOIN {t}job AS j ON j.id = e.parent_id
 WHERE e.outcome IS NULL AND {is_outside} AND j.finished_at IS NOT NULL LIMIT :limit;

-- name: load_edge_checks
SELECT job_id, noted_at FROM {t}edge_check ORDER BY job_id, noted_at LIMIT :limit;

-- name: noted_among
SELECT job_id, noted_at FROM {t}edge_check WHERE job_id {among_ids}
 ORDER BY job_id, noted_at LIMIT :limit;

-- name: delete_edge_check
DELETE FROM {t}edge_check WHERE job_id = :job_id AND noted_at = :noted_at;

-- name: page_of_edges
SELECT {edge_columns} FROM {t}job_edge {after_edge} ORDER BY child_id, position LIMIT :limit;

-- name: list_flows
SELECT f.id, f.namespace, f.name, f.made_at, f.jobs,
       (SELECT m.id FROM {t}job AS m
         WHERE m.flow_id = f.id AND m.flow_id IS NOT NULL
           AND m.delete_at IS NULL AND m.finished_at IS NULL
         LIMIT 1) IS NOT NULL,
       f.jobs + (SELECT COALESCE(sum(r.jobs), 0) FROM {t}flow_redrive AS r WHERE r.flow_id = f.id)
  FROM {t}flow AS f {index} WHERE f.namespace = :namespace {clauses}
 ORDER BY f.made_at DESC, f.id DESC LIMIT :limit;

-- name: count_flow_jobs
SELECT j.flow_id, j.status, count(*) FROM {t}job AS j
 WHERE j.flow_id {among_ids} AND j.flow_id IS NOT NULL GROUP BY j.flow_id, j.status;

-- name: count_replaced_jobs
-- The jobs of these flows that other jobs replace. Each is found by its key, so that a large flow costs no more
-- for each of its jobs than a small one.
SELECT j.flow_id, o.status, count(*) FROM {t}job AS j JOIN {t}job AS o ON o.id = j.origin_id
 WHERE j.flow_id {among_ids} AND j.flow_id IS NOT NULL AND j.origin_cause = :redrive
 GROUP BY j.flow_id, o.status;

-- name: load_flow
SELECT f.id, f.namespace, f.name, f.made_at, f.jobs FROM {t}flow AS f
 WHERE f.id = :flow_id AND f.namespace = :namespace;

-- name: existing_flows
SELECT id FROM {t}flow WHERE id {among_ids};

-- name: load_flow_jobs
SELECT j.id, j.flow_step, j.kind, j.queue, j.status, j.origin_id, j.origin_cause FROM {t}job AS j
 WHERE j.flow_id = :flow_id AND j.flow_id IS NOT NULL ORDER BY j.id;

-- name: load_flow_edges
SELECT e.child_id, e.step FROM {t}job AS j JOIN {t}job_edge AS e ON e.child_id = j.id
 WHERE j.flow_id = :flow_id AND j.flow_id IS NOT NULL ORDER BY e.child_id, e.position;

-- name: load_parents
SELECT e.position, e.step, e.outcome, j.result
  FROM {t}job_edge AS e LEFT JOIN {t}job AS j ON j.id = e.parent_id
 WHERE e.child_id = :child_id AND e.position > :after
 ORDER BY e.position LIMIT :limit;

-- name: load_edges
SELECT {edge_columns} FROM {t}job_edge WHERE child_id {among_ids} ORDER BY child_id, position;

-- name: delete_observations
DELETE FROM {t}observation WHERE job_id {among_ids};

-- name: list_some_jobs
-- A part of a list: the newest jobs of an index.
SELECT * FROM (
    SELECT id AS job_id, enqueued_at AS at FROM {t}job {index}
     WHERE namespace = :namespace {clauses}
     ORDER BY enqueued_at DESC, id DESC LIMIT :reads) AS arm;

-- name: list_all_jobs
-- A part of a list: the newest of all jobs.
SELECT * FROM (
    SELECT id AS job_id, enqueued_at AS at FROM {t}job {by_enqueue}
     WHERE namespace = :namespace {clauses}
     ORDER BY enqueued_at DESC, id DESC LIMIT :reads) AS arm;

-- name: list_jobs
-- Ids first, merged from {arms}. A namespace without queues has no jobs, so the table of jobs is not
-- read for it.
SELECT {columns} FROM {t}job
 WHERE id IN (SELECT job_id FROM ({arms}) AS found
               WHERE EXISTS (SELECT 1 FROM {t}queue AS known WHERE known.namespace = :namespace)
               ORDER BY at DESC, job_id DESC LIMIT :limit)
 ORDER BY enqueued_at DESC, id DESC;

-- name: search_jobs
-- Among the newest jobs of {arms}; see list_jobs.
SELECT {columns} FROM {t}job
 WHERE id IN (SELECT job_id FROM ({arms}) AS found
               WHERE EXISTS (SELECT 1 FROM {t}queue AS known WHERE known.namespace = :namespace)
               ORDER BY at DESC, job_id DESC LIMIT :reads) {searched}
 ORDER BY enqueued_at DESC, id DESC LIMIT :limit;

-- name: last_job_read
SELECT job_id FROM ({arms}) AS found ORDER BY at DESC, job_id DESC LIMIT 1 OFFSET :skipped;

-- name: listed_kinds
-- From kind to kind through the index of {phase}: jobs that wait, are leased, or have ended.
WITH RECURSIVE known (kind, nth) AS (
    SELECT (SELECT min(j.kind || '') FROM {t}job AS j WHERE j.namespace = :namespace {phase}), 1
     UNION ALL
    SELECT (SELECT min(j.kind || '') FROM {t}job AS j
             WHERE j.namespace = :namespace {phase} AND j.kind || '' > k.kind), k.nth + 1
      FROM known AS k WHERE k.kind IS NOT NULL AND k.nth < :kinds)
SELECT k.kind FROM known AS k WHERE k.kind IS NOT NULL;

-- name: event_types
-- From type to type through the index of (type, ts), however many events each has.
WITH RECURSIVE known (type, nth) AS (
    SELECT (SELECT min(e.type) FROM {t}job_event AS e), 1
     UNION ALL
    SELECT (SELECT min(e.type) FROM {t}job_event AS e WHERE e.type > k.type), k.nth + 1
      FROM known AS k WHERE k.type IS NOT NULL AND k.nth < :types)
SELECT k.type FROM known AS k WHERE k.type IS NOT NULL ORDER BY k.type;

-- name: list_events
-- Keys first, so that what is sorted is small.
SELECT {event_columns} FROM {t}job_event
 WHERE (job_id, seq) IN (
    SELECT e.job_id, e.seq FROM (
        SELECT ts, job_id, seq FROM ({arms}) AS found ORDER BY {order} LIMIT :reads) AS e
     WHERE EXISTS (SELECT 1 FROM {t}job AS j
                    WHERE j.id = e.job_id AND j.namespace = :namespace {of_queues} {of_kinds})
     ORDER BY {order} LIMIT :limit)
 ORDER BY {order};

-- name: last_event_read
SELECT ts, job_id, seq FROM ({arms}) AS found ORDER BY {order} LIMIT 1 OFFSET :skipped;

-- name: first_uncounted_event
SELECT ts FROM ({arms}) AS found ORDER BY ts LIMIT 1 OFFSET :limit;

-- name: count_events
-- One row for each job and type before the join: a job has several events of a span.
SELECT j.queue, j.kind, e.type, CAST(sum(e.events) AS bigint)
  FROM (SELECT job_id, type, count(*) AS events FROM {t}job_event
         WHERE type {among_types} AND ts >= :since AND ts < :until GROUP BY job_id, type) AS e
  JOIN {t}job AS j ON j.id = e.job_id
 WHERE j.namespace = :namespace
 GROUP BY j.queue, j.kind, e.type
 ORDER BY j.queue, j.kind, e.type;

-- name: tail_events
-- {committed}: reads only up to where no earlier event can still be committed.
SELECT position, {event_columns} FROM {t}job_event
 WHERE position >= :position AND {committed}
   AND (position, job_id, seq) > (:position, CAST(:job_id AS {uuid}), :seq)
 ORDER BY position, job_id, seq LIMIT :limit;

-- name: follow_events
SELECT position, {event_columns} FROM (
    SELECT e.* FROM (
        SELECT * FROM {t}job_event
         WHERE {place} AND {committed} ORDER BY {order} LIMIT :reads) AS e
     WHERE EXISTS (SELECT 1 FROM {t}job AS j
                    WHERE j.id = e.job_id AND j.namespace = :namespace {of_queues} {of_kinds})
       AND {wanted}
     ORDER BY {order} LIMIT :limit) AS shown
 ORDER BY position, job_id, seq;

-- name: last_followed
-- The last event that was read for a page, listed or not, and how many were read.
SELECT position, job_id, seq, count(*) OVER () FROM (
    SELECT position, job_id, seq FROM {t}job_event
     WHERE {place} AND {committed} ORDER BY {order} LIMIT :reads) AS e
 ORDER BY position DESC, job_id DESC, seq DESC LIMIT 1;

-- name: tail_delay
-- Where one transaction writes at a time, nothing delays the tail.
SELECT NULL, NULL, NULL, NULL, NULL WHERE FALSE;

-- name: record_ids
-- Ids of rows and of logs: verify also reports events without a row.
SELECT id FROM (SELECT id FROM {t}job {after_id} ORDER BY id LIMIT :limit) AS with_row
 UNION
SELECT job_id FROM (SELECT DISTINCT job_id FROM {t}job_event {after_job_id}
                     ORDER BY job_id LIMIT :limit) AS with_log
 ORDER BY 1 LIMIT :limit;

-- name: live_keys
SELECT namespace, kind, dedupe_key, id FROM {t}job
 WHERE dedupe_key IS NOT NULL AND finished_at IS NULL {after}
 ORDER BY namespace, kind, dedupe_key, id LIMIT :limit;

-- name: lease_holders
SELECT lease_id, id FROM {t}job WHERE lease_id IS NOT NULL {after}
 ORDER BY lease_id, id LIMIT :limit;

-- name: hold_job
-- With one writer no row needs a lock.
SELECT 1 FROM {t}job WHERE id = :job_id;

-- name: keep_resolution
INSERT INTO {t}dead_letter_resolution ({resolution_columns})
SELECT CAST(:job_id AS {uuid}), :kind, :ts, :actor, :request_id, :fingerprint, :note,
       CAST(:new_job_id AS {uuid})
 WHERE EXISTS (SELECT 1 FROM {t}job WHERE id = :job_id)
    ON CONFLICT DO NOTHING
RETURNING job_id;

-- name: unresolved_among
SELECT j.id FROM {t}job AS j
 WHERE j.id {among_ids}
   AND NOT EXISTS (SELECT 1 FROM {t}dead_letter_resolution AS r WHERE r.job_id = j.id);

-- name: letters_to_group
-- The beginning of an error has its type and its first line.
SELECT d.id, d.queue, d.kind, d.reason_code, d.stage, d.finished_at, substr(d.error, 1, CAST(:head AS integer)),
       d.flow_id
  FROM (SELECT j.id, j.queue, j.kind, j.reason_code, j.stage, j.finished_at, j.error, j.flow_id,
               j.enqueued_at
          FROM {t}job AS j
         WHERE j.namespace = :namespace AND j.reason_code IS NOT NULL
         ORDER BY j.enqueued_at DESC, j.id DESC LIMIT :letters) AS d
 WHERE NOT EXISTS (SELECT 1 FROM {t}dead_letter_resolution AS r WHERE r.job_id = d.id)
 ORDER BY d.enqueued_at DESC, d.id DESC;

-- name: first_ungrouped_letter
SELECT j.id FROM {t}job AS j
 WHERE j.namespace = :namespace AND j.reason_code IS NOT NULL
 ORDER BY j.enqueued_at DESC, j.id DESC LIMIT 1 OFFSET :letters;

-- name: load_resolutions
SELECT {resolution_columns} FROM {t}dead_letter_resolution WHERE job_id {among_ids};

-- name: delete_resolutions
DELETE FROM {t}dead_letter_resolution WHERE job_id {among_ids};

-- name: lock_job
SELECT {job_columns} FROM {t}job WHERE id = :job_id {lock};

-- name: artifact_usage
-- Returns a row of zeros for a job that does not exist.
SELECT count(*) FILTER (WHERE a.attempt = j.attempt AND a.name <> :name),
       CAST(coalesce(sum(a.size) FILTER (WHERE a.attempt = j.attempt AND a.name <> :name), 0)
            AS bigint),
       CAST(coalesce(sum(a.size) FILTER (WHERE a.attempt = j.attempt AND a.name = :name), 0)
            AS bigint),
       CAST(coalesce(sum(a.size) FILTER (WHERE a.attempt < j.attempt), 0) AS bigint),
       (SELECT CAST(coalesce(sum(b.bytes), 0) AS bigint) FROM {t}artifact_bytes AS b
         WHERE b.namespace = (SELECT n.namespace FROM {t}job AS n WHERE n.id = :job_id))
  FROM {t}job AS j JOIN {t}artifact AS a ON a.job_id = j.id
 WHERE j.id = :job_id;

-- name: count_artifact_bytes
INSERT INTO {t}artifact_bytes (namespace, shard, bytes) VALUES (:namespace, :shard, :bytes)
    ON CONFLICT (namespace, shard) DO UPDATE
   SET bytes = {t}artifact_bytes.bytes + excluded.bytes;

-- name: put_artifact
INSERT INTO {t}artifact ({artifact_columns}, namespace, body)
VALUES (:job_id, :attempt, :name, :media_type, :size, :sha256, :ts, :namespace, :body)
    ON CONFLICT (job_id, attempt, name) DO UPDATE
   SET media_type = excluded.media_type, size = excluded.size, sha256 = excluded.sha256,
       ts = excluded.ts, body = excluded.body;

-- name: list_artifacts
SELECT {artifact_columns} FROM {t}artifact AS a
 WHERE a.job_id = :job_id AND a.attempt = :attempt
 ORDER BY a.name;

-- name: load_artifact
SELECT {artifact_columns}, body FROM {t}artifact AS a
 WHERE a.job_id = :job_id AND a.attempt = :attempt AND a.name = :name;

-- name: page_of_artifacts
SELECT a.job_id, a.attempt, a.name, j.attempt, j.lease_id, j.status
  FROM {t}artifact AS a LEFT JOIN {t}job AS j ON j.id = a.job_id {after_artifact}
 ORDER BY a.job_id, a.attempt, a.name LIMIT :limit;

-- name: delete_artifact
DELETE FROM {t}artifact WHERE job_id = :job_id AND attempt = :attempt AND name = :name
RETURNING namespace, job_id, size;

-- name: delete_earlier_artifacts
DELETE FROM {t}artifact WHERE job_id = :job_id AND attempt < :attempt
RETURNING namespace, job_id, size;

-- name: delete_artifacts
DELETE FROM {t}artifact WHERE job_id {among_ids} RETURNING namespace, job_id, size;

-- name: attempt_of_lease
-- The claim is in the log: transitions are kept for as long as their job.
SELECT attempt FROM {t}job_event
 WHERE job_id = :job_id AND type = {claimed} AND lease_id = :lease_id AND actor = :actor;

-- name: keep_attempt_log
INSERT INTO {t}attempt_log ({log_columns}, part)
VALUES (:job_id, :attempt, :text, :left_out_bytes, :part)
    ON CONFLICT (job_id, attempt) DO UPDATE
   SET text = excluded.text, left_out_bytes = excluded.left_out_bytes, part = excluded.part
 WHERE excluded.part > {t}attempt_log.part;

-- name: load_attempt_logs
SELECT {log_columns} FROM {t}attempt_log WHERE job_id = :job_id
 ORDER BY attempt DESC LIMIT :limit;

-- name: delete_attempt_logs
DELETE FROM {t}attempt_log WHERE job_id {among_ids};

-- name: load_worker_start
SELECT started_at, instance FROM {t}worker_process
 WHERE namespace = :namespace AND worker = :worker AND actor = :actor {lock};

-- name: see_worker
INSERT INTO {t}worker_process ({process_columns}, instance)
VALUES (:namespace, :worker, :actor, :host, :pid, :queues, :kinds, :schedules, :concurrency,
        :version, :started_at, :seen_at, NULL, :is_draining, :instance)
    ON CONFLICT (namespace, worker, actor) DO UPDATE
   SET host = excluded.host, pid = excluded.pid, queues = excluded.queues, kinds = excluded.kinds,
       schedules = excluded.schedules, concurrency = excluded.concurrency, version = excluded.version,
       started_at = excluded.started_at, seen_at = excluded.seen_at,
       drain_reported = excluded.drain_reported, instance = excluded.instance
RETURNING {process_columns};

-- name: dismiss_worker
-- Keeps a worker of the same name that was started since.
DELETE FROM {t}worker_process
 WHERE namespace = :namespace AND worker = :worker AND actor = :actor
   AND host = :host AND pid = :pid
RETURNING worker;

-- name: list_workers
SELECT {process_columns} FROM {t}worker_process
 WHERE namespace = :namespace AND (worker, actor) > (:worker, :actor)
 ORDER BY worker, actor LIMIT :limit;

-- name: request_drain
UPDATE {t}worker_process SET drain_requested_at = {t}clock()
 WHERE namespace = :namespace AND worker = :worker
RETURNING worker;

-- name: delete_old_workers
WITH silent AS MATERIALIZED (
    SELECT w.namespace, w.worker, w.actor FROM {t}worker_process AS w
     WHERE w.seen_at < (SELECT {t}clock()) - :older_than_us
     ORDER BY w.seen_at LIMIT :limit {skip_locked})
DELETE FROM {t}worker_process
 WHERE (namespace, worker, actor) IN (SELECT namespace, worker, actor FROM silent)
RETURNING worker;

-- name: list_schedules
SELECT {schedule_without_payload} FROM {t}schedule AS s
 WHERE s.namespace = :namespace AND s.removed_at IS NULL AND s.name > :after
 ORDER BY s.name LIMIT :limit;

-- name: load_schedule
SELECT {schedule_columns} FROM {t}schedule WHERE namespace = :namespace AND name = :name;

-- name: next_schedule
-- Every sweep asks this: one probe of each of two indexes that only have schedules which will fire.
SELECT (SELECT min(s.next_at) FROM {t}schedule AS s WHERE s.next_at IS NOT NULL),
       (SELECT max(w.updated_at) FROM {t}schedule AS w WHERE w.next_at IS NOT NULL),
       {t}clock(), epoch
  FROM {t}meta;

-- name: due_schedules
-- Due schedules, and schedules written before the clock was set back. Round robin over namespaces: the most
-- overdue schedule of each namespace first, then the second of each, and so on.
WITH due (namespace, name, next_at) AS (
    SELECT d.namespace, d.name, d.next_at FROM {t}schedule AS d
     WHERE d.next_at IS NOT NULL AND (d.next_at <= :until OR d.updated_at > :latest_write)
     ORDER BY d.next_at, d.namespace, d.name LIMIT :reads),
ranked (namespace, name, nth) AS (
    SELECT d.namespace, d.name,
           row_number() OVER (PARTITION BY d.namespace ORDER BY d.next_at, d.name) FROM due AS d)
SELECT {schedule_without_payload} FROM ranked AS t
  JOIN {t}schedule AS s ON s.namespace = t.namespace AND s.name = t.name
 ORDER BY t.nth, s.next_at, s.namespace, s.name LIMIT :limit;

-- name: longest_due_schedules
-- For each namespace that has a schedule whose time has come.
SELECT d.namespace, min(d.next_at)
  FROM (SELECT s.namespace, s.next_at FROM {t}schedule AS s
         WHERE s.next_at IS NOT NULL AND s.next_at <= (SELECT {t}clock()) ORDER BY s.next_at LIMIT :reads) AS d
 GROUP BY d.namespace;

-- name: insert_schedule
INSERT INTO {t}schedule ({schedule_columns}) VALUES ({schedule_values})
    ON CONFLICT DO NOTHING
RETURNING name;

-- name: update_schedule
UPDATE {t}schedule SET {schedule_assignments}
 WHERE namespace = :namespace AND name = :name AND rev = :expected_rev
RETURNING name;

-- name: schedules_changed_by
SELECT {schedule_without_payload} FROM {t}schedule AS s
 WHERE s.namespace = :namespace AND s.changed_by = :actor AND s.next_at IS NOT NULL
 ORDER BY s.name {lock};

-- name: pause_schedule
-- Leaves the payload, which was not read.
UPDATE {t}schedule
   SET next_at = :next_at, paused_at = :paused_at, pause_reason = :pause_reason, rev = :rev,
       changed_at = :changed_at, changed_by = :changed_by, updated_at = :updated_at
 WHERE namespace = :namespace AND name = :name AND rev = :expected_rev
RETURNING name;

-- name: create_token
INSERT INTO {t}token ({token_columns})
SELECT :id, :secret_sha256, :name, :role, :namespace, :queues, :kinds, :max_leases, :max_polls,
       :may_declare, made.at, made.at + :expires_in_us, NULL, NULL
  FROM (SELECT {t}clock() AS at) AS made
RETURNING {token_columns};

-- name: load_token
SELECT {token_columns} FROM {t}token WHERE id = :token_id;

-- name: list_tokens
SELECT {token_columns} FROM {t}token ORDER BY created_at, id;

-- name: lock_tokens_of_one_name
-- If two tokens of this name are revoked at once, the second transaction sees that the first is revoked.
SELECT {token_columns} FROM {t}token
 WHERE (namespace, name) = (SELECT o.namespace, o.name FROM {t}token AS o WHERE o.id = :token_id)
 ORDER BY id {lock};

-- name: revoke_token
UPDATE {t}token SET revoked_at = coalesce(revoked_at, {t}clock()) WHERE id = :token_id;

-- name: use_token
UPDATE {t}token SET last_used_at = {t}clock() WHERE id = :token_id;

-- name: count_leases
SELECT count(*) FROM {t}job {by_leases}
 WHERE namespace = :namespace AND lease_id IS NOT NULL AND principal = :actor;

-- name: count_names
SELECT (SELECT count(*) FROM {t}queue AS q WHERE q.namespace = :namespace),
       (SELECT count(*) FROM {t}schedule AS s WHERE s.namespace = :namespace AND s.removed_at IS NULL),
       (SELECT count(*) FROM {t}worker_process AS w
         WHERE w.namespace = :namespace AND w.seen_at >= (SELECT {t}clock()) - :silent_after_us),
       (SELECT count(*) FROM {t}kind_setting AS k WHERE k.namespace = :namespace);

-- name: measured_namespaces
-- Jumps from namespace to namespace in the key, however many queues each has.
WITH RECURSIVE known (namespace, nth) AS (
    SELECT (SELECT min(q.namespace) FROM {t}queue AS q), 1
     UNION ALL
    SELECT (SELECT min(q.namespace) FROM {t}queue AS q WHERE q.namespace > k.namespace), k.nth + 1
      FROM known AS k WHERE k.namespace IS NOT NULL AND k.nth < :namespaces)
SELECT k.namespace FROM known AS k WHERE k.namespace IS NOT NULL ORDER BY k.namespace;

-- name: measured_queues
-- Queues with jobs first: from queue to queue through the three indexes that only have
-- such jobs, however many jobs a queue has and however many queues are empty.
WITH RECURSIVE ready (queue, nth) AS (
    SELECT (SELECT j.queue FROM {t}job AS j {by_ready}
             WHERE j.namespace = :namespace AND j.not_before = 0
             ORDER BY j.queue LIMIT 1), 1
     UNION ALL
    SELECT (SELECT j.queue FROM {t}job AS j {by_ready}
             WHERE j.namespace = :namespace AND j.not_before = 0 AND j.queue > q.queue
             ORDER BY j.queue LIMIT 1), q.nth + 1
      FROM ready AS q WHERE q.queue IS NOT NULL AND q.nth < :queues),
delayed (queue, nth) AS (
    SELECT (SELECT j.queue FROM {t}job AS j {by_delayed}
             WHERE j.namespace = :namespace AND j.not_before > 0
             ORDER BY j.queue LIMIT 1), 1
     UNION ALL
    SELECT (SELECT j.queue FROM {t}job AS j {by_delayed}
             WHERE j.namespace = :namespace AND j.not_before > 0 AND j.queue > q.queue
             ORDER BY j.queue LIMIT 1), q.nth + 1
      FROM delayed AS q WHERE q.queue IS NOT NULL AND q.nth < :queues),
leased (queue, nth) AS (
    SELECT (SELECT j.queue FROM {t}job AS j {by_leases}
             WHERE j.namespace = :namespace AND j.lease_id IS NOT NULL
             ORDER BY j.queue LIMIT 1), 1
     UNION ALL
    SELECT (SELECT j.queue FROM {t}job AS j {by_leases}
             WHERE j.namespace = :namespace AND j.lease_id IS NOT NULL AND j.queue > q.queue
             ORDER BY j.queue LIMIT 1), q.nth + 1
      FROM leased AS q WHERE q.queue IS NOT NULL AND q.nth < :queues),
busy AS (
    SELECT q.queue FROM ready AS q WHERE q.queue IS NOT NULL
     UNION
    SELECT q.queue FROM delayed AS q WHERE q.queue IS NOT NULL
     UNION
    SELECT q.queue FROM leased AS q WHERE q.queue IS NOT NULL),
idle AS (
    SELECT q.name FROM {t}queue AS q
     WHERE q.namespace = :namespace
       AND NOT EXISTS (SELECT 1 FROM busy AS b WHERE b.queue = q.name)
     ORDER BY q.name LIMIT :queues)
SELECT m.is_empty, m.name FROM (
    SELECT b.queue AS name, 0 AS is_empty FROM busy AS b
     UNION ALL
    SELECT i.name, 1 FROM idle AS i) AS m
 ORDER BY m.is_empty, m.name LIMIT :queues;

-- name: count_queues
SELECT count(*) FROM {t}queue {where};

-- name: count_ready
SELECT count(*) FROM (
    SELECT j.run_at FROM {t}job AS j {by_ready}
     WHERE j.namespace = :namespace AND j.queue = :queue AND j.not_before = 0
     LIMIT :jobs) AS w;

-- name: oldest_waiting
-- The oldest waiting job of each queue. {waiting} selects ready or delayed jobs, {index} is their index (kind,
-- lane, priority, time). For each kind, lane and priority only the first entry is read. {not_due} may leave out
-- due jobs.
WITH RECURSIVE known (queue, kind, nth) AS ({kinds_to_look_at}),
level (queue, kind, lane, priority, nth) AS (
    SELECT k.queue, k.kind, f.lane,
           (SELECT max(j.priority) FROM {t}job AS j {index}
             WHERE j.namespace = :namespace AND j.queue = k.queue AND {waiting}
               AND j.kind = k.kind AND j.lane = f.lane), 1
      FROM known AS k CROSS JOIN (SELECT 0 AS lane UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS f
     WHERE k.kind IS NOT NULL
     UNION ALL
    SELECT l.queue, l.kind, l.lane,
           (SELECT max(j.priority) FROM {t}job AS j {index}
             WHERE j.namespace = :namespace AND j.queue = l.queue AND {waiting}
               AND j.kind = l.kind AND j.lane = l.lane AND j.priority < l.priority), l.nth + 1
      FROM level AS l WHERE l.priority IS NOT NULL AND l.nth < :levels)
SELECT l.queue, min((SELECT j.run_at FROM {t}job AS j {index}
                      WHERE j.namespace = :namespace AND j.queue = l.queue AND {waiting}
                        AND j.kind = l.kind AND j.lane = l.lane AND j.priority = l.priority
                        {not_due} ORDER BY {claim_place} LIMIT 1))
  FROM level AS l WHERE l.priority IS NOT NULL
 GROUP BY l.queue;

-- name: events_to_count
-- {place}, {until} and {order} choose a page of the log. From its events to their jobs: SQLite keeps
-- the order of a CROSS JOIN. The event before a claim is the one that queued the job.
SELECT j.namespace, j.queue, j.kind, e.type, e.ts, j.started_at, b.ts, b.run_at
  FROM (SELECT job_id, seq, ts, type FROM {t}job_event
         WHERE {place} AND {until} ORDER BY {order} LIMIT :reads) AS e
 CROSS JOIN {t}job AS j
  LEFT JOIN {t}job_event AS b
    ON e.type = :claimed AND b.job_id = e.job_id AND b.seq = e.seq - 1
 WHERE e.type {among_types} AND e.ts >= :since AND j.id = e.job_id {of_namespace};

-- name: is_committed
-- Part of events_to_count.
{committed};

-- name: newest_uncounted_event
SELECT ts FROM {t}job_event WHERE {place} ORDER BY {order} LIMIT 1 OFFSET :reads;

-- name: fold_progress
SELECT position, skipped_until, folded_until, folded_at FROM {t}rollup_progress;

-- name: fold_begin
-- Where folding starts in a log that is too long, and when that event was.
SELECT b.position, (SELECT max(e.ts) FROM {t}job_event AS e WHERE e.position = b.position)
  FROM (SELECT position FROM {t}job_event WHERE {committed}
         ORDER BY position DESC LIMIT 1 OFFSET :catch_up) AS b;

-- name: load_rollups
SELECT namespace, length_us, at, series FROM {t}rollup
 WHERE namespace {among_names} AND length_us = :length_us AND at >= :since AND at < :until;

-- name: move_fold_progress
UPDATE {t}rollup_progress
   SET position = :position, skipped_until = :skipped_until, folded_until = :folded_until,
       folded_at = {t}clock()
 WHERE coalesce(position, '') = :expected
RETURNING one;

-- name: put_rollup
INSERT INTO {t}rollup (namespace, length_us, at, series)
VALUES (:namespace, :length_us, :at, :series)
    ON CONFLICT (namespace, length_us, at) DO UPDATE SET series = excluded.series;

-- name: delete_rollups
WITH old AS MATERIALIZED (
    SELECT namespace, length_us, at FROM {t}rollup
     WHERE length_us = :length_us AND at < (SELECT {t}clock()) - :older_than_us
     ORDER BY at LIMIT :limit)
DELETE FROM {t}rollup
 WHERE (namespace, length_us, at) IN (SELECT namespace, length_us, at FROM old)
RETURNING at;

-- name: settings_of_queues
SELECT {queue_columns} FROM {t}queue WHERE namespace = :namespace AND name {among_names}
 ORDER BY name;

-- name: waiting_by_kind
-- {waiting} selects ready or delayed jobs, {index} is their index: from kind to kind in each queue, up to the
-- limit in each kind. {due} counts the due ones, if they are not all of them.
WITH RECURSIVE known (queue, kind, nth) AS ({kinds_to_look_at})
SELECT k.queue, k.kind,
       (SELECT count(*) FROM (
            SELECT j.run_at FROM {t}job AS j {index}
             WHERE j.namespace = :namespace AND j.queue = k.queue AND {waiting} AND j.kind = k.kind
             LIMIT :jobs) AS counted),
       {due}
  FROM known AS k WHERE k.kind IS NOT NULL;

-- name: kinds_that_wait
-- A part of oldest_waiting and waiting_by_kind: from kind to kind of each queue, past all jobs of each.
SELECT q.name, (SELECT min(j.kind) FROM {t}job AS j {index}
                 WHERE j.namespace = :namespace AND j.queue = q.name AND {waiting}), 1
  FROM ({each_name}) AS q
 UNION ALL
SELECT k.queue, (SELECT min(j.kind) FROM {t}job AS j {index}
                  WHERE j.namespace = :namespace AND j.queue = k.queue AND {waiting}
                    AND j.kind > k.kind), k.nth + 1
  FROM known AS k WHERE k.kind IS NOT NULL AND k.nth < :levels;

-- name: kinds_asked_for
-- The same if the caller names the kinds.
SELECT q.name, g.kind, 1 FROM ({each_name}) AS q CROSS JOIN ({each_kind}) AS g;

-- name: leased_by_kind
-- By policy, with the first end of a lease: whether some are suspect depends on both.
SELECT w.kind, w.policy, count(*), min(w.lease_expires_at) FROM (
    SELECT j.kind, j.policy, j.lease_expires_at FROM {t}job AS j {by_leases}
     WHERE j.namespace = :namespace AND j.queue = :queue AND j.lease_id IS NOT NULL
     LIMIT :jobs) AS w
 GROUP BY w.kind, w.policy;

-- name: count_silent_of_kind
SELECT count(*) FROM (
    SELECT j.kind, j.policy, j.lease_expires_at FROM {t}job AS j {by_leases}
     WHERE j.namespace = :namespace AND j.queue = :queue AND j.lease_id IS NOT NULL
     LIMIT :jobs) AS w
 WHERE w.kind = :kind AND w.policy = :policy AND w.lease_expires_at <= :until;

-- name: troubled_by_kind
-- {troubled} are the conditions of a small index: see the schema.
SELECT d.queue, d.kind, count(*) FROM (
    SELECT j.id, j.queue, j.kind, j.run_at FROM {t}job AS j
     WHERE j.namespace = :namespace AND {troubled}
     ORDER BY j.enqueued_at DESC, j.id DESC LIMIT :jobs) AS d
 WHERE {counted}
 GROUP BY d.queue, d.kind;

-- name: statuses_of
SELECT id, status FROM {t}job WHERE id {among_ids};
