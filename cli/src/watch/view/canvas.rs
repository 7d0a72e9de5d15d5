//! Colours and characters of a screen, and writing within an area.

use crate::output::ColourMode;
use crate::render::table::{PageStyle, StyledText, TextRole, truncate};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// What a terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TerminalStyle {
    pub(crate) is_coloured: bool,
    /// Neither blocks nor braille.
    pub(crate) is_ascii: bool,
    /// Milliseconds since the Unix epoch, for ages.
    pub(crate) now_ms: u64,
}

/// Colours of parts of a bar and of curves, told from each other also by those who do not see red and green apart.
const COLOURS: [Color; 6] =
    [Color::Gray, Color::Cyan, Color::Blue, Color::Yellow, Color::DarkGray, Color::Magenta];

impl TerminalStyle {
    /// How a text is drawn that means this.
    pub(crate) fn tone(self, tone: TextRole) -> Style {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        match tone {
            TextRole::Plain => plain,
            TextRole::Bold => bold,
            TextRole::Dim => plain.add_modifier(Modifier::DIM),
            _ if !self.is_coloured => bold,
            TextRole::Good => bold.fg(Color::Green),
            TextRole::Bad => bold.fg(Color::Red),
            TextRole::Notice => plain.fg(Color::Yellow),
        }
    }

    /// One of six colours; plain where there are none.
    pub(crate) fn colour(self, number: usize) -> Style {
        if self.is_coloured { Style::new().fg(COLOURS[number % COLOURS.len()]) } else { Style::new() }
    }

    /// What is selected.
    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// How a page of lines is drawn.
    pub(crate) fn page(self, width: u16) -> PageStyle {
        let paint = ColourMode::plain();
        PageStyle { paint, width: usize::from(width), is_ascii: self.is_ascii, now_ms: self.now_ms }
    }

    /// A character, or the one in its place where only ASCII can be shown.
    pub(crate) fn mark(self, unicode: char, ascii: char) -> char {
        if self.is_ascii { ascii } else { unicode }
    }
}

/// A part of the screen.
pub(crate) struct Canvas<'a> {
    pub(crate) buffer: &'a mut Buffer,
    pub(crate) ink: TerminalStyle,
}

impl Canvas<'_> {
    /// Writes in line `y` of an area from column `x` on, both from its corner; returns the column behind.
    pub(crate) fn write(&mut self, area: Rect, (x, y): (u16, u16), text: &str, style: Style) -> u16 {
        if y >= area.height || x >= area.width {
            return x;
        }
        let text = if self.ink.is_ascii { ascii(text) } else { text.to_owned() };
        let text = truncate(&text, usize::from(area.width - x), self.ink.page(area.width));
        let (end, _) =
            self.buffer.set_stringn(area.x + x, area.y + y, text, usize::from(area.width - x), style);
        end - area.x
    }

    /// Writes texts beside each other.
    pub(crate) fn line(&mut self, area: Rect, y: u16, parts: &[StyledText]) -> u16 {
        parts.iter().fold(0, |x, part| self.write(area, (x, y), &part.text, self.ink.tone(part.tone)))
    }

    /// Writes at the right end, where it does not touch what ends at `from`.
    pub(crate) fn right(&mut self, area: Rect, y: u16, from: u16, text: &str, style: Style) {
        let width = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
        if let Some(x) = area.width.checked_sub(width).filter(|x| *x > from) {
            self.write(area, (x, y), text, style);
        }
    }

    /// The title of a pane, with a rule to its right; returns the area below.
    pub(crate) fn title(&mut self, area: Rect, title: &str, is_focused: bool) -> Rect {
        if area.height == 0 {
            return area;
        }
        let rule: String = std::iter::repeat_n(self.ink.mark('─', '-'), usize::from(area.width)).collect();
        self.write(area, (0, 0), &rule, self.ink.tone(TextRole::Dim));
        let style = if is_focused { self.ink.selected() } else { self.ink.tone(TextRole::Bold) };
        self.write(area, (1, 0), &format!(" {title} "), style);
        Rect { y: area.y + 1, height: area.height - 1, ..area }
    }
}

/// The text without characters that a terminal without Unicode cannot show.
fn ascii(text: &str) -> String {
    let plain = |c: char| match c {
        '·' | '│' => '|',
        '×' => 'x',
        '…' => '~',
        '≈' => '~',
        '±' => '+',
        c if c.is_ascii() => c,
        _ => '?',
    };
    text.chars().map(plain).collect()
}
