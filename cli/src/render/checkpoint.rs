//! Text about checkpoints, and progress of reading or copying one.

use super::number::counted;
use super::table::{StyledText, TableColumn, TextRole, age, table};
use crate::output::{Output, PageStyle};
use dtrain_recipes::Bytes;
use dtrain_runner::checkpoints::{CheckpointInfo, State, StoredFiles, VerificationReport};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// Interval between progress messages about a long transfer where no progress bar is drawn.
const TELL: Duration = Duration::from_secs(10);

const fn column(title: &'static str, is_right: bool, rank: u8, least: Option<usize>) -> TableColumn {
    TableColumn { title: Cow::Borrowed(title), is_right, rank, least }
}

/// Formats a table of a trial's checkpoints.
pub(crate) fn checkpoints(listed: &[CheckpointInfo], style: PageStyle) -> String {
    let columns = [
        column("STEP", true, 9, None),
        column("ATTEMPT", true, 8, None),
        column("STATE", false, 9, None),
        column("SIZE", true, 9, None),
        column("AGE", true, 8, None),
        column("WHERE", false, 9, Some(12)),
        column("WHY", false, 7, Some(12)),
    ];
    let row = |one: &CheckpointInfo| -> Vec<StyledText> {
        let (word, tone) = state(one.state);
        vec![
            StyledText::new(one.step.to_string(), TextRole::Bold),
            one.attempt.to_string().into(),
            StyledText::new(word, tone),
            Bytes(one.bytes).to_string().into(),
            age(one.modified_ms, style.now_ms).into(),
            places(&one.places).into(),
            one.reason.clone().unwrap_or_default().into(),
        ]
    };
    table(&columns, &listed.iter().map(row).collect::<Vec<_>>(), style)
}

fn state(state: State) -> (&'static str, TextRole) {
    match state {
        State::Committed => ("committed", TextRole::Good),
        State::Damaged => ("damaged", TextRole::Bad),
        State::Refused => ("refused", TextRole::Bad),
        State::Partial => ("partial", TextRole::Dim),
    }
}

/// Formats where a checkpoint is stored: its only holder, or every holder with the number of its files.
fn places(places: &[StoredFiles]) -> String {
    match places {
        [only] => only.holder.clone(),
        several => {
            let place =
                |place: &StoredFiles| format!("{} ({})", place.holder, counted(place.files as u64, "file"));
            several.iter().map(place).collect::<Vec<_>>().join(", ")
        }
    }
}

/// Formats the result of verifying a checkpoint.
pub(crate) fn findings(found: &VerificationReport) -> String {
    let VerificationReport { name, bytes, files, tensors, damaged, lost } = found;
    let mut page = match (lost.is_empty(), damaged.is_empty()) {
        (true, true) => {
            let files = counted(*files as u64, "file");
            let parts = match tensors {
                // The tensors of an engine's checkpoint are not counted.
                0 => files,
                _ => format!("{} in {files}", counted(*tensors as u64, "tensor")),
            };
            format!("{name}: intact ({parts}, {} read)\n", Bytes(*bytes))
        }
        (true, false) => format!("{name}: restorable, but some copies are damaged\n"),
        (false, _) => format!("{name}: damaged, no intact copy\n"),
    };
    for one in damaged {
        let holder = one.holder.as_ref().map(|holder| format!("{holder}: ")).unwrap_or_default();
        page += &format!("  {holder}{}\n", one.damage);
    }
    page
}

/// Progress of a long transfer: a progress bar, or a message from time to time.
pub(crate) struct TransferBar<'a> {
    out: &'a Output,
    what: String,
    bar: Option<ProgressBar>,
    told: Instant,
}

impl<'a> TransferBar<'a> {
    /// Creates the progress of a transfer described by `what`, such as `reading step 5`.
    pub(crate) fn new(out: &'a Output, what: String) -> Self {
        let bar = out.draws().then(|| bar(&what));
        Self { out, what, bar, told: Instant::now() }
    }

    /// Sets how many bytes are transferred, and how many there are in total.
    pub(crate) fn set_done(&mut self, done: u64, total: u64) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
            }
            None if self.told.elapsed() >= TELL => {
                self.told = Instant::now();
                self.out.say(&format!("{}: {} of {}", self.what, Bytes(done), Bytes(total)));
            }
            None => {}
        }
    }

    /// Removes the progress bar.
    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg} {bar:24} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left");
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
    bar.set_style(style.expect("the template is well formed"));
    bar.set_message(what.to_owned());
    bar
}
