//! Text generation with a trained decoder, in a worker process.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use crate::model_query::{data_refused, query_worker, threads, worker_failed};
use crate::trials::{plan_of_trial, recipe_of_trial};
use dtrain_protocol::{GenerationStats, SampleRequest, SampleResponse};
use dtrain_recipes::Model;
use dtrain_runner::ledger::TrialDetails;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Continues the prompt of `request`, and passes on the text piece by piece. Returns the number of tokens,
/// and the seconds that they took.
pub(crate) fn generate(
    request: &SampleRequest,
    more: &mut dyn FnMut(&str) -> Result<(), CommandError>,
) -> Result<GenerationStats, CommandError> {
    let mut done = GenerationStats::default();
    let what = "the model could not write";
    let failed = worker_failed(what);
    query_worker("sample", request, &failed, &mut |answer| match answer {
        SampleResponse::Text(text) => more(&text).map(ControlFlow::Continue),
        SampleResponse::Done(written) => {
            done = written;
            Ok(ControlFlow::Break(()))
        }
        SampleResponse::Refused(reason) => Err(data_refused(what, reason)),
        SampleResponse::Failed(reason) => Err(failed(reason)),
    })?;
    Ok(done)
}

/// Parameters of text generation, as the user gave them.
pub(crate) struct SamplingParams {
    pub(crate) prompt: String,
    pub(crate) tokens: u32,
    pub(crate) temperature: f64,
    pub(crate) top_k: Option<u32>,
    pub(crate) top_p: Option<f64>,
    pub(crate) stop: Vec<String>,
    pub(crate) seed: u64,
}

/// Builds the request to generate text. The checkpoint is looked up only once the trial is known to be a
/// decoder.
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
