//! Cached tokens in the state folder that no trial needs anymore.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::trials::{history_failure, plan_of_trial, recipe_of_trial};
use dtrain_protocol::input_manifest::TOKENIZER;
use dtrain_recipes::{Data, DataFormat, Tokenizer};
use dtrain_runner::ledger::{Filter, History, Pagination, Sort, TrialActivity, TrialDetails};
use dtrain_runner::store::{Garbage, Kind};
use dtrain_worker::data::{all_cached, cached};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Input of a trial that reads text: its data, the folder of their paths, and the tokenizers it may use.
type TokenizedInput = (Data, PathBuf, Vec<Vec<u8>>);

/// Returns the cached tokens and tokenizers that no trial of the history needs. The inner `Err` says why that
/// cannot be known: then all are kept.
pub(super) fn leftovers(
    context: &Context,
    history: &History,
) -> Result<Result<Vec<Garbage>, String>, CommandError> {
    let cache = context.home.path().join("cache");
    let all = all_cached(&cache);
    if all.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let (mut needed, mut seen) = (BTreeSet::new(), Vec::new());
    let rows = history
        .trials(&Filter::default(), &Sort::Newest, Pagination::default(), &|_| TrialActivity::None)
        .map_err(|error| history_failure(&error))?;
    for row in rows {
        let trial =
            history.trial(&row.id, &|_| TrialActivity::None).map_err(|error| history_failure(&error))?;
        let reading = match reading(&trial) {
            Ok(reading) => reading.filter(|reading| !seen.contains(reading)),
            Err(failure) => return Ok(Err(failure.in_one_line())),
        };
        let Some(reading) = reading else { continue };
        let (data, root, trained) = &reading;
        match cached(data, root, &cache, trained) {
            Ok(names) => needed.extend(names),
            Err(error) => return Ok(Err(format!("the data of {} cannot be read: {error}", row.label))),
        }
        seen.push(reading);
    }
    let is_needed = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| needed.contains(name))
    };
    let others = all.into_iter().filter(|path| !is_needed(path));
    Ok(Ok(others.map(|path| Garbage::new(Kind::Tokens, path, None)).collect()))
}

/// Returns the data that a trial reads, their folder, and the tokenizer of its newest checkpoint; `None` if
/// it reads no text. `Err` if its recipe or plan cannot be parsed.
fn reading(trial: &TrialDetails) -> Result<Option<TokenizedInput>, CommandError> {
    let Some(data) = recipe_of_trial(trial)?
        .data
        .filter(|data| matches!(&data.format, DataFormat::Text { .. } | DataFormat::Chat { .. }))
    else {
        return Ok(None);
    };
    // Only a trained tokenizer may differ from the one that the recipe gives now.
    let is_trained = matches!(&data.format, DataFormat::Text { tokenizer: Tokenizer::Bpe(_), .. });
    let newest = trial.checkpoints.iter().rev().filter(|_| is_trained);
    let trained = newest.map(|saved| saved.folder.join(TOKENIZER)).find_map(|path| std::fs::read(path).ok());
    Ok(Some((data, plan_of_trial(trial)?.data_root, trained.into_iter().collect())))
}
