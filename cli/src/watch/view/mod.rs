//! View that draws the page on top into a buffer, from its state alone.

mod canvas;
mod chart;
mod lists;
mod ranks;
mod trial;

pub(crate) use canvas::TerminalStyle;

use super::app::{App, OpenPage};
use super::key_bindings::HELP;
use crate::render::table::TextRole;
use canvas::Canvas;
use dtrain_recipes::sanitize::printable;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::borrow::Cow;

/// Smallest supported terminal: columns and lines.
const LEAST: (u16, u16) = (40, 12);

/// Draws the page on top, and removes control characters of untrusted text.
pub(crate) fn draw(app: &App, ink: TerminalStyle, buffer: &mut Buffer) {
    draw_page(app, ink, buffer);
    for cell in &mut buffer.content {
        let changed = match printable(cell.symbol()) {
            Cow::Owned(text) => Some(text),
            Cow::Borrowed(_) => None,
        };
        if let Some(text) = changed {
            cell.set_symbol(&text);
        }
    }
}

fn draw_page(app: &App, ink: TerminalStyle, buffer: &mut Buffer) {
    let area = buffer.area;
    let mut canvas = Canvas { buffer, ink };
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let (wide, high) = LEAST;
        let found = format!("this terminal is {}x{};", area.width, area.height);
        canvas.write(area, (0, 0), &found, ink.tone(TextRole::Plain));
        canvas.write(area, (0, 1), &format!("dtrain watch needs {wide}x{high}"), ink.tone(TextRole::Plain));
        canvas.write(area, (0, 2), "q quits", ink.tone(TextRole::Dim));
        return;
    }
    let page = Rect { height: area.height - 1, ..area };
    match app.page() {
        OpenPage::Trial(trial, look) => trial::draw(&mut canvas, page, trial, look),
        OpenPage::Study(study, cursor) => lists::study(&mut canvas, page, study, *cursor),
        OpenPage::List(list, cursor) => lists::list(&mut canvas, page, list, *cursor),
    }
    foot(&mut canvas, area, app);
    if app.has_help {
        help(&mut canvas, page);
    }
}

/// Draws the last line of the screen: a question, a message, or the available keys.
fn foot(canvas: &mut Canvas<'_>, area: Rect, app: &App) {
    let last = area.height - 1;
    if let Some((_, label)) = &app.stop {
        let text =
            format!("stop {label} after this step and a checkpoint? y stops it, any other key does not");
        let short = format!("stop {label}? y stops it");
        let text = if text.chars().count() > usize::from(area.width) { short } else { text };
        canvas.write(area, (0, last), &text, canvas.ink.tone(TextRole::Notice));
        return;
    }
    if let Some(message) = &app.message {
        canvas.write(area, (0, last), message, canvas.ink.tone(TextRole::Notice));
        return;
    }
    let back = if app.pages.len() > 1 { "Esc back  " } else { "" };
    let keys = match app.page() {
        OpenPage::Trial(..) => {
            format!("q quit  {back}Tab pane  m metric  l log  s stop  Enter enlarge  ? help")
        }
        OpenPage::Study(..) | OpenPage::List(..) => format!("q quit  {back}Enter open  s stop  ? help"),
    };
    canvas.write(area, (0, last), &keys, canvas.ink.tone(TextRole::Dim));
}

fn help(canvas: &mut Canvas<'_>, page: Rect) {
    let lines = u16::try_from(HELP.len()).unwrap_or(0) + 1;
    let width = page.width.min(56);
    let height = lines.min(page.height);
    let area =
        Rect { x: page.x + (page.width - width) / 2, y: page.y + (page.height - height) / 2, width, height };
    let blank = " ".repeat(usize::from(width));
    for y in 0..height {
        canvas.write(area, (0, y), &blank, canvas.ink.tone(TextRole::Plain));
        canvas.buffer.set_style(Rect { y: area.y + y, height: 1, ..area }, ratatui::style::Style::reset());
    }
    let below = canvas.title(area, "KEYS (any key closes)", false);
    for (y, (keys, does)) in (0u16..).zip(HELP) {
        canvas.write(below, (1, y), keys, canvas.ink.tone(TextRole::Bold));
        canvas.write(below, (14, y), does, canvas.ink.tone(TextRole::Plain));
    }
}

#[cfg(test)]
mod tests;
