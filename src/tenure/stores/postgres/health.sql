-- What `tenure doctor` asks a PostgreSQL server. Nothing here needs more than a plain role; what a
-- role may not see counts as absent.

-- name: health_server
SELECT current_setting('server_version'), CAST(current_setting('server_version_num') AS integer),
       current_setting('fsync'), current_setting('synchronous_commit'),
       CAST(pg_is_in_recovery() AS integer),
       CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint);

-- name: health_meta
SELECT m.schema_version, m.epoch, s.system_identifier, m.system_identifier, {t}timeline(),
       m.losses, m.lost_at
  FROM {t}meta AS m, pg_control_system() AS s;

-- name: health_transactions
-- The oldest snapshot is what keeps dead rows from being removed, and claims read past them. Every role
-- may read whose it is.
SELECT coalesce(CAST(max(extract(epoch FROM clock_timestamp() - xact_start)) AS bigint), 0),
       coalesce(max(age(backend_xmin)), 0),
       (SELECT 'process ' || o.pid || coalesce(' of ' || nullif(o.application_name, ''), '')
          FROM pg_stat_activity AS o
         WHERE o.pid <> pg_backend_pid() AND o.backend_xmin IS NOT NULL
         ORDER BY age(o.backend_xmin) DESC, o.xact_start LIMIT 1)
  FROM pg_stat_activity WHERE pid <> pg_backend_pid();

-- name: health_connections
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       CAST(current_setting('max_connections') AS integer);

-- name: health_tables
SELECT relname, n_live_tup, n_dead_tup FROM pg_stat_user_tables
 WHERE schemaname = :schema AND relname IN ('job', 'job_event') ORDER BY relname;

-- name: health_slots
-- A server in recovery writes no log of its own to be held back.
SELECT count(*),
       coalesce(CAST(max(CASE WHEN pg_is_in_recovery() THEN 0
                              ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) END)
                     AS bigint), 0)
  FROM pg_replication_slots;
