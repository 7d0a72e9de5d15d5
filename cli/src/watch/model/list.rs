//! List of trials and studies.

use super::study::TrialLine;

/// Contents of the list page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TrialList {
    /// Running trials, or the newest if none runs.
    pub(crate) trials: Vec<TrialLine>,
    /// Their studies, or the newest.
    pub(crate) studies: Vec<StudySummary>,
    /// True if any trial runs.
    pub(crate) is_running: bool,
}

/// One line about a study.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StudySummary {
    pub(crate) name: String,
    /// Number of trials proposed, running, and ended.
    pub(crate) tried: usize,
    pub(crate) running: usize,
    pub(crate) ended: usize,
}

/// Entry of the list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ListEntry<'a> {
    Study(&'a StudySummary),
    Trial(&'a TrialLine),
}

impl TrialList {
    /// Returns all entries, studies first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = ListEntry<'_>> {
        self.studies.iter().map(ListEntry::Study).chain(self.trials.iter().map(ListEntry::Trial))
    }
}
