-- Tenure on SQLite, version 2: what is kept beside the log (docs/spec/beside-the-log.md).

-- Dead letters are few among many jobs. Only they have a reason code, and it is written once, with
-- finished_at: an index on it costs no other update anything.
CREATE INDEX tenure_job_dead_letter ON tenure_job (namespace, id) WHERE reason_code IS NOT NULL;

CREATE TABLE tenure_dead_letter_resolution (
    job_id      TEXT    NOT NULL PRIMARY KEY,
    kind        TEXT    NOT NULL CHECK (kind IN ('redriven', 'discarded')),
    ts          INTEGER NOT NULL,
    actor       TEXT    NOT NULL,
    request_id  TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    note        TEXT    NOT NULL,
    new_job_id  TEXT,
    CHECK ((kind = 'redriven') = (new_job_id IS NOT NULL))
) STRICT;

CREATE TRIGGER tenure_resolution_is_written_once BEFORE UPDATE ON tenure_dead_letter_resolution
BEGIN SELECT RAISE(ABORT, 'tenure: a resolution is never changed'); END;

-- The body comes last: whoever looks at the others does not read past them.
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
    part      INTEGER NOT NULL CHECK (part BETWEEN 0 AND 15),
    bytes     INTEGER NOT NULL,
    PRIMARY KEY (namespace, part)
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
    concurrency        INTEGER NOT NULL,
    version            TEXT    NOT NULL,
    started_at         INTEGER NOT NULL,
    seen_at            INTEGER NOT NULL,
    drain_requested_at INTEGER,
    instance           TEXT    NOT NULL,
    PRIMARY KEY (namespace, worker, actor)
) STRICT;
