-- Tenure on SQLite.
--
-- STRICT: affinity would let text into integers. Instants are microseconds since 1970 UTC.
-- The guards below refuse; they decide nothing. They protect the shape of a row, finished rows and
-- the log. They list no values of sets that may grow, such as event types and causes: a new value then needs no
-- change of a table (docs/adr/0030). No index mentions status (docs/adr/0006).

-- From system_identifier to losses: about failovers, see the schema for PostgreSQL. A file has no
-- standbys, and these never change.
CREATE TABLE tenure_meta (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    schema_version    INTEGER NOT NULL,
    schema_digest     TEXT,  -- of the migrations that made the schema
    epoch             INTEGER NOT NULL CHECK (epoch >= 1),
    tick              INTEGER,
    system_identifier INTEGER NOT NULL,
    timeline          INTEGER NOT NULL,
    settling_since    INTEGER,
    lost_at           INTEGER,
    losses            INTEGER NOT NULL DEFAULT 0,
    -- Rises with every change of what is set for a queue or a kind: a claim need not read it again.
    settings_rev      INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO tenure_meta (one, schema_version, epoch, system_identifier, timeline)
VALUES (1, 0, 1, 0, 1);

CREATE TRIGGER tenure_meta_epoch_rises BEFORE UPDATE OF epoch ON tenure_meta WHEN NEW.epoch < OLD.epoch
BEGIN SELECT RAISE(ABORT, 'tenure: an epoch never falls'); END;

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
    delete_at             INTEGER,
    start_by              INTEGER,
    reason_code           TEXT,
    stage                 TEXT,
    dedupe_key            TEXT,
    unique_for_us         INTEGER,
    concurrency_key       TEXT,
    rate_key              TEXT,
    lane                  INTEGER NOT NULL DEFAULT 0,  -- while it waits: see core/concurrency.py
    admitted_at           INTEGER,  -- when its key let it through, while it waits to be claimed
    correlation_id        TEXT,
    trace_id              TEXT,
    meta                  TEXT,
    origin_id             TEXT,
    origin_cause          TEXT,
    flow_id               TEXT,
    flow_step             TEXT,
    schedule              TEXT,
    scheduled_for         INTEGER,
    policy                TEXT    NOT NULL,
    on_dead_letter        TEXT,
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
    CONSTRAINT job_waits_in_its_flow CHECK (
        status <> 'waiting' OR (flow_id IS NOT NULL AND attempt = 0 AND cancel_requested_at IS NULL)),
    -- The table of docs/spec/states.md, S1 to S8, the commonest statuses first: an update pays for
    -- every comparison. Any other status, such as S11's, is for a live job that no worker can claim: no lease,
    -- no end, no run_at.
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
        ELSE
            coalesce(run_at, claimed_at, lease_expires_at, due_at, claimed_run_at, started_at,
                     finished_at) IS NULL
            AND coalesce(lease_id, owner, principal, stall_cause, result, error, reason_code,
                         stage) IS NULL
        END)
) STRICT;

-- A job that waits is in one of these two: ready since it was queued (not_before is 0), or delayed
-- until its run_at. So neither jobs of other kinds nor jobs that are not due lie in the way of a
-- claim (docs/adr/0047), nor do jobs that are parked because of a key: they are in another lane
-- (docs/adr/0095). An admitted job is ordered by admitted_at; jobs admitted at the same time, by run_at.
CREATE INDEX tenure_job_ready
    ON tenure_job (namespace, queue, kind, lane, priority DESC, coalesce(admitted_at, run_at),
                   run_at, id)
 WHERE not_before = 0;
CREATE INDEX tenure_job_delayed
    ON tenure_job (namespace, queue, kind, lane, priority DESC, coalesce(admitted_at, run_at),
                   run_at, id)
 WHERE not_before > 0;
-- The jobs of a key that wait, and the jobs that have a place under it. The indexes of rate keys leave out jobs
-- that still wait for their concurrency key.
CREATE INDEX tenure_job_of_key
    ON tenure_job (namespace, kind, concurrency_key, queue, min(not_before, 1), priority DESC, run_at, id)
 WHERE concurrency_key IS NOT NULL AND not_before IS NOT NULL;
CREATE INDEX tenure_job_place_of_key
    ON tenure_job (namespace, kind, concurrency_key)
 WHERE concurrency_key IS NOT NULL AND (lease_id IS NOT NULL OR admitted_at IS NOT NULL);
CREATE INDEX tenure_job_of_rate_key
    ON tenure_job (namespace, kind, rate_key, queue, min(not_before, 1), priority DESC, run_at, id)
 WHERE rate_key IS NOT NULL AND not_before IS NOT NULL AND lane <> 2;
CREATE INDEX tenure_job_place_of_rate_key
    ON tenure_job (namespace, kind, rate_key)
 WHERE rate_key IS NOT NULL AND admitted_at IS NOT NULL AND lane < 2;
-- Jobs that expire unless they are started in time, while they wait; other jobs have no entry.
CREATE INDEX tenure_job_start_by
    ON tenure_job (start_by) WHERE start_by IS NOT NULL AND not_before IS NOT NULL;
CREATE INDEX tenure_job_leased
    ON tenure_job (namespace, queue, enqueued_at, id) WHERE lease_id IS NOT NULL;
-- For the sweep, which every process does once a second.
CREATE INDEX tenure_job_due ON tenure_job (due_at, id) WHERE due_at IS NOT NULL;
-- A guard: the table tenure_dedupe decides who has a key.
CREATE UNIQUE INDEX tenure_job_live_key
    ON tenure_job (namespace, kind, dedupe_key)
 WHERE dedupe_key IS NOT NULL AND finished_at IS NULL;
-- For retention: by the time that the store keeps jobs, or by their own.
CREATE INDEX tenure_job_finished
    ON tenure_job (finished_at) WHERE finished_at IS NOT NULL AND delete_at IS NULL;
CREATE INDEX tenure_job_delete_at ON tenure_job (delete_at) WHERE delete_at IS NOT NULL;
CREATE INDEX tenure_job_correlation
    ON tenure_job (namespace, correlation_id, enqueued_at, id) WHERE correlation_id IS NOT NULL;
-- For lists, newest first. Jobs of a kind or a queue are in parts, as on PostgreSQL: jobs that wait, that are
-- leased (tenure_job_leased has those of a queue) and that have ended. A list of a status reads the part that
-- can have it (docs/adr/0062). Queue and kind are expressions that only lists use: a statement about leases
-- took the index of a plain column.
CREATE INDEX tenure_job_listed ON tenure_job (namespace, enqueued_at, id);
CREATE INDEX tenure_job_waiting_by_kind ON tenure_job (namespace, (kind || ''), enqueued_at, id)
 WHERE finished_at IS NULL AND lease_id IS NULL;
CREATE INDEX tenure_job_leased_by_kind ON tenure_job (namespace, (kind || ''), enqueued_at, id)
 WHERE lease_id IS NOT NULL;
CREATE INDEX tenure_job_ended_by_kind ON tenure_job (namespace, (kind || ''), enqueued_at, id)
 WHERE finished_at IS NOT NULL;
CREATE INDEX tenure_job_waiting_by_queue ON tenure_job (namespace, (queue || ''), enqueued_at, id)
 WHERE finished_at IS NULL AND lease_id IS NULL;
CREATE INDEX tenure_job_ended_by_queue ON tenure_job (namespace, (queue || ''), enqueued_at, id)
 WHERE finished_at IS NOT NULL;
-- Jobs of these statuses are few among many. These columns are written when a job is started, stalls or
-- ends: indexes on them cost other updates nothing.
CREATE INDEX tenure_job_claimed
    ON tenure_job (namespace, enqueued_at, id) WHERE lease_id IS NOT NULL AND started_at IS NULL;
CREATE INDEX tenure_job_dead_letter ON tenure_job (namespace, enqueued_at, id) WHERE reason_code IS NOT NULL;
CREATE INDEX tenure_job_failed
    ON tenure_job (namespace, enqueued_at, id) WHERE error IS NOT NULL AND reason_code IS NULL;
CREATE INDEX tenure_job_cancelled ON tenure_job (namespace, enqueued_at, id)
 WHERE finished_at IS NOT NULL AND result IS NULL AND error IS NULL;
CREATE INDEX tenure_job_stalled ON tenure_job (namespace, enqueued_at, id) WHERE stall_cause IS NOT NULL;
CREATE INDEX tenure_job_blocked ON tenure_job (namespace, enqueued_at, id)
 WHERE flow_id IS NOT NULL AND run_at IS NULL AND lease_id IS NULL AND stall_cause IS NULL
   AND finished_at IS NULL;
-- The jobs of a flow, and which of them have not ended, or ended last.
CREATE INDEX tenure_job_flow ON tenure_job (flow_id, id) WHERE flow_id IS NOT NULL;
CREATE INDEX tenure_job_flow_end ON tenure_job (flow_id, delete_at, finished_at) WHERE flow_id IS NOT NULL;
CREATE INDEX tenure_job_scheduled
    ON tenure_job (namespace, schedule, enqueued_at, id) WHERE schedule IS NOT NULL;
-- Jobs that the end of another job enqueued; their ids are derived from that one's.
CREATE INDEX tenure_job_made_by_an_end
    ON tenure_job (origin_id) WHERE origin_cause IN ('compensation', 'dead_letter');

-- (job_id, ts) needs no index of its own: within a job ts never falls, so the key's order is also
-- the order of time. [E4]
--
-- `position` is where an event comes in the tail: there is one writer, so that the order of rows is
-- the order of commits. AUTOINCREMENT: else a purge of the newest rows would let their positions be
-- used again, and a reader would skip the new events (docs/adr/0031). `raise_epoch` lifts it.
CREATE TABLE tenure_job_event (
    position         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job_id           TEXT    NOT NULL,
    seq              INTEGER NOT NULL CHECK (seq >= 1),
    ts               INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    lease_expires_at INTEGER,
    version          INTEGER NOT NULL,
    type             TEXT    NOT NULL,
    from_status      TEXT,
    to_status        TEXT,
    cause            TEXT,
    actor            TEXT    NOT NULL,
    owner            TEXT,
    lease_id         TEXT,
    request_id       TEXT    NOT NULL,
    fingerprint      TEXT,
    correlation_id   TEXT,
    trace_id         TEXT,
    namespace        TEXT,
    queue            TEXT,
    kind             TEXT,
    policy           TEXT,
    run_at           INTEGER,
    sha256           TEXT,
    size             INTEGER,
    payload          TEXT,
    UNIQUE (job_id, seq)
) STRICT;

-- None is by time alone: events of all types are merged from this one (docs/adr/0039). [E4]
CREATE INDEX tenure_job_event_type ON tenure_job_event (type, ts);
CREATE INDEX tenure_job_event_renewal
    ON tenure_job_event (job_id, seq) WHERE type IN ('lease_renewed', 'heartbeat');

CREATE TABLE tenure_observation (
    job_id     TEXT    NOT NULL,
    lease      TEXT    NOT NULL,  -- the lease id, or empty: a key has no nulls
    ordinal    INTEGER NOT NULL CHECK (ordinal BETWEEN 1 AND 10),
    ts         INTEGER NOT NULL,
    type       TEXT    NOT NULL,
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
    rate_grants       INTEGER CHECK (rate_grants > 0),
    rate_per          TEXT,
    rate_burst        INTEGER CHECK (rate_burst > 0),
    rate_since        INTEGER,
    PRIMARY KEY (namespace, name)
) STRICT;

-- What is set for a kind. A kind that nothing was ever set for has no row.
CREATE TABLE tenure_kind_setting (
    namespace   TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    rate_grants INTEGER CHECK (rate_grants > 0),
    rate_per    TEXT,
    rate_burst  INTEGER CHECK (rate_burst > 0),
    rate_since  INTEGER,
    concurrency_limit INTEGER CHECK (concurrency_limit > 0),
    concurrency_since INTEGER,
    limits_set  INTEGER NOT NULL CHECK (limits_set IN (0, 1)),
    policy      TEXT,
    PRIMARY KEY (namespace, kind)
) STRICT, WITHOUT ROWID;

-- What claims count under: a limit or a rate of a queue, a rate of a kind, and, with a key, the rate of
-- one rate key of a kind. `tat` is the state of the rate: the theoretical arrival time of core/rates.py.
CREATE TABLE tenure_slot (
    namespace TEXT    NOT NULL,
    scope     TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    tat       INTEGER NOT NULL,
    PRIMARY KEY (namespace, scope, name, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX tenure_slot_idle ON tenure_slot (tat) WHERE key <> '';

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

-- How jobs with a concurrency key or a rate key are admitted (docs/adr/0095). None of this is part of a
-- job.
--
-- The queues in which a kind has had such jobs.
CREATE TABLE tenure_keyed_kind (
    namespace TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    queue     TEXT    NOT NULL,
    is_rate   INTEGER NOT NULL CHECK (is_rate IN (0, 1)),
    PRIMARY KEY (namespace, kind, queue, is_rate)
) STRICT, WITHOUT ROWID;

-- The keys about whose jobs must be decided again from an instant on: written with every change of
-- their jobs, and deleted when a claim has decided. noted_at is when a claim wrote the row: if it is in the
-- future, the clock was set back, and the row is due at once (core/concurrency.py). The row with the empty key
-- is the watermark of its kind: up to noted_at, delayed jobs were found due.
CREATE TABLE tenure_dirty_key (
    id        INTEGER NOT NULL PRIMARY KEY,
    namespace TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    is_rate   INTEGER NOT NULL CHECK (is_rate IN (0, 1)),  -- a rate key, not a concurrency key
    key       TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    noted_at  INTEGER NOT NULL  -- 0 if no claim wrote it
) STRICT;

CREATE INDEX tenure_dirty_key_due ON tenure_dirty_key (namespace, kind, at, id);
CREATE UNIQUE INDEX tenure_dirty_key_once
    ON tenure_dirty_key (namespace, kind, at, is_rate, key) WHERE noted_at > 0;
CREATE INDEX tenure_dirty_key_noted
    ON tenure_dirty_key (namespace, kind, noted_at) WHERE noted_at > 0;

CREATE TABLE tenure_outage (
    began_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    -- of the clock, noticed by a process that read it before and after
    is_jump  INTEGER NOT NULL CHECK (is_jump IN (0, 1)),
    PRIMARY KEY (began_at, ended_at, is_jump)
) STRICT;

-- What was counted of the log, for plots: never the truth (docs/adr/0070). `series` is JSON: what
-- was counted in all, and of each queue and kind.
CREATE TABLE tenure_rollup (
    namespace TEXT    NOT NULL,
    length_us INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    series    TEXT    NOT NULL,
    PRIMARY KEY (namespace, length_us, at)
) STRICT, WITHOUT ROWID;

CREATE INDEX tenure_rollup_age ON tenure_rollup (length_us, at);

-- How far the log was counted. Changes only with the rollups, so that each event is counted once.
CREATE TABLE tenure_rollup_progress (
    one           INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    position      TEXT,
    skipped_until INTEGER,
    folded_until  INTEGER,
    folded_at     INTEGER
) STRICT;

INSERT INTO tenure_rollup_progress (one) VALUES (1);

CREATE TRIGGER tenure_job_moves_forward BEFORE UPDATE ON tenure_job
  WHEN OLD.finished_at IS NOT NULL OR NEW.id <> OLD.id OR NEW.rev < OLD.rev
    OR (NEW.rev = OLD.rev  -- only admission changes a job's lane and nothing else
        AND NEW.lane IS OLD.lane AND NEW.admitted_at IS OLD.admitted_at)
BEGIN SELECT RAISE(ABORT, 'tenure: a finished job is immutable, and every change raises rev'); END;

-- The dedupe keys that are taken (docs/adr/0059): by live jobs, and by ended jobs that keep theirs until a
-- time, or until another job takes it after that time.
CREATE TABLE tenure_dedupe (
    namespace TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    job_id    TEXT    NOT NULL,
    until     INTEGER,  -- NULL while the job is live
    PRIMARY KEY (namespace, kind, key)
) STRICT, WITHOUT ROWID;

-- REPLACE deletes without asking the triggers of deletion; these two refuse it.
CREATE TRIGGER tenure_job_is_inserted_once BEFORE INSERT ON tenure_job
  WHEN EXISTS (SELECT 1 FROM tenure_job WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'tenure: a job is never replaced'); END;

CREATE TRIGGER tenure_job_event_is_inserted_once BEFORE INSERT ON tenure_job_event
  WHEN EXISTS (SELECT 1 FROM tenure_job_event WHERE job_id = NEW.job_id AND seq = NEW.seq)
    OR EXISTS (SELECT 1 FROM tenure_job_event WHERE position = NEW.position)
BEGIN SELECT RAISE(ABORT, 'tenure: an event is never replaced'); END;

CREATE TRIGGER tenure_job_live_stays BEFORE DELETE ON tenure_job WHEN OLD.finished_at IS NULL
BEGIN SELECT RAISE(ABORT, 'tenure: a live job is never deleted'); END;

CREATE TRIGGER tenure_job_event_is_written_once BEFORE UPDATE ON tenure_job_event
BEGIN SELECT RAISE(ABORT, 'tenure: an event is never changed'); END;

CREATE TRIGGER tenure_job_event_transition_stays BEFORE DELETE ON tenure_job_event
  WHEN OLD.type NOT IN ('lease_renewed', 'heartbeat')
   AND EXISTS (SELECT 1 FROM tenure_job WHERE id = OLD.job_id)
BEGIN SELECT RAISE(ABORT, 'tenure: a transition is kept for as long as its job'); END;

-- Flows (docs/spec/flows.md): which jobs wait for which. The end of a parent is written on its edges in its own
-- transaction; the row of a child is written only when it is queued or ends (docs/adr/0055).

CREATE TABLE tenure_flow (
    id        TEXT    NOT NULL PRIMARY KEY,
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    made_at   INTEGER NOT NULL,
    jobs      INTEGER NOT NULL CHECK (jobs >= 1)
) STRICT;

CREATE INDEX tenure_flow_listed ON tenure_flow (namespace, made_at, id);

CREATE TABLE tenure_flow_redrive (
    flow_id    TEXT    NOT NULL,
    number     INTEGER NOT NULL CHECK (number >= 1),
    ts         INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    request_id TEXT    NOT NULL,
    jobs       INTEGER NOT NULL CHECK (jobs >= 1),
    PRIMARY KEY (flow_id, number)
) STRICT;

CREATE TABLE tenure_job_edge (
    child_id   TEXT    NOT NULL,
    position   INTEGER NOT NULL,
    parent_id  TEXT    NOT NULL,
    step       TEXT    NOT NULL,
    needs      TEXT,
    is_outside INTEGER NOT NULL CHECK (is_outside IN (0, 1)),
    outcome    TEXT,
    PRIMARY KEY (child_id, position)
) STRICT;

CREATE INDEX tenure_job_edge_parent ON tenure_job_edge (parent_id, child_id);
-- Whether a job still waits for a parent: an entry goes when the parent ends.
CREATE INDEX tenure_job_edge_unmet ON tenure_job_edge (child_id) WHERE outcome IS NULL;
CREATE INDEX tenure_job_edge_outside
    ON tenure_job_edge (parent_id) WHERE outcome IS NULL AND is_outside = 1;

CREATE TRIGGER tenure_job_edge_is_marked_once BEFORE UPDATE ON tenure_job_edge
  WHEN OLD.outcome IS NOT NULL OR NEW.child_id <> OLD.child_id OR NEW.position <> OLD.position
    OR NEW.parent_id <> OLD.parent_id OR NEW.needs IS NOT OLD.needs
BEGIN SELECT RAISE(ABORT, 'tenure: an edge is only marked, and once'); END;

-- Jobs whose wait, or whose children's wait, may be over. A row stays until a sweeper has checked.
CREATE TABLE tenure_edge_check (
    job_id   TEXT    NOT NULL,
    noted_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, noted_at)
) STRICT;

-- What is kept outside the log (docs/spec/outside-the-log.md).

CREATE TABLE tenure_dead_letter_resolution (
    job_id      TEXT    NOT NULL PRIMARY KEY,
    kind        TEXT    NOT NULL,
    ts          INTEGER NOT NULL,
    actor       TEXT    NOT NULL,
    request_id  TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    note        TEXT    NOT NULL,
    new_job_id  TEXT,
    CHECK (CASE kind WHEN 'redriven' THEN new_job_id IS NOT NULL
                     WHEN 'discarded' THEN new_job_id IS NULL
                     ELSE TRUE END)
) STRICT;

CREATE TRIGGER tenure_resolution_is_written_once BEFORE UPDATE ON tenure_dead_letter_resolution
BEGIN SELECT RAISE(ABORT, 'tenure: a resolution is never changed'); END;

-- The body comes last, so that reading the other columns does not read its pages.
CREATE TABLE tenure_artifact (
    job_id     TEXT    NOT NULL,
    attempt    INTEGER NOT NULL,
    name       TEXT    NOT NULL,
    media_type TEXT    NOT NULL,
    size       INTEGER NOT NULL CHECK (size BETWEEN 0 AND 16777216),
    sha256     TEXT    NOT NULL,
    ts         INTEGER NOT NULL,
    namespace  TEXT    NOT NULL,
    body       BLOB    NOT NULL CHECK (length(body) = size),
    PRIMARY KEY (job_id, attempt, name)
) STRICT;

-- The bytes of a namespace's artifacts, so that its quota costs the same however many there are.
-- Sixteen rows, by the last digit of the job id, as on PostgreSQL, where each is locked by itself.
CREATE TABLE tenure_artifact_bytes (
    namespace TEXT    NOT NULL,
    shard     INTEGER NOT NULL CHECK (shard BETWEEN 0 AND 15),
    bytes     INTEGER NOT NULL,
    PRIMARY KEY (namespace, shard)
) STRICT;

CREATE TABLE tenure_attempt_log (
    job_id         TEXT    NOT NULL,
    attempt        INTEGER NOT NULL,
    left_out_bytes INTEGER NOT NULL CHECK (left_out_bytes >= 0),
    part           INTEGER NOT NULL CHECK (part >= 0),
    text           TEXT    NOT NULL,
    PRIMARY KEY (job_id, attempt)
) STRICT;

CREATE TABLE tenure_worker_process (
    namespace          TEXT    NOT NULL,
    worker             TEXT    NOT NULL,
    actor              TEXT    NOT NULL,
    host               TEXT    NOT NULL,
    pid                INTEGER NOT NULL,
    queues             TEXT    NOT NULL,
    kinds              TEXT    NOT NULL,
    schedules          TEXT    NOT NULL,
    concurrency        INTEGER NOT NULL,
    version            TEXT    NOT NULL,
    started_at         INTEGER NOT NULL,
    seen_at            INTEGER NOT NULL,
    drain_requested_at INTEGER,
    drain_reported     INTEGER NOT NULL CHECK (drain_reported IN (0, 1)),
    instance           TEXT    NOT NULL,
    PRIMARY KEY (namespace, worker, actor)
) STRICT;

-- Schedules (docs/spec/schedules.md). `spec` states when one fires and which job that makes. A removed one
-- stays, so that a worker that starts does not declare it again.

CREATE TABLE tenure_schedule (
    namespace   TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    rev         INTEGER NOT NULL CHECK (rev >= 1),
    next_at     INTEGER,
    last_at     INTEGER,
    created_at  INTEGER NOT NULL,
    changed_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    paused_at   INTEGER,
    removed_at  INTEGER,
    fired       INTEGER NOT NULL CHECK (fired >= 0),
    skipped     INTEGER NOT NULL CHECK (skipped >= 0),
    missed      INTEGER NOT NULL CHECK (missed >= 0),
    last_job_id TEXT,
    created_by  TEXT    NOT NULL,
    changed_by  TEXT    NOT NULL,
    declared_by TEXT,
    pause_reason TEXT,
    spec        TEXT    NOT NULL,
    payload     TEXT    NOT NULL,
    PRIMARY KEY (namespace, name),
    CHECK (next_at IS NULL OR (paused_at IS NULL AND removed_at IS NULL))
) STRICT;

CREATE INDEX tenure_schedule_next ON tenure_schedule (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX tenure_schedule_written ON tenure_schedule (updated_at) WHERE next_at IS NOT NULL;

-- No occurrence is dealt with twice: what a schedule has passed, it never goes back to.
CREATE TRIGGER tenure_schedule_moves_forward BEFORE UPDATE ON tenure_schedule
 WHEN NEW.rev <= OLD.rev OR NEW.last_at < OLD.last_at OR NEW.next_at <= NEW.last_at
BEGIN SELECT RAISE(ABORT, 'tenure: a schedule never goes back to an earlier time'); END;

-- Tokens (docs/spec/http.md).

CREATE TABLE tenure_token (
    id            TEXT    NOT NULL PRIMARY KEY,
    secret_sha256 TEXT    NOT NULL CHECK (length(secret_sha256) = 64),
    name          TEXT    NOT NULL,
    role          TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    queues        TEXT    NOT NULL,
    kinds         TEXT    NOT NULL,
    max_leases    INTEGER NOT NULL CHECK (max_leases >= 1),
    max_polls     INTEGER NOT NULL CHECK (max_polls >= 1),
    may_declare   INTEGER NOT NULL CHECK (may_declare IN (0, 1)),
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER,
    revoked_at    INTEGER,
    last_used_at  INTEGER
) STRICT;

-- What a token may do is fixed when it is created; for more rights, create another token.
CREATE TRIGGER tenure_token_never_gains BEFORE UPDATE ON tenure_token
 WHEN new.id <> old.id OR new.secret_sha256 <> old.secret_sha256 OR new.name <> old.name
   OR new.role <> old.role OR new.namespace <> old.namespace OR new.queues <> old.queues
   OR new.kinds <> old.kinds OR new.may_declare <> old.may_declare OR new.expires_at IS NOT old.expires_at
   OR (old.revoked_at IS NOT NULL AND new.revoked_at IS NULL)
BEGIN SELECT RAISE(ABORT, 'tenure: a token never gains a right'); END;
