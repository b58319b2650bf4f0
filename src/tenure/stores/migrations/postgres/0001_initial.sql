-- Tenure on PostgreSQL, version 1. {t} is the schema and a dot.
--
-- Instants are microseconds since 1970 UTC. Names compare byte by byte (COLLATE "C"), as in every
-- other store. Fixed-width columns come first: PostgreSQL pads between columns as they are declared.
-- The guards below refuse; they decide nothing. No index mentions status (docs/adr/0006).

CREATE SCHEMA IF NOT EXISTS {schema};

-- The store's clock. clock_timestamp(), not now(): a transaction that waited for a lock must judge
-- a lease by the time at which it got the lock.
CREATE FUNCTION {t}clock() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT CAST(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000 AS bigint) $$;

CREATE TABLE {t}meta (
    one            boolean PRIMARY KEY DEFAULT TRUE CHECK (one),
    schema_version integer NOT NULL,
    epoch          bigint  NOT NULL CHECK (epoch >= 1),
    tick           bigint
) WITH (fillfactor = 50);

INSERT INTO {t}meta (schema_version, epoch) VALUES (0, 1);

-- The clock and the epoch at the moment of a write. Called once the rows are locked (`locked` is
-- how many: asking for it is what orders the two); each statement of a volatile function sees what
-- has been committed by then, which the calling statement's snapshot does not. The shared lock is
-- what `raise_epoch` waits for: when it returns, no write under the old epoch can still commit.
CREATE FUNCTION {t}judge(locked bigint, epoch_lock bigint, OUT now bigint, OUT epoch bigint)
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock_shared(epoch_lock);
    SELECT {t}clock(), m.epoch INTO now, epoch FROM {t}meta AS m;
END $$;

-- The same after the rows were written, and so locked: what came too late is undone by an error of
-- its own code. Locking a row before it is written costs a fifth of the write.
CREATE FUNCTION {t}veto(
    written bigint, epoch_lock bigint, granted_epoch bigint, not_after bigint, OUT now bigint)
    LANGUAGE plpgsql VOLATILE AS $$
DECLARE epoch bigint;
BEGIN
    SELECT j.now, j.epoch INTO now, epoch FROM {t}judge(written, epoch_lock) AS j;
    IF epoch <> granted_epoch OR now >= not_after THEN
        RAISE EXCEPTION 'tenure: written too late' USING ERRCODE = 'TN001';
    END IF;
END $$;

CREATE TABLE {t}job (
    id                    uuid     NOT NULL PRIMARY KEY,
    enqueued_at           bigint   NOT NULL,
    updated_at            bigint   NOT NULL,
    run_at                bigint,
    claimed_at            bigint,
    lease_expires_at      bigint,
    due_at                bigint,
    started_at            bigint,
    finished_at           bigint,
    cancel_requested_at   bigint,
    cancel_deadline       bigint,
    last_lease_expires_at bigint,
    hb_seq                bigint   NOT NULL,
    rev                   integer  NOT NULL,
    attempt               integer  NOT NULL,
    failures              integer  NOT NULL,
    releases              integer  NOT NULL,
    outage_credits        integer  NOT NULL,
    renewals              integer  NOT NULL,
    priority              smallint NOT NULL,
    was_started           boolean  NOT NULL,
    origin_id             uuid,
    namespace             text     NOT NULL COLLATE "C",
    queue                 text     NOT NULL COLLATE "C",
    kind                  text     NOT NULL COLLATE "C",
    status                text     NOT NULL COLLATE "C",
    lease_id              text     COLLATE "C",
    owner                 text     COLLATE "C",
    principal             text     COLLATE "C",
    dedupe_key            text     COLLATE "C",
    correlation_id        text     COLLATE "C",
    trace_id              text     COLLATE "C",
    cancel_reason         text     COLLATE "C",
    stall_cause           text     COLLATE "C",
    last_owner            text     COLLATE "C",
    reason_code           text     COLLATE "C",
    stage                 text     COLLATE "C",
    origin_cause          text     COLLATE "C",
    policy                text     NOT NULL COLLATE "C",
    progress              text     COLLATE "C",
    last_error            text     COLLATE "C",
    error                 text     COLLATE "C",
    payload               text     NOT NULL COLLATE "C",
    checkpoint            text     COLLATE "C",
    result                text     COLLATE "C",

    CONSTRAINT job_counters CHECK (
        rev >= 1 AND attempt >= 0 AND failures BETWEEN 0 AND attempt
        AND releases >= 0 AND outage_credits >= 0 AND renewals >= 0
        AND priority BETWEEN -32768 AND 32767),
    CONSTRAINT job_cancel_request CHECK ((cancel_requested_at IS NULL) = (cancel_deadline IS NULL)),
    CONSTRAINT job_words CHECK (
        (origin_cause IS NULL OR origin_cause IN ('redrive', 'rerun', 'compensation'))
        AND (stall_cause IS NULL OR stall_cause IN (
            'attempt_failed', 'released', 'snoozed', 'undelivered', 'lease_expired', 'outage',
            'timeout', 'start_timeout'))
        AND (reason_code IS NULL OR reason_code IN (
            'parse_error', 'validation_failed', 'dependency_unavailable', 'timeout',
            'exhausted_retries', 'policy_violation', 'infrastructure_failure',
            'compensation_failed'))
        AND (stage IS NULL OR stage IN ('fetch', 'input', 'exec', 'output', 'commit'))),
    -- The table of docs/spec/states.md, S1 to S8, the commonest statuses first: an update pays for
    -- every comparison.
    CONSTRAINT job_row_fits_its_status CHECK (CASE status
        WHEN 'running' THEN
            lease_id IS NOT NULL AND owner IS NOT NULL AND principal IS NOT NULL
            AND claimed_at IS NOT NULL AND lease_expires_at IS NOT NULL AND due_at IS NOT NULL
            AND started_at IS NOT NULL AND coalesce(run_at, finished_at) IS NULL
            AND coalesce(stall_cause, result, error, reason_code, stage) IS NULL
        WHEN 'claimed' THEN
            lease_id IS NOT NULL AND owner IS NOT NULL AND principal IS NOT NULL
            AND claimed_at IS NOT NULL AND lease_expires_at IS NOT NULL AND due_at IS NOT NULL
            AND coalesce(started_at, run_at, finished_at) IS NULL
            AND coalesce(stall_cause, result, error, reason_code, stage) IS NULL
        WHEN 'succeeded' THEN
            finished_at IS NOT NULL AND result IS NOT NULL
            AND coalesce(run_at, claimed_at, lease_expires_at, due_at, started_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, error, reason_code, stage) IS NULL
        WHEN 'queued' THEN
            run_at IS NOT NULL
            AND coalesce(claimed_at, lease_expires_at, due_at, started_at, finished_at,
                         cancel_requested_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, result, error, reason_code,
                         stage) IS NULL
        WHEN 'stalled' THEN
            stall_cause IS NOT NULL AND (run_at IS NULL OR policy LIKE '%"reclaim"%')
            AND coalesce(claimed_at, lease_expires_at, due_at, started_at, finished_at) IS NULL
            AND coalesce(lease_id, owner, principal, result, error, reason_code, stage) IS NULL
        WHEN 'failed' THEN
            finished_at IS NOT NULL AND error IS NOT NULL
            AND coalesce(run_at, claimed_at, lease_expires_at, due_at, started_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, result, reason_code, stage) IS NULL
        WHEN 'cancelled' THEN
            finished_at IS NOT NULL AND cancel_reason IS NOT NULL
            AND coalesce(run_at, claimed_at, lease_expires_at, due_at, started_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, result, error, reason_code,
                         stage) IS NULL
        WHEN 'dead_lettered' THEN
            finished_at IS NOT NULL AND error IS NOT NULL AND reason_code IS NOT NULL
            AND coalesce(run_at, claimed_at, lease_expires_at, due_at, started_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, result) IS NULL
        ELSE FALSE END)
) WITH (
    -- Room on each page for the next version of every row on it: a batch claims, starts and ends
    -- whole pages. With 50, 93 % of the starts of a drain were HOT; with 80, 41 %, and the table
    -- grew larger, because the versions that found no room went to new pages.
    fillfactor = 50,
    -- A queue turns its table over many times a day: vacuum by share of changes, early, unthrottled.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX job_claimable
    ON {t}job (namespace, queue, priority DESC, run_at, id) WHERE run_at IS NOT NULL;
CREATE INDEX job_leased
    ON {t}job (namespace, queue, id) WHERE lease_id IS NOT NULL;
CREATE UNIQUE INDEX job_dedupe
    ON {t}job (namespace, kind, dedupe_key)
 WHERE dedupe_key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX job_finished ON {t}job (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX job_correlation ON {t}job (correlation_id, id) WHERE correlation_id IS NOT NULL;

-- (job_id, ts) needs no index of its own: within a job ts never falls, so the key's order is also
-- the order of time. [E4]
CREATE TABLE {t}job_event (
    job_id           uuid     NOT NULL,
    ts               bigint   NOT NULL,
    lease_expires_at bigint,
    seq              integer  NOT NULL CHECK (seq >= 1),
    attempt          integer  NOT NULL,
    version          smallint NOT NULL,
    type             text     NOT NULL COLLATE "C",
    class            text     NOT NULL COLLATE "C",
    from_status      text     COLLATE "C",
    to_status        text     NOT NULL COLLATE "C",
    cause            text     COLLATE "C",
    actor            text     NOT NULL COLLATE "C",
    owner            text     COLLATE "C",
    lease_id         text     COLLATE "C",
    request_id       text     NOT NULL COLLATE "C",
    fingerprint      text     COLLATE "C",
    correlation_id   text     COLLATE "C",
    trace_id         text     COLLATE "C",
    payload          text     NOT NULL COLLATE "C",
    PRIMARY KEY (job_id, seq),
    -- CASE, not IN, as in SQLite: the frequent words first, so that few are compared.
    CONSTRAINT event_words CHECK (
        class = CASE type
            WHEN 'claimed' THEN 'transition' WHEN 'started' THEN 'transition'
            WHEN 'succeeded' THEN 'transition' WHEN 'enqueued' THEN 'transition'
            WHEN 'lease_renewed' THEN 'renewal' WHEN 'heartbeat' THEN 'renewal'
            WHEN 'stalled' THEN 'transition' WHEN 'requeued' THEN 'transition'
            WHEN 'failed' THEN 'transition' WHEN 'cancel_requested' THEN 'transition'
            WHEN 'cancelled' THEN 'transition' WHEN 'dead_lettered' THEN 'transition'
            ELSE 'no such type' END
        AND CASE to_status
            WHEN 'claimed' THEN TRUE WHEN 'running' THEN TRUE WHEN 'succeeded' THEN TRUE
            WHEN 'queued' THEN TRUE WHEN 'stalled' THEN TRUE WHEN 'failed' THEN TRUE
            WHEN 'cancelled' THEN TRUE WHEN 'dead_lettered' THEN TRUE
            ELSE FALSE END
        AND (from_status IS NULL OR CASE from_status
            WHEN 'queued' THEN TRUE WHEN 'claimed' THEN TRUE WHEN 'running' THEN TRUE
            WHEN 'stalled' THEN TRUE
            ELSE FALSE END))
) WITH (
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02
);

-- By time alone, types are filtered: entries arrive at one end of it, where an insertion is cheapest.
CREATE INDEX job_event_time ON {t}job_event (ts);
CREATE INDEX job_event_renewal ON {t}job_event (job_id, seq) WHERE class = 'renewal';
CREATE INDEX job_event_correlation
    ON {t}job_event (correlation_id) WHERE correlation_id IS NOT NULL;

CREATE TABLE {t}observation (
    job_id     uuid     NOT NULL,
    ts         bigint   NOT NULL,
    size       bigint,
    ordinal    smallint NOT NULL CHECK (ordinal BETWEEN 1 AND 10),
    lease      text     NOT NULL COLLATE "C",  -- the lease id, or empty: a key has no nulls
    type       text     NOT NULL COLLATE "C"
               CHECK (type IN ('result_discarded', 'foreign_lease', 'compensated')),
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
    PRIMARY KEY (namespace, name)
);

CREATE TABLE {t}worker (
    namespace   text   NOT NULL COLLATE "C",
    worker      text   NOT NULL COLLATE "C",
    actor       text   NOT NULL COLLATE "C",
    claim_seq   bigint NOT NULL,
    request_id  text   NOT NULL COLLATE "C",
    fingerprint text   NOT NULL COLLATE "C",
    claimed_at  bigint NOT NULL,
    PRIMARY KEY (namespace, worker, actor)
) WITH (fillfactor = 50);

CREATE TABLE {t}outage (
    began_at bigint NOT NULL,
    ended_at bigint NOT NULL,
    PRIMARY KEY (began_at, ended_at)
);

CREATE FUNCTION {t}refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'tenure: %', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE FUNCTION {t}refuse_while_job_exists() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM {t}job WHERE id = OLD.job_id) THEN
        RAISE EXCEPTION 'tenure: a transition is kept for as long as its job'
              USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;
END $$;

-- The conditions are judged before a function is called: a lawful write pays almost nothing.
-- AFTER, where nothing of it is needed before: for a BEFORE trigger the row is locked first, and
-- the lock is logged.
CREATE TRIGGER job_moves_forward AFTER UPDATE ON {t}job FOR EACH ROW
  WHEN (OLD.finished_at IS NOT NULL OR NEW.rev <= OLD.rev OR NEW.id <> OLD.id)
  EXECUTE FUNCTION {t}refuse('a finished job is immutable, and every change raises rev');

CREATE TRIGGER job_live_stays BEFORE DELETE ON {t}job FOR EACH ROW
  WHEN (OLD.finished_at IS NULL)
  EXECUTE FUNCTION {t}refuse('a live job is never deleted');

CREATE TRIGGER job_is_not_emptied BEFORE TRUNCATE ON {t}job FOR EACH STATEMENT
  EXECUTE FUNCTION {t}refuse('jobs are purged, never truncated');

CREATE TRIGGER job_event_is_written_once BEFORE UPDATE ON {t}job_event FOR EACH ROW
  EXECUTE FUNCTION {t}refuse('an event is never changed');

CREATE TRIGGER job_event_transition_stays BEFORE DELETE ON {t}job_event FOR EACH ROW
  WHEN (OLD.class <> 'renewal')
  EXECUTE FUNCTION {t}refuse_while_job_exists();

CREATE TRIGGER job_event_is_not_emptied BEFORE TRUNCATE ON {t}job_event FOR EACH STATEMENT
  EXECUTE FUNCTION {t}refuse('events are purged, never truncated');
