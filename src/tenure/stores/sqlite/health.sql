-- What `tenure doctor` asks a SQLite file.

-- name: health_journal_mode
PRAGMA journal_mode;

-- name: health_synchronous
PRAGMA synchronous;

-- name: health_meta
SELECT schema_version, epoch FROM {t}meta;
