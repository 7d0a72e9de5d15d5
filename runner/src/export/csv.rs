//! Export as CSV: a header line, then one line per point.

use super::row_writer::RowWriter;
use crate::ledger::{MetricSample, TrialOutline};
use dtrain_protocol::{AttemptId, Rank, TrialId};
use std::io::{self, Write};

/// CSV writer (RFC 4180). Finite numbers have the fewest digits that identify them; others are `NaN`, `inf`
/// and `-inf`.
pub(super) struct Csv<W> {
    to: W,
    trial: Option<TrialId>,
}

impl<W: Write> Csv<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, trial: None }
    }
}

impl<W: Write> RowWriter for Csv<W> {
    fn begin(&mut self, trial: &TrialOutline) -> io::Result<()> {
        if self.trial.replace(trial.row.id.clone()).is_none() {
            writeln!(self.to, "trial,key,rank,attempt,step,at_ms,value")?;
        }
        Ok(())
    }

    fn rows(&mut self, key: &str, rank: Rank, points: &[(AttemptId, MetricSample)]) -> io::Result<()> {
        let (trial, key) = (self.trial.as_ref().map_or("", |trial| &trial.0), field(key));
        for (attempt, MetricSample { step, at_ms, value }) in points {
            writeln!(self.to, "{trial},{key},{rank},{attempt},{step},{at_ms},{value:?}")?;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Quotes a CSV field if it contains a comma, a quote or a line break.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
