//! Export as JSON Lines: an object for each trial, then one for each of its points.

use super::row_writer::RowWriter;
use super::trial_metadata::{about_trial, number};
use crate::ledger::{MetricSample, TrialOutline};
use dtrain_protocol::{AttemptId, Rank, TrialId};
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// JSON Lines writer: one JSON object per line.
pub(super) struct JsonLines<W> {
    to: W,
    trial: TrialId,
}

impl<W: Write> JsonLines<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, trial: TrialId(String::new()) }
    }
}

impl<W: Write> RowWriter for JsonLines<W> {
    fn begin(&mut self, trial: &TrialOutline) -> io::Result<()> {
        self.trial = trial.row.id.clone();
        let mut about = Map::from_iter([("record".to_owned(), json!("trial"))]);
        about.extend(about_trial(trial));
        writeln!(self.to, "{}", Value::Object(about))
    }

    fn rows(&mut self, key: &str, rank: Rank, points: &[(AttemptId, MetricSample)]) -> io::Result<()> {
        for (attempt, sample) in points {
            let line = json!({
                "record": "point", "trial": self.trial, "key": key, "rank": rank, "attempt": attempt,
                "step": sample.step, "at_ms": sample.at_ms, "value": number(sample.value),
            });
            writeln!(self.to, "{line}")?;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
