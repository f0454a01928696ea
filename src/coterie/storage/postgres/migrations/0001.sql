-- What a cluster needs to begin with. docs/lanes.md and docs/broker-lives.md say what it is for.

CREATE TABLE cluster (
  one bool PRIMARY KEY DEFAULT true CHECK (one),
  cluster_id text NOT NULL,
  version bigint NOT NULL DEFAULT 0,          -- of the metadata; its row's lock is that of every change
  level int NOT NULL DEFAULT 0,
  schema int NOT NULL,
  next_partition_id int NOT NULL DEFAULT 1,
  next_producer_id bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE brokers (
  broker_id int PRIMARY KEY,
  broker_epoch bigint NOT NULL,
  incarnation uuid NOT NULL,
  state text NOT NULL CHECK (state IN ('live', 'leaving', 'fenced')),
  listeners json NOT NULL,
  rack text,
  level int NOT NULL,
  software text NOT NULL,
  version bigint NOT NULL,
  beats bigint NOT NULL DEFAULT 0,            -- these two change with each heartbeat, and not the version
  seen bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE lanes (
  broker_id int,
  lane smallint,
  broker_epoch bigint NOT NULL,
  life int NOT NULL DEFAULT 0,                -- numbered by the lane
  PRIMARY KEY (broker_id, lane)
) WITH (fillfactor = 50);

CREATE TABLE topics (
  topic_id uuid PRIMARY KEY,
  name text NOT NULL,
  partitions int NOT NULL,
  configs json NOT NULL,                      -- kept as it was written, also what is no text of PostgreSQL's
  created_ms bigint NOT NULL,
  deleted bool NOT NULL DEFAULT false,
  version bigint NOT NULL
);
CREATE UNIQUE INDEX topic_names ON topics (name) WHERE NOT deleted;
CREATE INDEX topic_versions ON topics (version);

CREATE TABLE partitions (
  partition_id int PRIMARY KEY,
  topic_id uuid NOT NULL,
  number int NOT NULL,
  replicas int[] NOT NULL,
  leader int,
  leader_epoch int NOT NULL,
  next_leader int,
  cell smallint NOT NULL DEFAULT 0,
  version bigint NOT NULL,
  UNIQUE (topic_id, number)
) WITH (fillfactor = 70);
CREATE INDEX partition_versions ON partitions (version);

CREATE TABLE settings (
  scope text,
  name text,
  value json,                                 -- a string; null: the setting is gone
  version bigint NOT NULL,
  PRIMARY KEY (scope, name)
);

CREATE TABLE logs (
  partition_id int PRIMARY KEY,
  start_offset bigint NOT NULL DEFAULT 0,
  end_floor bigint NOT NULL DEFAULT 0,        -- where the log goes on when all of it has been deleted
  compacted_to bigint NOT NULL DEFAULT 0,
  snapshot_at bigint NOT NULL DEFAULT 0,
  producers bytea
) WITH (fillfactor = 70);

CREATE TABLE leader_epochs (
  partition_id int,
  epoch int,
  start_offset bigint NOT NULL,
  PRIMARY KEY (partition_id, epoch)
);

CREATE TABLE chunks_keep (
  partition_id int NOT NULL,
  base_offset bigint NOT NULL,
  last_offset bigint NOT NULL,
  leader_epoch int NOT NULL,
  max_timestamp bigint NOT NULL,
  batches int NOT NULL,
  size int NOT NULL,
  heads bytea NOT NULL,                       -- the headers of batches, and markers whole
  data bytea NOT NULL,
  PRIMARY KEY (partition_id, base_offset)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
  autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 2000);
ALTER TABLE chunks_keep ALTER data SET STORAGE EXTERNAL, ALTER heads SET STORAGE MAIN;

CREATE TABLE aborted (
  partition_id int,
  last_offset bigint,
  producer_id bigint,
  first_offset bigint NOT NULL,
  stable bigint NOT NULL,
  PRIMARY KEY (partition_id, last_offset, producer_id)
);
