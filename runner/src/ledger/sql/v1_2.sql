-- Version 1.2: hosts, and what is held against them.

-- seen_ms: when it answered last.
CREATE TABLE host(
    name    TEXT PRIMARY KEY,
    seen_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- partner: the other host of a pair that did not hear each other. cause: a word of runner/src/strikes.rs.
CREATE TABLE strike(
    id      INTEGER PRIMARY KEY,
    host    TEXT NOT NULL,
    partner TEXT,
    cause   TEXT NOT NULL,
    at_ms   INTEGER NOT NULL,
    detail  TEXT NOT NULL
) STRICT;
