//! Full-screen terminal view (TUI) of running trials: a model folded from events, a view, and their event
//! loop.

mod app;
mod bounded_backend;
mod feed;
mod key_bindings;
mod key_decoder;
mod model;
mod screen;
mod view;

use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use app::{App, AppRequest, OpenPage};
use dtrain_protocol::TrialId;
use dtrain_runner::ledger::History;
use feed::Feed;
use screen::{Screen, SignalRequest, failure};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use view::TerminalStyle;

/// Shortest interval between two redraws of the screen.
const DRAW: Duration = Duration::from_millis(100);

/// Page with which the view starts.
pub(crate) enum StartPage {
    Trial(TrialId),
    Study(String),
    List,
}

/// Runs the full-screen view until the user quits.
pub(crate) fn run(context: &Context, history: History, first: &StartPage) -> CommandResult {
    let mut feed = Feed::new(context, history);
    let page = match first {
        StartPage::Trial(id) => feed.trial(id)?,
        StartPage::Study(name) => feed.study(name)?,
        StartPage::List => feed.list()?,
    };
    let mut app = App::new(page);
    let mut screen = Screen::open()?;
    event_loop(context, &mut feed, &mut app, &mut screen)?;
    drop(screen);
    // A running `dtrain stop` continues after the screen closes.
    Ok(ExitReason::Done)
}

fn event_loop(
    context: &Context,
    feed: &mut Feed<'_>,
    app: &mut App,
    screen: &mut Screen,
) -> Result<(), CommandError> {
    let mut stopping: Option<Child> = None;
    let (mut has_changed, mut drawn_at, mut read_at) = (true, None::<Instant>, Instant::now());
    loop {
        match screen.signalled() {
            Some(SignalRequest::End) => return Ok(()),
            Some(SignalRequest::Suspend) => {
                screen.suspend()?;
                has_changed = true;
            }
            Some(SignalRequest::Resumed) => {
                screen.reenter()?;
                has_changed = true;
            }
            Some(SignalRequest::Resized) => {
                screen.clear()?;
                has_changed = true;
            }
            None => {}
        }
        if read_at.elapsed() >= feed.pause() {
            read_at = Instant::now();
            has_changed |= feed.poll(app.page_mut())?;
            if let Some(message) = stopping.as_mut().and_then(stop_refusal) {
                (stopping, app.message, has_changed) = (None, Some(message), true);
            }
        }
        let until_drawn = drawn_at.map_or(Duration::ZERO, |at| DRAW.saturating_sub(at.elapsed()));
        if has_changed && until_drawn.is_zero() {
            draw(context, app, screen)?;
            (has_changed, drawn_at) = (false, Some(Instant::now()));
            continue;
        }
        let until_read = feed.pause().saturating_sub(read_at.elapsed());
        let pause = if has_changed { until_drawn.min(until_read) } else { until_read };
        for key in screen.keys(pause)? {
            (has_changed, drawn_at) = (true, None);
            let Some(ask) = app.key(key) else { continue };
            match ask {
                AppRequest::Quit => return Ok(()),
                AppRequest::Suspend => screen.suspend()?,
                AppRequest::Redraw => screen.clear()?,
                AppRequest::Stop(trial) => stopping = Some(stop(context, &trial)?),
                AppRequest::Log => {
                    feed.poll(app.page_mut())?;
                }
                AppRequest::OpenTrial(trial) => open(app, feed.trial(&trial)),
                AppRequest::OpenStudy(name) => open(app, feed.study(&name)),
                AppRequest::Back => {
                    app.pages.pop();
                    *app.page_mut() = feed.reload(app.page())?;
                }
            }
        }
    }
}

fn open(app: &mut App, page: Result<OpenPage, CommandError>) {
    match page {
        Ok(page) => app.pages.push(page),
        Err(failure) => app.message = Some(failure.message().to_owned()),
    }
}

fn draw(context: &Context, app: &App, screen: &mut Screen) -> Result<(), CommandError> {
    let style = context.out.style();
    let is_console = std::env::var_os("TERM").is_some_and(|term| term == "linux");
    let ink = TerminalStyle {
        is_colored: style.paint.is_colored(),
        // The Linux console has no braille characters.
        is_ascii: style.is_ascii || is_console,
        now_ms: style.now_ms,
    };
    let drawn = screen.terminal.draw(|frame| view::draw(app, ink, frame.buffer_mut()));
    drawn.map(|_| ()).map_err(|error| failure(&error))
}

/// Starts `dtrain stop` as a separate process, which records the trial's end even if the view closes.
fn stop(context: &Context, trial: &TrialId) -> Result<Child, CommandError> {
    let failed = |error: std::io::Error| {
        CommandError::new(ExitReason::Infrastructure, "cannot run `dtrain stop`").cause(error.to_string())
    };
    let program = std::env::current_exe().map_err(failed)?;
    Command::new(program)
        .arg("--state")
        .arg(context.home.path())
        .args(["--quiet", "stop", &trial.0])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(failed)
}

/// Returns the error of a `dtrain stop` that failed; `None` if it is running or succeeded.
fn stop_refusal(stopping: &mut Child) -> Option<String> {
    let status = stopping.try_wait().ok()??;
    if status.success() {
        return None;
    }
    let mut said = String::new();
    let read = stopping.stderr.as_mut().map(|stderr| stderr.read_to_string(&mut said));
    let first = said.lines().next().filter(|_| matches!(read, Some(Ok(_))))?;
    Some(first.to_owned())
}
