-- Tenure on SQLite, version 1.
--
-- STRICT: affinity would let text into integers. Instants are microseconds since 1970 UTC.
-- The guards below refuse; they decide nothing. No index mentions status (docs/adr/0006).

-- From system_identifier on: about failovers, see the schema for PostgreSQL. A file has no standbys,
-- and these never change.
CREATE TABLE tenure_meta (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    schema_version    INTEGER NOT NULL,
    epoch             INTEGER NOT NULL CHECK (epoch >= 1),
    tick              INTEGER,
    system_identifier INTEGER NOT NULL,
    timeline          INTEGER NOT NULL,
    settling_since    INTEGER,
    lost_at           INTEGER,
    losses            INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO tenure_meta (one, schema_version, epoch, system_identifier, timeline)
VALUES (1, 0, 1, 0, 1);

CREATE TABLE tenure_job (
    id                    TEXT    NOT NULL PRIMARY KEY,
    namespace             TEXT    NOT NULL,
    queue                 TEXT    NOT NULL,
    kind                  TEXT    NOT NULL,
    priority              INTEGER NOT NULL,
    status                TEXT    NOT NULL,
    rev                   INTEGER NOT NULL,
    run_at                INTEGER,
    not_before            INTEGER,
    enqueued_at           INTEGER NOT NULL,
    updated_at            INTEGER NOT NULL,
    attempt               INTEGER NOT NULL,
    failures              INTEGER NOT NULL,
    releases              INTEGER NOT NULL,
    outage_credits        INTEGER NOT NULL,
    lease_id              TEXT,
    owner                 TEXT,
    principal             TEXT,
    claimed_at            INTEGER,
    lease_expires_at      INTEGER,
    due_at                INTEGER,
    claimed_run_at        INTEGER,
    hb_seq                INTEGER NOT NULL,
    renewals              INTEGER NOT NULL,
    started_at            INTEGER,
    was_started           INTEGER NOT NULL CHECK (was_started IN (0, 1)),
    cancel_requested_at   INTEGER,
    cancel_deadline       INTEGER,
    cancel_reason         TEXT,
    stall_cause           TEXT,
    last_owner            TEXT,
    last_lease_expires_at INTEGER,
    finished_at           INTEGER,
    reason_code           TEXT,
    stage                 TEXT,
    dedupe_key            TEXT,
    correlation_id        TEXT,
    trace_id              TEXT,
    origin_id             TEXT,
    origin_cause          TEXT,
    policy                TEXT    NOT NULL,
    progress              TEXT,
    last_error            TEXT,
    error                 TEXT,
    payload               TEXT    NOT NULL,
    checkpoint            TEXT,
    result                TEXT,

    CONSTRAINT job_counters CHECK (
        rev >= 1 AND attempt >= 0 AND failures BETWEEN 0 AND attempt
        AND releases >= 0 AND outage_credits >= 0 AND renewals >= 0
        AND priority BETWEEN -32768 AND 32767),
    CONSTRAINT job_cancel_request CHECK ((cancel_requested_at IS NULL) = (cancel_deadline IS NULL)),
    CONSTRAINT job_waits CHECK ((run_at IS NULL) = (not_before IS NULL)),
    CONSTRAINT job_words CHECK (
        (origin_cause IS NULL OR origin_cause IN ('redrive', 'rerun', 'compensation', 'follow_up'))
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
            AND claimed_run_at IS NOT NULL
            AND started_at IS NOT NULL AND coalesce(run_at, finished_at) IS NULL
            AND coalesce(stall_cause, result, error, reason_code, stage) IS NULL
        WHEN 'claimed' THEN
            lease_id IS NOT NULL AND owner IS NOT NULL AND principal IS NOT NULL
            AND claimed_at IS NOT NULL AND lease_expires_at IS NOT NULL AND due_at IS NOT NULL
            AND claimed_run_at IS NOT NULL
            AND coalesce(started_at, run_at, finished_at) IS NULL
            AND coalesce(stall_cause, result, error, reason_code, stage) IS NULL
        WHEN 'succeeded' THEN
            finished_at IS NOT NULL AND result IS NOT NULL
            AND coalesce(run_at, claimed_at, lease_expires_at, due_at, claimed_run_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, error, reason_code, stage) IS NULL
        WHEN 'queued' THEN
            run_at IS NOT NULL
            AND coalesce(claimed_at, lease_expires_at, due_at, claimed_run_at, started_at,
                         finished_at, cancel_requested_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, result, error, reason_code,
                         stage) IS NULL
        WHEN 'stalled' THEN
            stall_cause IS NOT NULL AND (run_at IS NULL OR policy LIKE '%"reclaim"%')
            AND coalesce(claimed_at, lease_expires_at, due_at, claimed_run_at, started_at,
                         finished_at) IS NULL
            AND coalesce(lease_id, owner, principal, result, error, reason_code, stage) IS NULL
        WHEN 'failed' THEN
            finished_at IS NOT NULL AND error IS NOT NULL
            AND coalesce(run_at, claimed_at, lease_expires_at, due_at, claimed_run_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, result, reason_code, stage) IS NULL
        WHEN 'cancelled' THEN
            finished_at IS NOT NULL AND cancel_reason IS NOT NULL
            AND coalesce(run_at, claimed_at, lease_expires_at, due_at, claimed_run_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, result, error, reason_code,
                         stage) IS NULL
        WHEN 'dead_lettered' THEN
            finished_at IS NOT NULL AND error IS NOT NULL AND reason_code IS NOT NULL
            AND coalesce(run_at, claimed_at, lease_expires_at, due_at, claimed_run_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, result) IS NULL
        ELSE FALSE END)
) STRICT;

-- In claim order; not_before comes last, so that a claim passes by delayed jobs within the index.
CREATE INDEX tenure_job_claimable
    ON tenure_job (namespace, queue, priority DESC, run_at, id, not_before)
 WHERE run_at IS NOT NULL;
CREATE INDEX tenure_job_leased
    ON tenure_job (namespace, queue, id) WHERE lease_id IS NOT NULL;
CREATE UNIQUE INDEX tenure_job_dedupe
    ON tenure_job (namespace, kind, dedupe_key)
 WHERE dedupe_key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX tenure_job_finished ON tenure_job (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX tenure_job_correlation
    ON tenure_job (namespace, correlation_id, id) WHERE correlation_id IS NOT NULL;
-- For lists, newest first. None of these columns ever changes, so no update touches them: SQLite can
-- afford one for each filter, PostgreSQL cannot. Queue and kind are expressions that only lists use: a
-- statement about leases took the index of a plain column.
CREATE INDEX tenure_job_listed ON tenure_job (namespace, id);
CREATE INDEX tenure_job_listed_by_queue ON tenure_job (namespace, (queue || ''), id);
CREATE INDEX tenure_job_listed_by_kind ON tenure_job (namespace, (kind || ''), id);
CREATE INDEX tenure_job_compensation
    ON tenure_job (origin_id) WHERE origin_cause = 'compensation';

-- (job_id, ts) needs no index of its own: within a job ts never falls, so the key's order is also
-- the order of time. [E4]
CREATE TABLE tenure_job_event (
    job_id           TEXT    NOT NULL,
    seq              INTEGER NOT NULL CHECK (seq >= 1),
    ts               INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    lease_expires_at INTEGER,
    version          INTEGER NOT NULL,
    type             TEXT    NOT NULL,
    class            TEXT    NOT NULL,
    from_status      TEXT,
    to_status        TEXT    NOT NULL,
    cause            TEXT,
    actor            TEXT    NOT NULL,
    owner            TEXT,
    lease_id         TEXT,
    request_id       TEXT    NOT NULL,
    fingerprint      TEXT,
    correlation_id   TEXT,
    trace_id         TEXT,
    payload          TEXT    NOT NULL,
    PRIMARY KEY (job_id, seq),
    -- CASE, not IN: SQLite makes a table of the words of an IN, anew for every row that is written.
    -- That was a fifth of the time of a whole drain.
    CONSTRAINT event_words CHECK (
        class IS CASE type
            WHEN 'claimed' THEN 'transition' WHEN 'started' THEN 'transition'
            WHEN 'succeeded' THEN 'transition' WHEN 'enqueued' THEN 'transition'
            WHEN 'lease_renewed' THEN 'renewal' WHEN 'heartbeat' THEN 'renewal'
            WHEN 'stalled' THEN 'transition' WHEN 'requeued' THEN 'transition'
            WHEN 'failed' THEN 'transition' WHEN 'cancel_requested' THEN 'transition'
            WHEN 'cancelled' THEN 'transition' WHEN 'dead_lettered' THEN 'transition'
            ELSE NULL END
        AND CASE to_status
            WHEN 'claimed' THEN TRUE WHEN 'running' THEN TRUE WHEN 'succeeded' THEN TRUE
            WHEN 'queued' THEN TRUE WHEN 'stalled' THEN TRUE WHEN 'failed' THEN TRUE
            WHEN 'cancelled' THEN TRUE WHEN 'dead_lettered' THEN TRUE
            ELSE FALSE END
        AND (from_status IS NULL OR CASE from_status
            WHEN 'queued' THEN TRUE WHEN 'claimed' THEN TRUE WHEN 'running' THEN TRUE
            WHEN 'stalled' THEN TRUE
            ELSE FALSE END))
) STRICT, WITHOUT ROWID;

-- By time alone, types are filtered: entries arrive at one end of it, where an insertion is cheapest.
CREATE INDEX tenure_job_event_time ON tenure_job_event (ts);
CREATE INDEX tenure_job_event_renewal ON tenure_job_event (job_id, seq) WHERE class = 'renewal';
CREATE INDEX tenure_job_event_correlation
    ON tenure_job_event (correlation_id) WHERE correlation_id IS NOT NULL;

CREATE TABLE tenure_observation (
    job_id     TEXT    NOT NULL,
    lease      TEXT    NOT NULL,  -- the lease id, or empty: a key has no nulls
    ordinal    INTEGER NOT NULL CHECK (ordinal BETWEEN 1 AND 10),
    ts         INTEGER NOT NULL,
    type       TEXT    NOT NULL
               CHECK (type IN ('result_discarded', 'foreign_lease', 'compensated')),
    actor      TEXT    NOT NULL,
    lease_id   TEXT,
    request_id TEXT,
    cause      TEXT,
    size       INTEGER,
    sha256     TEXT,
    body       BLOB,
    PRIMARY KEY (job_id, lease, ordinal)
) STRICT;

CREATE INDEX tenure_observation_body ON tenure_observation (ts) WHERE body IS NOT NULL;

CREATE TABLE tenure_queue (
    namespace         TEXT    NOT NULL,
    name              TEXT    NOT NULL,
    paused            INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    concurrency_limit INTEGER CHECK (concurrency_limit > 0),
    PRIMARY KEY (namespace, name)
) STRICT;

CREATE TABLE tenure_worker (
    namespace   TEXT    NOT NULL,
    worker      TEXT    NOT NULL,
    actor       TEXT    NOT NULL,
    claim_seq   INTEGER NOT NULL,
    request_id  TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    claimed_at  INTEGER NOT NULL,
    is_repeated INTEGER NOT NULL CHECK (is_repeated IN (0, 1)),
    PRIMARY KEY (namespace, worker, actor)
) STRICT;

CREATE TABLE tenure_outage (
    began_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    -- of the clock, seen by a process that read it before and after
    is_jump  INTEGER NOT NULL CHECK (is_jump IN (0, 1)),
    PRIMARY KEY (began_at, ended_at, is_jump)
) STRICT;

CREATE TRIGGER tenure_job_moves_forward BEFORE UPDATE ON tenure_job
  WHEN OLD.finished_at IS NOT NULL OR NEW.rev <= OLD.rev OR NEW.id <> OLD.id
BEGIN SELECT RAISE(ABORT, 'tenure: a finished job is immutable, and every change raises rev'); END;

-- REPLACE deletes without asking the triggers of deletion; these two refuse it.
CREATE TRIGGER tenure_job_is_inserted_once BEFORE INSERT ON tenure_job
  WHEN EXISTS (SELECT 1 FROM tenure_job WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'tenure: a job is never replaced'); END;

CREATE TRIGGER tenure_job_event_is_inserted_once BEFORE INSERT ON tenure_job_event
  WHEN EXISTS (SELECT 1 FROM tenure_job_event WHERE job_id = NEW.job_id AND seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'tenure: an event is never replaced'); END;

CREATE TRIGGER tenure_job_live_stays BEFORE DELETE ON tenure_job WHEN OLD.finished_at IS NULL
BEGIN SELECT RAISE(ABORT, 'tenure: a live job is never deleted'); END;

CREATE TRIGGER tenure_job_event_is_written_once BEFORE UPDATE ON tenure_job_event
BEGIN SELECT RAISE(ABORT, 'tenure: an event is never changed'); END;

CREATE TRIGGER tenure_job_event_transition_stays BEFORE DELETE ON tenure_job_event
  WHEN OLD.class <> 'renewal' AND EXISTS (SELECT 1 FROM tenure_job WHERE id = OLD.job_id)
BEGIN SELECT RAISE(ABORT, 'tenure: a transition is kept for as long as its job'); END;
