//! Data source of the view: spools on this machine, and the history. Writes nothing and takes no lock.

mod trial;

use super::app::{Cursor, OpenPage};
use super::model::list::{StudySummary, TrialList};
use super::model::study::{StudyModel, TrialLine};
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::trials::{self, history_failure};
use dtrain_protocol::TrialId;
use dtrain_recipes::Goal;
use dtrain_runner::compare::buckets;
use dtrain_runner::ledger::{Filter, History, Pagination, Sort, TrialStatus, completion};
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// Interval between two polls of a spool or a log.
const SPOOL: Duration = Duration::from_millis(200);

/// Shortest interval between two reads of a history that has changed.
const HISTORY: Duration = Duration::from_secs(1);

/// Interval between two reads of an unchanged history, which does not record that a process has died.
const UNCHANGED: Duration = Duration::from_secs(5);

/// Number of characters in a curve on a list page.
const CURVE: usize = 12;

/// Maximum number of curves that are read per poll.
const CURVES: usize = 50;

/// Number of newest trials listed if none is running, and of newest studies.
const NEWEST: u64 = 20;

/// Reader of the data for the page on top.
pub(super) struct Feed<'a> {
    context: &'a Context,
    history: History,
    /// Time of the last read of the history; `None` before the first.
    read_at: Option<Instant>,
    /// Length and modification time of each history file at the last read; `None` if it is missing.
    files: Vec<Option<(u64, SystemTime)>>,
    /// Reader of the trial's data if its page is on top; otherwise `None`.
    source: Option<Box<trial::TrialFeed>>,
    /// Curve of each trial, with its last step when it was read.
    curves: HashMap<TrialId, (u64, Vec<Option<f64>>)>,
}

impl<'a> Feed<'a> {
    pub(super) fn new(context: &'a Context, history: History) -> Self {
        let (files, curves) = (Vec::new(), HashMap::new());
        Self { context, history, read_at: None, files, source: None, curves }
    }

    /// Reads the page that lists all running trials and studies.
    pub(super) fn list(&mut self) -> Result<OpenPage, CommandError> {
        (self.source, self.read_at) = (None, Some(Instant::now()));
        Ok(OpenPage::List(self.read_list()?, Cursor::default()))
    }

    /// Reads the page about the study `name`.
    pub(super) fn study(&mut self, name: &str) -> Result<OpenPage, CommandError> {
        (self.source, self.read_at) = (None, Some(Instant::now()));
        Ok(OpenPage::Study(Box::new(self.read_study(name)?), Cursor::default()))
    }

    /// Reads again a page that was opened before.
    pub(super) fn reload(&mut self, page: &OpenPage) -> Result<OpenPage, CommandError> {
        Ok(match page {
            OpenPage::List(_, cursor) => match self.list()? {
                OpenPage::List(list, _) => OpenPage::List(list, *cursor),
                other => other,
            },
            OpenPage::Study(study, cursor) => match self.study(&study.name)? {
                OpenPage::Study(study, _) => OpenPage::Study(study, *cursor),
                other => other,
            },
            OpenPage::Trial(trial, look) => match self.trial(&trial.id)? {
                OpenPage::Trial(trial, _) => OpenPage::Trial(trial, look.clone()),
                other => other,
            },
        })
    }

    /// Returns the interval until the next poll of the data for the page on top.
    pub(super) fn pause(&self) -> Duration {
        if self.source.is_some() { SPOOL } else { HISTORY }
    }

    /// Reads new data into the page; returns `true` if it changed.
    pub(super) fn poll(&mut self, page: &mut OpenPage) -> Result<bool, CommandError> {
        let is_due = self.is_due();
        match page {
            OpenPage::List(list, _) if is_due => {
                let read = self.read_list()?;
                let has_changed = *list != read;
                *list = read;
                Ok(has_changed)
            }
            OpenPage::Study(study, _) if is_due => {
                let read = self.read_study(&study.name)?;
                let has_changed = **study != read;
                **study = read;
                Ok(has_changed)
            }
            OpenPage::List(..) | OpenPage::Study(..) => Ok(false),
            OpenPage::Trial(trial, look) => {
                let of_spool = self.poll_spool(trial)?;
                let of_history = is_due && self.poll_history(trial)?;
                let of_log = look.has_log && self.poll_log(look)?;
                Ok(of_spool || of_history || of_log)
            }
        }
    }

    /// Returns `true` if the history must be read: its files changed, or the last read was too long ago.
    fn is_due(&mut self) -> bool {
        let passed = self.read_at.map_or(UNCHANGED, |at| at.elapsed());
        if passed < HISTORY {
            return false;
        }
        let path = self.context.home.history();
        let mut log = path.clone().into_os_string();
        log.push("-wal");
        let found = [path, log.into()].into_iter().map(|path: PathBuf| {
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

    fn read_list(&mut self) -> Result<TrialList, CommandError> {
        let context = self.context;
        let activity = |id: &TrialId| trials::activity(context, id);
        let of = |status: Vec<TrialStatus>| {
            let filter = Filter { status, ..Filter::default() };
            let part = Pagination { skip: 0, limit: NEWEST };
            self.history
                .trials(&filter, &Sort::Newest, part, &activity)
                .map_err(|error| history_failure(&error))
        };
        let running = of(vec![TrialStatus::Running, TrialStatus::Waiting, TrialStatus::Unattended])?;
        let is_running = !running.is_empty();
        let rows = if is_running { running } else { of(Vec::new())? };
        let mut names: Vec<String> = rows.iter().filter_map(|row| row.study.clone()).collect();
        names.dedup();
        if !is_running {
            names = completion::studies(&context.home.history(), "");
            names.truncate(5);
        }
        let mut trials: Vec<TrialLine> = rows.into_iter().map(TrialLine::of).collect();
        trials.iter_mut().try_for_each(|row| self.curve(row, "loss", &mut 0))?;
        let mut studies = Vec::new();
        for name in names {
            let filter = Filter { study: Some(name.clone()), ..Filter::default() };
            let rows = self.history.trials(&filter, &Sort::Newest, Pagination::default(), &activity);
            let rows = rows.map_err(|error| history_failure(&error))?;
            let count = |of: &dyn Fn(TrialStatus) -> bool| rows.iter().filter(|row| of(row.status)).count();
            let running = count(&TrialStatus::is_live);
            let open = count(&|status| {
                status.is_live() || matches!(status, TrialStatus::Created | TrialStatus::Lost)
            });
            studies.push(StudySummary { name, tried: rows.len(), running, ended: rows.len() - open });
        }
        Ok(TrialList { trials, studies, is_running })
    }

    fn read_study(&mut self, name: &str) -> Result<StudyModel, CommandError> {
        let json = self.history.study(name).map_err(|error| history_failure(&error))?;
        let json =
            json.ok_or_else(|| CommandError::new(ExitReason::Usage, format!("there is no study {name}")))?;
        let mut study = StudyModel::of(name, &json);
        let context = self.context;
        let activity = |id: &TrialId| trials::activity(context, id);
        let filter = Filter { study: Some(name.to_owned()), ..Filter::default() };
        let rows = self.history.trials(&filter, &Sort::Newest, Pagination::default(), &activity);
        let mut trials: HashMap<TrialId, _> = rows
            .map_err(|error| history_failure(&error))?
            .into_iter()
            .map(|row| (row.id.clone(), row))
            .collect();
        let mut read = 0;
        for tried in self.history.study_trials(name).map_err(|error| history_failure(&error))? {
            let trial = tried.trial.as_ref().and_then(|id| trials.remove(id));
            let mut row = TrialLine::tried(&tried, &study.searched, trial);
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
        study.apply_events(&self.history.study_events(name).map_err(|error| history_failure(&error))?);
        Ok(study)
    }

    /// Reads the curve of a trial that has had new steps since the last read.
    fn curve(&mut self, row: &mut TrialLine, key: &str, read: &mut usize) -> Result<(), CommandError> {
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
        let samples = self.history.curve(&trial.id, key).map_err(|error| history_failure(&error))?;
        if let (Some(first), Some(last)) = (samples.first(), samples.last()) {
            row.curve = buckets(&samples, (first.step, last.step), CURVE);
            self.curves.insert(trial.id.clone(), (trial.step, row.curve.clone()));
        }
        Ok(())
    }
}
