-- Tenure on PostgreSQL. {t} is the schema and a dot.
--
-- Instants are microseconds since 1970 UTC. Names compare byte by byte (COLLATE "C"), as in every
-- other store. Fixed-width columns come first: PostgreSQL pads between columns as they are declared.
-- The guards below refuse; they decide nothing. They protect the shape of a row, finished rows and
-- the log. They list no values of sets that may grow, such as event types and causes: a new value then needs no
-- change of a table (docs/adr/0030). No index mentions status (docs/adr/0006).

CREATE SCHEMA IF NOT EXISTS {schema};

-- The store's clock. clock_timestamp(), not now(): a transaction that waited for a lock must judge
-- a lease by the time at which it got the lock.
CREATE FUNCTION {t}clock() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT CAST(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000 AS bigint) $$;

-- The server's timeline, which rises whenever a standby takes over; NULL on a standby. From the
-- name of the current WAL file: pg_control_checkpoint() is late after a promotion.
CREATE FUNCTION {t}timeline() RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN CAST(CAST(
              'x' || substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)
              AS bit(32)) AS bigint) END $$;

-- Ends a transaction that was meant for another timeline, before it has read or written anything,
-- with an error code of its own. NULL skips the check.
CREATE FUNCTION {t}require_timeline(wanted bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF wanted IS NOT NULL AND {t}timeline() IS DISTINCT FROM wanted THEN
        RAISE EXCEPTION 'tenure: this server is on another timeline' USING ERRCODE = 'TN002';
    END IF;
END $$;

-- `timeline` is the highest of the server with this identifier, `settling_since` when it was first noticed,
-- unless it is the one that the store was made on. `losses` counts failovers after which acknowledged work was
-- missing.
CREATE TABLE {t}meta (
    one               boolean PRIMARY KEY DEFAULT TRUE CHECK (one),
    schema_version    integer NOT NULL,
    epoch             bigint  NOT NULL CHECK (epoch >= 1),
    tick              bigint,
    system_identifier bigint  NOT NULL,
    timeline          bigint  NOT NULL,
    settling_since    bigint,
    lost_at           bigint,
    losses            integer NOT NULL DEFAULT 0,
    -- Rises with every change of what is set for a queue or a kind, so that a claim need not read it.
    settings_rev      bigint  NOT NULL DEFAULT 0,
    schema_digest     text     -- of the migrations that made the schema
) WITH (fillfactor = 50);

INSERT INTO {t}meta (schema_version, epoch, system_identifier, timeline)
SELECT 0, 1, s.system_identifier, {t}timeline() FROM pg_catalog.pg_control_system() AS s;

-- The clock and the epoch at the moment of a write. Called once the rows are locked (`locked` is their number;
-- passing it makes PostgreSQL lock before it reads the clock); each statement of a volatile function sees what
-- has been committed by then, which the calling statement's snapshot does not. The shared lock is what
-- `raise_epoch` waits for: when it returns, no write under the old epoch can still commit.
CREATE FUNCTION {t}judge(locked bigint, epoch_lock bigint, OUT now bigint, OUT epoch bigint)
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock_shared(epoch_lock);
    SELECT {t}clock(), m.epoch INTO now, epoch FROM {t}meta AS m;
END $$;

-- The same after the rows were written, and so locked: what came too late, or was decided by a wrong
-- estimate of the clock, is undone by an error with
-- a code of its own. Locking a row before it is written costs a fifth of the write.
CREATE FUNCTION {t}veto(
    written bigint, epoch_lock bigint, granted_epoch bigint, not_after bigint, earliest bigint,
    latest bigint, OUT now bigint)
    LANGUAGE plpgsql VOLATILE AS $$
DECLARE epoch bigint;
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock_shared(epoch_lock);
    SELECT {t}clock(), m.epoch INTO now, epoch FROM {t}meta AS m;
    IF epoch <> granted_epoch OR now >= not_after OR now < earliest OR now > latest THEN
        RAISE EXCEPTION 'tenure: written too late' USING ERRCODE = 'TN001';
    END IF;
END $$;

CREATE TABLE {t}job (
    id                    uuid     NOT NULL PRIMARY KEY,
    enqueued_at           bigint   NOT NULL,
    updated_at            bigint   NOT NULL,
    run_at                bigint,
    not_before            bigint,
    claimed_at            bigint,
    lease_expires_at      bigint,
    due_at                bigint,
    claimed_run_at        bigint,
    started_at            bigint,
    finished_at           bigint,
    delete_at             bigint,
    start_by              bigint,
    cancel_requested_at   bigint,
    cancel_deadline       bigint,
    last_lease_expires_at bigint,
    scheduled_for         bigint,
    unique_for_us         bigint,
    admitted_at           bigint,  -- when its key let it through, while it waits to be claimed
    hb_seq                bigint   NOT NULL,
    event_position        bigint   NOT NULL,  -- of the job's last event, see job_event
    rev                   integer  NOT NULL,
    attempt               integer  NOT NULL,
    failures              integer  NOT NULL,
    releases              integer  NOT NULL,
    outage_credits        integer  NOT NULL,
    renewals              integer  NOT NULL,
    priority              smallint NOT NULL,
    lane                  smallint NOT NULL DEFAULT 0,  -- while it waits: see core/concurrency.py
    was_started           boolean  NOT NULL,
    origin_id             uuid,
    flow_id               uuid,
    status                text     NOT NULL COLLATE "C",
    lease_id              text     COLLATE "C",
    owner                 text     COLLATE "C",
    principal             text     COLLATE "C",
    cancel_reason         text     COLLATE "C",
    stall_cause           text     COLLATE "C",
    last_owner            text     COLLATE "C",
    reason_code           text     COLLATE "C",
    stage                 text     COLLATE "C",
    origin_cause          text     COLLATE "C",
    progress              text     COLLATE "C",
    last_error            text     COLLATE "C",
    error                 text     COLLATE "C",
    checkpoint            text     COLLATE "C",
    result                text     COLLATE "C",
    -- From here on no update changes a column: the log leaves out what two versions end with.
    meta                  text     COLLATE "C",
    schedule              text     COLLATE "C",
    flow_step             text     COLLATE "C",
    on_dead_letter        text     COLLATE "C",
    dedupe_key            text     COLLATE "C",
    concurrency_key       text     COLLATE "C",
    rate_key              text     COLLATE "C",
    correlation_id        text     COLLATE "C",
    trace_id              text     COLLATE "C",
    namespace             text     NOT NULL COLLATE "C",
    queue                 text     NOT NULL COLLATE "C",
    kind                  text     NOT NULL COLLATE "C",
    policy                text     NOT NULL COLLATE "C",
    payload               text     NOT NULL COLLATE "C",

    -- Kept short: a server parses the text of every CHECK again for each statement that writes.
    -- With one condition per status, that was a third of its work for a transaction about one job.
    CONSTRAINT job_counters CHECK (
        rev >= 1 AND attempt >= failures
        AND least(failures, releases, outage_credits, renewals) >= 0),
    CONSTRAINT job_cancel_request CHECK (
        CASE WHEN cancel_requested_at IS NULL
             THEN cancel_deadline IS NULL
             ELSE cancel_deadline IS NOT NULL AND status <> 'queued' AND status <> 'waiting' END),
    -- The table of docs/spec/states.md, S1 to S8: the status follows from the other columns, a job waits, is
    -- leased or has ended, and its lease and its end are whole or absent. Any other status, such as S11's, is
    -- for a live job that no worker can claim: no lease, no end, no run_at. An array that is one constant, not
    -- IN: fewer nodes.
    CONSTRAINT job_row_fits_its_status CHECK (
        CASE WHEN lease_id IS NOT NULL
             THEN status = CASE WHEN started_at IS NULL THEN 'claimed' ELSE 'running' END
             WHEN result IS NOT NULL THEN status = 'succeeded'
             WHEN reason_code IS NOT NULL THEN status = 'dead_lettered'
             WHEN error IS NOT NULL THEN status = 'failed'
             WHEN finished_at IS NOT NULL THEN status = 'cancelled'
             WHEN stall_cause IS NOT NULL THEN status = 'stalled'
             WHEN run_at IS NOT NULL THEN status = 'queued'
             WHEN status = 'waiting' THEN flow_id IS NOT NULL AND attempt = 0
             ELSE status <> ALL (CAST('{queued, claimed, running, stalled, succeeded, failed,
                 cancelled, dead_lettered}' AS text[])) END),
    CONSTRAINT job_waits_is_leased_or_has_ended CHECK (
        CASE WHEN stall_cause IS NULL OR run_at IS NULL
             THEN num_nonnulls(run_at, stall_cause, lease_id, finished_at) <= 1
             ELSE num_nonnulls(lease_id, finished_at) = 0 AND policy LIKE '%"reclaim"%' END
        AND num_nonnulls(run_at, not_before) <> 1),
    CONSTRAINT job_lease_is_whole CHECK (
        CASE WHEN lease_id IS NULL
             THEN num_nonnulls(
                 owner, principal, claimed_at, lease_expires_at, due_at, claimed_run_at) = 0
                  AND (started_at IS NULL OR finished_at IS NOT NULL)
             ELSE num_nulls(
                 owner, principal, claimed_at, lease_expires_at, due_at, claimed_run_at) = 0 END),
    CONSTRAINT job_end_is_whole CHECK (
        CASE WHEN finished_at IS NULL
             THEN num_nonnulls(result, error, reason_code, stage) = 0
             ELSE num_nonnulls(result, error) < 2
                  AND coalesce(result, error, cancel_reason) IS NOT NULL
                  AND (reason_code IS NULL OR error IS NOT NULL)
                  AND (stage IS NULL OR reason_code IS NOT NULL) END)
) WITH (
    -- Room on each page for the next version of every row on it: a batch claims and ends whole
    -- pages. With 100 a drained table was 60 % larger, because the versions that found no room went to
    -- new pages, and a drain wrote 8 % more WAL.
    fillfactor = 50,
    -- A queue turns its table over many times a day: vacuum by share of changes, early, unthrottled.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

-- A job that waits is in one of these two: ready since it was queued (not_before is 0), or delayed
-- until its run_at. So neither jobs of other kinds nor jobs that are not due lie in the way of a
-- claim (docs/adr/0047), nor do jobs that are parked because of a key: they are in another lane
-- (docs/adr/0095). An admitted job is ordered by admitted_at; jobs admitted at the same time, by run_at.
CREATE INDEX job_ready
    ON {t}job (namespace, queue, kind, lane, priority DESC, coalesce(admitted_at, run_at),
                   run_at, id)
 WHERE not_before = 0;
CREATE INDEX job_delayed
    ON {t}job (namespace, queue, kind, lane, priority DESC, coalesce(admitted_at, run_at),
                   run_at, id)
 WHERE not_before > 0;
-- The jobs of a key that wait, and the jobs that have a place under it. The indexes of rate keys leave out jobs
-- that still wait for their concurrency key.
CREATE INDEX job_of_key
    ON {t}job (namespace, kind, concurrency_key, queue, least(not_before, 1), priority DESC, run_at, id)
 WHERE concurrency_key IS NOT NULL AND not_before IS NOT NULL;
CREATE INDEX job_place_of_key
    ON {t}job (namespace, kind, concurrency_key)
 WHERE concurrency_key IS NOT NULL AND (lease_id IS NOT NULL OR admitted_at IS NOT NULL);
CREATE INDEX job_of_rate_key
    ON {t}job (namespace, kind, rate_key, queue, least(not_before, 1), priority DESC, run_at, id)
 WHERE rate_key IS NOT NULL AND not_before IS NOT NULL AND lane <> 2;
CREATE INDEX job_place_of_rate_key
    ON {t}job (namespace, kind, rate_key)
 WHERE rate_key IS NOT NULL AND admitted_at IS NOT NULL AND lane < 2;
CREATE INDEX job_leased
    ON {t}job (namespace, queue, enqueued_at) WHERE lease_id IS NOT NULL;
-- For the sweep, which every process does once a second. A heartbeat changes due_at, so it is no HOT
-- update: 10,000 of them cost less than one sweep of so many leases did (docs/adr/0062).
CREATE INDEX job_due ON {t}job (due_at) WHERE due_at IS NOT NULL;
-- A guard: the table dedupe decides who has a key.
CREATE UNIQUE INDEX job_live_key
    ON {t}job (namespace, kind, dedupe_key) WHERE dedupe_key IS NOT NULL AND finished_at IS NULL;
-- Jobs that expire unless they are started in time, while they wait. Both columns are in its condition,
-- so that other jobs have no entry, and a claim's update, which is no HOT update anyway, takes it away.
CREATE INDEX job_start_by ON {t}job (start_by) WHERE start_by IS NOT NULL AND not_before IS NOT NULL;
-- For retention: by the time that the store keeps jobs, or by their own.
CREATE INDEX job_finished ON {t}job (finished_at) WHERE finished_at IS NOT NULL AND delete_at IS NULL;
CREATE INDEX job_delete_at ON {t}job (delete_at) WHERE delete_at IS NOT NULL;
CREATE INDEX job_correlation
    ON {t}job (namespace, correlation_id, enqueued_at, id) WHERE correlation_id IS NOT NULL;
-- For lists of a kind or a queue, newest first. Every update that is not HOT (a claim, an end) adds an
-- entry to each index whose predicate the row meets. A whole index is written three times for each job
-- (8 % of the WAL of an enqueue and a drain), three parts once each. A list is merged from the parts
-- (docs/adr/0047). Kind and queue are expressions that only lists use: a claim that
-- was planned without statistics took the index of a plain column and sorted the whole queue. Jobs that are
-- enqueued together have one entry: there is no id in the keys.
CREATE INDEX job_waiting_by_kind ON {t}job (namespace, (kind || ''), enqueued_at)
 WHERE finished_at IS NULL AND lease_id IS NULL;
CREATE INDEX job_leased_by_kind ON {t}job (namespace, (kind || ''), enqueued_at)
 WHERE lease_id IS NOT NULL;
CREATE INDEX job_ended_by_kind ON {t}job (namespace, (kind || ''), enqueued_at)
 WHERE finished_at IS NOT NULL;
CREATE INDEX job_waiting_by_queue ON {t}job (namespace, (queue || ''), enqueued_at)
 WHERE finished_at IS NULL AND lease_id IS NULL;
CREATE INDEX job_ended_by_queue ON {t}job (namespace, (queue || ''), enqueued_at)
 WHERE finished_at IS NOT NULL;
-- Jobs of these statuses are few among many. These columns are written when a job is started, stalls or
-- ends, which is no HOT update anyway: indexes on them cost other updates nothing (docs/adr/0006).
CREATE INDEX job_claimed ON {t}job (namespace, enqueued_at, id) WHERE lease_id IS NOT NULL AND started_at IS NULL;
CREATE INDEX job_dead_letter ON {t}job (namespace, enqueued_at, id) WHERE reason_code IS NOT NULL;
CREATE INDEX job_failed ON {t}job (namespace, enqueued_at, id) WHERE error IS NOT NULL AND reason_code IS NULL;
CREATE INDEX job_cancelled ON {t}job (namespace, enqueued_at, id)
 WHERE finished_at IS NOT NULL AND result IS NULL AND error IS NULL;
CREATE INDEX job_stalled ON {t}job (namespace, enqueued_at, id) WHERE stall_cause IS NOT NULL;
CREATE INDEX job_blocked ON {t}job (namespace, enqueued_at, id)
 WHERE flow_id IS NOT NULL AND run_at IS NULL AND lease_id IS NULL AND stall_cause IS NULL
   AND finished_at IS NULL;
-- The jobs of a flow, and which of them have not ended, or ended last.
CREATE INDEX job_flow ON {t}job (flow_id, id) WHERE flow_id IS NOT NULL;
CREATE INDEX job_flow_end ON {t}job (flow_id, delete_at, finished_at) WHERE flow_id IS NOT NULL;
CREATE INDEX job_scheduled
    ON {t}job (namespace, schedule, enqueued_at, id) WHERE schedule IS NOT NULL;
-- Jobs that the end of another job enqueued; their ids are derived from that one's.
CREATE INDEX job_made_by_an_end ON {t}job (origin_id)
 WHERE origin_cause IN ('compensation', 'dead_letter');

-- The priorities of the delayed jobs of each kind and lane, highest first, and when the first job of
-- each is due: from priority to priority through the index, however many jobs are not due yet. A
-- function, because its statement is then planned once per connection; by itself the server planned it
-- anew for each claim, 0.4 ms, longer than all other statements of a claim took together.
CREATE FUNCTION {t}delayed_levels(
    in_namespace text, in_queue text, in_kinds text[], in_lanes smallint[], most_levels integer,
    OUT kind text, OUT lane smallint, OUT priority smallint, OUT nth integer, OUT first_at bigint)
    RETURNS SETOF record LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE level (kind, lane, priority, nth) AS (
        SELECT k.kind, k.lane, (SELECT max(j.priority) FROM {t}job AS j
                         WHERE j.namespace = in_namespace AND j.queue = in_queue
                           AND j.not_before > 0 AND j.lane = k.lane AND j.kind = k.kind), 1
          FROM unnest(in_kinds, in_lanes) AS k(kind, lane)
         UNION ALL
        SELECT l.kind, l.lane, (SELECT max(j.priority) FROM {t}job AS j
                         WHERE j.namespace = in_namespace AND j.queue = in_queue
                           AND j.not_before > 0 AND j.lane = l.lane AND j.kind = l.kind
                           AND j.priority < l.priority), l.nth + 1
          FROM level AS l WHERE l.priority IS NOT NULL AND l.nth < most_levels)
    SELECT l.kind, l.lane, l.priority, l.nth,
           (SELECT min(coalesce(j.admitted_at, j.run_at)) FROM {t}job AS j
             WHERE j.namespace = in_namespace AND j.queue = in_queue AND j.not_before > 0
               AND j.lane = l.lane AND j.kind = l.kind AND j.priority = l.priority)
      FROM level AS l WHERE l.priority IS NOT NULL;
END $$;

-- (job_id, ts) needs no index of its own: within a job ts never falls, so the key's order is also
-- the order of time. [E4]
--
-- `position` is where an event comes in the tail: the epoch in the high bits, then the id of the
-- transaction that wrote it (44 bits: 55 years at 10,000 a second), and never below the position of
-- the job's event before it. A reader that stops at the oldest transaction still running misses
-- none, and sees each job's events in order (docs/adr/0031).
--
-- Columns that are NULL or short state what is usual for the type, or what the job's row states: see
-- stores/sql/rows.py and docs/adr/0097.
CREATE TABLE {t}job_event (
    job_id           uuid     NOT NULL,
    ts               bigint   NOT NULL,
    position         bigint   NOT NULL,
    lease_expires_at bigint,
    run_at           bigint,
    size             integer,
    seq              integer  NOT NULL CHECK (seq >= 1),
    attempt          integer  NOT NULL,
    version          smallint NOT NULL,
    type             text     NOT NULL COLLATE "C",
    from_status      text     COLLATE "C",
    to_status        text     COLLATE "C",
    cause            text     COLLATE "C",
    actor            text     NOT NULL COLLATE "C",
    owner            text     COLLATE "C",
    lease_id         text     COLLATE "C",
    request_id       text     NOT NULL COLLATE "C",
    fingerprint      text     COLLATE "C",
    correlation_id   text     COLLATE "C",
    trace_id         text     COLLATE "C",
    namespace        text     COLLATE "C",
    queue            text     COLLATE "C",
    kind             text     COLLATE "C",
    policy           text     COLLATE "C",
    sha256           text     COLLATE "C",
    payload          text     COLLATE "C",
    PRIMARY KEY (job_id, seq)
) WITH (
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02
);

-- No index is by time alone: lists of all types merge the types through this one (docs/adr/0039). [E4]
CREATE INDEX job_event_type ON {t}job_event (type, ts);
CREATE INDEX job_event_position ON {t}job_event (position);
CREATE INDEX job_event_renewal
    ON {t}job_event (job_id, seq) WHERE type IN ('lease_renewed', 'heartbeat');

CREATE TABLE {t}observation (
    job_id     uuid     NOT NULL,
    ts         bigint   NOT NULL,
    size       bigint,
    ordinal    smallint NOT NULL CHECK (ordinal BETWEEN 1 AND 10),
    lease      text     NOT NULL COLLATE "C",  -- the lease id, or empty: a key has no nulls
    type       text     NOT NULL COLLATE "C",
    actor      text     NOT NULL COLLATE "C",
    lease_id   text     COLLATE "C",
    request_id text     COLLATE "C",
    cause      text     COLLATE "C",
    sha256     text     COLLATE "C",
    body       bytea,
    PRIMARY KEY (job_id, lease, ordinal)
);

CREATE INDEX observation_body ON {t}observation (ts) WHERE body IS NOT NULL;

CREATE TABLE {t}queue (
    namespace         text    NOT NULL COLLATE "C",
    name              text    NOT NULL COLLATE "C",
    paused            boolean NOT NULL DEFAULT FALSE,
    concurrency_limit integer CHECK (concurrency_limit > 0),
    rate_grants       integer CHECK (rate_grants > 0),
    rate_per          text    COLLATE "C",
    rate_burst        integer CHECK (rate_burst > 0),
    rate_since        bigint,
    PRIMARY KEY (namespace, name)
);

-- What is set for a kind. A kind that nothing was ever set for has no row.
CREATE TABLE {t}kind_setting (
    namespace   text    NOT NULL COLLATE "C",
    kind        text    NOT NULL COLLATE "C",
    rate_grants integer CHECK (rate_grants > 0),
    rate_per    text    COLLATE "C",
    rate_burst  integer CHECK (rate_burst > 0),
    rate_since  bigint,
    concurrency_limit integer CHECK (concurrency_limit > 0),
    concurrency_since bigint,
    limits_set  boolean NOT NULL,
    policy      text    COLLATE "C",
    PRIMARY KEY (namespace, kind)
);

-- What claims count under: a limit or a rate of a queue, a rate of a kind, and, with a key, the rate of
-- one rate key of a kind. `tat` is the state of the rate: the theoretical arrival time of core/rates.py. Only
-- claims that have locked the row of the queue or kind change it, each time they grant: room on the page for
-- the next version.
CREATE TABLE {t}slot (
    namespace text   NOT NULL COLLATE "C",
    scope     text   NOT NULL COLLATE "C",
    name      text   NOT NULL COLLATE "C",
    key       text   NOT NULL COLLATE "C",
    tat       bigint NOT NULL,
    PRIMARY KEY (namespace, scope, name, key)
) WITH (fillfactor = 50);

CREATE INDEX slot_idle ON {t}slot (tat) WHERE key <> '';

CREATE TABLE {t}worker (
    namespace   text   NOT NULL COLLATE "C",
    worker      text   NOT NULL COLLATE "C",
    actor       text   NOT NULL COLLATE "C",
    claim_seq   bigint NOT NULL,
    request_id  text   NOT NULL COLLATE "C",
    fingerprint text   NOT NULL COLLATE "C",
    claimed_at  bigint NOT NULL,
    is_repeated boolean NOT NULL,
    PRIMARY KEY (namespace, worker, actor)
) WITH (fillfactor = 50);

-- How jobs with a concurrency key or a rate key are admitted (docs/adr/0095). None of this is part of a
-- job.
--
-- The queues in which a kind has had such jobs.
CREATE TABLE {t}keyed_kind (
    namespace text    NOT NULL COLLATE "C",
    kind      text    NOT NULL COLLATE "C",
    queue     text    NOT NULL COLLATE "C",
    is_rate   boolean NOT NULL,
    PRIMARY KEY (namespace, kind, queue, is_rate)
);

-- The keys about whose jobs must be decided again from an instant on: written with every change of
-- their jobs, without a lock, and deleted when claims have decided. noted_at is when a claim wrote the row: if
-- it is in the future, the clock was set back, and the row is due at once (core/concurrency.py). The row with
-- the empty key is the watermark of its kind: up to noted_at, delayed jobs were found due.
CREATE TABLE {t}dirty_key (
    id        bigint  NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        bigint  NOT NULL,
    noted_at  bigint  NOT NULL,  -- 0 if no claim wrote it
    is_rate   boolean NOT NULL,  -- a rate key, not a concurrency key
    namespace text    NOT NULL COLLATE "C",
    kind      text    NOT NULL COLLATE "C",
    key       text    NOT NULL COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX dirty_key_due ON {t}dirty_key (namespace, kind, at, id);
CREATE UNIQUE INDEX dirty_key_once
    ON {t}dirty_key (namespace, kind, at, is_rate, key) WHERE noted_at > 0;
CREATE INDEX dirty_key_noted ON {t}dirty_key (namespace, kind, noted_at) WHERE noted_at > 0;

-- Deletes and returns dirty keys of these kinds (NULL: of all). Up to `page` rows per kind of each sort: at =
-- 0, at in the past, and noted_at in the future (the clock was set back). Leaves out kinds whose keys another
-- transaction is deciding about. A function, because each of its statements sees what was committed before it:
-- what that transaction has written, once its lock is free. The commit need not wait for the disk: if a crash
-- loses it, its admissions are lost with it, and the keys are still dirty.
CREATE FUNCTION {t}take_dirty_keys(
    in_namespace text, in_kinds text[], page integer,
    OUT kind text, OUT is_rate boolean, OUT key text, OUT at bigint, OUT noted_at bigint)
    RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE free_kinds text[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', TRUE);
    free_kinds := ARRAY(
        SELECT k.kind FROM (
            SELECT unnest(in_kinds) AS kind WHERE in_kinds IS NOT NULL
             UNION
            SELECT DISTINCT d.kind FROM {t}dirty_key AS d
             WHERE d.namespace = in_namespace AND in_kinds IS NULL) AS k
         WHERE pg_try_advisory_xact_lock(
               hashtextextended('{t}' || in_namespace || '/' || k.kind, 0)));
    RETURN QUERY
    DELETE FROM {t}dirty_key AS gone
     WHERE gone.id = ANY(ARRAY(
           SELECT d.id FROM unnest(free_kinds) AS k(kind)
            CROSS JOIN LATERAL (
              (SELECT d.id FROM {t}dirty_key AS d
                WHERE d.namespace = in_namespace AND d.kind = k.kind AND d.at = 0
                ORDER BY d.id LIMIT page)
               UNION
              (SELECT d.id FROM {t}dirty_key AS d
                WHERE d.namespace = in_namespace AND d.kind = k.kind
                  AND d.at > 0 AND d.at <= (SELECT {t}clock())
                ORDER BY d.at, d.id LIMIT page)
               UNION
              (SELECT d.id FROM {t}dirty_key AS d
                WHERE d.namespace = in_namespace AND d.kind = k.kind
                  AND d.noted_at > 0 AND d.noted_at > (SELECT {t}clock())
                ORDER BY d.noted_at LIMIT page)) AS d))
    RETURNING gone.kind, gone.is_rate, gone.key, gone.at, gone.noted_at;
END $$;

CREATE TABLE {t}outage (
    began_at bigint  NOT NULL,
    ended_at bigint  NOT NULL,
    is_jump  boolean NOT NULL,  -- of the clock, noticed by a process that read it before and after
    PRIMARY KEY (began_at, ended_at, is_jump)
);

-- What was counted of the log, for plots: never the truth (docs/adr/0070). `series` is JSON: what
-- was counted in all, and of each queue and kind. The last one of each length is written again and again: room for its next version.
CREATE TABLE {t}rollup (
    length_us bigint NOT NULL,
    at        bigint NOT NULL,
    namespace text   NOT NULL COLLATE "C",
    series    text   NOT NULL COLLATE "C",
    PRIMARY KEY (namespace, length_us, at)
) WITH (fillfactor = 50);

CREATE INDEX rollup_age ON {t}rollup (length_us, at);

-- How far the log was counted. Changes only with the rollups, so that each event is counted once.
CREATE TABLE {t}rollup_progress (
    one           integer PRIMARY KEY CHECK (one = 1),
    position      text    COLLATE "C",
    skipped_until bigint,
    folded_until  bigint,
    folded_at     bigint
) WITH (fillfactor = 10);

INSERT INTO {t}rollup_progress (one) VALUES (1);

CREATE FUNCTION {t}refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'tenure: %', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE TRIGGER meta_epoch_rises BEFORE UPDATE OF epoch ON {t}meta FOR EACH ROW
  WHEN (NEW.epoch < OLD.epoch)
  EXECUTE FUNCTION {t}refuse('an epoch never falls');

CREATE FUNCTION {t}refuse_while_job_exists() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM {t}job WHERE id = OLD.job_id) THEN
        RAISE EXCEPTION 'tenure: a transition is kept for as long as its job'
              USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;
END $$;

-- The conditions are evaluated before a function is called, so an ordinary write pays almost nothing.
-- AFTER, where nothing of it is needed before: for a BEFORE trigger the row is locked first, and
-- the lock is logged.
CREATE TRIGGER job_moves_forward AFTER UPDATE ON {t}job FOR EACH ROW
  WHEN (OLD.finished_at IS NOT NULL OR NEW.id <> OLD.id OR NEW.rev < OLD.rev
        OR (NEW.rev = OLD.rev  -- only admission changes a job's lane and nothing else
            AND (NEW.lane, NEW.admitted_at) IS NOT DISTINCT FROM (OLD.lane, OLD.admitted_at)))
  EXECUTE FUNCTION {t}refuse('a finished job is immutable, and every change raises rev');

CREATE TRIGGER job_live_stays BEFORE DELETE ON {t}job FOR EACH ROW
  WHEN (OLD.finished_at IS NULL)
  EXECUTE FUNCTION {t}refuse('a live job is never deleted');

CREATE TRIGGER job_is_not_emptied BEFORE TRUNCATE ON {t}job FOR EACH STATEMENT
  EXECUTE FUNCTION {t}refuse('jobs are purged, never truncated');

CREATE TRIGGER job_event_is_written_once BEFORE UPDATE ON {t}job_event FOR EACH ROW
  EXECUTE FUNCTION {t}refuse('an event is never changed');

CREATE TRIGGER job_event_transition_stays BEFORE DELETE ON {t}job_event FOR EACH ROW
  WHEN (OLD.type NOT IN ('lease_renewed', 'heartbeat'))
  EXECUTE FUNCTION {t}refuse_while_job_exists();

CREATE TRIGGER job_event_is_not_emptied BEFORE TRUNCATE ON {t}job_event FOR EACH STATEMENT
  EXECUTE FUNCTION {t}refuse('events are purged, never truncated');

-- The dedupe keys that are taken (docs/adr/0059): by live jobs, and by ended jobs that keep theirs until a
-- time, or until another job takes it after that time.
CREATE TABLE {t}dedupe (
    job_id    uuid   NOT NULL,
    until     bigint,  -- NULL while the job is live
    namespace text   NOT NULL COLLATE "C",
    kind      text   NOT NULL COLLATE "C",
    key       text   NOT NULL COLLATE "C",
    PRIMARY KEY (namespace, kind, key)
);

-- Flows (docs/spec/flows.md): which jobs wait for which. The end of a parent is written on its edges in its own
-- transaction; the row of a child is written only when it is queued or ends (docs/adr/0055).

CREATE TABLE {t}flow (
    id        uuid    NOT NULL PRIMARY KEY,
    made_at   bigint  NOT NULL,
    jobs      integer NOT NULL CHECK (jobs >= 1),
    namespace text    NOT NULL COLLATE "C",
    name      text    NOT NULL COLLATE "C"
);

CREATE INDEX flow_listed ON {t}flow (namespace, made_at, id);

CREATE TABLE {t}flow_redrive (
    flow_id    uuid    NOT NULL,
    ts         bigint  NOT NULL,
    number     integer NOT NULL CHECK (number >= 1),
    jobs       integer NOT NULL CHECK (jobs >= 1),
    actor      text    NOT NULL COLLATE "C",
    request_id text    NOT NULL COLLATE "C",
    PRIMARY KEY (flow_id, number)
);

CREATE TABLE {t}job_edge (
    child_id   uuid    NOT NULL,
    parent_id  uuid    NOT NULL,
    position   integer NOT NULL,
    is_outside boolean NOT NULL,
    step       text    NOT NULL COLLATE "C",
    needs      text    COLLATE "C",
    outcome    text    COLLATE "C",
    PRIMARY KEY (child_id, position)
);

CREATE INDEX job_edge_parent ON {t}job_edge (parent_id, child_id);
-- Whether a job still waits for a parent: an entry goes when the parent ends.
CREATE INDEX job_edge_unmet ON {t}job_edge (child_id) WHERE outcome IS NULL;
CREATE INDEX job_edge_outside ON {t}job_edge (parent_id) WHERE outcome IS NULL AND is_outside;

CREATE TRIGGER job_edge_is_marked_once AFTER UPDATE ON {t}job_edge FOR EACH ROW
  WHEN (OLD.outcome IS NOT NULL OR NEW.child_id <> OLD.child_id OR NEW.position <> OLD.position
        OR NEW.parent_id <> OLD.parent_id OR NEW.needs IS DISTINCT FROM OLD.needs)
  EXECUTE FUNCTION {t}refuse('an edge is only marked, and once');

-- Jobs whose wait, or whose children's wait, may be over. A row stays until a sweeper has checked.
CREATE TABLE {t}edge_check (
    job_id   uuid   NOT NULL,
    noted_at bigint NOT NULL,
    PRIMARY KEY (job_id, noted_at)
);

-- What is kept outside the log (docs/spec/outside-the-log.md).

CREATE TABLE {t}dead_letter_resolution (
    job_id      uuid   NOT NULL PRIMARY KEY,
    ts          bigint NOT NULL,
    new_job_id  uuid,
    kind        text   NOT NULL COLLATE "C",
    actor       text   NOT NULL COLLATE "C",
    request_id  text   NOT NULL COLLATE "C",
    fingerprint text   NOT NULL COLLATE "C",
    note        text   NOT NULL COLLATE "C",
    CHECK (CASE kind WHEN 'redriven' THEN new_job_id IS NOT NULL
                     WHEN 'discarded' THEN new_job_id IS NULL
                     ELSE TRUE END)
);

CREATE TRIGGER resolution_is_written_once BEFORE UPDATE ON {t}dead_letter_resolution FOR EACH ROW
  EXECUTE FUNCTION {t}refuse('a resolution is never changed');

CREATE TABLE {t}artifact (
    job_id     uuid    NOT NULL,
    ts         bigint  NOT NULL,
    size       bigint  NOT NULL CHECK (size BETWEEN 0 AND 16777216),
    attempt    integer NOT NULL,
    namespace  text    NOT NULL COLLATE "C",
    name       text    NOT NULL COLLATE "C",
    media_type text    NOT NULL COLLATE "C",
    sha256     text    NOT NULL COLLATE "C",
    body       bytea   NOT NULL CHECK (length(body) = size),
    PRIMARY KEY (job_id, attempt, name)
);

-- The bytes of a namespace's artifacts, so that its quota costs the same however many there are.
-- Sixteen rows, by the last digit of the job id, because a transaction that changes one locks it until
-- its commit: with commits of 10 ms four uploaders stage 300 artifacts a second, with one row 90.
CREATE TABLE {t}artifact_bytes (
    namespace text    NOT NULL COLLATE "C",
    shard     integer NOT NULL CHECK (shard BETWEEN 0 AND 15),
    bytes     bigint  NOT NULL,
    PRIMARY KEY (namespace, shard)
) WITH (fillfactor = 50);

CREATE TABLE {t}attempt_log (
    job_id         uuid    NOT NULL,
    left_out_bytes bigint  NOT NULL CHECK (left_out_bytes >= 0),
    part           integer NOT NULL CHECK (part >= 0),
    attempt        integer NOT NULL,
    text           text    NOT NULL COLLATE "C",
    PRIMARY KEY (job_id, attempt)
);

CREATE TABLE {t}worker_process (
    namespace          text    NOT NULL COLLATE "C",
    worker             text    NOT NULL COLLATE "C",
    actor              text    NOT NULL COLLATE "C",
    host               text    NOT NULL COLLATE "C",
    pid                bigint  NOT NULL,
    queues             text    NOT NULL COLLATE "C",
    kinds              text    NOT NULL COLLATE "C",
    schedules          text    NOT NULL COLLATE "C",
    concurrency        bigint  NOT NULL,
    version            text    NOT NULL COLLATE "C",
    started_at         bigint  NOT NULL,
    seen_at            bigint  NOT NULL,
    drain_requested_at bigint,
    drain_reported     boolean NOT NULL,
    instance           text    NOT NULL COLLATE "C",
    PRIMARY KEY (namespace, worker, actor)
) WITH (fillfactor = 50);

-- Schedules (docs/spec/schedules.md). `spec` states when one fires and which job that makes. A removed one
-- stays, so that a worker that starts does not declare it again.

CREATE TABLE {t}schedule (
    next_at     bigint,
    last_at     bigint,
    created_at  bigint  NOT NULL,
    changed_at  bigint  NOT NULL,
    updated_at  bigint  NOT NULL,
    paused_at   bigint,
    removed_at  bigint,
    fired       bigint  NOT NULL CHECK (fired >= 0),
    skipped     bigint  NOT NULL CHECK (skipped >= 0),
    missed      bigint  NOT NULL CHECK (missed >= 0),
    rev         integer NOT NULL CHECK (rev >= 1),
    last_job_id uuid,
    namespace   text    NOT NULL COLLATE "C",
    name        text    NOT NULL COLLATE "C",
    created_by  text    NOT NULL COLLATE "C",
    changed_by  text    NOT NULL COLLATE "C",
    declared_by text    COLLATE "C",
    pause_reason text   COLLATE "C",
    spec        text    NOT NULL COLLATE "C",
    payload     text    NOT NULL COLLATE "C",
    PRIMARY KEY (namespace, name),
    CHECK (next_at IS NULL OR (paused_at IS NULL AND removed_at IS NULL))
) WITH (fillfactor = 50);

CREATE INDEX schedule_next ON {t}schedule (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedule_written ON {t}schedule (updated_at) WHERE next_at IS NOT NULL;

-- No occurrence is dealt with twice: what a schedule has passed, it never goes back to.
CREATE TRIGGER schedule_moves_forward BEFORE UPDATE ON {t}schedule FOR EACH ROW
  WHEN (NEW.rev <= OLD.rev OR NEW.last_at < OLD.last_at OR NEW.next_at <= NEW.last_at)
  EXECUTE FUNCTION {t}refuse('a schedule never goes back to an earlier time');

-- Tokens (docs/spec/http.md).

CREATE TABLE {t}token (
    id            text   NOT NULL COLLATE "C" PRIMARY KEY,
    secret_sha256 text   NOT NULL COLLATE "C" CHECK (length(secret_sha256) = 64),
    name          text   NOT NULL COLLATE "C",
    role          text   NOT NULL COLLATE "C",
    namespace     text   NOT NULL COLLATE "C",
    queues        text   NOT NULL COLLATE "C",
    kinds         text   NOT NULL COLLATE "C",
    max_leases    bigint NOT NULL CHECK (max_leases >= 1),
    max_polls     bigint NOT NULL CHECK (max_polls >= 1),
    may_declare   boolean NOT NULL,
    created_at    bigint NOT NULL,
    expires_at    bigint,
    revoked_at    bigint,
    last_used_at  bigint
);

-- What a token may do is fixed when it is created; for more rights, create another token.
CREATE TRIGGER token_never_gains BEFORE UPDATE ON {t}token FOR EACH ROW
  WHEN (new.id <> old.id OR new.secret_sha256 <> old.secret_sha256 OR new.name <> old.name
        OR new.role <> old.role OR new.namespace <> old.namespace OR new.queues <> old.queues
        OR new.kinds <> old.kinds OR new.may_declare <> old.may_declare OR new.expires_at IS DISTINCT FROM old.expires_at
        OR (old.revoked_at IS NOT NULL AND new.revoked_at IS NULL))
  EXECUTE FUNCTION {t}refuse('a token never gains a right');
