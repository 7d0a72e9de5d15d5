//! Canvas on which pages are drawn: colors, characters, and text within an area of the screen.

use crate::color::ColorMode;
use crate::output::PageStyle;
use crate::render::table::{StyledText, TextRole};
use crate::render::truncate::truncate;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Capabilities of the terminal, which determine how pages are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TerminalStyle {
    pub(crate) is_colored: bool,
    /// True if the terminal shows neither block nor braille characters.
    pub(crate) is_ascii: bool,
    /// Current time in milliseconds since the Unix epoch, for ages.
    pub(crate) now_ms: u64,
}

/// Colors of bar parts and curves, which can be told apart with red-green color blindness.
const COLORS: [Color; 6] =
    [Color::Gray, Color::Cyan, Color::Blue, Color::Yellow, Color::DarkGray, Color::Magenta];

impl TerminalStyle {
    /// Returns the style for a text with the meaning `tone`.
    pub(crate) fn tone(self, tone: TextRole) -> Style {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        match tone {
            TextRole::Plain => plain,
            TextRole::Bold => bold,
            TextRole::Dim => plain.add_modifier(Modifier::DIM),
            _ if !self.is_colored => bold,
            TextRole::Good => bold.fg(Color::Green),
            TextRole::Bad => bold.fg(Color::Red),
            TextRole::Notice => plain.fg(Color::Yellow),
        }
    }

    /// Returns the color at index `number`, modulo six; a plain style on a terminal without colors.
    pub(crate) fn color(self, number: usize) -> Style {
        if self.is_colored { Style::new().fg(COLORS[number % COLORS.len()]) } else { Style::new() }
    }

    /// Returns the style of the selected line.
    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns the style for formatting a text page of the given width.
    pub(crate) fn page(self, width: u16) -> PageStyle {
        let paint = ColorMode::plain();
        PageStyle { paint, width: usize::from(width), is_ascii: self.is_ascii, now_ms: self.now_ms }
    }

    /// Returns the character `unicode`, or on an ASCII terminal its substitute `ascii`.
    pub(crate) fn mark(self, unicode: char, ascii: char) -> char {
        if self.is_ascii { ascii } else { unicode }
    }
}

/// A buffer to draw into, with the terminal's capabilities.
pub(crate) struct Canvas<'a> {
    pub(crate) buffer: &'a mut Buffer,
    pub(crate) ink: TerminalStyle,
}

impl Canvas<'_> {
    /// Writes a text at column `x` of line `y`, relative to `area`; returns the column after it.
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

    /// Writes texts side by side at the beginning of line `y`; returns the column after them.
    pub(crate) fn line(&mut self, area: Rect, y: u16, parts: &[StyledText]) -> u16 {
        parts.iter().fold(0, |x, part| self.write(area, (x, y), &part.text, self.ink.tone(part.tone)))
    }

    /// Writes a text at the right end of line `y`, if that leaves a gap after column `from`.
    pub(crate) fn right(&mut self, area: Rect, y: u16, from: u16, text: &str, style: Style) {
        let width = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
        if let Some(x) = area.width.checked_sub(width).filter(|x| *x > from) {
            self.write(area, (x, y), text, style);
        }
    }

    /// Draws the title of a pane, with a rule to its right; returns the area below.
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

/// Replaces the characters of a text that an ASCII terminal cannot show.
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
