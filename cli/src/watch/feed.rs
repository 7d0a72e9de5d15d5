//! Reads what is shown: spools on this machine, and the history. It writes nothing and takes no lock.

use super::app::{Look, Page};
use super::model::list::{List, Searched};
use super::model::study::{Row, Study};
use super::model::trial::Trial;
use crate::commands::resume::plan;
use crate::context::Context;
use crate::drive::expected;
use crate::failure::{Exit, Failure};
use crate::trials::{self, ledger};
use crate::viewer::Recorded;
use dtrain_planner::{Launch, Plan, lower};
use dtrain_protocol::{Assignment, AttemptId, Rank, TrialId};
use dtrain_recipes::Goal;
use dtrain_runner::agent::Log;
use dtrain_runner::compare::buckets;
use dtrain_runner::driver::{self, Viewer, Watch};
use dtrain_runner::launch::slurm;
use dtrain_runner::ledger::{self as stored, Filter, History, Page as Part, Sort, Status, Summary, glance};
use dtrain_runner::{Ledger, Seen};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::time::{Duration, Instant, SystemTime};

/// Between two looks at a spool or a log.
const SPOOL: Duration = Duration::from_millis(200);

/// Between two looks at the history, where it has changed …
const HISTORY: Duration = Duration::from_secs(1);

/// … and where it has not: whether a process lives is not in it.
const UNCHANGED: Duration = Duration::from_secs(5);

/// Characters of a curve in a list.
const CURVE: usize = 12;

/// Curves that are read at one look.
const CURVES: usize = 50;

/// Trials that are listed where none runs, and studies.
const NEWEST: u64 = 20;

/// The end of a log that is read, in bytes, and its last lines.
const TAIL: (u64, usize) = (64 * 1024, 400);

/// Reads for the page on top.
pub(super) struct Feed<'a> {
    context: &'a Context,
    history: History,
    /// When the history was read last, and how its files were.
    read_at: Option<Instant>,
    files: Vec<Option<(u64, SystemTime)>>,
    source: Source,
    /// The last step of each trial whose curve was read, and the curve.
    curves: HashMap<TrialId, (u64, Vec<Option<f64>>)>,
}

/// Where the page on top comes from.
enum Source {
    List,
    Study(String),
    Trial(Box<TrialSource>),
}

/// What is read of a trial.
struct TrialSource {
    id: TrialId,
    /// The spools on this machine; none where the agent is elsewhere.
    spool: Option<Spool>,
    recorded: Recorded,
    summaries: Vec<Summary>,
    logs: Vec<Log>,
    /// Which log was read, and how long it was.
    log: Option<(usize, u64)>,
}

struct Spool {
    viewer: Viewer,
    watch: Watch,
    assignments: Vec<Assignment>,
}

impl<'a> Feed<'a> {
    pub(super) fn new(context: &'a Context, history: History) -> Self {
        let (files, curves) = (Vec::new(), HashMap::new());
        Self { context, history, read_at: None, files, source: Source::List, curves }
    }

    /// A page of all that runs.
    pub(super) fn list(&mut self) -> Result<Page, Failure> {
        (self.source, self.read_at) = (Source::List, Some(Instant::now()));
        Ok(Page::List(self.read_list()?, super::app::Cursor::default()))
    }

    /// A page of a study.
    pub(super) fn study(&mut self, name: &str) -> Result<Page, Failure> {
        (self.source, self.read_at) = (Source::Study(name.to_owned()), Some(Instant::now()));
        Ok(Page::Study(Box::new(self.read_study(name)?), super::app::Cursor::default()))
    }

    /// A page of a trial.
    pub(super) fn trial(&mut self, id: &TrialId) -> Result<Page, Failure> {
        // Read first: what is written meanwhile is seen twice rather than never.
        let known = self.known(id)?;
        let home = &self.context.home;
        let newest = known.attempts.last().map_or(AttemptId(0), |attempt| attempt.number);
        let offset = self.history.offset(id, newest).map_err(|error| ledger(&error))?;
        let plan = plan(&known)?;
        let mut trial = Trial::of(&known, expected(&plan), plan.host.hosts.get());
        let assignments = lower(&plan, plan.best(), &launch(id));
        let mut watch = Watch::of(&assignments);
        trial.places = places(&plan, &assignments, &watch);
        for (name, rank) in self.history.series_names(id).map_err(|error| ledger(&error))? {
            if rank != Rank(0) {
                continue;
            }
            let samples = self.history.series(id, &name, rank).map_err(|error| ledger(&error))?;
            let curve = trial.curves.entry(name).or_default();
            samples.iter().for_each(|sample| curve.push(sample.step, sample.value));
        }
        let mut recorded = Recorded::default();
        let figures = &mut trial.figures;
        let mut take = |seen: &Seen| {
            if let Seen::Event(stamped) = seen {
                figures.take(stamped);
            }
        };
        recorded.show_news(&self.history, id, &mut take).map_err(|error| ledger(&error))?;
        let is_here = !home.trial(id).elsewhere().exists() && home.trial(id).spool(newest).exists();
        let spool = is_here.then(|| {
            watch = Watch::of(&assignments);
            Spool { viewer: Viewer::at(home, id, newest, offset), watch, assignments }
        });
        let (summaries, logs) = (known.figures, Vec::new());
        let source = TrialSource { id: id.clone(), spool, recorded, summaries, logs, log: None };
        (self.source, self.read_at) = (Source::Trial(Box::new(source)), Some(Instant::now()));
        Ok(Page::Trial(Box::new(trial), Look::default()))
    }

    /// Reads for a page that was open before.
    pub(super) fn again(&mut self, page: &Page) -> Result<Page, Failure> {
        Ok(match page {
            Page::List(_, cursor) => match self.list()? {
                Page::List(list, _) => Page::List(list, *cursor),
                other => other,
            },
            Page::Study(study, cursor) => match self.study(&study.name)? {
                Page::Study(study, _) => Page::Study(study, *cursor),
                other => other,
            },
            Page::Trial(trial, look) => match self.trial(&trial.id)? {
                Page::Trial(trial, _) => Page::Trial(trial, look.clone()),
                other => other,
            },
        })
    }

    /// How long nothing new is to be looked for.
    pub(super) fn pause(&self) -> Duration {
        match &self.source {
            Source::Trial(_) => SPOOL,
            Source::List | Source::Study(_) => HISTORY,
        }
    }

    /// Reads what is new; tells whether anything on the page changed.
    pub(super) fn news(&mut self, page: &mut Page) -> Result<bool, Failure> {
        let is_due = self.is_due();
        match page {
            Page::List(list, _) if is_due => {
                let read = self.read_list()?;
                let has_changed = *list != read;
                *list = read;
                Ok(has_changed)
            }
            Page::Study(study, _) if is_due => {
                let read = self.read_study(&study.name)?;
                let has_changed = **study != read;
                **study = read;
                Ok(has_changed)
            }
            Page::List(..) | Page::Study(..) => Ok(false),
            Page::Trial(trial, look) => {
                let of_spool = self.spool_news(trial)?;
                let of_history = is_due && self.history_news(trial)?;
                let of_log = look.has_log && self.log_news(look)?;
                Ok(of_spool || of_history || of_log)
            }
        }
    }

    /// Whether the history is to be read: its files changed, or it was long ago.
    fn is_due(&mut self) -> bool {
        let passed = self.read_at.map_or(UNCHANGED, |at| at.elapsed());
        if passed < HISTORY {
            return false;
        }
        let path = self.context.home.history();
        let mut log = path.clone().into_os_string();
        log.push("-wal");
        let found = [path, log.into()].into_iter().map(|path: std::path::PathBuf| {
            let file = fs::metadata(&path).ok()?;
            Some((file.len(), file.modified().ok()?))
        });
        let files: Vec<_> = found.collect();
        if passed < UNCHANGED && files == self.files {
            return false;
        }
        (self.files, self.read_at) = (files, Some(Instant::now()));
        true
    }

    fn known(&self, id: &TrialId) -> Result<stored::Trial, Failure> {
        let is_alive = |id: &TrialId| trials::is_alive(self.context, id);
        self.history.trial(id, &is_alive).map_err(|error| ledger(&error))
    }

    fn spool_news(&mut self, trial: &mut Trial) -> Result<bool, Failure> {
        let Source::Trial(source) = &mut self.source else { return Ok(false) };
        let Some(Spool { viewer, watch, assignments }) = &mut source.spool else { return Ok(false) };
        let mut has_any = false;
        let mut see = |seen: &Seen| {
            has_any = true;
            trial.see(seen);
            match seen {
                Seen::Status(dtrain_runner::Status::Launching { .. }) => *watch = Watch::of(assignments),
                Seen::Event(stamped) => {
                    watch.note(stamped).into_iter().for_each(|status| trial.see(&Seen::Status(status)));
                }
                Seen::Status(_) | Seen::Fact(_) => {}
            }
        };
        let read = viewer.show_news(&mut see);
        read.map_err(|error| crate::viewer::unreadable(&trial.label, &error))?;
        Ok(has_any)
    }

    fn history_news(&mut self, trial: &mut Trial) -> Result<bool, Failure> {
        let known = self.known(&trial.id)?;
        let before = (trial.status, trial.verdict.clone(), trial.events.len());
        trial.stands(&known);
        let has_changed = before != (trial.status, trial.verdict.clone(), trial.events.len());
        let Source::Trial(source) = &mut self.source else { return Ok(has_changed) };
        if source.spool.is_none() && known.row.status == Status::Running {
            // Its first attempt may have begun here since it was opened.
            let newest = known.attempts.last().map_or(AttemptId(0), |attempt| attempt.number);
            let folder = self.context.home.trial(&trial.id);
            if !folder.elsewhere().exists() && folder.spool(newest).exists() {
                let plan = plan(&known)?;
                let assignments = lower(&plan, plan.best(), &launch(&trial.id));
                let viewer = Viewer::at(&self.context.home, &trial.id, newest, 0);
                source.spool = Some(Spool { viewer, watch: Watch::of(&assignments), assignments });
                return Ok(true);
            }
        }
        if source.spool.is_some() || source.summaries == known.figures {
            return Ok(has_changed);
        }
        trial.recorded(&known.figures);
        let figures = &mut trial.figures;
        let mut take = |seen: &Seen| {
            if let Seen::Event(stamped) = seen {
                figures.take(stamped);
            }
        };
        let recorded = source.recorded.show_news(&self.history, &source.id, &mut take);
        recorded.map_err(|error| ledger(&error))?;
        source.summaries = known.figures;
        Ok(true)
    }

    /// Reads the end of the log that is shown, where it changed.
    fn log_news(&mut self, look: &mut Look) -> Result<bool, Failure> {
        let Source::Trial(source) = &mut self.source else { return Ok(false) };
        let nodes = slurm::nodes(&self.context.home).into_iter().map(|(_, home)| home);
        let homes = std::iter::once(self.context.home.clone()).chain(nodes);
        let mut logs: Vec<Log> = homes
            .filter(|home| home.trial(&source.id).logs().exists())
            .filter_map(|home| driver::logs(&home, &source.id).ok())
            .flatten()
            .collect();
        // Of the newest attempt first.
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
            Failure::new(Exit::Infrastructure, text).cause(error.to_string())
        };
        let mut file = File::open(&log.path).map_err(unreadable)?;
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

    fn read_list(&mut self) -> Result<List, Failure> {
        let context = self.context;
        let is_alive = |id: &TrialId| trials::is_alive(context, id);
        let of = |status: Vec<Status>| {
            let filter = Filter { status, ..Filter::default() };
            let part = Part { skip: 0, limit: NEWEST };
            self.history.trials(&filter, &Sort::Newest, part, &is_alive).map_err(|error| ledger(&error))
        };
        let running = of(vec![Status::Running])?;
        let is_running = !running.is_empty();
        let rows = if is_running { running } else { of(Vec::new())? };
        let mut names: Vec<String> = rows.iter().filter_map(|row| row.study.clone()).collect();
        names.dedup();
        if !is_running {
            names = glance::studies(&context.home.history(), "");
            names.truncate(5);
        }
        let mut trials: Vec<Row> = rows.into_iter().map(Row::of).collect();
        trials.iter_mut().try_for_each(|row| self.curve(row, "loss", &mut 0))?;
        let mut studies = Vec::new();
        for name in names {
            let filter = Filter { study: Some(name.clone()), ..Filter::default() };
            let rows = self.history.trials(&filter, &Sort::Newest, Part::default(), &is_alive);
            let rows = rows.map_err(|error| ledger(&error))?;
            let count = |of: &dyn Fn(Status) -> bool| rows.iter().filter(|row| of(row.status)).count();
            let running = count(&|status| status == Status::Running);
            let open = count(&|status| matches!(status, Status::Created | Status::Running | Status::Lost));
            studies.push(Searched { name, tried: rows.len(), running, ended: rows.len() - open });
        }
        Ok(List { trials, studies, is_running })
    }

    fn read_study(&mut self, name: &str) -> Result<Study, Failure> {
        let json = self.history.study(name).map_err(|error| ledger(&error))?;
        let json = json.ok_or_else(|| Failure::new(Exit::Usage, format!("there is no study {name}")))?;
        let mut study = Study::of(name, &json);
        let context = self.context;
        let is_alive = |id: &TrialId| trials::is_alive(context, id);
        let filter = Filter { study: Some(name.to_owned()), ..Filter::default() };
        let rows = self.history.trials(&filter, &Sort::Newest, Part::default(), &is_alive);
        let mut trials: HashMap<TrialId, _> =
            rows.map_err(|error| ledger(&error))?.into_iter().map(|row| (row.id.clone(), row)).collect();
        let mut read = 0;
        for tried in self.history.tried(name).map_err(|error| ledger(&error))? {
            let trial = tried.trial.as_ref().and_then(|id| trials.remove(id));
            let mut row = Row::tried(&tried, &study.searched, trial);
            let key = study.metric.clone();
            self.curve(&mut row, &key, &mut read)?;
            if row.curve.is_empty() {
                self.curve(&mut row, "loss", &mut read)?;
            }
            row.newest = row.curve.iter().rev().flatten().next().copied().or(row.newest);
            if let Some(trial) = &row.trial {
                study.is_max = trial.goal == Goal::Max;
            }
            study.rows.push(row);
        }
        Ok(study)
    }

    /// Reads the curve of a trial that went on since it was read.
    fn curve(&mut self, row: &mut Row, key: &str, read: &mut usize) -> Result<(), Failure> {
        let Some(trial) = &row.trial else { return Ok(()) };
        let known = self.curves.get(&trial.id);
        if let Some((_, curve)) = known.filter(|(step, _)| *step == trial.step || *read >= CURVES) {
            row.curve.clone_from(curve);
            return Ok(());
        }
        if *read >= CURVES {
            return Ok(());
        }
        *read += 1;
        let samples = self.history.series(&trial.id, key, Rank(0)).map_err(|error| ledger(&error))?;
        if let (Some(first), Some(last)) = (samples.first(), samples.last()) {
            row.curve = buckets(&samples, (first.step, last.step), CURVE);
            self.curves.insert(trial.id.clone(), (trial.step, row.curve.clone()));
        }
        Ok(())
    }
}

fn launch(trial: &TrialId) -> Launch {
    let (attempt, checkpoints) = (AttemptId(1), std::path::PathBuf::new());
    Launch { trial: trial.clone(), attempt, checkpoints, resume: None, spent_seconds: 0.0 }
}

/// For each rank the number of its kind of work, and its host.
fn places(plan: &Plan, assignments: &[Assignment], watch: &Watch) -> Vec<(u32, String)> {
    let host = |assignment: &Assignment| {
        let host = plan.recipe.cluster.hosts.get(assignment.placement.host as usize);
        host.map_or_else(|| format!("host {}", assignment.placement.host), |host| host.address.clone())
    };
    watch.work().iter().copied().zip(assignments.iter().map(host)).collect()
}
