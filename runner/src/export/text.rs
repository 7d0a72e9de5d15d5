//! CSV and JSON Lines writers.

use super::row_writer::RowWriter;
use crate::ledger::{MetricSample, TrialOutline};
use dtrain_protocol::{AttemptId, Rank, TrialId};
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// CSV writer (RFC 4180). Numbers have the fewest digits that identify them; others are `NaN`, `inf` and
/// `-inf`.
pub(super) struct Csv<W> {
    to: W,
    trial: Option<TrialId>,
}

/// JSON Lines writer.
pub(super) struct JsonLines<W> {
    to: W,
    trial: TrialId,
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

/// Returns a number as JSON; one that is not finite becomes a string.
pub(super) fn number(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

/// Returns the metadata of a trial: names, status, settings, tags, notes, times.
pub(super) fn trial_metadata(trial: &TrialOutline) -> Value {
    Value::Object(about_trial(trial))
}

/// Returns the names and the result of a trial.
pub(super) fn brief_metadata(trial: &TrialOutline) -> Value {
    let row = &trial.row;
    json!({
        "trial": row.id, "label": row.label, "recipe": row.recipe, "study": row.study, "status": row.status,
        "objective": row.objective, "best": row.best.map(number),
    })
}

fn about_trial(trial: &TrialOutline) -> Map<String, Value> {
    let row = &trial.row;
    let params: Map<_, _> =
        trial.params.iter().map(|param| (param.path.clone(), param.value.clone())).collect();
    let about = json!({
        "trial": row.id, "label": row.label, "recipe": row.recipe, "study": row.study, "status": row.status,
        "verdict": trial.verdict, "objective": row.objective, "best": row.best.map(number), "params": params,
        "tags": trial.tags, "notes": trial.notes, "attempts": trial.attempts, "created_ms": row.created_ms,
        "started_ms": row.started_ms, "ended_ms": row.ended_ms, "git_revision": row.git_revision,
        "command": trial.command,
    });
    match about {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Quotes a CSV field if needed.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
