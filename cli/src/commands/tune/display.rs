//! Live display of a study, as text or as JSON Lines.

use super::report;
use super::study_config::{StudyConfig, dimension_title};
use crate::output::Output;
use crate::render::eta::TrainingProgress;
use crate::render::number::{counted, plain};
use crate::render::progress_bar::TrainingBar;
use crate::render::proposal::proposal_reason;
use dtrain_planner::tune::{StudyEvent, TrialFailure, TrialOutcome, TrialValue};
use dtrain_recipes::Goal;
use serde::Serialize;
use std::collections::BTreeMap;

/// Display state of one trial of a study.
#[derive(Default)]
struct TrialLabel {
    label: String,
    words: String,
    /// Progress and metric in the trial's latest report; the metric is as measured.
    newest: Option<(u64, f64)>,
    is_running: bool,
}

/// Live display of a study: lines on stderr above a progress bar, or events as JSON Lines.
pub(super) struct StudyDisplay<'a> {
    out: Output,
    kept: &'a StudyConfig,
    names: Vec<String>,
    metric: String,
    goal: Goal,
    /// Number of trials in total, including those that were lost.
    budget: u64,
    trials: BTreeMap<u64, TrialLabel>,
    /// Number of ended trials.
    over: u64,
    /// Number of the best ended trial, and its metric as measured.
    best: Option<(u64, f64)>,
    bar: Option<TrainingBar>,
}

/// JSON of one event, as `dtrain tune --json` prints it.
#[derive(Serialize)]
struct EventLine<'a> {
    event: &'a StudyEvent,
}

impl<'a> StudyDisplay<'a> {
    /// Creates the display of a study that goes on after the events in `log`.
    pub(super) fn new(out: Output, kept: &'a StudyConfig, log: &[StudyEvent]) -> Self {
        let objective = &kept.base_recipe.objective;
        let mut show = Self {
            out,
            kept,
            names: kept
                .study
                .space
                .dimensions()
                .iter()
                .map(|one| dimension_title(&one.name).to_owned())
                .collect(),
            metric: objective.metric.name().to_owned(),
            goal: objective.goal(),
            budget: kept.study.trials.unwrap_or(u64::MAX),
            trials: BTreeMap::new(),
            over: 0,
            best: None,
            bar: out.draws().then(|| TrainingBar::new(out)),
        };
        log.iter().for_each(|event| drop(show.note(event)));
        show
    }

    /// Returns the label of a trial, which names it in the history.
    pub(super) fn label(&self, trial: u64) -> &str {
        self.trials.get(&trial).map_or("last", |shown| shown.label.as_str())
    }

    /// Sets the label of a recorded trial.
    pub(super) fn set_label(&mut self, trial: u64, label: &str) {
        self.trials.entry(trial).or_default().label = label.to_owned();
        self.tick();
    }

    /// Shows an event as a line for the terminal, or as JSON.
    pub(super) fn event(&mut self, event: &StudyEvent) {
        if self.out.json {
            // The reader may have closed the pipe; the study continues.
            drop(self.out.json_line("study_event", &EventLine { event }));
        }
        if let Some(line) = self.note(event) {
            self.say(&line);
        }
        self.tick();
    }

    /// Updates the display by an event; returns the line to print, if any.
    fn note(&mut self, event: &StudyEvent) -> Option<String> {
        let trial = event.trial();
        let named = trial + 1;
        let budget = self.budget;
        match event {
            StudyEvent::Launched { values, source, .. } => {
                let words = self.values_text(values);
                let line = format!("trial {named} of {budget}: {words} ({})", proposal_reason(source));
                self.trials.insert(trial, TrialLabel { words, is_running: true, ..TrialLabel::default() });
                Some(line)
            }
            StudyEvent::Reported { progress: at, value, .. } => {
                let measured = self.goal.cost(*value);
                self.trials.entry(trial).or_default().newest = Some((*at, measured));
                None
            }
            StudyEvent::Paused { progress: at, .. } => {
                self.trials.entry(trial).or_default().is_running = false;
                Some(format!(
                    "trial {named}: paused after {}; others do better",
                    self.kept.progress_text(*at)
                ))
            }
            StudyEvent::Resumed { .. } => {
                self.trials.entry(trial).or_default().is_running = true;
                Some(format!("trial {named}: resumed"))
            }
            StudyEvent::Ended { outcome, .. } => Some(self.ended(trial, outcome)),
        }
    }

    fn ended(&mut self, trial: u64, outcome: &TrialOutcome) -> String {
        self.over += 1;
        let shown = self.trials.entry(trial).or_default();
        shown.is_running = false;
        let label = if shown.label.is_empty() { String::new() } else { format!(" ({})", shown.label) };
        let named = trial + 1;
        match outcome {
            TrialOutcome::Done { value } => {
                let measured = self.goal.cost(*value);
                let is_best = self.best.is_none_or(|(_, best)| self.goal.cost(best) > *value);
                if is_best {
                    self.best = Some((trial, measured));
                }
                let best = if is_best { ", the best so far" } else { "" };
                format!("trial {named}{label}: {} {}{best}", self.metric, plain(measured))
            }
            TrialOutcome::Pruned { value } => {
                format!("trial {named}{label}: pruned at {} {}", self.metric, plain(self.goal.cost(*value)))
            }
            TrialOutcome::Failed { reason: why } => {
                // It is repeated as another trial.
                self.budget = self.budget.saturating_add(u64::from(*why == TrialFailure::Lost));
                format!("trial {named}{label}: {}", report::failure_reason(*why))
            }
        }
    }

    fn values_text(&self, values: &[TrialValue]) -> String {
        let pairs = self.names.iter().zip(values).filter(|(_, value)| **value != TrialValue::Inactive);
        pairs.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    }

    /// Prints that a host of the trial `trial` failed, with the reason.
    pub(super) fn print_host_failure(&self, trial: u64, reason: &str) {
        let labels = self.trials.get(&trial).map(|shown| shown.label.as_str());
        let label =
            labels.filter(|label| !label.is_empty()).map_or(String::new(), |label| format!(" ({label})"));
        let warning = self.out.paint.yellow("warning");
        self.say(&format!("{warning}: trial {}{label}: {}", trial + 1, reason.trim_end()));
    }

    /// Prints the effect of the user's Ctrl-C on the study, which depends on how often it was pressed.
    pub(super) fn print_interrupted(&self, times: u32) {
        let running = counted(self.running(), "trial");
        self.say(&match times {
            1 => format!("stopping {running} after a checkpoint; press Ctrl-C again to stop now"),
            _ => "stopping now".to_owned(),
        });
    }

    /// Redraws the progress bar of the study.
    pub(super) fn tick(&self) {
        let Some(bar) = &self.bar else { return };
        #[expect(clippy::cast_precision_loss, reason = "a share for display")]
        let share = self.over.min(self.budget) as f64 / self.budget.max(1) as f64;
        let noun = Some("trial");
        let advance = TrainingProgress {
            step: self.over,
            of: Some(self.budget),
            share: Some(share),
            eta_seconds: None,
            noun,
            validating: None,
        };
        let best = self.best.map(|(trial, best)| format!("best {} (trial {})", plain(best), trial + 1));
        let running = self.trials.iter().filter(|(_, shown)| shown.is_running).map(|(trial, shown)| {
            match shown.newest {
                Some((at, measured)) => {
                    format!("#{} {} {}", trial + 1, self.kept.progress_text(at), plain(measured))
                }
                None => format!("#{} {}", trial + 1, shown.words),
            }
        });
        bar.set(&advance, &best.into_iter().chain(running).collect::<Vec<_>>().join("   "));
    }

    fn running(&self) -> u64 {
        self.trials.values().map(|shown| u64::from(shown.is_running)).sum()
    }

    /// Removes the progress bar.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.out.say(line)),
            None => self.out.say(line),
        }
    }
}
