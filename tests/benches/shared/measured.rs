//! A row of `docs/measured.md`, as benches print it and `tests/measure` reads it.

use serde_json::json;

/// Which of two values is the better one.
#[allow(dead_code, reason = "most benches measure rates or times, not both")]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Better {
    /// The higher, as of rates.
    Higher,
    /// The lower, as of times.
    Lower,
}

/// What one thing measured: the values of all runs, of dtrain and of a peer in the same run of the bench.
#[derive(Clone, Debug)]
pub(crate) struct Row<'a> {
    /// Heading on the page.
    pub(crate) section: &'a str,
    /// What was measured.
    pub(crate) what: String,
    /// Unit of all values.
    pub(crate) unit: &'a str,
    /// Which value is the better one.
    pub(crate) better: Better,
    /// Values of dtrain; empty where it cannot do it.
    pub(crate) ours: Vec<f64>,
    /// The peer and its values, none where it is not installed or did not get so far.
    pub(crate) peer: Option<(&'a str, Vec<f64>)>,
    /// What a reader must know besides; may be empty.
    pub(crate) note: String,
}

impl Row<'_> {
    /// Prints the row as one line: `measured` and a JSON object.
    #[expect(clippy::print_stdout, reason = "the report of a bench")]
    pub(crate) fn print(&self) {
        let better = match self.better {
            Better::Higher => "higher",
            Better::Lower => "lower",
        };
        let (peer, theirs) =
            self.peer.as_ref().map_or((None, &[][..]), |(name, values)| (Some(name), values));
        let row = json!({
            "section": self.section,
            "what": self.what,
            "unit": self.unit,
            "better": better,
            "ours": self.ours,
            "peer": peer,
            "theirs": theirs,
            "note": self.note,
        });
        println!("measured {row}");
    }
}
