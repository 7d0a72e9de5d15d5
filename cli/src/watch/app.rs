//! State of the full-screen view: open pages, selection, and requests to the rest of the program.

use super::model::list::{ListEntry, TrialList};
use super::model::study::StudyModel;
use super::model::trial::TrialModel;
use dtrain_protocol::TrialId;

/// An open page with its contents.
#[derive(Clone, Debug)]
pub(crate) enum OpenPage {
    List(TrialList, Cursor),
    Study(Box<StudyModel>, Cursor),
    Trial(Box<TrialModel>, TrialViewState),
}

/// Position of the selected entry in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) at: usize,
}

/// View settings of the page about a trial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrialViewState {
    /// Index of the metric whose curve is shown.
    pub(crate) metric: usize,
    pub(crate) pane: Pane,
    /// True if the pane with the focus fills the screen.
    pub(crate) is_large: bool,
    /// True if the log is shown instead of the events.
    pub(crate) has_log: bool,
    /// Index of the log that is shown.
    pub(crate) log: usize,
    /// Names of all logs.
    pub(crate) logs: Vec<String>,
    /// Last lines of the log that is shown.
    pub(crate) lines: Vec<String>,
    /// Number of ranks scrolled past, from the top.
    pub(crate) ranks_first: usize,
    /// Number of lines of events or log scrolled back, from the end.
    pub(crate) back: usize,
}

/// A pane of the page about a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pane {
    #[default]
    Curves,
    Ranks,
    /// Messages about events, or the log.
    Told,
}

/// Request from the page to the event loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AppRequest {
    /// Quit the view; trials continue.
    Quit,
    /// Stop this program and return to the shell, until the user resumes it.
    Suspend,
    OpenTrial(TrialId),
    OpenStudy(String),
    /// Return to the page below.
    Back,
    /// Stop this trial after its current step and a checkpoint.
    Stop(TrialId),
    /// Redraw the whole screen.
    Redraw,
    /// Read the log that is shown.
    Log,
}

/// State of the view: a stack of open pages, the last one on top.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) pages: Vec<OpenPage>,
    pub(crate) has_help: bool,
    /// Id and label of the trial in the open question about stopping it.
    pub(crate) stop: Option<(TrialId, String)>,
    /// Message in the last line of the screen.
    pub(crate) message: Option<String>,
}

impl App {
    pub(crate) fn new(page: OpenPage) -> Self {
        Self { pages: vec![page], has_help: false, stop: None, message: None }
    }

    /// Returns the page on top of the stack.
    pub(crate) fn page(&self) -> &OpenPage {
        self.pages.last().expect("the first page is never closed")
    }

    pub(crate) fn page_mut(&mut self) -> &mut OpenPage {
        self.pages.last_mut().expect("the first page is never closed")
    }

    /// Returns to the page below, or restores a pane that fills the screen.
    pub(super) fn back(&mut self) -> Option<AppRequest> {
        if let OpenPage::Trial(_, look) = self.page_mut()
            && (look.is_large || look.has_log)
        {
            (look.is_large, look.has_log, look.back) = (false, false, 0);
            return None;
        }
        (self.pages.len() > 1).then_some(AppRequest::Back)
    }

    /// Returns id and label of the open or selected trial if it is running.
    pub(super) fn stoppable(&self) -> Option<(TrialId, String)> {
        let row = match self.page() {
            OpenPage::Trial(trial, _) => {
                let is_running = trial.status.is_live();
                return is_running.then(|| (trial.id.clone(), trial.label.clone()));
            }
            OpenPage::Study(study, cursor) => study.rows.get(cursor.at)?,
            OpenPage::List(list, cursor) => match list.entries().nth(cursor.at)? {
                ListEntry::Trial(row) => row,
                ListEntry::Study(_) => return None,
            },
        };
        let trial = row.trial.as_ref().filter(|trial| trial.status.is_live())?;
        Some((trial.id.clone(), trial.label.clone()))
    }
}
