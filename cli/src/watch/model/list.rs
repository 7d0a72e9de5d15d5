//! Trials and studies to choose from.

use super::study::TrialLine;

/// What is listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TrialList {
    /// Running trials, or the newest where none runs.
    pub(crate) trials: Vec<TrialLine>,
    /// Their studies, or the newest.
    pub(crate) studies: Vec<StudySummary>,
    /// Whether anything runs.
    pub(crate) is_running: bool,
}

/// A study in one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StudySummary {
    pub(crate) name: String,
    /// Trials that were proposed, that run, and that ended.
    pub(crate) tried: usize,
    pub(crate) running: usize,
    pub(crate) ended: usize,
}

/// A line of a list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ListEntry<'a> {
    Study(&'a StudySummary),
    Trial(&'a TrialLine),
}

impl TrialList {
    /// Studies first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = ListEntry<'_>> {
        self.studies.iter().map(ListEntry::Study).chain(self.trials.iter().map(ListEntry::Trial))
    }
}
