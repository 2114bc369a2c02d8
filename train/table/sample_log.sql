-- SPDX-License-Identifier: Apache-2.0
-- The tables of the sample log: what each version of the schema added. make_schema.py makes C of it.

-- version 1
-- A sample's tokens are stored as 4-byte little-endian words, followed by one bit per token: learn; where it has
-- weights, losses, soft targets, by those, too, as the words of their bits.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE samples (sequence_number INTEGER PRIMARY KEY, count INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE versions (id INTEGER PRIMARY KEY, optimizer_step INTEGER NOT NULL, published_unix_ms INTEGER NOT NULL,
  loss REAL, checksum INTEGER NOT NULL, learned_through INTEGER NOT NULL, learned_more INTEGER NOT NULL, learned BLOB
  NOT NULL);
CREATE TABLE checkpoints (id INTEGER PRIMARY KEY, learned_through INTEGER NOT NULL, name TEXT NOT NULL);

-- version 2
-- Checksums of samples (NULL: the row is older), bodies with a key, samples that were given up.
ALTER TABLE samples ADD COLUMN checksum INTEGER;
CREATE TABLE bodies (key TEXT PRIMARY KEY, digest INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
  unix_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX bodies_by_time ON bodies (unix_ms);
CREATE TABLE failed (sequence_number INTEGER PRIMARY KEY, optimizer_step INTEGER NOT NULL, unix_ms INTEGER NOT NULL);

-- version 3
-- A version's parent (0: the one before it) and its losses on the gate's examples; names of
-- versions; samples that no version learns any more, with the version that served when that was decided
-- (train/table/sample_log_marks.c).
ALTER TABLE versions ADD COLUMN parent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE versions ADD COLUMN gate_before REAL;
ALTER TABLE versions ADD COLUMN gate_after REAL;
CREATE TABLE names (name TEXT PRIMARY KEY, id INTEGER NOT NULL, unix_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE marks (first INTEGER NOT NULL, last INTEGER NOT NULL, kind INTEGER NOT NULL, version INTEGER NOT NULL,
  unix_ms INTEGER NOT NULL);
CREATE INDEX marks_by_last ON marks (last);

-- version 5
-- Since version 4 samples may have weights. Sessions (train/table/sample_log_lessons.c), and of
-- a version that another server or a directory sent, where it came from.
CREATE TABLE sessions (name TEXT PRIMARY KEY, newest INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX sessions_by_newest ON sessions (newest);
INSERT OR REPLACE INTO meta SELECT 'sessions_forgotten', ifnull(max(sequence_number), 0) FROM samples;
CREATE TABLE sources (id INTEGER PRIMARY KEY, source TEXT NOT NULL);

-- version 6
-- Lessons, the samples that were committed together (train/table/sample_log_lessons.c). Those
-- of an earlier log are one lesson.
CREATE TABLE lessons (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, unix_ms INTEGER NOT NULL,
  session TEXT);
INSERT INTO lessons SELECT 1, min(sequence_number), max(sequence_number), 0, NULL FROM samples HAVING count(*) > 0;

-- version 7
-- Passes of samples after learned_through that a checkpoint contains.
CREATE TABLE passes (name TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, done INTEGER NOT NULL, learned
  INTEGER NOT NULL, PRIMARY KEY (name, first)) WITHOUT ROWID;

-- version 8
-- The sites with whose averages a version was made, as bits.
ALTER TABLE versions ADD COLUMN sites INTEGER NOT NULL DEFAULT 0;

-- version 9
-- How many of a sample's tokens have soft targets.
ALTER TABLE samples ADD COLUMN softs INTEGER NOT NULL DEFAULT 0;
