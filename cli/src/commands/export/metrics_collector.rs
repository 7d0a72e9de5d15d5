//! Collector of metrics of running trials, including trials that no controller copies to the history.

use super::{ExportArgs, filtered};
use crate::command_error::CommandError;
use crate::context::Context;
use crate::trials::{self, history_failure};
use dtrain_protocol::{AttemptId, Rank, TrialId};
use dtrain_runner::driver::Viewer;
use dtrain_runner::export::prometheus::MetricsPage;
use dtrain_runner::ledger::{
    Checkpoint, Filter, History, Pagination, Sort, Summary, TrialDetails, TrialRow, TrialStatus, points_of,
};
use dtrain_runner::{Fact, TrialEvent};
use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

/// Collector that reads the history and the spools of trials again for each page of metrics.
pub(super) struct MetricsCollector<'a> {
    context: &'a Context,
    args: &'a ExportArgs,
    followed: HashMap<TrialId, FollowedTrial>,
}

/// A running trial with its latest metrics.
struct FollowedTrial {
    viewer: Viewer,
    news: LatestSamples,
}

#[derive(Default)]
struct LatestSamples {
    /// Latest step and value of each series, by name and rank.
    last: BTreeMap<(String, Rank), (u64, f64)>,
    checkpoints: Vec<Checkpoint>,
}

impl<'a> MetricsCollector<'a> {
    pub(super) fn new(context: &'a Context, args: &'a ExportArgs) -> Self {
        Self { context, args, followed: HashMap::new() }
    }

    /// Returns the page with the current metrics.
    pub(super) fn page(&mut self) -> Result<String, CommandError> {
        let history = trials::read_history(self.context)?;
        let activity = |id: &TrialId| trials::activity(self.context, id);
        let rows = history.trials(&Filter::default(), &Sort::Newest, Pagination::default(), &activity);
        let mut counts = BTreeMap::new();
        for row in rows.map_err(|error| history_failure(&error))? {
            *counts.entry(row.status).or_default() += 1;
        }
        let shown = self.trials(&history)?;
        self.followed.retain(|id, _| shown.iter().any(|row| row.id == *id));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut page = MetricsPage::new(&counts, u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        for row in &shown {
            let mut trial = history.trial(&row.id, &activity).map_err(|error| history_failure(&error))?;
            if trial.row.status == TrialStatus::Running {
                self.follow(&mut trial);
            }
            page.add(&trial);
        }
        Ok(page.finish())
    }

    /// Returns the trials that the user asked for; by default those that run.
    fn trials(&self, history: &History) -> Result<Vec<TrialRow>, CommandError> {
        if !self.args.trials.is_empty() {
            let names = self.args.trials.iter();
            return names.map(|name| Ok(trials::trial(self.context, history, name)?.row)).collect();
        }
        let is_named = self.args.study.is_some() || self.args.condition.is_some();
        if is_named {
            return filtered(self.context, history, self.args);
        }
        let activity = |id: &TrialId| trials::activity(self.context, id);
        let running = Filter { status: vec![TrialStatus::Running], ..Filter::default() };
        let rows = history.trials(&running, &Sort::Newest, Pagination::default(), &activity);
        rows.map_err(|error| history_failure(&error))
    }

    /// Adds to `trial` the events in its spool that the history may not have yet.
    fn follow(&mut self, trial: &mut TrialDetails) {
        let attempt = trial.attempts.last().map_or(0, |attempt| attempt.number.0);
        let followed = self.followed.entry(trial.row.id.clone()).or_insert_with(|| FollowedTrial {
            viewer: Viewer::after(&self.context.home, &trial.row.id, AttemptId(attempt.saturating_sub(1))),
            news: LatestSamples::default(),
        });
        let FollowedTrial { viewer, news } = followed;
        // An unreadable spool is retried at the next poll; the page shows the history meanwhile.
        let is_foreign = trial.runs_foreign_program();
        drop(viewer.show_new_records(&mut |seen: &TrialEvent| news.apply(seen, is_foreign)));
        news.put(trial);
    }
}

impl LatestSamples {
    fn apply(&mut self, seen: &TrialEvent, is_foreign: bool) {
        match seen {
            TrialEvent::Event(stamped) => {
                for point in points_of(stamped, is_foreign) {
                    self.last.insert((point.key, point.rank), (point.step, point.value));
                }
            }
            TrialEvent::Record(Fact::CheckpointCommitted { attempt, step, folder }) => {
                let at_ms = folder.metadata().and_then(|folder| folder.modified()).ok();
                let at_ms = at_ms.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
                let Some(at_ms) = at_ms.and_then(|at| u64::try_from(at.as_millis()).ok()) else { return };
                let (attempt, step, folder) = (*attempt, *step, folder.clone());
                self.checkpoints.push(Checkpoint { attempt, step, at_ms, folder, refused: None });
            }
            TrialEvent::Record(_) | TrialEvent::Status(_) => {}
        }
    }

    fn put(&self, trial: &mut TrialDetails) {
        for ((key, rank), (step, value)) in &self.last {
            let is_it = |figure: &&mut Summary| figure.key == *key && figure.rank == *rank;
            match trial.figures.iter_mut().find(is_it) {
                Some(figure) => (figure.last, figure.last_step) = (Some(*value), *step),
                None => trial.figures.push(Summary {
                    key: key.clone(),
                    rank: *rank,
                    points: 1,
                    last: Some(*value),
                    last_step: *step,
                    min: None,
                    min_step: None,
                    max: None,
                    max_step: None,
                    mean: None,
                }),
            }
        }
        for checkpoint in &self.checkpoints {
            if trial.checkpoints.iter().all(|known| known.folder != checkpoint.folder) {
                trial.checkpoints.push(checkpoint.clone());
            }
        }
    }
}
