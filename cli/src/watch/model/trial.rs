//! State of the page about a trial, folded from events and the history.

use super::rank::{RankFigures, STEPS};
use super::series::ThinnedSeries;
use crate::render::figures::{Figures, PlannedTraining};
use crate::render::number::{loss, seconds};
use crate::render::show::{end_text, verdict_text};
use crate::render::table::TextRole;
use dtrain_protocol::{Event, Failure, Rank, StampedEvent, TrialId};
use dtrain_runner::ledger::{self, Summary, TrialStatus};
use dtrain_runner::reporters::Reporters;
use dtrain_runner::{ControllerStatus, Fact, MetricPoint, TrialEvent};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of messages kept.
const EVENTS: usize = 500;

/// Ratio of a rank's computation time to the median of its peers above which it is a straggler.
const SLOW: f64 = 1.3;

/// A trial as its page shows it.
#[derive(Clone, Debug)]
pub(crate) struct TrialModel {
    pub(crate) id: TrialId,
    pub(crate) label: String,
    pub(crate) study: Option<String>,
    pub(crate) status: TrialStatus,
    /// Verdict on the trial in words; `None` while it has none.
    pub(crate) verdict: Option<String>,
    pub(crate) layout: String,
    pub(crate) hosts: u32,
    /// Figures that the plan predicts for the training.
    pub(crate) expected: PlannedTraining,
    /// Predicted tokens or samples per second; `None` without a prediction.
    pub(crate) rate: Option<f64>,
    /// Predicted peak memory, in bytes, of the rank with the highest; `None` without a prediction.
    pub(crate) memory: Option<u64>,
    /// Name of the objective's metric.
    pub(crate) objective: String,
    pub(crate) started_ms: Option<u64>,
    pub(crate) attempt: u64,
    pub(crate) figures: Figures,
    /// Series of the whole trial, by metric.
    pub(crate) curves: BTreeMap<String, ThinnedSeries>,
    pub(crate) ranks: BTreeMap<u32, RankFigures>,
    pub(in crate::watch) is_foreign: bool,
    /// Selects the ranks whose figures count, if a script trains.
    pub(in crate::watch) reporters: Reporters,
    /// Peer group (ranks with equal work) and host of each rank.
    pub(crate) places: Vec<(u32, String)>,
    pub(crate) events: VecDeque<LoggedMessage>,
    /// Time of the latest event from a rank in milliseconds since the Unix epoch, for records without a time.
    pub(in crate::watch) heard_ms: u64,
}

/// A message in the list of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedMessage {
    /// Time of the message, in milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    pub(crate) tone: TextRole,
    pub(crate) text: String,
}

impl TrialModel {
    /// Creates a trial without any data.
    #[cfg(test)]
    pub(crate) fn new(label: &str, objective: &str) -> Self {
        Self {
            id: TrialId("01J".into()),
            label: label.into(),
            study: None,
            status: TrialStatus::Created,
            verdict: None,
            layout: "one rank".into(),
            hosts: 1,
            expected: PlannedTraining {
                steps: 0,
                limit: None,
                step_seconds: None,
                unit: "samples",
                metric: objective.into(),
            },
            rate: None,
            memory: None,
            objective: objective.into(),
            started_ms: None,
            attempt: 0,
            figures: Figures::default(),
            is_foreign: false,
            reporters: Reporters::default(),
            curves: BTreeMap::new(),
            ranks: BTreeMap::new(),
            places: Vec::new(),
            events: VecDeque::new(),
            heard_ms: 0,
        }
    }

    /// Creates a trial from its details in the history; `expected` are the plan's predictions.
    pub(crate) fn of(known: &ledger::TrialDetails, expected: PlannedTraining, hosts: u32) -> Self {
        let row = &known.row;
        let mut trial = Self {
            id: row.id.clone(),
            label: row.label.clone(),
            study: row.study.clone(),
            status: row.status,
            verdict: None,
            layout: row.layout.clone(),
            hosts,
            expected,
            rate: known.predicted.tokens_per_second,
            memory: known.predicted.memory_bytes,
            objective: row.objective.clone(),
            started_ms: row.started_ms,
            attempt: 0,
            figures: Figures::default(),
            is_foreign: known.runs_foreign_program(),
            reporters: Reporters::default(),
            curves: BTreeMap::new(),
            ranks: BTreeMap::new(),
            places: Vec::new(),
            events: VecDeque::new(),
            heard_ms: row.created_ms,
        };
        trial.update_from_history(known);
        trial.summaries(&known.figures);
        trial
    }

    /// Updates status and records from the history.
    pub(crate) fn update_from_history(&mut self, known: &ledger::TrialDetails) {
        self.status = known.row.status;
        self.started_ms = known.row.started_ms;
        self.verdict = known.verdict.as_ref().map(verdict_text);
        for attempt in &known.attempts {
            self.attempt = self.attempt.max(attempt.number.0);
            let from = attempt.from.map_or(String::new(), |step| format!(" from step {step}"));
            self.push_message(
                attempt.started_ms,
                TextRole::Plain,
                format!("attempt {} launched{from}", attempt.number),
            );
            if let (Some(how), Some(at_ms)) = (&attempt.ended, attempt.ended_ms) {
                self.attempt_ended(at_ms, attempt.number.0, how);
            }
        }
        for saved in &known.checkpoints {
            self.figures.saved = self.figures.saved.max(Some(saved.step));
            match &saved.refused {
                None => self.push_message(saved.at_ms, TextRole::Good, durable(saved.step.0)),
                Some(reason) => {
                    let text = format!("the checkpoint at step {} cannot be used: {reason}", saved.step);
                    self.push_message(saved.at_ms, TextRole::Bad, text);
                }
            }
        }
        if let (Some(verdict), Some(at_ms)) = (&self.verdict, known.row.ended_ms) {
            self.push_message(at_ms, TextRole::Bold, format!("the trial is over: {verdict}"));
        }
    }

    /// Sets the averages of each rank from the summaries in the history.
    fn summaries(&mut self, summaries: &[Summary]) {
        let value = |summary: &Summary| {
            if summary.key.ends_with("_seconds") { summary.mean } else { summary.last }
        };
        for summary in summaries {
            if let Some(value) = value(summary) {
                self.ranks.entry(summary.rank.0).or_default().add_figure(&summary.key, value);
            }
        }
        for summary in summaries.iter().filter(|summary| summary.key == "step_seconds") {
            let rank = self.ranks.entry(summary.rank.0).or_default();
            rank.finish_step();
            rank.steps = summary.points;
        }
        self.ranks.retain(|_, rank| rank.steps > 0);
    }

    /// Adds the latest points in the history, for ranks that report to another host.
    pub(crate) fn apply_summaries(&mut self, summaries: &[Summary]) {
        for summary in summaries {
            let Some(value) = summary.last else { continue };
            let rank = summary.rank;
            let newest = self.curves.get(&summary.key).and_then(ThinnedSeries::newest);
            if !self.counts(&summary.key, rank) || newest.is_none_or(|(step, _)| summary.last_step > step) {
                self.figure(&summary.key, rank, summary.last_step, value);
            }
        }
        for summary in summaries.iter().filter(|summary| summary.key == "step_seconds") {
            let rank = self.ranks.entry(summary.rank.0).or_default();
            rank.finish_step();
            rank.steps = summary.points;
        }
    }

    /// Updates the trial by one event.
    pub(crate) fn apply(&mut self, seen: &TrialEvent) {
        match seen {
            TrialEvent::Event(stamped) => self.event(stamped),
            TrialEvent::Record(Fact::AttemptEnded { attempt, ended }) => {
                self.attempt_ended(self.heard_ms, attempt.0, ended);
            }
            TrialEvent::Record(Fact::CheckpointCommitted { step, .. }) => {
                self.figures.saved = Some(*step);
                self.push_message(self.heard_ms, TextRole::Good, durable(step.0));
            }
            TrialEvent::Record(_) => {}
            TrialEvent::Status(status) => self.status(status),
        }
    }

    fn event(&mut self, stamped: &StampedEvent) {
        self.heard_ms = stamped.at_ms;
        let _ = self.figures.apply(stamped);
        for MetricPoint { rank, key, step, value, .. } in ledger::points_of(stamped, self.is_foreign) {
            self.figure(&key, rank, step, value);
        }
        match &stamped.event {
            Event::Step(_) => self.ranks.entry(stamped.rank.0).or_default().finish_step(),
            Event::Ready { step, device, .. } if stamped.rank == Rank(0) => {
                self.push_message(
                    stamped.at_ms,
                    TextRole::Plain,
                    format!("training from step {step} on {device}"),
                );
            }
            Event::SaveFailed { step, reason, .. } => {
                let text =
                    format!("rank {}: the checkpoint at step {step} was not saved: {reason}", stamped.rank);
                self.push_message(stamped.at_ms, TextRole::Bad, text);
            }
            Event::Failed(failure) => {
                let failure = match failure {
                    Failure::Command { code, signal, .. } => {
                        Failure::Command { code: *code, signal: *signal, last: Vec::new() }
                    }
                    other => other.clone(),
                };
                self.push_message(stamped.at_ms, TextRole::Bad, format!("rank {}: {failure}", stamped.rank));
            }
            Event::Notice(words) => {
                self.push_message(stamped.at_ms, TextRole::Bad, format!("rank {}: {words}", stamped.rank));
            }
            Event::Ready { .. }
            | Event::Listening(_)
            | Event::Validated { .. }
            | Event::Validating { .. }
            | Event::Metrics { .. }
            | Event::Saved { .. }
            | Event::Finished { .. } => {}
        }
    }

    fn status(&mut self, status: &ControllerStatus) {
        let at_ms = self.heard_ms;
        match status {
            ControllerStatus::Launching { attempt, .. } => self.attempt = self.attempt.max(attempt.0),
            ControllerStatus::CommitFailed { step, reason } => {
                self.push_message(
                    at_ms,
                    TextRole::Bad,
                    format!("the checkpoint at step {step} was not kept: {reason}"),
                );
            }
            ControllerStatus::LossSpike { step, loss: now, median: usual } => {
                let text = format!("loss spike at step {step}: from {} to {}", loss(*usual), loss(*now));
                self.push_message(at_ms, TextRole::Notice, text);
            }
            ControllerStatus::Straggler { rank, seconds: own, median: usual } => {
                let (own, usual) = (seconds(*own), seconds(*usual));
                let text =
                    format!("rank {rank} is a straggler: {own} of compute per step, {usual} on its like");
                self.push_message(at_ms, TextRole::Notice, text);
            }
            ControllerStatus::SpoolRecordSkipped { offset: at, reason } => {
                self.push_message(
                    at_ms,
                    TextRole::Bad,
                    format!("the record at byte {at} cannot be read: {reason}"),
                );
            }
            ControllerStatus::SpoolDamaged { offset, reason, .. } => {
                let text = format!("the record of the ranks is damaged at byte {offset}: {reason}");
                self.push_message(at_ms, TextRole::Bad, text);
            }
            _ => {} // Only the controller knows of these; what comes of them is a fact.
        }
    }

    fn figure(&mut self, key: &str, rank: Rank, step: u64, value: f64) {
        self.ranks.entry(rank.0).or_default().add_figure(key, value);
        if self.counts(key, rank) {
            self.curves.entry(key.to_owned()).or_default().push(step, value);
        }
    }

    /// Returns `true` if a rank's figure counts for the trial: for a script, the lowest rank that reports it.
    pub(crate) fn counts(&mut self, key: &str, rank: Rank) -> bool {
        if self.is_foreign { self.reporters.counts(key, rank) } else { rank == Rank(0) }
    }

    fn attempt_ended(&mut self, at_ms: u64, attempt: u64, how: &dtrain_runner::AttemptEnd) {
        let is_good = matches!(how, dtrain_runner::AttemptEnd::Finished(_));
        let tone = if is_good { TextRole::Plain } else { TextRole::Bad };
        self.push_message(at_ms, tone, format!("attempt {attempt} {}", end_text(how)));
    }

    /// Adds a message to the list, unless it is already there.
    fn push_message(&mut self, at_ms: u64, tone: TextRole, text: String) {
        let first = self.events.front().filter(|_| self.events.len() >= EVENTS);
        if first.is_some_and(|first| at_ms < first.at_ms)
            || self.events.iter().any(|known| known.text == text)
        {
            return;
        }
        let after = self.events.iter().rposition(|known| known.at_ms <= at_ms).map_or(0, |at| at + 1);
        self.events.insert(after, LoggedMessage { at_ms, tone, text });
        if self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// Returns the host on which a rank runs; `None` if unknown.
    pub(crate) fn host(&self, rank: u32) -> Option<&str> {
        self.places.get(rank as usize).map(|(_, host)| host.as_str())
    }

    /// Returns the ratio of each rank's computation time to the median of its peer group; empty if unknown.
    pub(crate) fn slowness(&self) -> BTreeMap<u32, f64> {
        let mut alike: BTreeMap<u32, Vec<(u32, f64)>> = BTreeMap::new();
        for (rank, figures) in &self.ranks {
            if let Some((work, _)) = self.places.get(*rank as usize).filter(|_| figures.steps >= STEPS) {
                alike.entry(*work).or_default().push((*rank, figures.compute));
            }
        }
        let mut found = BTreeMap::new();
        for mut ranks in alike.into_values().filter(|ranks| ranks.len() > 1) {
            ranks.sort_by(|one, other| one.1.total_cmp(&other.1));
            let usual = ranks[(ranks.len() - 1) / 2].1;
            found.extend(ranks.into_iter().filter(|_| usual > 0.0).map(|(rank, own)| (rank, own / usual)));
        }
        found
    }

    /// Returns `true` if a rank with this ratio of computation time is slow enough to delay the others.
    pub(crate) fn is_straggler(slowness: f64) -> bool {
        slowness > SLOW
    }

    /// Lists the metrics, each with the metric that is drawn over it: the objective first, then the loss,
    /// then others.
    pub(crate) fn metrics(&self) -> Vec<(String, Option<String>)> {
        let over = |name: &str| Some(format!("valid.{name}")).filter(|over| self.curves.contains_key(over));
        let is_own =
            |name: &str| name.strip_prefix("valid.").is_none_or(|base| !self.curves.contains_key(base));
        let objective = self.objective.strip_prefix("valid.").unwrap_or(&self.objective);
        let place = |name: &str| match name.strip_prefix("valid.").unwrap_or(name) {
            base if base == objective => 0,
            "loss" => 1,
            _ if name.starts_with("system.") || name.starts_with("gpu.") => 4,
            _ if name.ends_with("_seconds") || name.ends_with("_bytes") => 3,
            _ => 2,
        };
        let mut names: Vec<&String> = self.curves.keys().filter(|name| is_own(name)).collect();
        names.retain(|name| !matches!(name.as_str(), "elapsed"));
        names.sort_by_key(|name| (place(name), (*name).clone()));
        names.into_iter().map(|name| (name.clone(), over(name))).collect()
    }
}

fn durable(step: u64) -> String {
    format!("checkpoint at step {step} saved")
}
