//! `dtrain model`: uses trained models.

use crate::args::SampleArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::find_checkpoint::{self, CheckpointSelector};
use crate::render::number::counted;
use crate::trials::{plan_of_trial, recipe_of_trial};
use crate::{sampler, trials};
use dtrain_protocol::{SampleRequest, StepId, TrainedModel};
use dtrain_recipes::Model;
use dtrain_runner::ledger::TrialDetails;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct SampledText {
    trial: String,
    prompt: String,
    text: String,
    tokens: u32,
    tokens_per_second: f64,
}

/// Continues a prompt with the newest checkpoint of a trial.
pub(crate) fn sample(context: &Context, args: &SampleArgs) -> CommandResult {
    let history = trials::read_history(context)?;
    let trial = trials::trial(context, &history, &args.trial.trial)?;
    let asked = SamplingParams {
        prompt: args.prompt.clone(),
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        stop: args.stop.clone(),
        seed: args.seed,
    };
    let newest = || {
        find_checkpoint::find_intact(context, &trial, CheckpointSelector::Newest).map(|found| found.folder)
    };
    let request = sampling_request(&trial, asked, newest)?;
    let mut text = String::new();
    if !context.out.json {
        context.out.write_raw(&args.prompt)?;
    }
    let written = sampler::generate(&request, &mut |more| {
        text.push_str(more);
        if context.out.json { Ok(()) } else { context.out.write_raw(more) }
    })?;
    let tokens = written.tokens;
    let tokens_per_second = f64::from(tokens) / written.seconds.max(f64::MIN_POSITIVE);
    if context.out.json {
        let (trial, prompt) = (trial.row.label, args.prompt.clone());
        context.out.json("sample", &SampledText { trial, prompt, text, tokens, tokens_per_second })?;
    } else {
        context.out.bytes(b"\n")?;
        context.out.say(&format!(
            "{} in {:.2} s, {tokens_per_second:.0} tokens/s",
            counted(tokens.into(), "token"),
            written.seconds
        ));
    }
    Ok(ExitReason::Done)
}

/// Parameters of text generation.
pub(crate) struct SamplingParams {
    pub(crate) prompt: String,
    pub(crate) tokens: u32,
    pub(crate) temperature: f64,
    pub(crate) top_k: Option<u32>,
    pub(crate) top_p: Option<f64>,
    pub(crate) stop: Vec<String>,
    pub(crate) seed: u64,
}

/// Builds the request; the checkpoint is looked up only after the trial is known to be a text model.
pub(crate) fn sampling_request(
    trial: &TrialDetails,
    wish: SamplingParams,
    checkpoint: impl FnOnce() -> Result<PathBuf, CommandError>,
) -> Result<SampleRequest, CommandError> {
    let label = &trial.row.label;
    let recipe = recipe_of_trial(trial)?;
    let (Model::Decoder(_), Some(data)) = (&recipe.model, recipe.data) else {
        return Err(CommandError::new(
            ExitReason::Usage,
            format!("{label} is not a decoder; only decoders write text"),
        ));
    };
    Ok(SampleRequest {
        model: recipe.model,
        data,
        data_root: plan_of_trial(trial)?.data_root,
        checkpoint: checkpoint()?,
        prompt: wish.prompt,
        tokens: wish.tokens,
        temperature: wish.temperature,
        top_k: wish.top_k,
        top_p: wish.top_p,
        stop: wish.stop,
        seed: wish.seed,
        threads: threads(),
    })
}

/// Returns the model of a trial with its checkpoint at `step`, or the newest. `Err` if `is_fit` rejects the
/// model with a reason.
pub(crate) fn trained_checkpoint(
    context: &Context,
    trial: &TrialDetails,
    step: Option<u64>,
    is_fit: impl FnOnce(&Model) -> Result<(), String>,
) -> Result<(TrainedModel, StepId), CommandError> {
    let label = &trial.row.label;
    let recipe = recipe_of_trial(trial)?;
    is_fit(&recipe.model)
        .map_err(|reason| CommandError::new(ExitReason::Usage, format!("{label} {reason}")))?;
    let Some(data) = recipe.data else {
        return Err(CommandError::new(
            ExitReason::Usage,
            format!("{label} is a program that reads its own data"),
        ));
    };
    let checkpoint = find_checkpoint::find_intact(context, trial, CheckpointSelector::of(step.map(StepId)))?;
    let trained = TrainedModel {
        model: recipe.model,
        data,
        data_root: plan_of_trial(trial)?.data_root,
        checkpoint: checkpoint.folder,
        threads: threads(),
    };
    Ok((trained, checkpoint.step))
}

fn threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
}
