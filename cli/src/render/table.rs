//! Text tables that fit into a width in characters.

use super::truncate::{truncate, width};
use crate::color::ColorMode;
use crate::output::PageStyle;
use std::borrow::Cow;

/// Meaning of a text, which determines its color.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TextRole {
    #[default]
    Plain,
    Bold,
    Dim,
    Good,
    Bad,
    Notice,
}

/// A text with the meaning that determines its color.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StyledText {
    pub(crate) text: String,
    pub(crate) tone: TextRole,
}

/// A column of a table: its title, alignment, and how it shrinks.
#[derive(Clone, Debug)]
pub(crate) struct TableColumn {
    /// Title of the column.
    pub(crate) title: Cow<'static, str>,
    /// True if the column's texts are aligned to the right.
    pub(crate) is_right: bool,
    /// Priority of the column: the lowest is dropped first if the columns do not fit; 9 is never dropped.
    pub(crate) rank: u8,
    /// Width down to which the column's texts may be truncated; `None` if they may not.
    pub(crate) least: Option<usize>,
}

impl StyledText {
    pub(crate) fn new(text: impl Into<String>, tone: TextRole) -> Self {
        Self { text: text.into(), tone }
    }
}

impl From<String> for StyledText {
    fn from(text: String) -> Self {
        Self::new(text, TextRole::Plain)
    }
}

impl From<&str> for StyledText {
    fn from(text: &str) -> Self {
        Self::new(text, TextRole::Plain)
    }
}

/// Colors a text by its meaning.
pub(crate) fn painted(text: &str, tone: TextRole, paint: ColorMode) -> String {
    match tone {
        TextRole::Plain => text.to_owned(),
        TextRole::Bold => paint.bold(text),
        TextRole::Dim => paint.dim(text),
        TextRole::Good => paint.green(text),
        TextRole::Bad => paint.red(text),
        TextRole::Notice => paint.yellow(text),
    }
}

/// Formats a table with a line of titles. Columns without any text are dropped. Then gaps shrink, truncatable
/// columns shrink, and columns of the lowest rank are dropped, until the table fits.
pub(crate) fn table(columns: &[TableColumn], rows: &[Vec<StyledText>], style: PageStyle) -> String {
    let mut page = String::new();
    for cells in layout_table(columns, rows, style) {
        // Trailing blanks are not colored, so that lines end with visible text.
        let paint = |cell: &StyledText| {
            let ink = cell.text.trim_matches(' ');
            let lead = cell.text.len() - cell.text.trim_start_matches(' ').len();
            let tail = cell.text.len() - lead.min(cell.text.len()) - ink.len();
            format!("{}{}{}", " ".repeat(lead), painted(ink, cell.tone, style.paint), " ".repeat(tail))
        };
        let line: String = cells.iter().map(paint).collect();
        page += line.trim_end();
        page.push('\n');
    }
    page
}

/// Lays out the lines of a table as padded cells, titles first.
pub(crate) fn layout_table(
    columns: &[TableColumn],
    rows: &[Vec<StyledText>],
    style: PageStyle,
) -> Vec<Vec<StyledText>> {
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    kept.retain(|&c| columns[c].rank == 9 || rows.iter().any(|row| !row[c].text.is_empty()));
    let (gap, widths) = fit(columns, rows, &mut kept, style.width);
    let titles: Vec<_> = columns
        .iter()
        .map(|column| StyledText::new(column.title.clone().into_owned(), TextRole::Dim))
        .collect();
    let line = |row: &Vec<StyledText>| {
        let cells = kept.iter().zip(&widths).enumerate().map(|(place, (&c, &wide))| {
            let text = truncate(&row[c].text, wide, style);
            let padding = " ".repeat(wide - width(&text));
            let is_last = place + 1 == kept.len();
            let text = match (columns[c].is_right, is_last) {
                (true, _) => format!("{padding}{text}"),
                (false, true) => text,
                (false, false) => format!("{text}{padding}"),
            };
            let gap = if is_last { String::new() } else { " ".repeat(gap) };
            StyledText::new(format!("{text}{gap}"), row[c].tone)
        });
        cells.collect()
    };
    std::iter::once(&titles).chain(rows).map(line).collect()
}

/// Returns the gap between columns and their widths; drops columns from `kept` if nothing else makes them
/// fit.
fn fit(
    columns: &[TableColumn],
    rows: &[Vec<StyledText>],
    kept: &mut Vec<usize>,
    most: usize,
) -> (usize, Vec<usize>) {
    loop {
        let natural: Vec<usize> = kept
            .iter()
            .map(|&c| {
                let widest = rows.iter().map(|row| width(&row[c].text)).max().unwrap_or(0);
                widest.max(width(&columns[c].title))
            })
            .collect();
        for gap in [2, 1] {
            let gaps = gap * kept.len().saturating_sub(1);
            let mut widths = natural.clone();
            let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(most);
            for (wide, &c) in widths.iter_mut().zip(kept.iter()) {
                if let Some(least) = columns[c].least.filter(|_| gap == 1 || over <= 4) {
                    let given = over.min(wide.saturating_sub(least));
                    *wide -= given;
                    over -= given;
                }
            }
            if over == 0 {
                return (gap, widths);
            }
        }
        let lowest = kept.iter().copied().filter(|&c| columns[c].rank < 9).min_by_key(|&c| columns[c].rank);
        let Some(lowest) = lowest else { return (1, natural) };
        kept.retain(|&c| c != lowest);
    }
}

/// Formats a section of a page with aligned columns; empty if it has no lines.
pub(crate) fn section(name: &str, lines: &[Vec<String>], style: PageStyle) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| lines.iter().filter_map(|line| line.get(c)).map(|text| width(text)).max().unwrap_or(0))
        // Lines are cut at the page's width; a formatter takes no width above 65,535.
        .map(|widest| widest.min(style.width))
        .collect();
    let mut page = format!("{}\n", painted(name, TextRole::Bold, style.paint));
    for line in lines {
        let mut text = " ".to_owned();
        for (cell, wide) in line.iter().zip(&widths) {
            text += &format!(" {cell:<wide$} ");
        }
        page += truncate(text.trim_end(), style.width, style).as_str();
        page.push('\n');
    }
    page
}

/// Formats an age in at most four characters: `12s`, `41m`, `3h`, `5d`, `8w`. `in the future` if a clock was
/// wrong.
pub(crate) fn age(at_ms: u64, now_ms: u64) -> String {
    if at_ms > now_ms.saturating_add(60_000) {
        return "in the future".to_owned();
    }
    let seconds = now_ms.saturating_sub(at_ms) / 1000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        172_800..1_209_600 => format!("{}d", seconds / 86_400),
        _ => format!("{}w", seconds / 604_800),
    }
}

/// Formats an age as a phrase: `3h ago`, or `in the future`.
pub(crate) fn ago(at_ms: u64, now_ms: u64) -> String {
    let age = age(at_ms, now_ms);
    if age.starts_with(|c: char| c.is_ascii_digit()) { format!("{age} ago") } else { age }
}

/// Formats CSV (RFC 4180): one line per row, with fields quoted if necessary.
pub(crate) fn csv<'a>(rows: impl IntoIterator<Item = Vec<std::borrow::Cow<'a, str>>>) -> String {
    let mut page = String::new();
    for row in rows {
        let fields: Vec<_> = row
            .iter()
            .map(|field| {
                if field.contains([',', '"', '\n', '\r']) {
                    format!("\"{}\"", field.replace('"', "\"\""))
                } else {
                    field.to_string()
                }
            })
            .collect();
        page += &fields.join(",");
        page.push('\n');
    }
    page
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a style of this width without colors.
    pub(crate) fn plain(width: usize) -> PageStyle {
        PageStyle { paint: ColorMode::plain(), width, is_ascii: false, now_ms: 1_700_000_000_000 }
    }

    fn columns() -> Vec<TableColumn> {
        let column = |title, rank, least| TableColumn {
            title: Cow::Borrowed(title),
            is_right: rank == 2,
            rank,
            least,
        };
        vec![
            column("NAME", 9, Some(6)),
            column("SPEED", 2, None),
            column("NOTE", 1, None),
            column("NEVER", 8, None),
        ]
    }

    fn rows() -> Vec<Vec<StyledText>> {
        vec![
            vec!["a-long-name-1".into(), "12.3 k".into(), "first".into(), "".into()],
            vec!["b".into(), "7".into(), "".into(), "".into()],
        ]
    }

    #[test]
    fn a_text_of_a_column_stays_in_its_line() {
        let rows = vec![vec!["a\nb".into(), "1".into(), "c\td".into(), "".into()]];
        assert_eq!(table(&columns(), &rows, plain(80)), "NAME  SPEED  NOTE\na b       1  c d\n");
        assert_eq!(section("PART", &[vec!["a\nb".into()]], plain(80)), "PART\n  a b\n");
    }

    #[test]
    fn a_table_gives_way_until_it_fits() {
        let at = |width| table(&columns(), &rows(), plain(width));
        assert_eq!(
            at(80),
            "NAME            SPEED  NOTE\na-long-name-1  12.3 k  first\nb                   7\n"
        );
        assert_eq!(at(24), "NAME        SPEED  NOTE\na-long-n…  12.3 k  first\nb               7\n");
        assert_eq!(at(16), "NAME       SPEED\na-long-n… 12.3 k\nb              7\n");
        for width in 14..100 {
            let page = at(width);
            assert!(page.lines().all(|line| super::width(line) <= width), "at {width}:\n{page}");
        }
    }

    #[test]
    fn ages_are_short() {
        let ages = [5, 119, 120, 7199, 7200, 172_799, 172_800, 1_209_600].map(|s| age(0, s * 1000));
        assert_eq!(ages, ["5s", "119s", "2m", "119m", "2h", "47h", "2d", "2w"]);
        assert_eq!(age(9_000, 1_000), "0s", "clocks of two hosts differ a little");
        assert_eq!(age(3_600_000, 1_000), "in the future");
        assert_eq!([ago(0, 5_000), ago(3_600_000, 1_000)], ["5s ago", "in the future"]);
    }

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!(csv([vec!["a".into(), "b,c".into(), "d\"e".into()]]), "a,\"b,c\",\"d\"\"e\"\n");
    }
}
