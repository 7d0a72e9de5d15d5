//! Slurm: jobs that run this program, and the nodes of the current job.
//!
//! A job runs the very command that the user typed. Inside the job, the nodes are hosts like any other:
//! `srun` starts the relay of each in a step of its own.
//!
//! Two facts differ from SSH. All nodes share one state folder: a node's state is in its `hosts/NODE`, whose
//! `checkpoints` links to the trial's, so each node saves its part there and the leader alone commits. And
//! the scheduler owns the processes: an agent ends with its relay, and ranks leave the signals of a
//! preemption to the agent, which saves. The script of a job is `exec "$@"`, with the arguments of the
//! command. `slurm/JOB.trial` names the trial that a requeued job continues; `trials/ID/job` names the job
//! that `attach` and `stop` on the login node follow.

mod allocation;
mod sbatch;

pub use allocation::Allocation;
pub use sbatch::Submission;

use crate::files;
use crate::{Home, durable};
use dtrain_protocol::TrialId;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The id of a Slurm job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobId(pub String);

impl std::fmt::Display for JobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error from a Slurm program or from a job's files.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// A Slurm program cannot be started.
    #[error("cannot start {program}")]
    NoProgram {
        /// Name of the program.
        program: &'static str,
        /// The cause of the failure.
        #[source]
        source: io::Error,
    },
    /// A Slurm program failed.
    #[error("{program}: {reason}")]
    Refused {
        /// Name of the program.
        program: &'static str,
        /// Output of the program, as the reason.
        reason: String,
    },
    /// A file of the state folder cannot be used.
    #[error("cannot use {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The cause of the failure.
        #[source]
        source: io::Error,
    },
}

/// State of a Slurm job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// The job waits in the queue.
    Waiting {
        /// The reason for the wait, as Slurm prints it.
        reason: String,
        /// Number of times that the job was restarted.
        restarts: u32,
    },
    /// The job is running.
    Running,
    /// The job has ended.
    Over {
        /// The final state, as Slurm prints it.
        word: String,
        /// Exit code of the job's script, and the signal that ended it, or 0.
        exit: (u8, u8),
    },
}

/// Returns the folder with the output files of jobs.
fn jobs_folder(home: &Home) -> PathBuf {
    home.path().join("slurm")
}

/// Returns the paths of a job's standard output and standard error.
pub fn outputs(home: &Home, job: &JobId) -> [PathBuf; 2] {
    ["out", "err"].map(|end| jobs_folder(home).join(format!("{job}.{end}")))
}

/// Asks Slurm for the state of a job; `None` if Slurm no longer knows it.
pub fn state(job: &JobId) -> Result<Option<JobState>, SlurmError> {
    let mut command = Command::new("scontrol");
    command.args(["--oneliner", "show", "job"]).arg(&job.0);
    match run_command("scontrol", &mut command) {
        Ok(text) => Ok(parse_state(&text)),
        Err(SlurmError::Refused { reason, .. }) if reason.contains("Invalid job id") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns `true` if this user has waiting or running jobs.
pub(crate) fn has_jobs() -> Result<bool, SlurmError> {
    let mut command = Command::new("squeue");
    command.args(["--noheader", "--me", "--format=%i"]);
    Ok(!run_command("squeue", &mut command)?.trim().is_empty())
}

/// Parses the state of a job in a line of `scontrol --oneliner show job`.
fn parse_state(line: &str) -> Option<JobState> {
    let field = |name: &str| {
        line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let word = field("JobState")?;
    Some(match word {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" => JobState::Waiting {
            reason: field("Reason").unwrap_or("None").to_owned(),
            restarts: field("Restarts").and_then(|n| n.parse().ok()).unwrap_or(0),
        },
        "RUNNING" | "CONFIGURING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "STAGE_OUT"
        | "RESIZING" => JobState::Running,
        _ => {
            let (code, signal) =
                field("ExitCode").and_then(|exit| exit.split_once(':')).unwrap_or(("1", "0"));
            let exit = (code.parse().unwrap_or(1), signal.parse().unwrap_or(0));
            JobState::Over { word: word.to_owned(), exit }
        }
    })
}

/// Makes a requeued job start in three seconds; otherwise Slurm delays it by two minutes.
///
/// Not at once: a node refuses a job that it killed within the same second.
pub fn release(job: &JobId) -> Result<(), SlurmError> {
    let mut command = Command::new("scontrol");
    command.arg("update").arg(format!("JobId={job}")).arg("StartTime=now+3seconds");
    run_command("scontrol", &mut command).map(drop)
}

/// Asks the program of a job to finish its step, save and stop; removes a waiting job from the queue.
pub fn stop(job: &JobId) -> Result<(), SlurmError> {
    match state(job)? {
        Some(JobState::Running) => {
            let mut command = Command::new("scancel");
            command.args(["--batch", "--signal=INT"]).arg(&job.0);
            run_command("scancel", &mut command).map(drop)
        }
        Some(JobState::Waiting { .. }) => cancel(job),
        Some(JobState::Over { .. }) | None => Ok(()),
    }
}

/// Cancels a job.
pub fn cancel(job: &JobId) -> Result<(), SlurmError> {
    run_command("scancel", Command::new("scancel").arg(&job.0)).map(drop)
}

/// Stores the id of the job that trains a trial, or will train it.
pub fn remember(home: &Home, trial: &TrialId, job: &JobId) -> Result<(), SlurmError> {
    write_file(home.trial(trial).job(), &job.0)
}

fn write_file(path: PathBuf, text: &str) -> Result<(), SlurmError> {
    let write = files::make_folder(path.parent().unwrap_or(&path))
        .and_then(|()| durable::atomic_write(&path, text.as_bytes()));
    write.map_err(|source| SlurmError::File { path, source })
}

/// Returns the job that last trained a trial, or will train it next.
pub fn job_of(home: &Home, trial: &TrialId) -> Option<JobId> {
    let text = files::read_to_string(&home.trial(trial).job()).ok()?;
    Some(JobId(text.trim().to_owned())).filter(|job| !job.0.is_empty())
}

/// Returns the nodes that have a state folder in `home`, sorted by name.
pub fn nodes(home: &Home) -> Vec<(String, Home)> {
    let Ok(folders) = fs::read_dir(home.hosts()) else { return Vec::new() };
    let names = folders.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut nodes: Vec<_> = names.map(|name| (name.clone(), home.host(&name))).collect();
    nodes.sort_by(|(a, _), (b, _)| a.cmp(b));
    nodes
}

/// Runs a Slurm program and returns its standard output, or its standard error if that is empty.
fn run_command(program: &'static str, command: &mut Command) -> Result<String, SlurmError> {
    run_command_with_input(program, command, b"")
}

fn run_command_with_input(
    program: &'static str,
    command: &mut Command,
    input: &[u8],
) -> Result<String, SlurmError> {
    let wrong = |source| SlurmError::NoProgram { program, source };
    // Ctrl-C must reach this program only.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(wrong)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that reads no input explains that in its output.
        drop(stdin.write_all(input));
    }
    let output = child.wait_with_output().map_err(wrong)?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        let reason = if err.trim().is_empty() { out } else { err };
        return Err(SlurmError::Refused { program, reason: reason.trim().replace('\n', "; ") });
    }
    Ok(if out.trim().is_empty() { err.into_owned() } else { out.into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "JobId=7 JobName=tiny UserId=root(0) Priority=1 JobState=FAILED Reason=NonZeroExitCode \
        Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=5:0 RunTime=00:00:03";

    #[test]
    fn what_became_of_a_job_is_read() {
        let over = JobState::Over { word: "FAILED".into(), exit: (5, 0) };
        assert_eq!(parse_state(LINE), Some(over));
        let line = LINE.replace("FAILED", "PENDING").replace("NonZeroExitCode", "BeginTime");
        let waiting = JobState::Waiting { reason: "BeginTime".into(), restarts: 1 };
        assert_eq!(parse_state(&line.replace("Restarts=0", "Restarts=1")), Some(waiting));
        assert_eq!(parse_state(&LINE.replace("FAILED", "COMPLETING")), Some(JobState::Running));
        assert_eq!(parse_state("slurm_load_jobs error"), None);
    }
}
