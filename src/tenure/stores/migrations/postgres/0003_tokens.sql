-- Tenure on PostgreSQL, version 3: tokens (docs/spec/http.md).

CREATE TABLE {t}token (
    id            text   NOT NULL COLLATE "C" PRIMARY KEY,
    secret_sha256 text   NOT NULL COLLATE "C" CHECK (length(secret_sha256) = 64),
    name          text   NOT NULL COLLATE "C",
    role          text   NOT NULL COLLATE "C"
                  CHECK (role IN ('client', 'producer', 'worker', 'operator', 'viewer')),
    namespace     text   NOT NULL COLLATE "C",
    queues        text   NOT NULL COLLATE "C",
    kinds         text   NOT NULL COLLATE "C",
    max_leases    bigint NOT NULL CHECK (max_leases >= 1),
    max_polls     bigint NOT NULL CHECK (max_polls >= 1),
    created_at    bigint NOT NULL,
    expires_at    bigint,
    revoked_at    bigint,
    last_used_at  bigint
);

-- What a token may do is fixed when it is made: who wants more is given another one.
CREATE TRIGGER token_never_gains BEFORE UPDATE ON {t}token FOR EACH ROW
  WHEN (new.id <> old.id OR new.secret_sha256 <> old.secret_sha256 OR new.name <> old.name
        OR new.role <> old.role OR new.namespace <> old.namespace OR new.queues <> old.queues
        OR new.kinds <> old.kinds OR new.expires_at IS DISTINCT FROM old.expires_at
        OR (old.revoked_at IS NOT NULL AND new.revoked_at IS NULL))
  EXECUTE FUNCTION {t}refuse('a token never gains a right');
