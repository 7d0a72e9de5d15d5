//! What `run` would refuse about a recipe that holds, as far as it is known here at little cost.

use crate::commands::tune::of_a_slot;
use crate::context::Context;
use crate::failure::Failure;
use crate::load::{Loaded, found};
use crate::output::Paint;
use crate::rates;
use crate::render::number::counted;
use dtrain_planner::{PlanError, precheck};
use dtrain_recipes::{
    Checked, DataFormat, Devices, Documents, FilePattern, Launcher, Model, Problem, Tokenizer,
};
use dtrain_worker::data::{DataError, downloaded, unpacked_bytes};
use std::collections::BTreeSet;

/// Most bytes of data that a check reads, and of text that it makes into tokens.
const MOST_BYTES: u64 = 256 << 20;
const MOST_TEXT: u64 = 4 << 20;

/// Looks at machine and data; `Err` lists what `run` would refuse, and of a study over several hosts what `tune` would. `Ok` lists
/// what is strange about the data, and what they may refuse on other hosts.
pub(crate) fn look(context: &Context, loaded: &Loaded) -> Result<Vec<Problem>, Failure> {
    let checked = &loaded.checked;
    let recipe = &of_a_slot(&checked.recipe);
    let mut problems = Vec::new();
    let mut strange = Vec::new();
    let samples = match is_cheap(context, loaded).then(|| rates::open_set(context, loaded)) {
        Some(Ok(opened)) => opened.map(|opened| {
            strange.clone_from(&opened.warnings);
            opened.inputs().train_samples
        }),
        Some(Err(error)) => {
            problems.push(of_data(checked, &error));
            None
        }
        None => {
            if let Some(Err(error)) = notes(context, loaded) {
                problems.push(of_data(checked, &error));
            }
            None
        }
    };
    let is_here = recipe.cluster.launcher == Launcher::Local;
    let host = is_here.then(rates::host);
    if let Err(error) = precheck(recipe, host.as_ref(), samples) {
        problems.push(of_plan(checked, &error));
    }
    if !problems.is_empty() {
        return Err(problems.into());
    }
    let strange = strange.into_iter().map(|warning| told(&warning, checked, &["data.train"]));
    Ok(strange.chain(of_other_hosts(checked)).collect())
}

/// Tells of files that a check does not read whole what their first bytes say; `None` where there are none on this host.
fn notes(context: &Context, loaded: &Loaded) -> Option<Result<(), DataError>> {
    let data = loaded.checked.recipe.data.as_ref().filter(|_| downloads(loaded).is_none())?;
    Some(rates::tell_notes(context, data, &loaded.folder))
}

/// What will be downloaded to this host before the data is read; `None` where nothing has to be.
pub(crate) fn downloads(loaded: &Loaded) -> Option<String> {
    let is_missing = |pattern: &&FilePattern| downloaded(&pattern.pattern).is_none();
    let missing = loaded.checked.files.iter().filter(is_missing).filter_map(FilePattern::url);
    let addresses: BTreeSet<(String, String)> =
        missing.map(|url| (url.host().to_owned(), url.address().to_owned())).collect();
    let hosts: BTreeSet<&str> = addresses.iter().map(|(host, _)| host.as_str()).collect();
    let hosts = hosts.into_iter().collect::<Vec<_>>().join(", ");
    let files = counted(addresses.len() as u64, "file");
    (!addresses.is_empty()).then(|| format!("{files} will be downloaded from {hosts}"))
}

/// Whether samples can be counted soon: nothing is downloaded or trained for it, and little is read. Says where more
/// would come out of files than is read.
fn is_cheap(context: &Context, loaded: &Loaded) -> bool {
    let Some(data) = &loaded.checked.recipe.data else { return false };
    let most = match &data.format {
        DataFormat::Text { tokenizer: Tokenizer::Bpe(_), .. } => return false,
        DataFormat::Text { tokenizer: Tokenizer::Bytes, documents: Documents::Files, .. } => MOST_BYTES,
        DataFormat::Text { .. } => MOST_TEXT,
        DataFormat::Tokens { .. }
        | DataFormat::Idx { .. }
        | DataFormat::Csv { .. }
        | DataFormat::Parquet { .. }
        | DataFormat::Images { .. } => MOST_BYTES,
    };
    if downloads(loaded).is_some() {
        return false;
    }
    let mut left = most;
    for file in loaded.checked.files.iter().flat_map(|pattern| found(pattern, &loaded.folder)) {
        // A file that cannot be read is told when it is opened.
        let Some(rest) = left.checked_sub(unpacked_bytes(&file, left).unwrap_or(0)) else {
            let most = most >> 20;
            context.out.say(&format!(
                "the data was not opened: more than {most} MiB come out of it; `dtrain data` reads it"
            ));
            return false;
        };
        left = rest;
    }
    true
}

/// Hosts are not reached for a check; they are sent this program, though.
fn of_other_hosts(checked: &Checked) -> Vec<Problem> {
    let cluster = &checked.recipe.cluster;
    let (word, feature, is_built) = match cluster.devices {
        Devices::Cuda => ("cuda", "cuda", cfg!(feature = "cuda")),
        Devices::Gpu => ("gpu", "wgpu", cfg!(any(feature = "cuda", feature = "wgpu"))),
        Devices::Auto | Devices::Cpu => return Vec::new(),
    };
    if is_built || cluster.launcher == Launcher::Local || matches!(checked.recipe.model, Model::Command(_)) {
        return Vec::new();
    }
    let problem =
        Problem::new(format!("`cluster.devices` is \"{word}\", and this build has no backend for it"))
            .note("the hosts are sent the program that runs here")
            .hint(format!("run from a build with `--features {feature}`"));
    vec![placed(problem, checked, &["cluster.devices"])]
}

fn of_data(checked: &Checked, error: &DataError) -> Problem {
    let keys = ["data.train", "model.context", "data.valid"];
    match error {
        DataError::TooFew { what, hint } => {
            placed(Problem::new(format!("the data has {what}")).hint(*hint), checked, &keys)
        }
        error => placed(Problem::new(error.to_string()), checked, &keys[..1]),
    }
}

fn of_plan(checked: &Checked, error: &PlanError) -> Problem {
    let keys: &[&str] = match error {
        PlanError::UnevenHosts { .. } => &["cluster.ranks"],
        PlanError::UnevenLayout { .. } => &["cluster.ranks"],
        PlanError::NoGpu { .. } => &["cluster.devices"],
        PlanError::BatchBeyondData { .. } => &["train.batch", "data.train"],
        PlanError::TooManyMicroBatches { .. } => &["train.batch", "layout.micro_batch"],
        PlanError::GathersWithoutRecompute => &["layout.recompute", "layout.recompute_every", "layout.zero"],
        PlanError::Untrainable(missing) if missing.key == "model.latent" => &["model.latent.key_value"],
        PlanError::Untrainable(missing) => &[missing.key],
        PlanError::NothingFits { .. }
        | PlanError::SamplesUnknown
        | PlanError::NoEnd
        | PlanError::EmptyBatch => &[],
    };
    told(&error.to_string(), checked, keys)
}

/// `fact; hint` at the first of these keys that was said.
fn told(text: &str, checked: &Checked, keys: &[&str]) -> Problem {
    let (fact, hint) = text.split_once("; ").map_or((text, None), |(fact, hint)| (fact, Some(hint)));
    let problem = placed(Problem::new(fact), checked, keys);
    match hint {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}

/// A problem at the first of these keys that was said; the others that were said are noted.
fn placed(mut problem: Problem, checked: &Checked, keys: &[&str]) -> Problem {
    for key in keys {
        let Some(value) = checked.resolved.iter().find(|value| value.path == *key) else { continue };
        if value.origin.source().is_none() {
            continue;
        }
        problem = match problem.origin {
            None => problem.at(&value.origin),
            Some(_) => problem.note_at(format!("`{key}` is {}", value.value), &value.origin),
        };
    }
    problem
}

/// A warning for a person.
pub(crate) fn words(paint: Paint, warning: &Problem) -> String {
    let place = warning.origin.as_ref().map_or_else(String::new, |origin| format!(" ({origin})"));
    let notes: String = warning.notes.iter().map(|(note, _)| format!("; {note}")).collect();
    let hint = warning.hint.as_ref().map_or_else(String::new, |hint| format!(": {hint}"));
    format!("{}: {}{place}{notes}{hint}", paint.yellow("warning"), warning.message)
}
