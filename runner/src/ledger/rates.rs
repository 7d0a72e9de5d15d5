//! What was measured: speeds of hosts, and how trials went against what was predicted.

use super::{History, create, now_ms, stored, unstored};
use crate::fact::LedgerError;
use dtrain_planner::Correction;
use dtrain_protocol::{HostFacts, Rates, TrialId};
use rusqlite::{OptionalExtension, params};
use serde_json::Value;

/// How a trial went against what was predicted for it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimeObservation {
    /// The trial.
    pub trial: TrialId,
    /// What was trained.
    pub candidate: Value,
    /// Seconds of one step that the planner expected, before any correction.
    pub predicted_step_seconds: f64,
    /// Seconds of a typical step.
    pub measured_step_seconds: f64,
    /// Median absolute deviation from it.
    pub measured_step_spread: f64,
}

/// Names a host by everything a plan depends on: two hosts with equal digests are alike.
pub fn host_digest(host: &HostFacts) -> String {
    create::digest(&serde_json::to_string(host).unwrap_or_default())
}

impl History {
    /// The newest rates of this host for this model; `None` when they were never measured.
    pub fn rates(&self, host: &HostFacts, model_digest: &str) -> Result<Option<Rates>, LedgerError> {
        self.read("read rates from", |database| {
            let json: Option<String> = database
                .query_row(
                    "SELECT json FROM rates WHERE host_digest = ?1 AND model_digest = ?2",
                    [&host_digest(host), model_digest],
                    |row| row.get(0),
                )
                .optional()?;
            // Rates that an older dtrain wrote differently are measured again.
            Ok(json.and_then(|json| serde_json::from_str(&json).ok()))
        })
    }

    /// Keeps rates in place of older ones of the same host and model.
    pub fn save_rates(&mut self, rates: &Rates) -> Result<(), LedgerError> {
        self.write("write rates to", |transaction| {
            transaction.execute(
                "INSERT OR REPLACE INTO rates(host_digest, model_digest, measured_ms, json) VALUES (?1, ?2, ?3, ?4)",
                params![
                    host_digest(&rates.host),
                    rates.model_digest,
                    stored(rates.measured_at_ms),
                    serde_json::to_string(rates)?
                ],
            )?;
            Ok(())
        })
    }

    /// All rates, the newest first.
    pub fn all_rates(&self) -> Result<Vec<Rates>, LedgerError> {
        self.read("read rates from", |database| {
            let mut select = database.prepare("SELECT json FROM rates ORDER BY measured_ms DESC")?;
            let rows = select.query_map([], |row| row.get::<_, String>(0))?;
            let all: Vec<String> = rows.collect::<Result<_, _>>()?;
            Ok(all.iter().filter_map(|json| serde_json::from_str(json).ok()).collect())
        })
    }

    /// Writes down what a study found of the learning-rate rule; what it found before is replaced.
    pub fn save_corrections(
        &mut self,
        study: &str,
        training_digest: &str,
        found: &[Correction],
    ) -> Result<(), LedgerError> {
        self.write("write corrections to", |transaction| {
            transaction.execute("DELETE FROM correction WHERE study = ?1", [study])?;
            for Correction { batch, ratio, study } in found {
                transaction.execute(
                    "INSERT INTO correction(study, batch, training, ratio, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![study, stored(*batch), training_digest, ratio, now_ms()],
                )?;
            }
            Ok(())
        })
    }

    /// What studies found of the learning-rate rule for such a training, oldest first.
    pub fn corrections(&self, training_digest: &str) -> Result<Vec<Correction>, LedgerError> {
        self.read("read corrections from", |database| {
            let mut select = database.prepare(
                "SELECT batch, ratio, study FROM correction WHERE training = ?1 ORDER BY at_ms, study, batch",
            )?;
            let rows = select.query_map([training_digest], |row| {
                Ok(Correction { batch: unstored(row.get(0)?), ratio: row.get(1)?, study: row.get(2)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// How trials on such a host ([`host_digest`]) with such a model went against what was predicted, the newest
    /// first.
    pub fn observations(
        &self,
        host_digest: &str,
        model_digest: &str,
    ) -> Result<Vec<StepTimeObservation>, LedgerError> {
        self.read("read observations from", |database| {
            let mut select = database.prepare(
                "SELECT trial.uid, document.json, predicted_step_seconds, measured_step_seconds, measured_step_spread
                 FROM trial JOIN document ON document.trial = trial.id AND document.kind = 'candidate'
                 WHERE host_digest = ?1 AND model_digest = ?2 AND measured_step_seconds IS NOT NULL
                   AND predicted_step_seconds IS NOT NULL ORDER BY trial.id DESC LIMIT 1000",
            )?;
            let mut rows = select.query([host_digest, model_digest])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                found.push(StepTimeObservation {
                    trial: TrialId(row.get(0)?),
                    candidate: serde_json::from_str(row.get_ref(1)?.as_str()?)?,
                    predicted_step_seconds: row.get(2)?,
                    measured_step_seconds: row.get(3)?,
                    measured_step_spread: row.get(4)?,
                });
            }
            Ok(found)
        })
    }
}
