-- Tenure on SQLite, version 4: counts on their way to whoever shows them (docs/spec/observing.md).

CREATE TABLE tenure_handed_count (
    id     INTEGER NOT NULL PRIMARY KEY,
    ts     INTEGER NOT NULL,
    counts BLOB    NOT NULL
) STRICT;
