//! Slurm jobs: submission of a command as a job, and display of its output.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::run_mode::RunMode;
use crate::{signals, this_host};
use dtrain_protocol::TrialId;
use dtrain_recipes::{LauncherKind, Recipe, Slurm};
use dtrain_runner::files;
use dtrain_runner::launch::slurm::{self, Allocation, JobId, JobState, SlurmError, Submission};
use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval between two queries of a job's state.
const ASK: Duration = Duration::from_secs(1);

/// Interval between two checks for new output of a job.
const LOOK: Duration = Duration::from_millis(100);

/// Returns the Slurm allocation in which this command runs; `None` if the recipe does not use Slurm.
pub(crate) fn own_allocation(recipe: &Recipe) -> Option<Allocation> {
    Allocation::of_environment().filter(|_| recipe.cluster.launcher == LauncherKind::Slurm)
}

/// Returns the trial that this job trained before Slurm requeued it; `None` if the job is new.
pub(crate) fn trial_of_requeued_job(context: &Context, recipe: &Recipe) -> Option<String> {
    own_allocation(recipe).filter(|job| job.is_restarted).and_then(|job| job.trial(&context.home))
}

/// Submits this command as a job, and follows it, if the recipe uses Slurm and the command runs outside a
/// job; `None` if the command should run here.
pub(crate) fn submit_if_needed(
    context: &Context,
    recipe: &Recipe,
    detach: bool,
) -> Result<Option<ExitReason>, CommandError> {
    let Some(slurm) = slurm_config(recipe) else { return Ok(None) };
    let typed = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    // The state folder may come from a variable that is not set in the job.
    let is_state =
        |argument: &OsString| argument == "--state" || argument.as_encoded_bytes().starts_with(b"--state=");
    let state = (!std::env::args_os().any(|argument| is_state(&argument))).then(|| state_option(context));
    let arguments: Vec<OsString> = state.into_iter().flatten().chain(typed).collect();
    let job = submit(context, recipe, slurm, &arguments)?;
    follow_or_detach(context, &job, detach).map(Some)
}

/// Like [`submit_if_needed`], for a command that resumes a trial.
pub(crate) fn submit_resume_if_needed(
    context: &Context,
    recipe: &Recipe,
    trial: &TrialId,
    detach: bool,
) -> Result<Option<ExitReason>, CommandError> {
    let Some(slurm) = slurm_config(recipe) else { return Ok(None) };
    let flags = [("--json", context.out.json), ("--quiet", context.out.quiet)];
    let flags = flags.into_iter().filter(|(_, is_said)| *is_said).map(|(flag, _)| flag);
    // The job gets the trial's id: `last` may be another trial when the job starts.
    let words = flags.chain(["resume", &trial.0]).map(OsString::from);
    let arguments: Vec<OsString> = state_option(context).into_iter().chain(words).collect();
    let job = submit(context, recipe, slurm, &arguments)?;
    slurm::remember(&context.home, trial, &job).map_err(|error| slurm_failed(&error))?;
    follow_or_detach(context, &job, detach).map(Some)
}

/// Returns the Slurm settings of a recipe; `None` if it does not use Slurm, or within a job.
fn slurm_config(recipe: &Recipe) -> Option<&Slurm> {
    recipe.cluster.slurm.as_ref().filter(|_| Allocation::of_environment().is_none())
}

fn state_option(context: &Context) -> [OsString; 2] {
    ["--state".into(), context.home.path().into()]
}

fn submit(
    context: &Context,
    recipe: &Recipe,
    slurm: &Slurm,
    arguments: &[OsString],
) -> Result<JobId, CommandError> {
    let no_folder = |error: std::io::Error| {
        CommandError::new(ExitReason::Infrastructure, "cannot find this program or its folder")
            .cause(error.to_string())
    };
    let program = std::env::current_exe().map_err(no_folder)?;
    let folder = std::env::current_dir().map_err(no_folder)?;
    let submission = Submission {
        name: &recipe.name,
        slurm,
        home: &context.home,
        program: &program,
        arguments,
        folder: &folder,
    };
    let expected = submission.expected().map_err(|error| slurm_failed(&error))?;
    let job = submission.submit().map_err(|error| slurm_failed(&error))?;
    context.out.say(&format!("job {} submitted; Slurm expects: {expected}", context.out.paint.bold(&job.0)));
    Ok(job)
}

fn follow_or_detach(context: &Context, job: &JobId, detach: bool) -> Result<ExitReason, CommandError> {
    if detach {
        context.out.next(&format!("squeue --job {job}"));
        return Ok(ExitReason::Done);
    }
    follow_job(context, job, RunMode::Start)
}

/// Returns the job that trains a trial; `None` if there is none, or this command runs in it.
pub(crate) fn job_of_trial(context: &Context, trial: &TrialId) -> Option<JobId> {
    let job = slurm::job_of(&context.home, trial)?;
    Allocation::of_environment().is_none_or(|own| own.job != job).then_some(job)
}

/// Returns `true` if the job of a trial is pending or running; `None` if the trial has no job.
pub(crate) fn is_alive(home: &dtrain_runner::Home, trial: &TrialId) -> Option<bool> {
    let job = slurm::job_of(home, trial)?;
    // Without Slurm on this machine the state is unknown: it may be running.
    Some(matches!(slurm::state(&job), Ok(Some(JobState::Waiting { .. } | JobState::Running)) | Err(_)))
}

/// Prints a job's output until the job ends, and returns its exit reason. For a job that existed before, only
/// new output is printed. Ctrl-C makes the job save and stop, a second one kills it; a viewer just detaches.
pub(crate) fn follow_job(context: &Context, job: &JobId, how: RunMode) -> Result<ExitReason, CommandError> {
    let interrupts = signals::listen()?;
    let is_new = matches!(how, RunMode::Start | RunMode::Resume);
    let mut outputs = slurm::outputs(&context.home, job).map(|path| GrowingFile::of(path, is_new));
    let mut shown = String::new();
    let (mut asked, mut stopped) = (None::<Instant>, 0);
    if how == RunMode::Stop {
        slurm::stop(job).map_err(|error| slurm_failed(&error))?;
    }
    loop {
        let now = match asked {
            Some(asked) if asked.elapsed() < ASK => None,
            _ => {
                asked = Some(Instant::now());
                Some(slurm::state(job))
            }
        };
        outputs[0].show(&mut std::io::stdout());
        if !context.out.quiet {
            outputs[1].show(&mut std::io::stderr());
        }
        let words = match &now {
            Some(Ok(Some(JobState::Waiting { reason, restarts }))) => {
                let words = format!("job {job} is pending: {reason}");
                if *restarts > 0 && reason == "BeginTime" && words != shown {
                    // If releasing it is not allowed, the job starts later by itself.
                    drop(slurm::release(job));
                }
                words
            }
            Some(Ok(Some(JobState::Running))) => format!("job {job} is running"),
            Some(Ok(Some(JobState::Over { word, exit }))) => return exit_of_job(job, word, *exit),
            // The Slurm controller may be unreachable for a while; jobs continue.
            Some(Err(error)) => format!("job {job}: {error}"),
            Some(Ok(None)) => {
                return Err(CommandError::new(
                    ExitReason::Infrastructure,
                    format!("Slurm no longer knows job {job}"),
                )
                .hint("`dtrain history` lists what it trained"));
            }
            None => shown.clone(),
        };
        if words != shown {
            context.out.say(&words);
            shown = words;
        }
        match interrupts.count() {
            count if count == stopped => {}
            _ if how == RunMode::Attach => {
                context.out.say(&format!("job {job} continues in the background"));
                return Ok(ExitReason::Detached);
            }
            1 => slurm::stop(job).map_err(|error| slurm_failed(&error))?,
            _ => slurm::cancel(job).map_err(|error| slurm_failed(&error))?,
        }
        stopped = interrupts.count();
        std::thread::sleep(LOOK);
    }
}

/// Returns the exit reason for the end of a job: state `word`, exit code and signal.
fn exit_of_job(job: &JobId, word: &str, (code, signal): (u8, u8)) -> Result<ExitReason, CommandError> {
    match (word, ExitReason::from_exit_code(code)) {
        ("COMPLETED", _) => Ok(ExitReason::Done),
        ("CANCELLED", _) => Ok(ExitReason::Interrupted),
        ("TIMEOUT" | "PREEMPTED" | "NODE_FAIL" | "BOOT_FAIL" | "DEADLINE" | "REVOKED", _) => {
            Err(CommandError::new(ExitReason::Preempted, format!("Slurm ended job {job}: {word}"))
                .hint("`dtrain resume` continues from its newest checkpoint"))
        }
        ("FAILED", Some(exit)) if signal == 0 => Ok(exit),
        _ => {
            let cause = format!("{word}, exit code {code}, signal {signal}");
            Err(CommandError::new(ExitReason::Infrastructure, format!("job {job} failed")).cause(cause))
        }
    }
}

fn slurm_failed(error: &SlurmError) -> CommandError {
    let failure = CommandError::of(ExitReason::Infrastructure, error);
    match error {
        SlurmError::NoProgram { .. } => {
            failure.hint("the launcher \"slurm\" needs Slurm's programs on this machine; `--set cluster.launcher=local` trains here")
        }
        SlurmError::Refused { .. } => failure.hint("compare `sinfo` with `cluster.slurm` in the recipe"),
        SlurmError::File { .. } => failure.hint("the state folder must be shared by all nodes"),
    }
}

/// Connects to the hosts of the job in which this command runs.
pub(crate) fn hosts_of(
    context: &Context,
) -> Result<Vec<dtrain_runner::launch::relay::RemoteHost>, CommandError> {
    let Some(allocation) = Allocation::of_environment() else {
        return Err(CommandError::new(
            ExitReason::Usage,
            "Slurm nodes can be reached only from inside a job",
        ));
    };
    let program = this_host::program()?;
    let nodes = allocation.hosts(&program, &context.home).map_err(|error| slurm_failed(&error))?;
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    context.out.say(&format!("job {}: {}", allocation.job, names.join(", ")));
    Ok(nodes)
}

/// Records which trial this job trains.
pub(crate) fn record_job_trial(
    context: &Context,
    recipe: &Recipe,
    trial: &TrialId,
) -> Result<(), CommandError> {
    own_allocation(recipe)
        .map_or(Ok(()), |job| job.remember(&context.home, trial))
        .map_err(|error| slurm_failed(&error))
}

/// Requeues the job in which this command runs if its time limit is near.
pub(crate) fn requeue_if_its_time_is_over(recipe: &Recipe) -> Result<(), CommandError> {
    match own_allocation(recipe).filter(|_| signals::last_stop_signal() == Some(signals::TIME_IS_OVER)) {
        Some(job) => job.requeue().map_err(|error| slurm_failed(&error)),
        None => Ok(()),
    }
}

/// A growing file, with the position up to which it was printed.
struct GrowingFile {
    path: PathBuf,
    offset: u64,
}

impl GrowingFile {
    fn of(path: PathBuf, is_new: bool) -> Self {
        let offset = if is_new { 0 } else { path.metadata().map_or(0, |found| found.len()) };
        Self { path, offset }
    }

    /// Prints content that is new since the last call. Read errors are ignored; a later call retries.
    fn show(&mut self, to: &mut impl Write) {
        let Ok(mut file) = files::open(&self.path) else { return };
        let mut fresh = Vec::new();
        if file.seek(SeekFrom::Start(self.offset)).and_then(|_| file.read_to_end(&mut fresh)).is_ok() {
            self.offset += fresh.len() as u64;
            drop(to.write_all(&fresh).and_then(|()| to.flush()));
        }
    }
}
