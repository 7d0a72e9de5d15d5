//! Runner of a study's trials: runs them in parallel, up to the number of slots.

use super::display::StudyDisplay;
use super::study_config::StudyConfig;
use super::tracked_trial::{
    EndRequest, FAILURES_MOST, RunnerContext, RunningTrial, TrackedTrial, is_done, no_results, replay_events,
    source_json,
};
use super::trial::{TrialEnd, TrialJob, TrialMessage, record_pruned};
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::LoadedRecipe;
use crate::slots::SlotPool;
use crate::trials::history_failure;
use dtrain_planner::tune::{Proposal, PruneDecision, StudyEvent, TrialFailure, TrialOutcome, TrialRunner};
use dtrain_recipes::Recipe;
use dtrain_runner::Interrupts;
use dtrain_runner::ledger::History;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// Time that a trial has to save and end after it is asked to stop.
const GRACE: Duration = Duration::from_secs(30);

/// Time for which a trial's hosts may be unreachable before the trial is repeated elsewhere.
const AWAY: Duration = Duration::from_secs(20);

/// Interval between checks for interrupts and deadlines.
const GLANCE: Duration = Duration::from_millis(100);

/// Runner of a study's trials; records every event before it takes effect.
pub(super) struct Runner<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    context: &'env Context,
    /// Context without output, for the threads of the trials.
    quiet: &'env Context,
    loaded: &'env LoadedRecipe,
    kept: &'env StudyConfig,
    name: &'env str,
    history: &'env mut History,
    slots: SlotPool,
    known: BTreeMap<u64, TrackedTrial>,
    /// Number of the next event in the study's log.
    number: u64,
    messages: (Sender<(u64, TrialMessage)>, Receiver<(u64, TrialMessage)>),
    /// Events that are processed before new messages.
    due: VecDeque<StudyEvent>,
    pub(super) show: StudyDisplay<'env>,
    /// Counter of the user's interrupts (Ctrl-C).
    interrupts: Arc<Interrupts>,
    heeded: u32,
    /// Time after which no trial starts; `None` without a limit.
    deadline: Option<Instant>,
    /// Number of consecutive trials that were lost, and number that failed.
    failures: (u32, u32),
    /// Error that ends the study; `None` while there is none.
    pub(super) failure: Option<CommandError>,
}

impl<'scope, 'env> Runner<'scope, 'env> {
    /// Creates a runner of a study that goes on after the events in `log`.
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        ground: RunnerContext<'env>,
        history: &'env mut History,
        slots: SlotPool,
        log: &[StudyEvent],
    ) -> Self {
        let RunnerContext { context, quiet, loaded, kept, name, interrupts, deadline } = ground;
        let known = replay_events(log);
        let show = StudyDisplay::new(context.out, kept, log);
        let number = u64::try_from(log.len()).unwrap_or(u64::MAX);
        Self {
            scope,
            context,
            quiet,
            loaded,
            kept,
            name,
            history,
            slots,
            known,
            number,
            messages: channel(),
            due: VecDeque::new(),
            show,
            interrupts,
            heeded: 0,
            deadline,
            failures: (0, 0),
            failure: None,
        }
    }

    /// Returns `true` if no further trial may start.
    fn is_ending(&self) -> bool {
        self.failure.is_some()
            || self.interrupts.count() > 0
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Starts a trial in a thread of its own.
    fn start(&mut self, trial: u64) {
        let slot = self.slots.acquire(trial);
        let known = self.known.entry(trial).or_default();
        known.place.get_or_insert(slot);
        let recipe = self.kept.trial(&known.values);
        let interrupts = Arc::new(Interrupts::default());
        let job = TrialJob {
            context: self.quiet,
            loaded: self.loaded,
            kept: self.kept,
            name: self.name,
            number: trial,
            values: known.values.clone(),
            source: known.source.clone(),
            recipe: self.slots.share(slot).ranked(self.slots.on_hosts(slot, &recipe)),
            share: self.slots.share(slot),
            interrupts: Arc::clone(&interrupts),
            say: self.messages.0.clone(),
        };
        known.running = Some(RunningTrial { interrupts, ending: None, away: None });
        self.scope.spawn(move || job.run());
    }

    /// Records an event of the study in the history; a failure ends the study.
    fn keep(&mut self, event: &StudyEvent) {
        if self.failure.is_some() {
            return;
        }
        let json = serde_json::to_value(event).expect("events have string keys only");
        match self.history.record_study_event(self.name, self.number, &json) {
            Ok(()) => self.number += 1,
            Err(error) => self.failure = Some(history_failure(&error)),
        }
        self.show.event(event);
    }

    fn ask_to_end(&mut self, trial: u64, reason: EndRequest) {
        let Some(running) = self.known.get_mut(&trial).and_then(|known| known.running.as_mut()) else {
            return;
        };
        if running.ending.is_none() {
            running.interrupts.add();
            running.ending = Some((reason, Instant::now()));
        }
    }

    /// Records that a trial which is not running was pruned; returns the event.
    fn pruned(&mut self, trial: u64) -> StudyEvent {
        if let Err(failure) = record_pruned(self.context, self.history, self.name, trial) {
            self.failure.get_or_insert(failure);
        }
        let value = self.known.get(&trial).and_then(|known| known.newest).map(|(_, value)| value);
        let outcome = match value.filter(|value| value.is_finite()) {
            Some(value) => TrialOutcome::Pruned { value },
            None => TrialOutcome::Failed { reason: TrialFailure::Diverged },
        };
        StudyEvent::Ended { trial, outcome }
    }

    /// Converts the message of a trial's thread into an event of the study, if it is one.
    fn handle_message(&mut self, trial: u64, message: TrialMessage) -> Option<StudyEvent> {
        let cost = |value| self.kept.base_recipe.objective.goal().cost(value);
        match message {
            TrialMessage::Begun(label) => {
                self.show.set_label(trial, &label);
                None
            }
            TrialMessage::Report(at, measured) => {
                let known = self.known.get_mut(&trial)?;
                if let Some(running) = &mut known.running {
                    running.away = None;
                }
                // A restarted attempt repeats earlier reports.
                if known.newest.is_some_and(|(newest, _)| at <= newest) {
                    return None;
                }
                let value = cost(measured);
                known.newest = Some((at, value));
                Some(StudyEvent::Reported { trial, progress: at, value })
            }
            TrialMessage::Trouble(reason) => {
                let running = self.known.get_mut(&trial).and_then(|known| known.running.as_mut())?;
                if running.away.is_none() {
                    running.away = Some(Instant::now());
                    self.show.print_host_failure(trial, &reason);
                }
                None
            }
            TrialMessage::Failed(cause) => {
                self.show.print_host_failure(trial, &cause);
                None
            }
            TrialMessage::Over(over) => self.over(trial, over),
        }
    }

    /// Handles the end of a trial's thread; returns the event that follows from it, if any.
    fn over(&mut self, trial: u64, over: Result<TrialEnd, CommandError>) -> Option<StudyEvent> {
        let running = self.known.get_mut(&trial).and_then(|known| known.running.take());
        let reason = running.as_ref().and_then(|running| running.ending).map(|(reason, _)| reason);
        let was_away = running.is_some_and(|running| running.away.is_some());
        let lost = StudyEvent::Ended { trial, outcome: TrialOutcome::Failed { reason: TrialFailure::Lost } };
        let event = match over {
            // Its hosts are unreachable; others may answer.
            Err(failure)
                if matches!(failure.exit(), ExitReason::Preflight | ExitReason::Infrastructure)
                    && self.lose_host_of(trial) =>
            {
                self.show.print_host_failure(trial, &failure.render(crate::color::ColorMode::plain()));
                Some(lost)
            }
            Err(failure) => {
                self.failure.get_or_insert(failure);
                None
            }
            Ok(TrialEnd::Ended(TrialOutcome::Failed { reason: TrialFailure::Lost })) => {
                self.lose_host_of(trial);
                Some(lost)
            }
            Ok(TrialEnd::Ended(outcome)) => Some(StudyEvent::Ended { trial, outcome }),
            Ok(TrialEnd::Stopped) => match reason {
                Some(EndRequest::Pause) => {
                    let at = self.known.get(&trial).and_then(|known| known.newest).map_or(0, |(at, _)| at);
                    Some(StudyEvent::Paused { trial, progress: at })
                }
                Some(EndRequest::Prune) => Some(self.pruned(trial)),
                Some(EndRequest::Machines) => {
                    self.lose_host_of(trial);
                    Some(lost)
                }
                // Stopped by another command: it says nothing about the setting.
                None if was_away || !self.is_ending() => Some(lost),
                Some(EndRequest::Interrupt) | None => None,
            },
        };
        self.slots.release(trial, event.as_ref().is_some_and(is_done));
        self.count_failures(event.as_ref());
        event
    }

    /// Marks the host of a lost trial as down. Returns `true` if other hosts are left.
    fn lose_host_of(&mut self, trial: u64) -> bool {
        let place = self.known.get(&trial).and_then(|known| known.place);
        let is_left = place.is_some_and(|place| self.slots.mark_down(place));
        if is_left {
            // A host failure is no failure of the study.
            self.failures.0 = 0;
        }
        is_left
    }

    /// Returns the recipe of all trials, restricted to the hosts that answer, for the plan of the result.
    pub(super) fn pinned_to_candidate(&self) -> Recipe {
        self.slots.on_hosts(self.slots.first_up(), &self.kept.base_recipe)
    }

    /// Counts consecutive trials without a result, and stops the study after several.
    fn count_failures(&mut self, event: Option<&StudyEvent>) {
        let Some(StudyEvent::Ended { trial, outcome }) = event else { return };
        let (lost, crashed) = self.failures;
        let has_hosts = !self.loaded.checked.recipe.cluster.hosts.is_empty();
        let has_others = has_hosts && self.slots.usable() > 0;
        self.failures = match outcome {
            TrialOutcome::Failed { reason: TrialFailure::Lost } if has_others => (0, crashed),
            TrialOutcome::Failed { reason: TrialFailure::Lost } => (lost + 1, crashed),
            TrialOutcome::Failed { reason: TrialFailure::Crashed | TrialFailure::Unmeasured } => {
                (lost, crashed + 1)
            }
            TrialOutcome::Failed { .. } => (0, crashed),
            TrialOutcome::Done { .. } | TrialOutcome::Pruned { .. } => (0, 0),
        };
        let (lost, crashed) = self.failures;
        if lost.max(crashed) < FAILURES_MOST || self.failure.is_some() {
            return;
        }
        let is_unmeasured = matches!(outcome, TrialOutcome::Failed { reason: TrialFailure::Unmeasured });
        let failure = no_results(is_unmeasured.then_some(&self.kept.base_recipe.objective.metric), lost > 0);
        let label = self.show.label(*trial);
        self.failure = Some(failure.cause(format!("`dtrain logs {label}` shows the logs of the last one")));
    }

    /// Ends what is overdue: reacts to interrupts, trials beyond their grace period, and unreachable hosts.
    fn check_deadlines(&mut self) {
        let wanted = self.interrupts.count();
        if wanted > self.heeded {
            self.heeded = wanted;
            self.show.print_interrupted(wanted);
            for running in self.known.values_mut().filter_map(|known| known.running.as_mut()) {
                running.interrupts.add();
                running.ending.get_or_insert((EndRequest::Interrupt, Instant::now()));
            }
        }
        if self.failure.is_some() {
            let all: Vec<u64> = self.running();
            all.into_iter().for_each(|trial| self.ask_to_end(trial, EndRequest::Interrupt));
        }
        let (mut away, mut at_work) = (Vec::new(), 0);
        for (trial, known) in &mut self.known {
            let Some(running) = &mut known.running else { continue };
            if let Some((_, asked)) = &mut running.ending
                && asked.elapsed() > GRACE
            {
                // It did not end by itself: a second interrupt kills it.
                running.interrupts.add();
                *asked = Instant::now();
            }
            match running.away {
                Some(since) if since.elapsed() > AWAY => away.push(*trial),
                Some(_) => {}
                None => at_work += 1,
            }
        }
        // It is repeated if a slot is idle; otherwise its hosts may come back first.
        let spare = self.slots.usable() > at_work;
        for trial in away.into_iter().filter(|_| spare) {
            self.ask_to_end(trial, EndRequest::Machines);
        }
    }

    fn running(&self) -> Vec<u64> {
        let all = self.known.iter().filter(|(_, known)| known.running.is_some());
        all.map(|(trial, _)| *trial).collect()
    }
}

impl TrialRunner for Runner<'_, '_> {
    fn slots(&self) -> usize {
        if self.is_ending() { 0 } else { self.slots.usable().max(1) }
    }

    fn launch(&mut self, proposal: &Proposal) {
        let known = self.known.entry(proposal.trial).or_default();
        known.values.clone_from(&proposal.values);
        known.source = source_json(&proposal.source);
        self.keep(&proposal.launched());
        self.start(proposal.trial);
    }

    fn resume(&mut self, trial: u64, _: Option<u64>) {
        self.keep(&StudyEvent::Resumed { trial });
        self.start(trial);
    }

    fn reattach(&mut self, trial: u64) {
        self.start(trial);
    }

    fn stop(&mut self, trial: u64, how: PruneDecision) {
        let is_running = self.known.get(&trial).is_some_and(|known| known.running.is_some());
        match how {
            PruneDecision::Continue => {}
            _ if is_running => {
                let reason = if how == PruneDecision::Pause { EndRequest::Pause } else { EndRequest::Prune };
                self.ask_to_end(trial, reason);
            }
            // The study was interrupted while it ended, or it is paused.
            PruneDecision::Pause => {
                let at = self.known.get(&trial).and_then(|known| known.newest).map_or(0, |(at, _)| at);
                self.due.push_back(StudyEvent::Paused { trial, progress: at });
            }
            PruneDecision::Stop => {
                let event = self.pruned(trial);
                if !self.due.contains(&event) {
                    self.due.push_back(event);
                }
            }
        }
    }

    fn next_event(&mut self) -> Option<StudyEvent> {
        loop {
            if let Some(event) = self.due.pop_front() {
                self.keep(&event);
                return Some(event);
            }
            self.check_deadlines();
            if self.running().is_empty() && self.is_ending() {
                self.show.finish();
                return None;
            }
            match self.messages.1.recv_timeout(GLANCE) {
                Ok((trial, message)) => {
                    if let Some(event) = self.handle_message(trial, message) {
                        self.keep(&event);
                        return Some(event);
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.show.tick(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}
