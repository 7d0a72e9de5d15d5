-- Version 1.3: metrics under any name, and what happened in a study.

-- Which way the objective is better: 'min' or 'max'.
ALTER TABLE trial ADD COLUMN goal TEXT NOT NULL DEFAULT 'min';
UPDATE trial SET goal = 'max' WHERE objective = 'valid.accuracy';

-- What happened in a study, in order: the planner's `StudyEvent` as JSON. A study is taken up again from these.
CREATE TABLE study_event(
    study  TEXT NOT NULL REFERENCES study(name) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    at_ms  INTEGER NOT NULL,
    json   TEXT NOT NULL,
    PRIMARY KEY (study, number)
) STRICT, WITHOUT ROWID;
