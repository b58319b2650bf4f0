-- Tenure on PostgreSQL, version 4: counts on their way to whoever shows them (docs/spec/observing.md).

CREATE TABLE {t}handed_count (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ts     bigint NOT NULL,
    counts bytea  NOT NULL
);
