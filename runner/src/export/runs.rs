//! Trials as runs of another tool, each with its series.

use super::{AttemptSelection, ExportError, TrialSelection, WriteProgress, as_u64};
use crate::ledger::{MetricSample, TrialOutline, TrialRow};
use dtrain_protocol::{AttemptId, Rank};
use std::collections::BTreeMap;

/// Run in another tool: a trial, or one attempt of it.
pub(super) struct TrackedRun<'a> {
    pub(super) trial: &'a TrialOutline,
    /// Attempt that the run stands for; `None` if the run is the whole trial.
    pub(super) attempt: Option<AttemptId>,
    pub(super) series: Vec<RunSeries>,
}

/// One series of a run, sorted by step.
pub(super) struct RunSeries {
    pub(super) key: String,
    pub(super) rank: Rank,
    pub(super) samples: Vec<MetricSample>,
}

/// Counter of written series and points that reports progress.
pub(super) struct ProgressCounter<'a> {
    advance: WriteProgress,
    watch: &'a mut dyn FnMut(WriteProgress),
}

impl<'a> ProgressCounter<'a> {
    /// Returns a counter for the series of a selection, whose total it reports.
    pub(super) fn of(
        request: &TrialSelection<'_>,
        watch: &'a mut dyn FnMut(WriteProgress),
    ) -> Result<Self, ExportError> {
        let mut of = 0;
        for trial in &request.trials {
            of += as_u64(request.names(trial)?.len());
        }
        Ok(Self { advance: WriteProgress { of, ..WriteProgress::default() }, watch })
    }

    /// Adds series and points that were written, and reports the progress.
    pub(super) fn add(&mut self, series: usize, points: usize) {
        self.advance.series += as_u64(series);
        self.advance.points += as_u64(points);
        (self.watch)(self.advance);
    }
}

impl TrialSelection<'_> {
    /// Returns the key and the rank of each selected series of a trial.
    pub(super) fn names(&self, trial: &TrialRow) -> Result<Vec<(String, Rank)>, ExportError> {
        let mut names = self.history.series_names(&trial.id)?;
        names.retain(|(key, _)| self.keys.as_ref().is_none_or(|keys| keys.contains(key)));
        Ok(names)
    }

    /// Returns the selected points of one series, each with its attempt.
    pub(super) fn points(
        &self,
        trial: &TrialRow,
        key: &str,
        rank: Rank,
    ) -> Result<Vec<(AttemptId, MetricSample)>, ExportError> {
        let attempts = self.history.series_by_attempt(&trial.id, key, rank)?;
        let all = attempts
            .into_iter()
            .flat_map(|(attempt, samples)| samples.into_iter().map(move |sample| (attempt, sample)));
        Ok(match self.attempts {
            AttemptSelection::All => all.collect(),
            AttemptSelection::Last => {
                let by_step: BTreeMap<u64, _> = all.map(|point| (point.1.step, point)).collect();
                by_step.into_values().collect()
            }
        })
    }

    /// Returns the runs of a trial: one for the whole trial, or one per attempt.
    pub(super) fn runs<'a>(&self, trial: &'a TrialOutline) -> Result<Vec<TrackedRun<'a>>, ExportError> {
        let mut runs = BTreeMap::new();
        let run = |attempt| TrackedRun { trial, attempt, series: Vec::new() };
        match self.attempts {
            AttemptSelection::Last => drop(runs.insert(None, run(None))),
            AttemptSelection::All => {
                let numbers = trial.attempts.iter().map(|attempt| Some(attempt.number));
                runs.extend(numbers.map(|attempt| (attempt, run(attempt))));
            }
        }
        for (key, rank) in self.names(&trial.row)? {
            let mut by_attempt = BTreeMap::<_, Vec<MetricSample>>::new();
            for (attempt, sample) in self.points(&trial.row, &key, rank)? {
                let of = (self.attempts == AttemptSelection::All).then_some(attempt);
                by_attempt.entry(of).or_default().push(sample);
            }
            for (attempt, samples) in by_attempt {
                let series = RunSeries { key: key.clone(), rank, samples };
                runs.entry(attempt).or_insert_with(|| run(attempt)).series.push(series);
            }
        }
        Ok(runs.into_values().collect())
    }
}

impl TrackedRun<'_> {
    /// Returns the name of the run: `LABEL`, or for example `LABEL-attempt-2`.
    pub(super) fn name(&self) -> String {
        match self.attempt {
            None => self.trial.row.label.clone(),
            Some(attempt) => format!("{}-attempt-{attempt}", self.trial.row.label),
        }
    }

    /// Returns the start and the end of the run, in milliseconds since the Unix epoch.
    pub(super) fn time(&self) -> (u64, Option<u64>) {
        let attempt = self
            .trial
            .attempts
            .iter()
            .find(|attempt| Some(attempt.number) == self.attempt)
            .map(|attempt| (attempt.started_ms, attempt.ended_ms));
        let row = &self.trial.row;
        attempt.unwrap_or((row.started_ms.unwrap_or(row.created_ms), row.ended_ms))
    }

    pub(super) fn points(&self) -> usize {
        self.series.iter().map(|series| series.samples.len()).sum()
    }

    /// Calls `take` once per step with the samples of that step, each with the index of its series.
    pub(super) fn each_step<E>(
        &self,
        mut take: impl FnMut(u64, &[(usize, MetricSample)]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut next = vec![0; self.series.len()];
        let mut found = Vec::with_capacity(self.series.len());
        loop {
            let ahead =
                |(series, next): (&RunSeries, &usize)| series.samples.get(*next).map(|sample| sample.step);
            let Some(step) = self.series.iter().zip(&next).filter_map(ahead).min() else { return Ok(()) };
            found.clear();
            for (number, (series, next)) in self.series.iter().zip(&mut next).enumerate() {
                if let Some(sample) = series.samples.get(*next).filter(|sample| sample.step == step) {
                    found.push((number, *sample));
                    *next += 1;
                }
            }
            take(step, &found)?;
        }
    }
}
