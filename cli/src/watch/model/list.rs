//! State of the page that lists trials and studies.

use super::study::TrialLine;

/// Contents of the page that lists trials and studies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TrialList {
    /// Running trials, or the newest trials if none is running.
    pub(crate) trials: Vec<TrialLine>,
    /// Studies of the running trials, or the newest studies if no trial is running.
    pub(crate) studies: Vec<StudySummary>,
    /// True if any trial is running.
    pub(crate) is_running: bool,
}

/// Summary of a study, shown on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StudySummary {
    pub(crate) name: String,
    /// Number of trials that were proposed so far.
    pub(crate) tried: usize,
    /// Number of trials that are running.
    pub(crate) running: usize,
    /// Number of trials that have ended.
    pub(crate) ended: usize,
}

/// Entry of the page that lists trials and studies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ListEntry<'a> {
    Study(&'a StudySummary),
    Trial(&'a TrialLine),
}

impl TrialList {
    /// Returns the entries of the page, studies first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = ListEntry<'_>> {
        self.studies.iter().map(ListEntry::Study).chain(self.trials.iter().map(ListEntry::Trial))
    }
}
