-- Tenure on SQLite, version 3: tokens (docs/spec/http.md).

CREATE TABLE tenure_token (
    id            TEXT    NOT NULL PRIMARY KEY,
    secret_sha256 TEXT    NOT NULL CHECK (length(secret_sha256) = 64),
    name          TEXT    NOT NULL,
    role          TEXT    NOT NULL CHECK (role IN ('client', 'producer', 'worker', 'operator', 'viewer')),
    namespace     TEXT    NOT NULL,
    queues        TEXT    NOT NULL,
    kinds         TEXT    NOT NULL,
    max_leases    INTEGER NOT NULL CHECK (max_leases >= 1),
    max_polls     INTEGER NOT NULL CHECK (max_polls >= 1),
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER,
    revoked_at    INTEGER,
    last_used_at  INTEGER
) STRICT;

-- What a token may do is fixed when it is made: who wants more is given another one.
CREATE TRIGGER tenure_token_never_gains BEFORE UPDATE ON tenure_token
 WHEN new.id <> old.id OR new.secret_sha256 <> old.secret_sha256 OR new.name <> old.name
   OR new.role <> old.role OR new.namespace <> old.namespace OR new.queues <> old.queues
   OR new.kinds <> old.kinds OR new.expires_at IS NOT old.expires_at
   OR (old.revoked_at IS NOT NULL AND new.revoked_at IS NULL)
BEGIN SELECT RAISE(ABORT, 'tenure: a token never gains a right'); END;
