//! Matches a line against the parts of a template.

use super::{Number, TemplatePart, number};

/// The extent of a partial match: the amount of a template that matches a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartialMatch {
    /// Number of the template's parts that match.
    pub(super) parts: usize,
    /// Number of matching bytes of the next part, ignoring case, if it is a text.
    pub(super) alike: usize,
}

/// The position in a line, and in the template, at which a match fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MismatchPosition {
    pub(super) fit: PartialMatch,
    /// Byte offset in the line.
    pub(super) at: usize,
}

/// A backtracking search for the parts of a template in a line. It tries each part once at each offset, so
/// its time is bounded by the number of parts times the length of the line.
pub(super) struct TemplateMatcher<'t, 'l> {
    parts: &'t [TemplatePart],
    line: &'l str,
    /// For each part and offset, `true` if the rest of the template is known not to match there.
    failed: Vec<bool>,
    found: Vec<(&'t str, Number)>,
    /// The longest partial match so far; only recorded if `is_traced`.
    stop: Option<MismatchPosition>,
    is_traced: bool,
}

impl<'t, 'l> TemplateMatcher<'t, 'l> {
    pub(super) fn new(parts: &'t [TemplatePart], line: &'l str, is_traced: bool) -> Self {
        let failed = vec![false; parts.len() * (line.len() + 1)];
        Self { parts, line, failed, found: Vec::new(), stop: None, is_traced }
    }

    /// Returns the numbers in the line by name. `Err` has the position at which the longest partial match
    /// fails, if it is traced.
    pub(super) fn run(mut self) -> Result<Vec<(&'t str, Number)>, Option<MismatchPosition>> {
        let starts_with_number = matches!(self.parts.first(), Some(TemplatePart::Number(_)));
        for at in offsets(self.line, 0) {
            // A sign that follows a digit is a dash, as in `2024-11-26`.
            let is_inside = starts_with_number
                && (!number::begins(self.line, at)
                    || self.line[..at].ends_with(['.', '-', '+'])
                    || (self.line[..at].ends_with(|c: char| c.is_ascii_digit())
                        && self.line[at..].starts_with(['-', '+'])));
            if !is_inside && self.follows(0, at) {
                return Ok(self.found);
            }
        }
        Err(self.stop)
    }

    /// Returns `true` if the template's parts from `index` on match the line from offset `at` on; records the
    /// numbers that they read.
    fn follows(&mut self, index: usize, at: usize) -> bool {
        let Some(part) = self.parts.get(index) else { return true };
        let state = index * (self.line.len() + 1) + at;
        if self.failed[state] {
            return false;
        }
        let rest = &self.line[at..];
        let follows = match part {
            TemplatePart::Text(text) => match rest.strip_prefix(text.as_str()) {
                Some(_) => self.follows(index + 1, at + text.len()),
                None => self.stops(index, at, Some(text)),
            },
            TemplatePart::Blanks => self.blanks(index, at),
            TemplatePart::Number(name) => self.number(index, at, name),
            TemplatePart::Anything => self.anything(index, at),
        };
        self.failed[state] |= !follows;
        follows
    }

    /// Matches part `index`, one or more blanks, at offset `at`. The blanks before and after a `*` may be the
    /// same, or the end of the line.
    fn blanks(&mut self, index: usize, at: usize) -> bool {
        let rest = &self.line[at..];
        let blanks = rest.len() - rest.trim_start().len();
        let is_anything = |index: Option<usize>| {
            index.and_then(|index| self.parts.get(index)).is_some_and(|part| *part == TemplatePart::Anything)
        };
        let is_at_blank = at == 0 || self.line[..at].ends_with(char::is_whitespace);
        let may_be_none = is_anything(index.checked_sub(1)) && is_at_blank
            || is_anything(Some(index + 1)) && rest.is_empty();
        if blanks > 0 && self.follows(index + 1, at + blanks) {
            return true;
        }
        if may_be_none && self.follows(index + 1, at) {
            return true;
        }
        if blanks > 0 || may_be_none { false } else { self.stops(index, at, None) }
    }

    fn number(&mut self, index: usize, at: usize, name: &'t str) -> bool {
        let is_after_anything = index > 0 && self.parts[index - 1] == TemplatePart::Anything;
        if is_after_anything && !number::begins(self.line, at) {
            return false;
        }
        let next = match self.parts.get(index + 1) {
            Some(TemplatePart::Text(text)) => text.chars().next(),
            Some(TemplatePart::Blanks | TemplatePart::Anything | TemplatePart::Number(_)) | None => None,
        };
        let readings = number::readings(&self.line[at..], next);
        if readings.is_empty() {
            return self.stops(index, at, None);
        }
        let is_percent = name == "valid_accuracy" && self.has_percent(index + 1);
        readings.into_iter().any(|(value, length)| {
            let known = self.found.len();
            let has_decimals = self.line[at..at + length].contains('.');
            let value = if is_percent { value / 100.0 } else { value };
            self.found.push((name, Number { value, has_decimals }));
            self.follows(index + 1, at + length) || {
                self.found.truncate(known);
                false
            }
        })
    }

    /// Returns `true` if part `index` is a text that begins with a percent sign, possibly after blanks.
    fn has_percent(&self, index: usize) -> bool {
        let mut parts = self.parts.iter().skip(index).skip_while(|part| **part == TemplatePart::Blanks);
        matches!(parts.next(), Some(TemplatePart::Text(text)) if text.starts_with('%'))
    }

    /// Matches part `index`, any text (`*`), at offset `at`, trying shorter texts first.
    fn anything(&mut self, index: usize, at: usize) -> bool {
        let width = self.line.len() + 1;
        let mut tried = Vec::new();
        for end in offsets(self.line, at) {
            // A rest that does not match here was already tried at all later offsets.
            if self.failed[index * width + end] {
                break;
            }
            if self.follows(index + 1, end) {
                return true;
            }
            tried.push(end);
        }
        for end in tried {
            self.failed[index * width + end] = true;
        }
        false
    }

    /// Records that part `index` does not match at offset `at`, and returns `false`.
    fn stops(&mut self, index: usize, at: usize, text: Option<&str>) -> bool {
        if !self.is_traced {
            return false;
        }
        let rest = &self.line[at..];
        let (mut alike, mut same) = (0, 0);
        for (found, wanted) in rest.chars().zip(text.unwrap_or_default().chars()) {
            if !found.eq_ignore_ascii_case(&wanted) {
                break;
            }
            if alike == same && found == wanted {
                same += found.len_utf8();
            }
            alike += found.len_utf8();
        }
        let fit = PartialMatch { parts: index, alike };
        if self.stop.as_ref().is_none_or(|stop| stop.fit < fit) {
            self.stop = Some(MismatchPosition { fit, at: at + same });
        }
        false
    }
}

/// Returns the byte offsets of the characters of `line` from `at` on, followed by its length.
fn offsets(line: &str, at: usize) -> impl Iterator<Item = usize> {
    line[at..].char_indices().map(move |(offset, _)| at + offset).chain([line.len()])
}
