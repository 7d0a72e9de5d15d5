-- Version 1.4: new points of a trial gather in a log of its own; bundles of other machines.

-- data: records as runner/src/ledger/log.rs writes them, each of one commit, then zeros. It is overwritten in place, so that
-- a commit writes one or two pages. A trial without new points has no row.
CREATE TABLE live(
    trial INTEGER PRIMARY KEY REFERENCES trial(id) ON DELETE CASCADE,
    data  BLOB NOT NULL
) STRICT;

-- Trials of other machines. machine: the id of the history that they were trained under, host: the host of that. name: what the trial is
-- called there. points: points that it had when it was imported.
CREATE TABLE origin(
    trial   INTEGER PRIMARY KEY REFERENCES trial(id) ON DELETE CASCADE,
    machine TEXT NOT NULL,
    host    TEXT NOT NULL,
    name    TEXT NOT NULL,
    points  INTEGER NOT NULL
) STRICT;
CREATE INDEX origin_name ON origin(name);

-- Studies of other machines. there: what the study is called there; digest: what tells it from others of that name.
CREATE TABLE study_origin(
    name   TEXT PRIMARY KEY,
    there  TEXT NOT NULL,
    digest TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The id of this history among those that bundles come from: drawn once.
CREATE TABLE machine(
    id TEXT NOT NULL
) STRICT;

-- What studies found of the planner's learning-rate rule. training: digest of model, optimizer and data; ratio: the learning rate that trained
-- best at a batch, divided by the rule's.
CREATE TABLE correction(
    study    TEXT NOT NULL,
    batch    INTEGER NOT NULL,
    training TEXT NOT NULL,
    ratio    REAL NOT NULL,
    at_ms    INTEGER NOT NULL,
    PRIMARY KEY(study, batch)
) STRICT, WITHOUT ROWID;
CREATE INDEX correction_training ON correction(training, at_ms);
