-- Version 1.1: searches over trials.

-- json: what is searched and how; written once, when the search begins.
CREATE TABLE study(
    name       TEXT PRIMARY KEY,
    json       TEXT NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What a study tried, by number. trial: where it was trained; refused: why it was not. A number whose trial was lost is
-- tried again under the next number.
CREATE TABLE tried(
    study   TEXT NOT NULL REFERENCES study(name) ON DELETE CASCADE,
    number  INTEGER NOT NULL,
    json    TEXT NOT NULL,
    trial   INTEGER REFERENCES trial(id) ON DELETE SET NULL,
    refused TEXT,
    PRIMARY KEY (study, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX trial_search ON trial(search) WHERE search IS NOT NULL;
