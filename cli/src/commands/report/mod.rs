//! `dtrain report`: one page of HTML about a trial, several trials, or a study.

mod study;

use crate::args::ReportArgs;
use crate::context::Context;
use crate::drive::catch_up;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::word;
use crate::plan_file::save;
use crate::render::html::{Compared, Curve, Shown, of_comparison, of_study, of_trial};
use crate::trials::{self, ledger};
use dtrain_protocol::TrialId;
use dtrain_recipes::name::file_name;
use dtrain_runner::compare::compare;
use dtrain_runner::ledger::History;
use serde::Serialize;
use std::path::PathBuf;

/// Series that are told by rank or in a table, not as curves.
const DETAILS: [&str; 13] = [
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "communication_seconds",
    "bubble_seconds",
    "optimizer_seconds",
    "sent_bytes",
    "weights_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "elapsed",
    "gradient_signal",
    "gradient_noise",
];

/// Series that follow those with names of their own.
const LAST: [&str; 7] = [
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "step_seconds",
    "memory_bytes",
    "save.stall_seconds",
    "validation_seconds",
];

/// What `--json` says.
#[derive(Serialize)]
struct Made {
    file: PathBuf,
    bytes: usize,
}

/// Writes the page.
pub(crate) fn run(context: &Context, args: &ReportArgs) -> Outcome {
    catch_up(context);
    let history = trials::read_history(context)?;
    let (name, page, next) = match (&args.study, args.trials.as_slice()) {
        (Some(name), _) => {
            let page = of_study(&study::studied(context, &history, name)?);
            (name.clone(), page, format!("dtrain history --where {}", word(format!("study={name}"))))
        }
        (None, trials) => of_trials(context, &history, trials)?,
    };
    let file = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{}.html", file_name(&name))));
    save(&file, &page)?;
    if context.out.json {
        context.out.json("report", &Made { file, bytes: page.len() })?;
    } else {
        context.out.data(&file.display().to_string())?;
    }
    context.out.next(&next);
    Ok(Exit::Done)
}

/// Name, page and next command of one trial or more.
fn of_trials(
    context: &Context,
    history: &History,
    names: &[String],
) -> Result<(String, String, String), Failure> {
    let last = ["last".to_owned()];
    let names = if names.is_empty() { &last } else { names };
    let mut ids: Vec<TrialId> = Vec::new();
    for name in names {
        let id = find(history, name)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let shown: Vec<Shown> = ids.iter().map(|id| shown(context, history, id)).collect::<Result<_, _>>()?;
    if let [one] = shown.as_slice() {
        let label = one.trial.row.label.clone();
        return Ok((label.clone(), of_trial(one), format!("dtrain show {label}")));
    }
    let comparison =
        compare(history, &ids, &[], &|id| trials::is_alive(context, id)).map_err(|error| ledger(&error))?;
    let labels: Vec<String> = shown.iter().map(|shown| shown.trial.row.label.clone()).collect();
    let name = match labels.as_slice() {
        [a, b] => format!("{a}-and-{b}"),
        _ => format!("{}-and-{}-more", labels[0], labels.len() - 1),
    };
    let next = format!("dtrain compare {} {}", labels[0], labels[1]);
    Ok((name, of_comparison(&Compared { comparison, trials: shown }), next))
}

/// The trial that the user typed; who typed the name of a study is told so.
fn find(history: &History, name: &str) -> Result<TrialId, Failure> {
    trials::find(history, name).map_err(|failure| match history.study(name) {
        Ok(Some(_)) => failure.hint(format!("`dtrain report --study {name}` tells of the study")),
        Ok(None) | Err(_) => failure,
    })
}

/// A trial with its curves: the objective first, then losses and metrics by name, then the rest.
fn shown(context: &Context, history: &History, id: &TrialId) -> Result<Shown, Failure> {
    let trial = history.trial(id, &|id| trials::is_alive(context, id)).map_err(|error| ledger(&error))?;
    let names = history.series_names(id).map_err(|error| ledger(&error))?;
    let mut keys: Vec<String> =
        names.into_iter().map(|(key, _)| key).filter(|key| !DETAILS.contains(&key.as_str())).collect();
    keys.dedup();
    let order = |key: &String| {
        let last = LAST.iter().position(|last| last == key).map_or(0, |place| place + 1);
        (last, *key != trial.row.objective, key != "loss", !key.starts_with("valid."), key.clone())
    };
    keys.sort_by_key(order);
    let curves = keys
        .into_iter()
        .map(|key| {
            let attempts = history.curve_by_attempt(id, &key).map_err(|error| ledger(&error))?;
            let attempts = attempts.into_iter().map(|(attempt, samples)| (attempt.0, samples)).collect();
            Ok(Curve { key, attempts })
        })
        .collect::<Result<_, Failure>>()?;
    let typical = history.typical_steps(id).map_err(|error| ledger(&error))?;
    Ok(Shown { trial, typical, curves, now_ms: context.out.style().now_ms })
}
