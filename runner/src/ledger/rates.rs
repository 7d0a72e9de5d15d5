//! Measured rates of hosts, and measured step times of trials with their predictions.

use super::{History, interned, now_ms, stored, unstored};
use crate::fact::LedgerError;
use dtrain_planner::Correction;
use dtrain_protocol::{HostFacts, Rates, TrialId};
use rusqlite::{OptionalExtension, params};
use serde_json::Value;

/// Measured step time of a trial, with the planner's prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimeObservation {
    /// Id of the trial.
    pub trial: TrialId,
    /// Candidate that was trained, as JSON.
    pub candidate: Value,
    /// Step time in seconds that the planner predicted, before any correction.
    pub predicted_step_seconds: f64,
    /// Measured time of a typical step, in seconds.
    pub measured_step_seconds: f64,
    /// Median absolute deviation of the measured step times, in seconds.
    pub measured_step_spread: f64,
}

/// Returns the digest of all properties of a host that a plan depends on; hosts with equal digests are
/// interchangeable.
pub fn host_digest(host: &HostFacts) -> String {
    interned::digest(&serde_json::to_string(host).unwrap_or_default())
}

impl History {
    /// Returns the newest rates of a host for a model; `None` if they were never measured.
    pub fn rates(&self, host: &HostFacts, model_digest: &str) -> Result<Option<Rates>, LedgerError> {
        self.read("read rates from", |database| {
            let json: Option<String> = database
                .query_row(
                    "SELECT json FROM rates WHERE host_digest = ?1 AND model_digest = ?2",
                    [&host_digest(host), model_digest],
                    |row| row.get(0),
                )
                .optional()?;
            // Rates in the format of an older dtrain are measured again.
            Ok(json.and_then(|json| serde_json::from_str(&json).ok()))
        })
    }

    /// Stores rates, replacing older ones of the same host and model.
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

    /// Lists the stored rates of all hosts and models, newest first.
    pub fn all_rates(&self) -> Result<Vec<Rates>, LedgerError> {
        self.read("read rates from", |database| {
            let mut select = database.prepare("SELECT json FROM rates ORDER BY measured_ms DESC")?;
            let rows = select.query_map([], |row| row.get::<_, String>(0))?;
            let all: Vec<String> = rows.collect::<Result<_, _>>()?;
            Ok(all.iter().filter_map(|json| serde_json::from_str(json).ok()).collect())
        })
    }

    /// Stores the corrections of the learning-rate rule that a study found; replaces its earlier ones.
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

    /// Returns the corrections of the learning-rate rule that studies of trainings with this digest found,
    /// oldest first.
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

    /// Returns measured and predicted step times of trials on hosts with this digest ([`host_digest`]) and of
    /// models with this digest, newest first.
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
