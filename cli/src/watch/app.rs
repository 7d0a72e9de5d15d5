//! Key handling: open pages, selection, and requests to the rest of the program.

use super::model::list::{ListEntry, TrialList};
use super::model::study::StudyModel;
use super::model::trial::TrialModel;
use dtrain_protocol::TrialId;
use dtrain_runner::ledger::TrialStatus;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A page with its contents.
#[derive(Clone, Debug)]
pub(crate) enum OpenPage {
    List(TrialList, Cursor),
    Study(Box<StudyModel>, Cursor),
    Trial(Box<TrialModel>, TrialViewState),
}

/// Selected entry of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) at: usize,
}

/// View settings of a trial's page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrialViewState {
    /// Index of the selected metric.
    pub(crate) metric: usize,
    pub(crate) pane: Pane,
    /// True if the focused pane fills the screen.
    pub(crate) is_large: bool,
    /// True if the log is shown in place of the events.
    pub(crate) has_log: bool,
    /// Index of the selected log.
    pub(crate) log: usize,
    /// Names of all logs, and the last lines of the selected one.
    pub(crate) logs: Vec<String>,
    pub(crate) lines: Vec<String>,
    /// Scroll positions in lines: ranks from the top, events or log from the end.
    pub(crate) ranks_first: usize,
    pub(crate) back: usize,
}

/// A pane of a trial's page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pane {
    #[default]
    Curves,
    Ranks,
    /// Events, or the log.
    Told,
}

/// Request to the rest of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AppRequest {
    /// Quit; trials continue.
    Quit,
    /// Return to the shell until the user resumes the program.
    Suspend,
    OpenTrial(TrialId),
    OpenStudy(String),
    /// Return to the previous page.
    Back,
    /// Stop a trial after its current step and a checkpoint.
    Stop(TrialId),
    /// Redraw everything.
    Redraw,
    /// Read the selected log.
    Log,
}

/// Stack of open pages, the last one on top.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) pages: Vec<OpenPage>,
    pub(crate) has_help: bool,
    /// Trial id and label of the open question about stopping.
    pub(crate) stop: Option<(TrialId, String)>,
    /// Message in the last line.
    pub(crate) message: Option<String>,
}

impl App {
    pub(crate) fn new(page: OpenPage) -> Self {
        Self { pages: vec![page], has_help: false, stop: None, message: None }
    }

    /// Returns the page on top.
    pub(crate) fn page(&self) -> &OpenPage {
        self.pages.last().expect("the first page is never closed")
    }

    pub(crate) fn page_mut(&mut self) -> &mut OpenPage {
        self.pages.last_mut().expect("the first page is never closed")
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<AppRequest> {
        let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if has_control => return Some(AppRequest::Quit),
            KeyCode::Char('z') if has_control => return Some(AppRequest::Suspend),
            KeyCode::Char('l') if has_control => return Some(AppRequest::Redraw),
            _ if has_control => return None,
            _ => {}
        }
        self.message = None;
        if let Some((trial, label)) = self.stop.take() {
            if matches!(key.code, KeyCode::Char('y' | 'Y')) {
                self.message = Some(format!("stopping {label}: it finishes its step and saves"));
                return Some(AppRequest::Stop(trial));
            }
            return None;
        }
        if self.has_help {
            self.has_help = false;
            return None;
        }
        match key.code {
            KeyCode::Char('q' | 'd') => Some(AppRequest::Quit),
            KeyCode::Char('?') => {
                self.has_help = true;
                None
            }
            KeyCode::Char('s') => {
                self.stop = self.stoppable();
                if self.stop.is_none() {
                    self.message = Some("it is not running".to_owned());
                }
                None
            }
            KeyCode::Esc | KeyCode::Backspace => self.back(),
            code => match self.page_mut() {
                OpenPage::List(list, cursor) => {
                    cursor.moved(code, list.entries().count());
                    if code != KeyCode::Enter {
                        return None;
                    }
                    match list.entries().nth(cursor.at)? {
                        ListEntry::Study(study) => Some(AppRequest::OpenStudy(study.name.clone())),
                        ListEntry::Trial(row) => row.id().cloned().map(AppRequest::OpenTrial),
                    }
                }
                OpenPage::Study(study, cursor) => {
                    cursor.moved(code, study.rows.len());
                    let row = study.rows.get(cursor.at).filter(|_| code == KeyCode::Enter)?;
                    row.id().cloned().map(AppRequest::OpenTrial)
                }
                OpenPage::Trial(trial, look) => look.key(code, trial),
            },
        }
    }

    /// Returns to the previous page, or restores a page whose pane fills the screen.
    fn back(&mut self) -> Option<AppRequest> {
        if let OpenPage::Trial(_, look) = self.page_mut()
            && (look.is_large || look.has_log)
        {
            (look.is_large, look.has_log, look.back) = (false, false, 0);
            return None;
        }
        (self.pages.len() > 1).then_some(AppRequest::Back)
    }

    /// Returns the open or selected trial if it is running.
    fn stoppable(&self) -> Option<(TrialId, String)> {
        let row = match self.page() {
            OpenPage::Trial(trial, _) => {
                let is_running = trial.status == TrialStatus::Running;
                return is_running.then(|| (trial.id.clone(), trial.label.clone()));
            }
            OpenPage::Study(study, cursor) => study.rows.get(cursor.at)?,
            OpenPage::List(list, cursor) => match list.entries().nth(cursor.at)? {
                ListEntry::Trial(row) => row,
                ListEntry::Study(_) => return None,
            },
        };
        let trial = row.trial.as_ref().filter(|trial| trial.status == TrialStatus::Running)?;
        Some((trial.id.clone(), trial.label.clone()))
    }
}

impl Cursor {
    fn moved(&mut self, code: KeyCode, count: usize) {
        let last = count.saturating_sub(1);
        self.at = match code {
            KeyCode::Up | KeyCode::Char('k') => self.at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => (self.at + 1).min(last),
            KeyCode::PageUp => self.at.saturating_sub(PAGE),
            KeyCode::PageDown => (self.at + PAGE).min(last),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => self.at.min(last),
        };
    }
}

/// Lines scrolled by a page key.
const PAGE: usize = 10;

impl TrialViewState {
    fn key(&mut self, code: KeyCode, trial: &TrialModel) -> Option<AppRequest> {
        let metrics = trial.metrics().len().max(1);
        let logs = self.logs.len().max(1);
        match code {
            KeyCode::Tab => self.pane = self.pane.next(),
            KeyCode::BackTab => self.pane = self.pane.next().next(),
            KeyCode::Enter => self.is_large = !self.is_large,
            KeyCode::Char('m') => self.metric = (self.metric + 1) % metrics,
            KeyCode::Char('M') => self.metric = (self.metric + metrics - 1) % metrics,
            KeyCode::Char('l') => {
                (self.has_log, self.back, self.pane) = (!self.has_log, 0, Pane::Told);
                return self.has_log.then_some(AppRequest::Log);
            }
            KeyCode::Right if self.pane == Pane::Curves => self.metric = (self.metric + 1) % metrics,
            KeyCode::Left if self.pane == Pane::Curves => self.metric = (self.metric + metrics - 1) % metrics,
            KeyCode::Right | KeyCode::Left if self.has_log && self.pane == Pane::Told => {
                let by = if code == KeyCode::Right { 1 } else { logs - 1 };
                (self.log, self.back) = ((self.log + by) % logs, 0);
                return Some(AppRequest::Log);
            }
            _ => self.scroll(code, trial),
        }
        None
    }

    fn scroll(&mut self, code: KeyCode, trial: &TrialModel) {
        let (up, by) = match code {
            KeyCode::Up | KeyCode::Char('k') => (true, 1),
            KeyCode::Down | KeyCode::Char('j') => (false, 1),
            KeyCode::PageUp => (true, PAGE),
            KeyCode::PageDown => (false, PAGE),
            KeyCode::Home | KeyCode::Char('g') => (true, usize::MAX),
            KeyCode::End | KeyCode::Char('G') => (false, usize::MAX),
            _ => return,
        };
        let moved = |at: usize, is_more: bool, most: usize| {
            if is_more { at.saturating_add(by).min(most) } else { at.saturating_sub(by) }
        };
        let told = if self.has_log { self.lines.len() } else { trial.events.len() };
        match self.pane {
            Pane::Curves => {}
            Pane::Ranks => {
                self.ranks_first = moved(self.ranks_first, !up, trial.ranks.len().saturating_sub(1));
            }
            Pane::Told => self.back = moved(self.back, up, told.saturating_sub(1)),
        }
    }
}

impl Pane {
    fn next(self) -> Self {
        match self {
            Self::Curves => Self::Ranks,
            Self::Ranks => Self::Told,
            Self::Told => Self::Curves,
        }
    }
}
