//! Parts that all pages share: the self-contained HTML document, sections, tables.

use super::svg::escaped;
use std::fmt::Write as _;

/// Content security policy of every page: nothing is loaded from anywhere.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Wraps a body into an HTML document. The script, which is optional, only shows values under the pointer.
pub(super) fn document(title: &str, body: &str, script: Option<&str>) -> String {
    let script = script.map(|code| format!("<script>\n{code}</script>\n")).unwrap_or_default();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n<title>{}</title>\n\
         <style>\n{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n{script}</body>\n</html>\n",
        escaped(title),
        include_str!("style.css")
    )
}

/// Appends a section with title and subtitle to a page; does nothing if the body is empty.
pub(super) fn section(page: &mut String, title: &str, told: &str, body: &str) {
    if !body.is_empty() {
        let (title, told) = (escaped(title), escaped(told));
        _ = writeln!(page, "<section>\n<h2>{title} <small>{told}</small></h2>\n{body}</section>");
    }
}

/// Appends the header of a page: title, subtitle, lines, and named figures.
pub(super) fn header(page: &mut String, title: &str, told: &[String], figures: &[(String, String)]) {
    _ = writeln!(page, "<header>\n<h1>{}</h1>", escaped(title));
    for line in told {
        _ = writeln!(page, "<p>{}</p>", escaped(line));
    }
    page.push_str("<dl>\n");
    for (name, value) in figures {
        _ = writeln!(page, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
    }
    page.push_str("</dl>\n</header>\n");
}

/// Number of characters from which on a cell's text is wrapped.
const LONG: usize = 44;

/// A cell of an HTML table, with its CSS class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    class: &'static str,
}

impl Cell {
    /// Creates a cell for the best value of a row or column, marked by a star.
    pub(super) fn best(text: impl Into<String>) -> Self {
        Self { text: format!("★ {}", text.into()), class: "best" }
    }

    /// Creates a cell that tells of a failure.
    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self { text: text.into(), class: "bad" }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        let class = if text.chars().count() > LONG { "long" } else { "" };
        Self { text, class }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// Formats a table that scrolls in a box of its own; empty without rows. `titles` may be empty.
pub(super) fn table(titles: &[&str], rows: &[Vec<Cell>]) -> String {
    marked_table(titles, rows, |_| None)
}

/// Like [`table`], with the number of a trial on each row for the page's script.
pub(super) fn marked_table(
    titles: &[&str],
    rows: &[Vec<Cell>],
    mark: impl Fn(usize) -> Option<u64>,
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = "<div class=\"scroll\" tabindex=\"0\"><table class=\"plain\">\n".to_owned();
    if !titles.is_empty() {
        let titles: String =
            titles.iter().map(|title| format!("<th scope=\"col\">{}</th>", escaped(title))).collect();
        _ = writeln!(text, "<thead><tr>{titles}</tr></thead>");
    }
    text += "<tbody>\n";
    for (number, row) in rows.iter().enumerate() {
        let mark = mark(number).map(|trial| format!(" data-trial=\"{trial}\"")).unwrap_or_default();
        let cells: String = row
            .iter()
            .map(|Cell { text, class }| {
                let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
                format!("<td{class}>{}</td>", escaped(text))
            })
            .collect();
        _ = writeln!(text, "<tr{mark}>{cells}</tr>");
    }
    text + "</tbody>\n</table></div>\n"
}

/// Formats a section that is collapsed at first.
pub(super) fn folded(title: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<details>\n<summary>{}</summary>\n{body}</details>\n", escaped(title))
}

/// Formats a date and time in UTC: `2026-11-24 19:42 UTC`.
pub(super) fn moment(at_ms: u64) -> String {
    let minutes = at_ms / 60_000;
    format!("{} {:02}:{:02} UTC", dtrain_planner::format_day(at_ms), minutes / 60 % 24, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_told_as_a_date() {
        let told = [0, 951_782_399_000, 951_782_400_000, 1_735_689_599_000].map(moment);
        let dates = ["1970-01-01 00:00", "2000-02-28 23:59", "2000-02-29 00:00", "2024-12-31 23:59"];
        assert_eq!(told, dates.map(|date| format!("{date} UTC")));
    }
}
