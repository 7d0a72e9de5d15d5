//! Key bindings of the full-screen view: which key does what on each page.

use super::app::{App, AppRequest, Cursor, OpenPage, Pane, TrialViewState};
use super::model::list::ListEntry;
use super::model::trial::TrialModel;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Keys and their meanings, as the help shows them.
pub(super) const HELP: [(&str, &str); 10] = [
    ("arrows, j k", "select a line, scroll"),
    ("Enter", "open; enlarge a pane"),
    ("Esc", "back"),
    ("Tab", "next pane of a trial"),
    ("m M", "next, previous metric"),
    ("l", "log; left, right: of whom"),
    ("s", "stop a trial; asks"),
    ("Ctrl-L", "draw again"),
    ("q d", "quit; trials go on"),
    ("?", "this help"),
];

impl App {
    /// Handles a key press; returns the request that it makes, if any.
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

/// Number of lines that a page key scrolls.
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
