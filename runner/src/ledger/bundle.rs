//! Bundles of trials ([`dtrain_protocol::bundle`]): written from a history, and merged into the histories of
//! other machines.
//!
//! A merge loses nothing, is idempotent, and does not depend on the order of bundles. The data of a trial
//! only grows, so of two versions the longer one wins. Notes are united; of two values of a tag the one that
//! sorts last wins.

mod check;
mod merge;
mod study;

pub use merge::{ImportError, MergeReport};

use super::{BoxError, History, lookup, points, unstored};
use crate::fact::LedgerError;
use dtrain_protocol::TrialId;
use dtrain_protocol::bundle::{self, ArchiveHeader, POINTS, Record, Series, StudyName, StudyRecord, Writer};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;
use std::io::{self, Write};

/// Error of writing a bundle.
#[derive(Debug, thiserror::Error)]
pub enum WriteBundleError {
    /// The history could not be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The bundle could not be written.
    #[error("the bundle cannot be written")]
    Io(#[from] io::Error),
}

impl History {
    /// Returns the id by which bundles name this history. A history that has none and cannot be written uses
    /// the id of its oldest trial.
    pub fn machine(&self) -> Result<String, LedgerError> {
        let id = "SELECT coalesce((SELECT id FROM history_id),
            (SELECT uid FROM trial WHERE NOT EXISTS (SELECT 1 FROM imported_trial WHERE imported_trial.trial = trial.id) ORDER BY id LIMIT 1))";
        let known = self.read("read from", |database| {
            Ok(database.query_row(id, [], |row| row.get::<_, Option<String>>(0))?)
        })?;
        Ok(known.unwrap_or_else(|| ulid::Ulid::generate().to_string()))
    }

    /// Writes a bundle of trials with their studies; `host` is the name of this host. `told` is called for
    /// each trial.
    ///
    /// The bytes depend on the set of trials only, not on its order.
    pub fn write_bundle<W: Write>(
        &self,
        trials: &[TrialId],
        host: &str,
        to: W,
        told: &mut dyn FnMut(&TrialId),
    ) -> Result<W, WriteBundleError> {
        let head = ArchiveHeader {
            machine: self.machine()?,
            host: host.to_owned(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            trials: trials.iter().collect::<BTreeSet<_>>().len() as u64,
        };
        let mut writer = Writer::new(to, &head)?;
        let (mut texts, mut studies) = (BTreeSet::new(), BTreeSet::new());
        for id in trials.iter().collect::<BTreeSet<_>>() {
            let (trial, shared) = self.read("read a trial from", |database| trial_of(database, id, &head))?;
            for text in shared {
                if texts.insert(bundle::hash(&text)) {
                    writer.write(&Record::Text(text))?;
                }
            }
            studies.extend(trial.study.clone());
            let series = trial.series.clone();
            writer.write(&Record::Trial(Box::new(trial)))?;
            for one in series {
                // Points recorded meanwhile are left for the next bundle.
                let samples = self.read("read a series from", |database| {
                    points::of_attempt(database, lookup::row_of(database, id)?, &one)
                })?;
                let most = usize::try_from(one.points).unwrap_or(usize::MAX).min(samples.len());
                for part in samples[..most].chunks(POINTS) {
                    writer.write(&Record::Points(part.to_vec()))?;
                }
            }
            told(id);
        }
        for name in studies {
            let study = self.read("read a study from", |database| study_of(database, &name))?;
            if let Some(study) = study {
                writer.write(&Record::Study(study))?;
            }
        }
        Ok(writer.finish()?)
    }
}

/// Returns the record of a trial for a bundle, and the texts that the trial shares with others.
fn trial_of(
    database: &Connection,
    id: &TrialId,
    head: &ArchiveHeader,
) -> Result<(bundle::TrialRecord, Vec<String>), BoxError> {
    let row = lookup::row_of(database, id)?;
    let number = |number: Option<i64>| number.map(unstored);
    let mut shared = Vec::new();
    let mut trial = database.query_row(
        "SELECT label, recipe, trial.study, objective, layout, batch, learning_rate, config_hash, host_digest,
                model_digest, predicted_step_seconds, predicted_tokens_per_second, predicted_memory_bytes,
                measured_step_seconds, measured_step_spread, measured_tokens_per_second, created_ms,
                git_revision, git_dirty, program, patch.text, environment.json, imported_trial.history_id, imported_trial.host,
                imported_trial.name, goal
         FROM trial LEFT JOIN patch ON patch.hash = patch_hash
         LEFT JOIN environment ON environment.hash = environment_hash
         LEFT JOIN imported_trial ON imported_trial.trial = trial.id WHERE trial.id = ?1",
        [row],
        |row| {
            let patch: Option<String> = row.get(20)?;
            let environment: Option<String> = row.get(21)?;
            let hash = |text: &Option<String>| text.as_deref().map(bundle::hash);
            let hashes = (hash(&patch), hash(&environment));
            shared.extend(patch.into_iter().chain(environment));
            Ok(bundle::TrialRecord {
                id: id.clone(),
                name: row.get::<_, Option<String>>(24)?.map_or_else(|| row.get(0), Ok)?,
                machine: row.get::<_, Option<String>>(22)?.unwrap_or_else(|| head.machine.clone()),
                host: row.get::<_, Option<String>>(23)?.unwrap_or_else(|| head.host.clone()),
                recipe: row.get(1)?,
                study: row.get::<_, Option<String>>(2)?.map(|name| StudyName { name, digest: String::new() }),
                objective: row.get(3)?,
                goal: row.get(25)?,
                layout: row.get(4)?,
                batch: unstored(row.get(5)?),
                learning_rate: row.get(6)?,
                config_hash: row.get(7)?,
                host_digest: row.get(8)?,
                model_digest: row.get(9)?,
                predicted: (row.get(10)?, row.get(11)?, number(row.get(12)?)),
                measured: (row.get(13)?, row.get(14)?, row.get(15)?),
                created_ms: unstored(row.get(16)?),
                git_revision: row.get(17)?,
                git_dirty: row.get(18)?,
                program: row.get(19)?,
                documents: std::collections::BTreeMap::new(),
                patch: hashes.0,
                environment: hashes.1,
                params: Vec::new(),
                records: Vec::new(),
                series: Vec::new(),
                notes: Vec::new(),
                tags: std::collections::BTreeMap::new(),
            })
        },
    )?;
    if let Some(study) = &mut trial.study {
        *study = study_name(database, &study.name)?;
    }
    let text = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let timed = |row: &rusqlite::Row<'_>| Ok((unstored(row.get(0)?), row.get(1)?));
    let all = |query: &str| database.prepare_cached(query);
    trial.documents = all("SELECT kind, json FROM document WHERE trial = ?1")?
        .query_map([row], text)?
        .collect::<Result<_, _>>()?;
    trial.tags = all("SELECT name, value FROM tag WHERE trial = ?1")?
        .query_map([row], text)?
        .collect::<Result<_, _>>()?;
    trial.params = all(
        "SELECT key.name, value, source FROM param JOIN key ON key.id = param.key WHERE trial = ?1 ORDER BY 1",
    )?
    .query_map([row], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
    .collect::<Result<_, _>>()?;
    trial.records = all("SELECT at_ms, json FROM record WHERE trial = ?1 ORDER BY seq")?
        .query_map([row], timed)?
        .collect::<Result<_, _>>()?;
    trial.notes = all("SELECT DISTINCT at_ms, text FROM note WHERE trial = ?1 ORDER BY at_ms, text")?
        .query_map([row], timed)?
        .collect::<Result<_, _>>()?;
    trial.series = series_of(database, row)?;
    Ok((trial, shared))
}

/// Returns the series of a trial, sorted, with the number of points of each.
fn series_of(database: &Connection, trial: i64) -> Result<Vec<Series>, BoxError> {
    let mut select = database.prepare_cached(
        "SELECT key.name, rank, attempt FROM series JOIN key ON key.id = series.key
         WHERE trial = ?1 ORDER BY key.name, rank, attempt",
    )?;
    let rows = select.query_map([trial], |row| {
        Ok(Series { key: row.get(0)?, rank: row.get(1)?, attempt: unstored(row.get(2)?), points: 0 })
    })?;
    let mut all: Vec<Series> = rows.collect::<Result<_, _>>()?;
    for one in &mut all {
        one.points = points::of_attempt(database, trial, one)?.len() as u64;
    }
    all.retain(|one| one.points > 0);
    Ok(all)
}

/// Returns the name of a study on the machine it comes from, given its name here. An unrecorded study has its
/// name only.
fn study_name(database: &Connection, name: &str) -> Result<StudyName, BoxError> {
    let there = database
        .prepare_cached("SELECT source_name, digest FROM imported_study WHERE name = ?1")?
        .query_row([name], |row| Ok(StudyName { name: row.get(0)?, digest: row.get(1)? }))
        .optional()?;
    if let Some(there) = there {
        return Ok(there);
    }
    let written: Option<(String, i64)> = database
        .prepare_cached("SELECT json, created_ms FROM study WHERE name = ?1")?
        .query_row([name], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (json, created_ms) = written.unwrap_or_default();
    Ok(StudyName { name: name.to_owned(), digest: bundle::hash(&format!("{name}\n{created_ms}\n{json}")) })
}

/// Finds a study by its name on the machine it comes from; `None` if only trials mention it.
fn study_of(database: &Connection, wanted: &StudyName) -> Result<Option<StudyRecord>, BoxError> {
    let here: Option<String> = database
        .query_row(
            "SELECT name FROM imported_study WHERE source_name = ?1 AND digest = ?2",
            [&wanted.name, &wanted.digest],
            |row| row.get(0),
        )
        .optional()?;
    let here = here.unwrap_or_else(|| wanted.name.clone());
    let found: Option<(String, i64)> = database
        .query_row("SELECT json, created_ms FROM study WHERE name = ?1", [&here], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let Some((json, created_ms)) = found else { return Ok(None) };
    let mut select = database.prepare(
        "SELECT number, json, trial.uid, rejection FROM study_trial LEFT JOIN trial ON trial.id = study_trial.trial
         WHERE study_trial.study = ?1 ORDER BY number",
    )?;
    let tried = select.query_map(params![here], |row| {
        Ok(bundle::StudyTrialRecord {
            number: unstored(row.get(0)?),
            json: row.get(1)?,
            trial: row.get::<_, Option<String>>(2)?.map(TrialId),
            rejection: row.get(3)?,
        })
    })?;
    let trials = tried.collect::<Result<_, _>>()?;
    let mut select =
        database.prepare("SELECT number, at_ms, json FROM study_event WHERE study = ?1 ORDER BY number")?;
    let events = select.query_map(params![here], |row| {
        Ok((unstored(row.get(0)?), unstored(row.get(1)?), row.get::<_, String>(2)?))
    })?;
    let events = events.collect::<Result<_, _>>()?;
    Ok(Some(StudyRecord { name: wanted.clone(), json, created_ms: unstored(created_ms), trials, events }))
}
