//! All points of a trial as text, complete and in order.

use super::{History, fault};
use crate::fact::LedgerError;
use dtrain_protocol::TrialId;
use std::io::Write;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A header line, then one line for each point.
    Csv,
    /// One JSON object on each line. A value that is not finite is a text: `"NaN"`, `"inf"`, `"-inf"`.
    JsonLines,
}

impl History {
    /// Writes every point of every attempt: by key, rank, attempt, step.
    pub fn export(&self, trial: &TrialId, format: Format, to: &mut dyn Write) -> Result<(), LedgerError> {
        let failed = |source: std::io::Error| fault("export", self.path(), source.into());
        if format == Format::Csv {
            writeln!(to, "trial,key,rank,attempt,step,at_ms,value").map_err(failed)?;
        }
        for (key, rank) in self.series_names(trial)? {
            for (attempt, samples) in self.series_by_attempt(trial, &key, rank)? {
                for sample in samples {
                    let (step, at_ms, value) = (sample.step, sample.at_ms, sample.value);
                    match format {
                        Format::Csv => {
                            writeln!(to, "{trial},{},{rank},{attempt},{step},{at_ms},{value}", field(&key))
                        }
                        Format::JsonLines => {
                            let value = if value.is_finite() {
                                serde_json::json!(value)
                            } else {
                                serde_json::json!(value.to_string())
                            };
                            let line = serde_json::json!({
                                "trial": trial, "key": key, "rank": rank, "attempt": attempt,
                                "step": step, "at_ms": at_ms, "value": value,
                            });
                            writeln!(to, "{line}")
                        }
                    }
                    .map_err(failed)?;
                }
            }
        }
        Ok(())
    }
}

/// A field of a line of CSV (RFC 4180).
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
