//! Progress bar of a training run: two lines that never reach the last columns.
//!
//! A line that fills its row wraps when the terminal adds text, such as the `^C` of Ctrl-C, and indicatif
//! fills every row. It also cannot tell how a terminal rewraps lines when it becomes narrower.

use super::eta::TrainingProgress;
use crate::output::{Output, write_control_sequence, write_stderr};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Number of columns kept free at the end of a line.
const MARGIN: usize = 4;

/// Largest and smallest width of the bar without the text behind it, in columns.
const BAR: (usize, usize) = (30, 5);

/// Shortest interval between two redraws of the progress bar.
const PAUSE: Duration = Duration::from_millis(125);

/// Progress bar of a training run on stderr.
pub(crate) struct TrainingBar {
    out: Output,
    /// Text of both lines as last set, without colors.
    lines: RefCell<[String; 2]>,
    /// Widths of the two lines on the terminal; `None` while nothing is drawn.
    drawn: Cell<Option<[usize; 2]>>,
    drawn_at: Cell<Option<Instant>>,
}

impl TrainingBar {
    /// Creates a progress bar; it appears with the first [`TrainingBar::set`].
    pub(crate) fn new(out: Output) -> Self {
        let (lines, drawn, drawn_at) = (RefCell::default(), Cell::new(None), Cell::new(None));
        Self { out, lines, drawn, drawn_at }
    }

    /// Shows the progress and the figures of a training run.
    pub(crate) fn set(&self, advance: &TrainingProgress, figures: &str) {
        let columns = self.out.terminal_width();
        *self.lines.borrow_mut() = lines(columns, advance, figures);
        if self.drawn_at.get().is_none_or(|at| at.elapsed() >= PAUSE) {
            self.clear(columns);
            self.draw();
        }
    }

    /// Runs `write`, which prints to the terminal, without garbling the progress bar.
    pub(crate) fn suspend(&self, write: impl FnOnce()) {
        let is_drawn = self.drawn.get().is_some();
        self.clear(self.out.terminal_width());
        write();
        if is_drawn {
            self.draw();
        }
    }

    /// Removes the progress bar.
    pub(crate) fn finish(&self) {
        self.clear(self.out.terminal_width());
    }

    fn draw(&self) {
        let [bar, figures] = &*self.lines.borrow();
        write_stderr(&format!("{}\n{figures}", self.out.paint.cyan(bar)));
        self.drawn.set(Some([bar.chars().count(), figures.chars().count()]));
        self.drawn_at.set(Some(Instant::now()));
    }

    fn clear(&self, columns: usize) {
        if let Some(lines) = self.drawn.take() {
            let up = rows(lines, columns) - 1;
            let up = if up == 0 { String::new() } else { format!("\u{1b}[{up}A") };
            write_control_sequence(&format!("\r{up}\u{1b}[J"));
        }
    }
}

impl Drop for TrainingBar {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Formats the two lines for a terminal with `columns` columns.
fn lines(columns: usize, advance: &TrainingProgress, figures: &str) -> [String; 2] {
    let room = columns.saturating_sub(MARGIN);
    let words = match advance.percent() {
        Some(percent) => {
            format!(" {percent:>3}%   {}   {}", advance.steps(), advance.eta_text().unwrap_or_default())
        }
        None => format!("   {}", advance.steps()),
    };
    let width = room.saturating_sub(words.chars().count()).clamp(BAR.1, BAR.0);
    let full = width as u64 * u64::from(advance.percent().unwrap_or(0)) / 100;
    let bar = (0..width as u64).map(|at| if at < full { '━' } else { '╌' });
    let cut = |text: &mut dyn Iterator<Item = char>| text.take(room).collect::<String>();
    [cut(&mut bar.chain(words.chars())), cut(&mut figures.chars())]
}

/// Returns the number of terminal rows that lines of these lengths occupy.
fn rows(lines: [usize; 2], columns: usize) -> usize {
    lines.iter().map(|length| length.div_ceil(columns.max(1)).max(1)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_as_a_terminal_breaks_lines() {
        assert_eq!(rows([66, 70], 100), 2);
        assert_eq!(rows([66, 60], 60), 3, "a line that fills its row is not broken");
        assert_eq!(rows([66, 0], 20), 5);
    }

    #[test]
    fn lines_leave_the_last_columns_free() {
        let figures = "loss 2.5000   valid 2.7500   9.09 k tokens/s   110.0 ms/step, predicted 100.0 ms";
        let half = TrainingProgress {
            step: 150,
            of: Some(300),
            share: Some(0.5),
            eta_seconds: Some(112.0),
            ..TrainingProgress::default()
        };
        for columns in [20, 40, 66, 80, 200] {
            let [bar, figures] = lines(columns, &half, figures);
            assert!(bar.chars().count() <= columns - MARGIN, "{bar}");
            assert!(figures.chars().count() <= columns - MARGIN, "{figures}");
        }
        let [bar, _] = lines(80, &half, figures);
        assert_eq!(bar, "━━━━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  50%   step 150/300   112.0 s left");
        let [bar, _] = lines(80, &TrainingProgress { step: 7, ..TrainingProgress::default() }, figures);
        assert!(bar.ends_with("   step 7"), "the total is unknown: {bar}");
        let timed = TrainingProgress { step: 14, of: None, ..half };
        let [bar, _] = lines(80, &timed, figures);
        assert!(bar.ends_with("╌  50%   step 14   112.0 s left"), "the number of steps is not known: {bar}");
    }
}
