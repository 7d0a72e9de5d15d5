//! Drives a trial to its end with somebody watching, and says how it ended.

use crate::commands::model::{Wish, data_root, request, visible};
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::render::number::{against, count, counted, loss, seconds};
use crate::render::plan::unit;
use crate::render::progress::{Expected, Progress};
use crate::trials::ledger;
use crate::{hosts, job, sampler, signals, trials, unigram};
use dtrain_planner::{Launch, Plan, PlanError, PlanRequest, lower, model_digest};
use dtrain_protocol::{Assignment, HostFacts, Rates, StopReason, TrialId};
use dtrain_recipes::{Choice, DataFormat, Model, Samples, Tokenizer};
use dtrain_runner::driver::{self, Outcome as Ending};
use dtrain_runner::launch::{ClusterLauncher, Launcher};
use dtrain_runner::ledger::{History, Trial};
use dtrain_runner::{
    Drive, DriveError, Interrupts, Launching, Observer, OnInterrupt, Options, Seen, Verdict,
};
use serde::Serialize;
use std::num::NonZeroU32;
use std::sync::Arc;

/// How a trial is taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// It was never launched.
    Start,
    /// It goes on from what still runs, or from its newest checkpoint.
    Resume,
    /// It is watched.
    Attach,
    /// It is watched until it has stopped.
    Stop,
}

/// A trial and its plan.
pub(crate) struct Task<'a> {
    pub(crate) trial: &'a TrialId,
    pub(crate) label: &'a str,
    pub(crate) plan: &'a Plan,
    pub(crate) how: How,
    pub(crate) detach: bool,
    /// Tokens of the sample at the end.
    pub(crate) sample: u32,
}

/// Drives a trial, then tells how it ended.
pub(crate) fn drive(context: &Context, history: &mut History, task: &Task<'_>) -> Outcome {
    let ending = follow(context, history, task)?;
    tell(context, history, task, &ending)
}

/// Drives a trial with a progress display; how it ended is the caller's to tell.
pub(crate) fn follow(context: &Context, history: &mut History, task: &Task<'_>) -> Result<Ending, Failure> {
    watch(context, history, task)?.map_err(|error| drive_failure(&error, task.label))
}

/// Watches a trial until it has stopped, unless another terminal does; tells whether it was this one.
pub(crate) fn watch_stopping(
    context: &Context,
    history: &mut History,
    task: &Task<'_>,
) -> Result<bool, Failure> {
    match watch(context, history, task)? {
        Ok(ending) => tell(context, history, task, &ending).map(|_| true),
        Err(DriveError::Busy { .. } | DriveError::NothingRuns(_)) => Ok(false),
        Err(error) => Err(drive_failure(&error, task.label)),
    }
}

/// Writes down how trials ended that ran on without a controller; starts nothing, and leaves alone what runs.
///
/// What cannot be read now is left for `resume`, which says why.
pub(crate) fn catch_up(context: &Context) {
    if !context.home.history().exists() {
        return;
    }
    let Ok(mut history) = History::open(&context.home.history()) else { return };
    let mut open: Vec<TrialId> =
        history.open_attempts().unwrap_or_default().into_iter().map(|(trial, _)| trial).collect();
    open.dedup();
    open.retain(|trial| !trials::is_alive(context, trial));
    for trial in &open {
        let Ok(known) = history.trial(trial, &|_| false) else { continue };
        let Ok(plan) = serde_json::from_value::<Plan>(known.plan) else { continue };
        let label = known.row.label.as_str();
        let task = Task { trial, label, plan: &plan, how: How::Attach, detach: false, sample: 0 };
        // A trial that was lost in the middle is nobody's news: it is listed as lost.
        drop(run(context, &mut history, &task, &mut |_: &Seen| {}, Arc::default()));
    }
}

/// Drives a trial with a progress display.
fn watch(
    context: &Context,
    history: &mut History,
    task: &Task<'_>,
) -> Result<Result<Ending, DriveError>, Failure> {
    let interrupts = signals::listen()?;
    let mut progress = Progress::new(context.out, expected(task.plan));
    let ending = run(context, history, task, &mut progress, interrupts);
    progress.finish();
    ending
}

fn run(
    context: &Context,
    history: &mut History,
    task: &Task<'_>,
    observer: &mut dyn Observer,
    interrupts: Arc<Interrupts>,
) -> Result<Result<Ending, DriveError>, Failure> {
    let programs = hosts::programs()?;
    let options = Options {
        detach: task.detach,
        on_interrupt: if task.how == How::Attach { OnInterrupt::Leave } else { OnInterrupt::Stop },
        stop: task.how == How::Stop,
        keep: task.plan.recipe.checkpoint.keep,
        ..Options::default()
    };
    let others = match task.how {
        How::Start => hosts::of(context, &task.plan.recipe)?,
        How::Resume | How::Attach | How::Stop => hosts::that_answer(context, &task.plan.recipe)?,
    };
    let is_job = task.plan.recipe.cluster.slurm.is_some();
    let launcher = (!others.is_empty()).then(|| -> Box<dyn Launcher> {
        let launcher = ClusterLauncher::new(task.trial, &context.home.trial(task.trial), others);
        Box::new(if is_job { launcher.sharing(&context.home) } else { launcher })
    });
    let rates = history
        .rates(&task.plan.host, &model_digest(&task.plan.recipe.model))
        .map_err(|error| ledger(&error))?;
    let spell_out = |launching: &Launching| assignments(task, rates.as_ref(), launching);
    let drive = Drive {
        home: &context.home,
        trial: task.trial,
        lower: &spell_out,
        programs: &programs,
        launcher,
        options: &options,
        ledger: history,
        observer,
        interrupts,
    };
    Ok(match task.how {
        How::Start => driver::start(drive),
        How::Resume => driver::resume(drive),
        How::Attach | How::Stop => driver::attach(drive),
    })
}

/// What every rank of an attempt must know: by the plan, or where fewer hosts answer than it was made for, by a plan for those.
fn assignments(
    task: &Task<'_>,
    rates: Option<&Rates>,
    launching: &Launching,
) -> Result<Vec<Assignment>, String> {
    let time = task.plan.recipe.objective.stop.time;
    let launch = Launch {
        trial: task.trial.clone(),
        attempt: launching.attempt,
        checkpoints: launching.checkpoints.clone(),
        resume: launching.from.clone(),
        seconds_left: time.map(|time| (time.0 - launching.spent_seconds).max(0.0)),
    };
    let planned = task.plan.host.hosts.get();
    if launching.hosts >= planned {
        return Ok(lower(task.plan, task.plan.best(), &launch));
    }
    let mut fewer = (1..=launching.hosts).rev().filter_map(NonZeroU32::new);
    let plan = fewer.find_map(|hosts| on_hosts(task.plan, hosts, rates).ok()).ok_or_else(|| {
        let found = counted(launching.hosts.into(), "host");
        format!("{found} of {planned} responded, and no layout fits on so few")
    })?;
    Ok(lower(&plan, plan.best(), &launch))
}

/// The plan for as many of the hosts: what is trained stays as it is, how it is cut does not.
fn on_hosts(plan: &Plan, hosts: NonZeroU32, rates: Option<&Rates>) -> Result<Plan, PlanError> {
    let best = &plan.best().candidate;
    let mut recipe = plan.recipe.clone();
    recipe.train.batch = Choice::Pinned(Samples(best.split.global()));
    recipe.train.learning_rate = Choice::Pinned(best.learning_rate);
    // A foreign command keeps its ranks for each host; of our own models the planner finds the best number.
    let each = best.arrangement.layout.world() / plan.host.hosts.get();
    recipe.cluster.ranks = matches!(recipe.model, Model::Command(_)).then(|| each * hosts.get());
    dtrain_planner::plan(&PlanRequest {
        recipe: &recipe,
        host: &HostFacts { hosts, ..plan.host.clone() },
        rates,
        observations: &[],
        data_root: plan.data_root.clone(),
        train_samples: plan.train_samples,
        valid_samples: plan.valid_samples,
        seed: plan.seed,
        program: &plan.program,
    })
}

fn expected(plan: &Plan) -> Expected {
    let best = plan.best();
    Expected {
        steps: best.pace.steps.unwrap_or(best.pace.schedule_steps),
        step_seconds: best.estimate.as_ref().map(|estimate| estimate.step.0),
        unit: unit(plan),
    }
}

fn drive_failure(error: &DriveError, label: &str) -> Failure {
    match error {
        DriveError::Busy { .. } => {
            Failure::of(Exit::Usage, error).hint(format!("`dtrain logs {label} --follow` follows its logs"))
        }
        DriveError::NothingRuns(_) => Failure::new(Exit::Usage, format!("{label} is not running"))
            .hint(format!("`dtrain resume {label}` continues from its newest checkpoint")),
        DriveError::Launched(_) => {
            Failure::of(Exit::Usage, error).hint(format!("`dtrain resume {label}` resumes it"))
        }
        DriveError::Away { .. } => Failure::of(Exit::Infrastructure, error)
            .hint(format!("it may still be running; `dtrain attach {label}` tries again")),
        DriveError::Ledger(_) | DriveError::Folder { .. } | DriveError::Unreachable(_) => {
            Failure::of(Exit::Infrastructure, error).hint("`dtrain doctor` checks the state folder")
        }
    }
}

/// The last document of `--json`.
#[derive(Serialize)]
struct Result_<'a> {
    trial: &'a TrialId,
    label: &'a str,
    verdict: Option<&'a Verdict>,
    attempts: Option<u64>,
    checkpoint: Option<&'a std::path::Path>,
    /// PID of the agent, when the trial goes on without a controller.
    agent: Option<u32>,
}

/// Says how it ended, and what to type next.
fn tell(context: &Context, history: &History, task: &Task<'_>, ending: &Ending) -> Outcome {
    let out = context.out;
    let label = task.label;
    let mut result =
        Result_ { trial: task.trial, label, verdict: None, attempts: None, checkpoint: None, agent: None };
    match ending {
        Ending::Detached { agent } => {
            result.agent = *agent;
            if out.json {
                out.json_line("result", &result)?;
            }
            let process = agent.map_or(String::new(), |agent| format!(" (process {agent})"));
            out.say(&format!("{label} continues in the background{process}"));
            out.next(&format!("dtrain attach {label}"));
            Ok(Exit::Detached)
        }
        Ending::Ended { verdict, checkpoint, attempts } => {
            result.verdict = Some(verdict);
            result.attempts = Some(*attempts);
            result.checkpoint = checkpoint.as_ref().map(|point| point.folder.as_path());
            if out.json {
                out.json_line("result", &result)?;
            }
            let trial = history
                .trial(task.trial, &|id| trials::is_alive(context, id))
                .map_err(|error| ledger(&error))?;
            summary(context, task, &trial, verdict);
            ended(context, task, &trial, verdict)
        }
    }
}

/// What it came to, in numbers from the history.
fn summary(context: &Context, task: &Task<'_>, trial: &Trial, verdict: &Verdict) {
    let out = context.out;
    let words = out.paint.bold(&format!("{} {}", task.label, verdict_words(verdict)));
    let of = match expected(task.plan).steps {
        0 => String::new(),
        steps => format!(" of {steps}"),
    };
    out.say(&format!("{words} after {}{of} steps", trial.row.step));
    let figure = |key: &str| trial.figures.iter().find(|figure| figure.key == key && figure.rank.0 == 0);
    if let Some(last) = figure("loss").and_then(|figure| figure.last) {
        out.say(&format!("  training loss    {} (nats)", loss(last)));
    }
    if let Some(valid) = figure("valid.loss")
        && let Some(last) = valid.last
    {
        let best = match (valid.min, valid.min_step) {
            (Some(min), Some(step)) if min < last => format!("; best {} at step {step}", loss(min)),
            _ => String::new(),
        };
        out.say(&format!("  validation loss  {}{}{best}", loss(last), in_bits(context, task.plan, last)));
    }
    if let Some(accuracy) = figure("valid.accuracy").and_then(|figure| figure.last) {
        out.say(&format!("  accuracy         {:.1}%", accuracy * 100.0));
    }
    if let Some(measured) = trial.row.step_seconds {
        let predicted = expected(task.plan).step_seconds;
        let speed = trial
            .row
            .tokens_per_second
            .filter(|speed| *speed > 0.0)
            .map_or(String::new(), |speed| format!(", {} {}/s", count(speed), unit(task.plan)));
        let predicted = predicted.map_or(String::new(), |predicted| {
            format!(", {} ({})", against(measured, predicted), seconds(predicted))
        });
        out.say(&format!("  speed            {}/step{predicted}{speed}", seconds(measured)));
    }
    out.say(&format!("  history          {}", context.home.history().display()));
}

/// ` = 2.61 bits per byte; knowing only how often each byte occurs gives 4.52`, for text read byte by byte.
fn in_bits(context: &Context, plan: &Plan, nats: f64) -> String {
    let Some(data) = &plan.recipe.data else { return String::new() };
    let DataFormat::Text { tokenizer } = &data.format else { return String::new() };
    let bits = std::f64::consts::LOG2_E;
    let alone = unigram::entropy(context, plan);
    match (tokenizer, alone) {
        (Tokenizer::Bytes, Some(alone)) => {
            format!(" = {:.2} bits/byte; unigram baseline: {:.2}", nats * bits, alone * bits)
        }
        (Tokenizer::Bpe(_), Some(alone)) => {
            format!("; unigram baseline: {}", loss(alone))
        }
        (_, None) => String::new(),
    }
}

fn verdict_words(verdict: &Verdict) -> String {
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

/// The sample, the hint, the next command and the exit code.
fn ended(context: &Context, task: &Task<'_>, trial: &Trial, verdict: &Verdict) -> Outcome {
    let out = context.out;
    let label = task.label;
    let resumable = trial.checkpoints.iter().any(|saved| saved.refused.is_none());
    let failure = |message: String| {
        let failure = Failure::new(Exit::WorkerFailed, message);
        if resumable { failure } else { failure.cause("no checkpoint was saved before the failure") }
    };
    match verdict {
        Verdict::Completed(_) | Verdict::Pruned => {
            show_sample(context, task, trial)?;
            let is_text = matches!(task.plan.recipe.model, Model::Decoder(_));
            let next =
                if is_text { format!("dtrain model sample {label}") } else { format!("dtrain show {label}") };
            out.next(&next);
            Ok(Exit::Done)
        }
        Verdict::Stopped => {
            job::requeue_if_its_time_is_over(&task.plan.recipe)?;
            out.next(&format!("dtrain resume {label}"));
            Ok(match task.how {
                How::Stop => Exit::Done,
                _ if signals::is_taken_away() => Exit::Preempted,
                _ => Exit::Interrupted,
            })
        }
        Verdict::OutOfMemory => Err(failure(format!("{label} ran out of memory"))
            .hint("try a smaller layout.micro_batch, or layout.recompute = \"full\"")),
        Verdict::Diverged => Err(failure(format!("{label} diverged: its loss is not finite"))
            .hint("try a smaller train.learning_rate or a longer train.warmup")),
        Verdict::Failed(reason) => Err(failure(format!("{label} failed: {reason}"))
            .hint(format!("`dtrain logs {label}` shows the logs of its processes"))),
    }
}

/// Lets a decoder write a few words, so that a person sees what it learned.
fn show_sample(context: &Context, task: &Task<'_>, trial: &Trial) -> Result<(), Failure> {
    let out = context.out;
    let is_text =
        task.plan.recipe.data.as_ref().is_some_and(|data| matches!(data.format, DataFormat::Text { .. }));
    let is_decoder = matches!(task.plan.recipe.model, Model::Decoder(_));
    if task.sample == 0 || out.quiet || out.json || !is_text || !is_decoder {
        return Ok(());
    }
    let wish = Wish { prompt: String::new(), tokens: task.sample, temperature: 0.8, top_k: None, seed: 0 };
    let Ok(request) = request(trial, wish) else { return Ok(()) };
    debug_assert_eq!(data_root(trial), task.plan.data_root, "plan and history name one folder");
    out.say("  sample:");
    let written = sampler::write(&request, &mut |more| out.bytes(visible(more).as_bytes()));
    out.bytes(b"\n")?;
    // The training is done and kept; a sample that fails takes nothing from it.
    if let Err(failure) = written {
        out.say(&failure.render(out.paint));
    }
    Ok(())
}
