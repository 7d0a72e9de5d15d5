//! Checks of `dtrain check` beyond the recipe itself: everything cheap for which `dtrain run` would refuse
//! it.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::load_recipe::{LoadedRecipe, matching_files};
use crate::render::number::counted;
use crate::slots::recipe_of_one_slot;
use crate::{rates, this_host};
use dtrain_planner::{PlanError, engine_can_train, precheck};
use dtrain_recipes::{
    CheckedRecipe, DataFormat, Devices, Documents, FilePattern, LauncherKind, Problem, Tokenizer,
};
use dtrain_worker::data::{DataError, downloaded, unpacked_bytes};
use dtrain_worker::hub;
use std::collections::BTreeSet;

/// Maximum number of bytes of data that a check reads.
const MOST_BYTES: u64 = 256 << 20;
/// Maximum number of bytes of text that a check tokenizes.
const MOST_TEXT: u64 = 4 << 20;

/// Checks machine and data. `Err` lists the problems for which `dtrain run` would refuse the recipe, and for
/// a study over several hosts those of `dtrain tune`. `Ok` lists warnings about the data, and problems that
/// may appear on other hosts.
pub(crate) fn find_problems(context: &Context, loaded: &LoadedRecipe) -> Result<Vec<Problem>, CommandError> {
    let checked = &loaded.checked;
    let recipe = &recipe_of_one_slot(&checked.recipe);
    let mut problems = Vec::new();
    let mut strange = Vec::new();
    let samples = match is_cheap(context, loaded).then(|| rates::open_set(context, loaded)) {
        Some(Ok(opened)) => opened.map(|opened| {
            strange.clone_from(&opened.warnings);
            opened.inputs().train_samples
        }),
        Some(Err(error)) => {
            problems.push(data_problem(checked, &error));
            None
        }
        None => {
            if let Some(Err(error)) = print_data_notes(context, loaded) {
                problems.push(data_problem(checked, &error));
            }
            None
        }
    };
    let is_here = recipe.cluster.launcher == LauncherKind::Local;
    let host = is_here.then(this_host::facts);
    let checked_plan = engine_can_train(recipe).and_then(|()| precheck(recipe, host.as_ref(), samples));
    if let Err(error) = checked_plan {
        problems.push(plan_problem(checked, &error));
    }
    if !problems.is_empty() {
        return Err(problems.into());
    }
    let strange = strange.into_iter().map(|warning| problem_from_text(&warning, checked, &["data.train"]));
    Ok(strange.chain(unpinned_model(checked)).chain(other_host_problems(checked)).collect())
}

/// Returns a warning if `train.from` names a model of the Hub without a commit.
fn unpinned_model(checked: &CheckedRecipe) -> Option<Problem> {
    let named = |file: &FilePattern| Some((file.hub_model()?, file.origin.clone()));
    let (model, origin) = checked.files.iter().find_map(named)?;
    model.commit().is_none().then(|| {
        Problem::new(format!(
            "`train.from`: {model} is not pinned to a commit: when {} moves, runs begin with other weights",
            model.revision()
        ))
        .at(&origin)
        .hint("`dtrain run` says which commit it is; write it as hf:ORG/NAME@COMMIT")
    })
}

/// Returns a message about the model of the Hub that a recipe starts from: whether it is pinned, and on this
/// host; `None` if it starts from none.
pub(crate) fn hub_model_note(checked: &CheckedRecipe) -> Option<String> {
    let model = checked.recipe.train.hub_model()?;
    let place = match hub::cached(&model) {
        Some(_) => "it is on this host",
        None => "it will be downloaded",
    };
    let pinned = if model.commit().is_some() { "is pinned to its commit" } else { "is not pinned" };
    Some(format!("the model {model} {pinned}; {place}"))
}

/// Prints remarks about the data files, from their first bytes; returns `None` if none of the files are on
/// this host.
fn print_data_notes(context: &Context, loaded: &LoadedRecipe) -> Option<Result<(), DataError>> {
    let data = loaded.checked.recipe.data.as_ref().filter(|_| downloads(loaded).is_none())?;
    Some(rates::print_data_notes(context, data, &loaded.folder))
}

/// Returns a message about files that must be downloaded before the data can be read; `None` if there are
/// none.
pub(crate) fn downloads(loaded: &LoadedRecipe) -> Option<String> {
    let is_missing = |pattern: &&FilePattern| downloaded(&pattern.pattern).is_none();
    let missing = loaded.checked.files.iter().filter(is_missing).filter_map(FilePattern::url);
    let addresses: BTreeSet<(String, String)> =
        missing.map(|url| (url.host().to_owned(), url.address().to_owned())).collect();
    let hosts: BTreeSet<&str> = addresses.iter().map(|(host, _)| host.as_str()).collect();
    let hosts = hosts.into_iter().collect::<Vec<_>>().join(", ");
    let files = counted(addresses.len() as u64, "file");
    (!addresses.is_empty()).then(|| format!("{files} will be downloaded from {hosts}"))
}

/// Returns `true` if samples can be counted quickly: no download, no tokenizer training, little to read.
/// Prints a remark when files are too large for that.
fn is_cheap(context: &Context, loaded: &LoadedRecipe) -> bool {
    let Some(data) = &loaded.checked.recipe.data else { return false };
    let most = match &data.format {
        DataFormat::Text { tokenizer: Tokenizer::Bpe(_), .. } => return false,
        DataFormat::Text { tokenizer: Tokenizer::Bytes, documents: Documents::Files, .. } => MOST_BYTES,
        DataFormat::Text { .. } | DataFormat::Chat { .. } => MOST_TEXT,
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
    for file in loaded.checked.files.iter().flat_map(|pattern| matching_files(pattern, &loaded.folder)) {
        // A file that cannot be read is reported when it is opened.
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

/// Lists problems that would appear on the recipe's other hosts, without connecting to them: these hosts get
/// a copy of this executable.
fn other_host_problems(checked: &CheckedRecipe) -> Vec<Problem> {
    let cluster = &checked.recipe.cluster;
    let (word, feature, is_built) = match cluster.devices {
        Devices::Cuda => ("cuda", "cuda", cfg!(feature = "cuda")),
        Devices::Gpu => ("gpu", "wgpu", cfg!(any(feature = "cuda", feature = "wgpu"))),
        Devices::Auto | Devices::Cpu => return Vec::new(),
    };
    if is_built || cluster.launcher == LauncherKind::Local || checked.recipe.runs_foreign_program() {
        return Vec::new();
    }
    let problem =
        Problem::new(format!("`cluster.devices` is \"{word}\", and this build has no backend for it"))
            .note("the hosts are sent the program that runs here")
            .hint(format!("run from a build with `--features {feature}`"));
    vec![problem_at_keys(problem, checked, &["cluster.devices"])]
}

fn data_problem(checked: &CheckedRecipe, error: &DataError) -> Problem {
    let keys = ["data.train", "model.context", "data.valid"];
    match error {
        DataError::TooFew { what, hint } => {
            problem_at_keys(Problem::new(format!("the data has {what}")).hint(*hint), checked, &keys)
        }
        error => problem_at_keys(Problem::new(error.to_string()), checked, &keys[..1]),
    }
}

fn plan_problem(checked: &CheckedRecipe, error: &PlanError) -> Problem {
    let keys: &[&str] = match error {
        PlanError::EngineLacks { .. } => &["engine"],
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
    problem_from_text(&error.to_string(), checked, keys)
}

/// Splits `fact; hint` into a problem, placed at the first of `keys` that the recipe sets.
fn problem_from_text(text: &str, checked: &CheckedRecipe, keys: &[&str]) -> Problem {
    let (fact, hint) = text.split_once("; ").map_or((text, None), |(fact, hint)| (fact, Some(hint)));
    let problem = problem_at_keys(Problem::new(fact), checked, keys);
    match hint {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}

/// Places a problem at the first of `keys` that the recipe sets, and adds notes about the others that it
/// sets.
fn problem_at_keys(mut problem: Problem, checked: &CheckedRecipe, keys: &[&str]) -> Problem {
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
