-- Tenure on PostgreSQL, version 2: what is kept beside the log (docs/spec/beside-the-log.md).

-- Dead letters are few among many jobs. Only they have a reason code, and it is written once, with
-- finished_at: an index on it costs no other update anything (docs/adr/0006).
CREATE INDEX job_dead_letter ON {t}job (namespace, id) WHERE reason_code IS NOT NULL;

CREATE TABLE {t}dead_letter_resolution (
    job_id      uuid   NOT NULL PRIMARY KEY,
    ts          bigint NOT NULL,
    new_job_id  uuid,
    kind        text   NOT NULL COLLATE "C" CHECK (kind IN ('redriven', 'discarded')),
    actor       text   NOT NULL COLLATE "C",
    request_id  text   NOT NULL COLLATE "C",
    fingerprint text   NOT NULL COLLATE "C",
    note        text   NOT NULL COLLATE "C",
    CHECK ((kind = 'redriven') = (new_job_id IS NOT NULL))
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
-- Sixteen rows, by the last digit of the job id, because whoever changes one holds it until the
-- commit: with commits of 10 ms four uploaders stage 300 artifacts a second, with one row 90.
CREATE TABLE {t}artifact_bytes (
    namespace text    NOT NULL COLLATE "C",
    part      integer NOT NULL CHECK (part BETWEEN 0 AND 15),
    bytes     bigint  NOT NULL,
    PRIMARY KEY (namespace, part)
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
    concurrency        bigint  NOT NULL,
    version            text    NOT NULL COLLATE "C",
    started_at         bigint  NOT NULL,
    seen_at            bigint  NOT NULL,
    drain_requested_at bigint,
    instance           text    NOT NULL COLLATE "C",
    PRIMARY KEY (namespace, worker, actor)
) WITH (fillfactor = 50);
