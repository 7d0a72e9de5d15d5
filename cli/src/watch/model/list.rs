//! Trials and studies to choose from.

use super::study::Row;

/// What is listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct List {
    /// Running trials, or the newest where none runs.
    pub(crate) trials: Vec<Row>,
    /// Their studies, or the newest.
    pub(crate) studies: Vec<Searched>,
    /// Whether anything runs.
    pub(crate) is_running: bool,
}

/// A study in one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Searched {
    pub(crate) name: String,
    /// Trials that were proposed, that run, and that ended.
    pub(crate) tried: usize,
    pub(crate) running: usize,
    pub(crate) ended: usize,
}

/// A line of a list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Entry<'a> {
    Study(&'a Searched),
    Trial(&'a Row),
}

impl List {
    /// Studies first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.studies.iter().map(Entry::Study).chain(self.trials.iter().map(Entry::Trial))
    }
}
