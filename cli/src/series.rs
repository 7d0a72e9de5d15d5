//! Series of metrics in the history: selection of their keys by patterns, and reduced curves.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use crate::trials::history_failure;
use dtrain_protocol::TrialId;
use dtrain_runner::compare::buckets;
use dtrain_runner::export;
use dtrain_runner::ledger::{History, TrialRow};
use glob::Pattern;
use std::collections::BTreeSet;

/// Returns the keys of series that match the patterns; `None` for all. `Err` for a pattern without a match.
pub(crate) fn matching_keys(
    history: &History,
    trials: &[TrialRow],
    patterns: &[String],
) -> Result<Option<BTreeSet<String>>, CommandError> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let all = export::keys(history, trials).map_err(|error| history_failure(&error))?;
    let mut wanted = BTreeSet::new();
    for text in patterns {
        let pattern = Pattern::new(text).map_err(|error| {
            CommandError::new(ExitReason::Usage, format!("`{text}` is not a pattern of keys"))
                .cause(error.to_string())
        })?;
        let mut found = all.iter().filter(|key| pattern.matches(key)).cloned().peekable();
        if found.peek().is_none() {
            let has = all.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(CommandError::new(ExitReason::Usage, format!("no series has the key `{text}`"))
                .hint(if has.is_empty() {
                    "nothing was measured".to_owned()
                } else {
                    format!("there are {has}")
                }));
        }
        wanted.extend(found);
    }
    Ok(Some(wanted))
}

/// Reduces a series of a trial to `count` values, one for each character of a sparkline.
pub(crate) fn curve(
    history: &History,
    trial: &TrialId,
    key: &str,
    count: usize,
) -> Result<Vec<Option<f64>>, CommandError> {
    let samples = history.curve(trial, key).map_err(|error| history_failure(&error))?;
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Ok(Vec::new()) };
    Ok(buckets(&samples, (first.step, last.step), count))
}
