//! `dtrain model sample`: continues a prompt with a trained model.

use crate::args::SampleArgs;
use crate::checkpoint_sources::CheckpointSelector;
use crate::command_error::CommandResult;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::find_checkpoint;
use crate::render::number::counted;
use crate::sampler::{SamplingParams, sampling_request};
use crate::{sampler, trials};
use serde::Serialize;

#[derive(Serialize)]
struct SampledText {
    trial: String,
    prompt: String,
    text: String,
    tokens: u32,
    tokens_per_second: f64,
}

/// Continues a prompt with the model in the newest checkpoint of a trial.
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
