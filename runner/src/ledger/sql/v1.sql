-- Version 1.0. Times are milliseconds since the Unix epoch; hashes are blake3 in hex.

CREATE TABLE recipe(
    name        TEXT PRIMARY KEY,
    last_number INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE patch(
    hash TEXT PRIMARY KEY,
    text TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE environment(
    hash TEXT PRIMARY KEY,
    json TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Small columns only, so that a list reads few pages; whole documents are beside it.
CREATE TABLE trial(
    id                          INTEGER PRIMARY KEY,
    uid                         TEXT NOT NULL UNIQUE,
    label                       TEXT NOT NULL UNIQUE,
    recipe                      TEXT NOT NULL,
    search                      TEXT,
    -- What the facts alone say; whether an open trial is running or lost depends on who lives.
    state                       TEXT NOT NULL CHECK (state IN
                                ('created', 'open', 'completed', 'pruned', 'out_of_memory', 'diverged', 'failed', 'stopped')),
    verdict                     TEXT,
    objective                   TEXT NOT NULL,
    layout                      TEXT NOT NULL,
    batch                       INTEGER NOT NULL,
    learning_rate               REAL NOT NULL,
    config_hash                 TEXT NOT NULL,
    host_digest                 TEXT NOT NULL,
    model_digest                TEXT NOT NULL,
    predicted_step_seconds      REAL,
    predicted_tokens_per_second REAL,
    predicted_memory_bytes      INTEGER,
    measured_step_seconds       REAL,
    measured_step_spread        REAL,
    measured_tokens_per_second  REAL,
    created_ms                  INTEGER NOT NULL,
    started_ms                  INTEGER,
    ended_ms                    INTEGER,
    git_revision                TEXT,
    git_dirty                   INTEGER NOT NULL,
    patch_hash                  TEXT REFERENCES patch(hash),
    environment_hash            TEXT REFERENCES environment(hash),
    program                     TEXT NOT NULL
) STRICT;
CREATE INDEX trial_created ON trial(created_ms DESC);
CREATE INDEX trial_recipe ON trial(recipe, created_ms DESC);
CREATE INDEX trial_state ON trial(state) WHERE state IN ('created', 'open');
CREATE INDEX trial_rates ON trial(host_digest, model_digest) WHERE measured_step_seconds IS NOT NULL;
CREATE INDEX trial_config ON trial(config_hash);

-- kind: recipe, plan, candidate, provenance
CREATE TABLE document(
    trial INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    kind  TEXT NOT NULL,
    json  TEXT NOT NULL,
    PRIMARY KEY (trial, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE fact(
    trial INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    seq   INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    json  TEXT NOT NULL,
    PRIMARY KEY (trial, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempt(
    trial      INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    number     INTEGER NOT NULL,
    from_step  INTEGER,
    started_ms INTEGER NOT NULL,
    ended_ms   INTEGER,
    ended      TEXT,
    PRIMARY KEY (trial, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoint(
    trial   INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    at_ms   INTEGER NOT NULL,
    folder  TEXT NOT NULL,
    refused TEXT,
    PRIMARY KEY (trial, step, attempt)
) STRICT, WITHOUT ROWID;

-- How far an attempt's spool is kept, and the newest event kept of each rank.
CREATE TABLE spool(
    trial   INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    offset  INTEGER NOT NULL,
    PRIMARY KEY (trial, attempt)
) STRICT, WITHOUT ROWID;
CREATE TABLE heard(
    trial    INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    attempt  INTEGER NOT NULL,
    rank     INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (trial, attempt, rank)
) STRICT, WITHOUT ROWID;

CREATE TABLE key(
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- value is JSON; number repeats it where it is one, for filters.
CREATE TABLE param(
    trial  INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    key    INTEGER NOT NULL REFERENCES key(id),
    value  TEXT NOT NULL,
    number REAL,
    source TEXT NOT NULL,
    PRIMARY KEY (trial, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX param_number ON param(key, number);

CREATE TABLE series(
    id        INTEGER PRIMARY KEY,
    trial     INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    key       INTEGER NOT NULL REFERENCES key(id),
    rank      INTEGER NOT NULL,
    attempt   INTEGER NOT NULL,
    last_step INTEGER NOT NULL,
    UNIQUE (trial, key, rank, attempt)
) STRICT;

-- The newest points as rows; NULL is not-a-number. 512 of them are sealed into one chunk.
CREATE TABLE tail(
    series INTEGER NOT NULL REFERENCES series(id) ON DELETE CASCADE,
    step   INTEGER NOT NULL,
    at_ms  INTEGER NOT NULL,
    value  REAL,
    PRIMARY KEY (series, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE chunk(
    series INTEGER NOT NULL REFERENCES series(id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    data   BLOB NOT NULL,
    PRIMARY KEY (series, number)
) STRICT, WITHOUT ROWID;

-- Over all attempts. Extremes and sum are over the finite points; NULL where there is none.
CREATE TABLE summary(
    trial     INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    key       INTEGER NOT NULL REFERENCES key(id),
    rank      INTEGER NOT NULL,
    points    INTEGER NOT NULL,
    finite    INTEGER NOT NULL,
    sum       REAL NOT NULL,
    last      REAL,
    last_step INTEGER NOT NULL,
    last_attempt INTEGER NOT NULL,
    min       REAL,
    min_step  INTEGER,
    max       REAL,
    max_step  INTEGER,
    PRIMARY KEY (trial, key, rank)
) STRICT, WITHOUT ROWID;
CREATE INDEX summary_min ON summary(key, rank, min);

CREATE TABLE rates(
    host_digest  TEXT NOT NULL,
    model_digest TEXT NOT NULL,
    measured_ms  INTEGER NOT NULL,
    json         TEXT NOT NULL,
    PRIMARY KEY (host_digest, model_digest)
) STRICT, WITHOUT ROWID;

CREATE TABLE note(
    trial INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    at_ms INTEGER NOT NULL,
    text  TEXT NOT NULL
) STRICT;
CREATE INDEX note_trial ON note(trial, at_ms);
CREATE TABLE tag(
    trial INTEGER NOT NULL REFERENCES trial(id) ON DELETE CASCADE,
    name  TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (trial, name)
) STRICT, WITHOUT ROWID;
