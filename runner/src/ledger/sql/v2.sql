-- Version 2.0: tables and columns by the words of the field. The contents of JSON documents are renamed by
-- runner/src/ledger/upgrade.rs.

-- What happened to a trial, in order: the JSON of `Fact`.
ALTER TABLE fact RENAME TO record;
-- The newest event kept of each rank.
ALTER TABLE heard RENAME TO last_event;
-- Points that are not sealed into chunks yet.
ALTER TABLE live RENAME TO open_points;
-- Points have been no rows since version 1.4; rows that were left are sealed before this.
DROP TABLE tail;

-- Trials of other machines. history_id: that of the history that they were trained under.
DROP INDEX origin_name;
ALTER TABLE origin RENAME TO imported_trial;
ALTER TABLE imported_trial RENAME COLUMN machine TO history_id;
CREATE INDEX imported_trial_name ON imported_trial(name);

-- Studies of other machines, and those of this one whose JSON was renamed. source_name: its name where it was
-- made; digest: of its JSON as it was first written.
ALTER TABLE study_origin RENAME TO imported_study;
ALTER TABLE imported_study RENAME COLUMN there TO source_name;

-- The id of this history among those that bundles come from: drawn once.
ALTER TABLE machine RENAME TO history_id;

-- Suggestions of a study, by number. rejection: reason why it was not trained.
ALTER TABLE tried RENAME TO study_trial;
ALTER TABLE study_trial RENAME COLUMN refused TO rejection;

-- The study that a trial belongs to.
DROP INDEX trial_search;
ALTER TABLE trial RENAME COLUMN search TO study;
CREATE INDEX trial_study ON trial(study) WHERE study IS NOT NULL;
