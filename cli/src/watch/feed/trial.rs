//! Data source of the page about a trial: spools on this machine, the history, and logs.

use super::Feed;
use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use crate::render::plan::planned_training;
use crate::trials::{self, history_failure, plan_of_trial};
use crate::viewer::RecordedProgress;
use crate::watch::app::{OpenPage, TrialViewState};
use crate::watch::model::trial::TrialModel;
use dtrain_planner::{AttemptSpec, Plan, lower};
use dtrain_protocol::{Assignment, AttemptId, TrialId};
use dtrain_runner::driver::{AnomalyDetector, Viewer};
use dtrain_runner::launch::slurm;
use dtrain_runner::ledger::{self as stored, Summary};
use dtrain_runner::logs::{self, Log};
use dtrain_runner::{Ledger, TrialEvent, files};
use std::io::{Read, Seek, SeekFrom};
use std::time::Instant;

/// Number of bytes read from the end of a log, and maximum number of lines kept.
const TAIL: (u64, usize) = (64 * 1024, 400);

/// Reader of the data for the page about one trial.
pub(super) struct TrialFeed {
    id: TrialId,
    /// Follower of the spools on this machine; `None` if the agent runs on another host.
    spool: Option<SpoolFollower>,
    recorded: RecordedProgress,
    summaries: Vec<Summary>,
    logs: Vec<Log>,
    /// Index and length of the log that was read last; `None` before the first.
    log: Option<(usize, u64)>,
}

struct SpoolFollower {
    viewer: Viewer,
    watch: AnomalyDetector,
    assignments: Vec<Assignment>,
}

impl Feed<'_> {
    /// Opens the page about a trial.
    pub(in crate::watch) fn trial(&mut self, id: &TrialId) -> Result<OpenPage, CommandError> {
        // Read before the history: an event may then be seen twice, but none is missed.
        let known = self.known(id)?;
        let home = &self.context.home;
        let newest = known.attempts.last().map_or(AttemptId(0), |attempt| attempt.number);
        let offset = self.history.offset(id, newest).map_err(|error| history_failure(&error))?;
        let plan = plan_of_trial(&known)?;
        let mut trial = TrialModel::of(&known, planned_training(&plan), plan.host.hosts.get());
        let assignments = lower(&plan, plan.best(), &launch(id));
        let watch = AnomalyDetector::of(&assignments);
        trial.places = places(&plan, &assignments, &watch);
        for (name, rank) in self.history.series_names(id).map_err(|error| history_failure(&error))? {
            // Sorted, so that the lowest rank comes first.
            if !trial.counts(&name, rank) {
                continue;
            }
            let samples = self.history.series(id, &name, rank).map_err(|error| history_failure(&error))?;
            let curve = trial.curves.entry(name).or_default();
            samples.iter().for_each(|sample| curve.push(sample.step, sample.value));
        }
        let mut recorded = RecordedProgress::default();
        let figures = &mut trial.figures;
        let mut take = |seen: &TrialEvent| {
            if let TrialEvent::Event(stamped) = seen {
                let _ = figures.apply(stamped);
            }
        };
        recorded.show_news(&self.history, id, &mut take).map_err(|error| history_failure(&error))?;
        let is_here = !home.trial(id).remote_hosts_file().exists() && home.trial(id).spool(newest).exists();
        let viewer = Viewer::at(home, id, newest, offset);
        let spool = is_here.then_some(SpoolFollower { viewer, watch, assignments });
        let (summaries, logs) = (known.figures, Vec::new());
        let source = TrialFeed { id: id.clone(), spool, recorded, summaries, logs, log: None };
        (self.source, self.read_at) = (Some(Box::new(source)), Some(Instant::now()));
        Ok(OpenPage::Trial(Box::new(trial), TrialViewState::default()))
    }

    fn known(&self, id: &TrialId) -> Result<stored::TrialDetails, CommandError> {
        let activity = |id: &TrialId| trials::activity(self.context, id);
        self.history.trial(id, &activity).map_err(|error| history_failure(&error))
    }

    pub(super) fn poll_spool(&mut self, trial: &mut TrialModel) -> Result<bool, CommandError> {
        let Some(source) = &mut self.source else { return Ok(false) };
        let Some(SpoolFollower { viewer, watch, assignments }) = &mut source.spool else { return Ok(false) };
        let mut has_any = false;
        let mut see = |seen: &TrialEvent| {
            has_any = true;
            trial.apply(seen);
            match seen {
                TrialEvent::Status(dtrain_runner::ControllerStatus::Launching { .. }) => {
                    *watch = AnomalyDetector::of(assignments);
                }
                TrialEvent::Event(stamped) => {
                    watch
                        .observe(stamped)
                        .into_iter()
                        .for_each(|status| trial.apply(&TrialEvent::Status(status)));
                }
                TrialEvent::Status(_) | TrialEvent::Record(_) => {}
            }
        };
        let read = viewer.show_new_records(&mut see);
        read.map_err(|error| crate::viewer::unreadable(&trial.label, &error))?;
        Ok(has_any)
    }

    pub(super) fn poll_history(&mut self, trial: &mut TrialModel) -> Result<bool, CommandError> {
        let known = self.known(&trial.id)?;
        let before = (trial.status, trial.verdict.clone(), trial.events.len());
        trial.update_from_history(&known);
        let has_changed = before != (trial.status, trial.verdict.clone(), trial.events.len());
        let Some(source) = &mut self.source else { return Ok(has_changed) };
        if source.spool.is_none() && known.row.status.is_live() {
            // Its first attempt may have started here since the page was opened.
            let newest = known.attempts.last().map_or(AttemptId(0), |attempt| attempt.number);
            let folder = self.context.home.trial(&trial.id);
            if !folder.remote_hosts_file().exists() && folder.spool(newest).exists() {
                let plan = plan_of_trial(&known)?;
                let assignments = lower(&plan, plan.best(), &launch(&trial.id));
                let viewer = Viewer::at(&self.context.home, &trial.id, newest, 0);
                source.spool =
                    Some(SpoolFollower { viewer, watch: AnomalyDetector::of(&assignments), assignments });
                return Ok(true);
            }
        }
        if source.spool.is_some() || source.summaries == known.figures {
            return Ok(has_changed);
        }
        trial.apply_summaries(&known.figures);
        let figures = &mut trial.figures;
        let mut take = |seen: &TrialEvent| {
            if let TrialEvent::Event(stamped) = seen {
                let _ = figures.apply(stamped);
            }
        };
        let recorded = source.recorded.show_news(&self.history, &source.id, &mut take);
        recorded.map_err(|error| history_failure(&error))?;
        source.summaries = known.figures;
        Ok(true)
    }

    /// Reads the end of the selected log if it changed; returns `true` if it did.
    pub(super) fn poll_log(&mut self, look: &mut TrialViewState) -> Result<bool, CommandError> {
        let Some(source) = &mut self.source else { return Ok(false) };
        let nodes = slurm::nodes(&self.context.home).into_iter().map(|(_, home)| home);
        let homes = std::iter::once(self.context.home.clone()).chain(nodes);
        let mut logs: Vec<Log> = homes
            .filter(|home| home.trial(&source.id).logs().exists())
            .filter_map(|home| logs::logs(&home, &source.id).ok())
            .flatten()
            .collect();
        // Logs of the newest attempt come first.
        logs.sort_by_key(|log| {
            log.of.map_or((1, u64::MAX, 0), |(attempt, rank)| (0, u64::MAX - attempt.0, rank.0))
        });
        let names: Vec<String> = logs
            .iter()
            .map(|log| match log.of {
                Some((attempt, rank)) => format!("rank {rank}, attempt {attempt}"),
                None => "the agent".to_owned(),
            })
            .collect();
        let has_more = look.logs != names;
        (look.logs, source.logs) = (names, logs);
        look.log = look.log.min(look.logs.len().saturating_sub(1));
        let Some(log) = source.logs.get(look.log) else { return Ok(has_more) };
        let unreadable = |error: std::io::Error| {
            let text = format!("cannot read {}", log.path.display());
            CommandError::new(ExitReason::Infrastructure, text).cause(error.to_string())
        };
        let mut file = files::open(&log.path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        if source.log == Some((look.log, length)) {
            return Ok(has_more);
        }
        source.log = Some((look.log, length));
        let from = length.saturating_sub(TAIL.0);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(from)).map_err(unreadable)?;
        file.take(TAIL.0).read_to_end(&mut bytes).map_err(unreadable)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut lines: Vec<String> = text.lines().skip(usize::from(from > 0)).map(str::to_owned).collect();
        look.lines = lines.split_off(lines.len().saturating_sub(TAIL.1));
        Ok(true)
    }
}

fn launch(trial: &TrialId) -> AttemptSpec {
    let (attempt, checkpoints) = (AttemptId(1), std::path::PathBuf::new());
    AttemptSpec { trial: trial.clone(), attempt, checkpoints, resume: None, spent_seconds: 0.0 }
}

/// Returns the number of the peer group (ranks with equal work) and the host, for each rank.
fn places(plan: &Plan, assignments: &[Assignment], watch: &AnomalyDetector) -> Vec<(u32, String)> {
    let host = |assignment: &Assignment| {
        let host = plan.recipe.cluster.hosts.get(assignment.placement.host as usize);
        host.map_or_else(|| format!("host {}", assignment.placement.host), |host| host.address.clone())
    };
    watch.work().iter().copied().zip(assignments.iter().map(host)).collect()
}
