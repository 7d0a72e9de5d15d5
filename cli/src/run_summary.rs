//! Summary at the end of a trial: results, a text sample, the next command, and the exit code.

use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::render::number::{accuracy, against, count, counted, loss, seconds, thousands};
use crate::render::plan::{planned_training, unit};
use crate::render::time_spent::TimeSpent;
use crate::run_mode::{RunMode, TrialRun};
use crate::sampler::{SamplingParams, sampling_request};
use crate::trials::history_failure;
use crate::{engine_failures, sampler, signals, slurm_job, trials, unigram, unreported_metrics};
use dtrain_planner::Plan;
use dtrain_protocol::{StopReason, TrialId};
use dtrain_recipes::{DataFormat, Model, Tokenizer};
use dtrain_runner::Verdict;
use dtrain_runner::driver::{self, DriveOutcome};
use dtrain_runner::ledger::{Checkpoint, History, TrialDetails};
use serde::Serialize;

/// Last JSON document that a command prints about a trial with `--json`.
#[derive(Serialize)]
struct RunResult<'a> {
    trial: &'a TrialId,
    label: &'a str,
    verdict: Option<&'a Verdict>,
    attempts: Option<u64>,
    checkpoint: Option<&'a std::path::Path>,
    /// Process id of the agent if the trial continues in the background; otherwise `None`.
    agent: Option<u32>,
    /// Process id of the controller in the background; `None` if the trial has ended.
    controller: Option<u32>,
}

/// Prints how a trial ended and the next command; returns the reason for the exit code.
pub(crate) fn print_result(
    context: &Context,
    history: &History,
    task: &TrialRun<'_>,
    ending: &DriveOutcome,
) -> CommandResult {
    let out = context.out;
    let label = task.label;
    let (verdict, attempts, checkpoint) = (None, None, None);
    let mut result = RunResult {
        trial: task.trial,
        label,
        verdict,
        attempts,
        checkpoint,
        agent: None,
        controller: driver::controller(&context.home, task.trial),
    };
    match ending {
        DriveOutcome::Detached { agent } => {
            result.agent = *agent;
            if out.json {
                out.json_line("result", &result)?;
            }
            let agent = agent.map_or(String::new(), |agent| format!(" (process {agent})"));
            let controller = result.controller.map_or(String::new(), |controller| {
                format!("; process {controller} supervises it until it ends")
            });
            out.say(&format!("{label} continues in the background{agent}{controller}"));
            out.next(&format!("dtrain attach {label}"));
            // A requested detach is a success; after a lost terminal the command is unfinished.
            Ok(if task.detach { ExitReason::Done } else { ExitReason::Detached })
        }
        DriveOutcome::Ended { verdict, checkpoint, attempts } => {
            result.verdict = Some(verdict);
            result.attempts = Some(*attempts);
            result.checkpoint = checkpoint.as_ref().map(|point| point.folder.as_path());
            if out.json {
                out.json_line("result", &result)?;
            }
            let trial = history
                .trial(task.trial, &|id| trials::activity(context, id))
                .map_err(|error| history_failure(&error))?;
            summary(context, task, &trial, verdict);
            print_next_step(context, task, &trial, verdict)
        }
    }
}

/// Prints the results of a trial from the history.
fn summary(context: &Context, task: &TrialRun<'_>, trial: &TrialDetails, verdict: &Verdict) {
    let out = context.out;
    let words = out.paint.bold(&format!("{} {}", task.label, verdict_text(verdict)));
    let step = trial.row.step;
    let steps = match planned_training(task.plan).steps_at(step) {
        Some(all) => format!("{} of {}", thousands(step), counted(all, "step")),
        None => counted(step, "step"),
    };
    out.say(&format!("{words} after {steps}"));
    let figure = |key: &str| trial.figure(key);
    if let Some(last) = figure("loss").and_then(|figure| figure.last) {
        let unit = if trial.is_script() { "" } else { " (nats)" };
        out.say(&format!("  training loss    {}{unit}", loss(last)));
    }
    if let Some(valid) = figure("valid.loss")
        && let Some(last) = valid.last
    {
        let best = match (valid.min, valid.min_step) {
            (Some(min), Some(step)) if min < last => format!("; best {} at step {step}", loss(min)),
            _ => String::new(),
        };
        out.say(&format!(
            "  validation loss  {}{}{best}",
            loss(last),
            bits_per_byte(context, task.plan, last)
        ));
    }
    if let Some(share) = figure("valid.accuracy").and_then(|figure| figure.last) {
        out.say(&format!("  accuracy         {}", accuracy(share, 1)));
    }
    if let Some(measured) = trial.row.step_seconds {
        let predicted = planned_training(task.plan).step_seconds;
        let speed = trial
            .row
            .tokens_per_second
            .filter(|speed| *speed > 0.0)
            .map_or(String::new(), |speed| format!(", {} {}/s in a step", count(speed), unit(task.plan)));
        let predicted = predicted.map_or(String::new(), |predicted| {
            format!(", {} ({})", against(measured, predicted), seconds(predicted))
        });
        out.say(&format!("  typical step     {}{predicted}{speed}", seconds(measured)));
    }
    if let Some(spent) = TimeSpent::of(trial, out.style().now_ms) {
        out.say(&format!("  time             {}", spent.summary(unit(task.plan))));
    }
    out.say(&format!("  history          {}", context.home.history().display()));
}

/// Formats ` = 2.61 bits per byte; knowing only how often each byte occurs gives 4.52`; empty unless the text
/// is byte-level.
fn bits_per_byte(context: &Context, plan: &Plan, nats: f64) -> String {
    let Some(data) = &plan.recipe.data else { return String::new() };
    let DataFormat::Text { tokenizer, .. } = &data.format else { return String::new() };
    let bits = std::f64::consts::LOG2_E;
    let alone = unigram::unigram_entropy(context, plan);
    match (tokenizer, alone) {
        (Tokenizer::Bytes, Some(alone)) => {
            format!(" = {:.2} bits/byte; unigram baseline: {:.2}", nats * bits, alone * bits)
        }
        (Tokenizer::Bpe(_) | Tokenizer::File(_), Some(alone)) => {
            format!("; unigram baseline: {}", loss(alone))
        }
        (_, None) => String::new(),
    }
}

pub(crate) fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Completed(StopReason::Complete) => "completed".to_owned(),
        Verdict::Completed(StopReason::Time) => "completed: time limit reached".to_owned(),
        Verdict::Completed(StopReason::Target) => "completed: target reached".to_owned(),
        Verdict::Completed(StopReason::Ordered) | Verdict::Stopped => "stopped".to_owned(),
        Verdict::Pruned => "was pruned".to_owned(),
        Verdict::OutOfMemory => "ran out of memory".to_owned(),
        Verdict::Diverged => "diverged".to_owned(),
        Verdict::Failed(failure) => format!("failed ({failure})"),
    }
}

/// Prints the text sample, the hint and the next command; returns the reason for the exit code.
fn print_next_step(
    context: &Context,
    task: &TrialRun<'_>,
    trial: &TrialDetails,
    verdict: &Verdict,
) -> CommandResult {
    let out = context.out;
    let label = task.label;
    let resumable = trial.checkpoints.iter().any(|saved| saved.refused.is_none());
    let failure = |message: String| {
        let failure = CommandError::new(ExitReason::WorkerFailed, message);
        if resumable || task.plan.recipe.runs_foreign_program() {
            failure
        } else {
            failure.cause("no checkpoint was saved before the failure")
        }
    };
    match verdict {
        Verdict::Completed(_) | Verdict::Pruned => {
            if *verdict == Verdict::Completed(StopReason::Complete)
                && let Some(failure) =
                    unreported_metrics::unreported_failure(context, &task.plan.recipe, trial, false)
            {
                return Err(failure);
            }
            if *verdict == Verdict::Completed(StopReason::Complete) {
                for warning in unreported_metrics::warnings(context, &task.plan.recipe, trial) {
                    out.say(&warning.warning(out.paint));
                }
            }
            show_sample(context, task, trial)?;
            let recipe = &task.plan.recipe;
            let is_text = matches!(recipe.model, Model::Decoder(_)) && recipe.engine.is_dtrain();
            let next =
                if is_text { format!("dtrain model sample {label}") } else { format!("dtrain show {label}") };
            out.next(&next);
            Ok(ExitReason::Done)
        }
        Verdict::Stopped => {
            slurm_job::requeue_if_its_time_is_over(&task.plan.recipe)?;
            out.next(&format!("dtrain resume {label}"));
            Ok(match task.how {
                RunMode::Stop => ExitReason::Done,
                RunMode::Start | RunMode::Resume | RunMode::Attach | RunMode::Supervise => {
                    signals::stop_exit()
                }
            })
        }
        Verdict::OutOfMemory => Err(failure(format!("{label} ran out of memory"))
            .hint("try a smaller layout.micro_batch, or layout.recompute = \"full\"")),
        Verdict::Diverged => Err(failure(format!("{label} diverged: its loss is not finite"))
            .hint("try a smaller train.learning_rate or a longer train.warmup")),
        Verdict::Failed(reason) => {
            let engine = task.plan.recipe.engine;
            let remedy = engine_failures::remedy(engine, label, reason);
            Err(failure(format!("{label} failed: {reason}")).hint(
                remedy.unwrap_or_else(|| format!("`dtrain logs {label}` shows the logs of its processes")),
            ))
        }
    }
}

/// Generates and prints a few words with a trained decoder, as a first impression of the model.
fn show_sample(context: &Context, task: &TrialRun<'_>, trial: &TrialDetails) -> Result<(), CommandError> {
    let out = context.out;
    let is_text =
        task.plan.recipe.data.as_ref().is_some_and(|data| matches!(data.format, DataFormat::Text { .. }));
    let recipe = &task.plan.recipe;
    let is_decoder = matches!(recipe.model, Model::Decoder(_)) && recipe.engine.is_dtrain();
    if task.sample == 0 || out.quiet || out.json || !is_text || !is_decoder {
        return Ok(());
    }
    let wish = SamplingParams {
        prompt: String::new(),
        tokens: task.sample,
        temperature: 0.8,
        top_k: None,
        top_p: None,
        stop: Vec::new(),
        seed: 0,
    };
    // A checkpoint is not copied from another host for a sample.
    let is_here = |saved: &&Checkpoint| saved.refused.is_none() && saved.folder.is_dir();
    let Some(newest) = trial.checkpoints.iter().rev().find(is_here) else { return Ok(()) };
    let Ok(request) = sampling_request(trial, wish, || Ok(newest.folder.clone())) else { return Ok(()) };
    let mut has_begun = false;
    let written = sampler::generate(&request, &mut |more| {
        if !std::mem::replace(&mut has_begun, true) {
            out.say("  sample:");
        }
        out.write_raw(more)
    });
    if has_begun {
        out.bytes(b"\n")?;
    }
    // Training is complete and saved, so a failed sample is only a warning.
    if let Err(failure) = written {
        out.say(&format!("  no sample: {}", failure.in_one_line()));
    }
    Ok(())
}
