//! Parses the hand-computed tables of `docs/cost-model.md`: rows `| name | formula | value |`.

use std::collections::BTreeMap;

const PAGE: &str = include_str!("../../../../../docs/cost-model.md");

/// Units used on the page, with their sizes.
const UNITS: [(&str, f64); 9] = [
    ("", 1.0),
    ("%", 1e-2),
    ("s", 1.0),
    ("ms", 1e-3),
    ("GB", 1e9),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
    ("TFLOP/s", 1e12),
    ("million", 1e6),
];

/// A printed value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Printed {
    value: f64,
    /// Size of the last printed digit.
    unit: f64,
}

impl Printed {
    /// Returns `true` if `exact` rounds to the printed value.
    pub(super) fn agrees(&self, exact: f64) -> bool {
        (self.value - exact).abs() <= 0.500_001 * self.unit
    }
}

/// Parses the table after `<!-- by hand: id -->` into values by name; skips cells that are not a number with
/// a unit.
pub(super) fn table(id: &str) -> BTreeMap<String, Printed> {
    let mark = format!("<!-- by hand: {id} -->");
    let (_, rest) = PAGE.split_once(&mark).unwrap_or_else(|| panic!("the page has no table {mark}"));
    let lines =
        rest.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells =
        lines.skip(2).map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    cells.filter_map(|cells| Some(((*cells.first()?).to_owned(), value(cells.last()?)?))).collect()
}

/// Parses a number with its unit.
pub(super) fn value(text: &str) -> Option<Printed> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let size = UNITS.iter().find(|(name, _)| *name == unit)?.1;
    let digits = number.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let last = 10f64.powi(-i32::try_from(digits).ok()?);
    Some(Printed { value: number.parse::<f64>().ok()? * size, unit: last * size })
}
