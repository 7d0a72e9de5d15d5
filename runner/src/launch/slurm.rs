//! Slurm: jobs that run this program, and the nodes of the job that it runs in.
//!
//! A job runs the very command that was typed. Inside of it, the nodes are hosts like any other: the far end of each is started
//! with `srun`, in a step of its own, and what it started ends with it. State lies in a folder that all nodes see.

use super::relay::{Dial, RemoteHost};
use crate::transport::ProgramDigest;
use crate::{Home, durable};
use dtrain_protocol::TrialId;
use dtrain_recipes::Slurm;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The script of every job: it becomes the program that its arguments name.
const SCRIPT: &str = "#!/bin/sh\nexec \"$@\"\n";

/// Seconds before the end of a job's time at which it is told.
const BEFORE_THE_END: u32 = 120;

/// Most bytes of what `srun` said that are kept.
const LAST_WORDS: usize = 2048;

/// A job by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobId(pub String);

impl std::fmt::Display for JobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why Slurm did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// A program of Slurm cannot be started.
    #[error("cannot start {program}")]
    NoProgram {
        /// Its name.
        program: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It was asked and refused.
    #[error("{program}: {reason}")]
    Refused {
        /// The program of Slurm.
        program: &'static str,
        /// What it said.
        reason: String,
    },
    /// A file of the state folder cannot be used.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// What a job came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It waits in the queue.
    Waiting {
        /// Why, in Slurm's word.
        reason: String,
        /// How often it ran before.
        restarts: u32,
    },
    /// It runs.
    Running,
    /// It is over.
    Over {
        /// Slurm's word for how.
        word: String,
        /// Exit code of its script, and the signal that ended it, or 0.
        exit: (u8, u8),
    },
}

/// What a job is to run.
#[derive(Clone, Debug)]
pub struct Submission<'a> {
    /// Its name in the queue.
    pub name: &'a str,
    /// What to ask Slurm for.
    pub slurm: &'a Slurm,
    /// The state folder, which the nodes see under the same path.
    pub home: &'a Home,
    /// The program; a copy of it in the state folder is what runs.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: &'a [OsString],
    /// The folder it runs in.
    pub folder: &'a Path,
}

impl Submission<'_> {
    /// When and where Slurm would start it, in its own words; nothing is submitted.
    pub fn expected(&self) -> Result<String, SlurmError> {
        let mut command = self.sbatch();
        command.arg("--test-only").arg("--wrap=true");
        // It speaks on standard error.
        let said = ask("sbatch", &mut command)?;
        Ok(said.trim().trim_start_matches("sbatch: ").to_owned())
    }

    /// Puts it into the queue.
    pub fn submit(&self) -> Result<JobId, SlurmError> {
        let jobs = jobs(self.home);
        fs::create_dir_all(&jobs).map_err(|source| SlurmError::File { path: jobs.clone(), source })?;
        let program = self.copy_program()?;
        let mut command = self.sbatch();
        // An argument that is empty or begins with `-` is the script's, as all after its name are.
        command.arg("/dev/stdin").arg(program).args(self.arguments);
        let said = ask_with("sbatch", &mut command, SCRIPT.as_bytes())?;
        let number = said.lines().last().unwrap_or("").split(';').next().unwrap_or("").trim();
        Ok(JobId(number.to_owned()))
    }

    fn sbatch(&self) -> Command {
        let jobs = jobs(self.home);
        let file = |end: &str| {
            let mut path = jobs.join("%j").into_os_string();
            path.push(end);
            path
        };
        let mut command = Command::new("sbatch");
        command.args(["--parsable", "--ntasks-per-node=1", "--requeue", "--no-kill", "--open-mode=append"]);
        command.arg(format!("--signal=B:USR1@{BEFORE_THE_END}"));
        command.arg(format!("--nodes={}", self.slurm.nodes));
        command.arg(format!("--job-name={}", self.name));
        command.arg(joined("--chdir=", self.folder.as_os_str()));
        command.arg(joined("--output=", &file(".out"))).arg(joined("--error=", &file(".err")));
        if let Some(partition) = &self.slurm.partition {
            command.arg(format!("--partition={partition}"));
        }
        if let Some(account) = &self.slurm.account {
            command.arg(format!("--account={account}"));
        }
        if !self.slurm.options.iter().any(|option| is_of_cpus_or_memory(option)) {
            // A plan is made for whole nodes.
            command.args(["--exclusive", "--mem=0"]);
        }
        if let Some(time) = self.slurm.time {
            command.arg(format!("--time={}", (time.0 / 60.0).ceil().max(1.0)));
        }
        command.args(&self.slurm.options);
        command
    }

    /// The program under its hash, so that a job that waits long starts what was meant.
    fn copy_program(&self) -> Result<PathBuf, SlurmError> {
        let wrong = |path: &Path| {
            let path = path.to_owned();
            move |source| SlurmError::File { path, source }
        };
        let digest = ProgramDigest::of(self.program).map_err(wrong(self.program))?;
        let folder = self.home.path().join("bin").join(digest.to_string());
        let copy = folder.join("dtrain");
        if !copy.exists() {
            fs::create_dir_all(&folder).map_err(wrong(&folder))?;
            let fresh = folder.join(format!("dtrain.{}", std::process::id()));
            fs::copy(self.program, &fresh)
                .and_then(|_| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)))
                .and_then(|()| fs::rename(&fresh, &copy))
                .map_err(wrong(&copy))?;
        }
        Ok(copy)
    }
}

/// Whether an option of sbatch says how much of a node the job gets.
fn is_of_cpus_or_memory(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or(option);
    matches!(name, "--mem" | "--mem-per-cpu" | "--mem-per-gpu" | "--exclusive" | "--oversubscribe" | "-s")
        || name.starts_with("--cpus-per-")
        || option.starts_with("-c")
}

fn joined(option: &str, value: &OsStr) -> OsString {
    let mut whole = OsString::from(option);
    whole.push(value);
    whole
}

/// Where the jobs of a state folder write.
fn jobs(home: &Home) -> PathBuf {
    home.path().join("slurm")
}

/// What a job wrote to standard output, and to standard error.
pub fn outputs(home: &Home, job: &JobId) -> [PathBuf; 2] {
    ["out", "err"].map(|end| jobs(home).join(format!("{job}.{end}")))
}

/// What became of a job; `None` when Slurm no longer knows it.
pub fn state(job: &JobId) -> Result<Option<JobState>, SlurmError> {
    let mut command = Command::new("scontrol");
    command.args(["--oneliner", "show", "job"]).arg(&job.0);
    match ask("scontrol", &mut command) {
        Ok(text) => Ok(parse_state(&text)),
        Err(SlurmError::Refused { reason, .. }) if reason.contains("Invalid job id") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a line of `scontrol --oneliner show job`.
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

/// Lets a job that was queued again start soon: Slurm makes it wait two minutes otherwise.
///
/// Not at once: a node refuses a job that it killed within the same second.
pub fn release(job: &JobId) -> Result<(), SlurmError> {
    let mut command = Command::new("scontrol");
    command.arg("update").arg(format!("JobId={job}")).arg("StartTime=now+3seconds");
    ask("scontrol", &mut command).map(drop)
}

/// Lets the program of a job finish its step, save and stop; a job that waits is taken out of the queue.
pub fn stop(job: &JobId) -> Result<(), SlurmError> {
    match state(job)? {
        Some(JobState::Running) => {
            let mut command = Command::new("scancel");
            command.args(["--batch", "--signal=INT"]).arg(&job.0);
            ask("scancel", &mut command).map(drop)
        }
        Some(JobState::Waiting { .. }) => cancel(job),
        Some(JobState::Over { .. }) | None => Ok(()),
    }
}

/// Ends a job.
pub fn cancel(job: &JobId) -> Result<(), SlurmError> {
    ask("scancel", Command::new("scancel").arg(&job.0)).map(drop)
}

/// The job that this process runs in.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Its number.
    pub job: JobId,
    /// Whether it ran before and was queued again.
    pub is_restarted: bool,
    nodes: String,
}

impl Allocation {
    /// Of the environment; `None` outside of a job.
    pub fn of_environment() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self {
            job: JobId(variable("SLURM_JOB_ID")?),
            nodes: variable("SLURM_JOB_NODELIST")?,
            is_restarted: variable("SLURM_RESTART_COUNT").is_some_and(|count| count != "0"),
        })
    }

    /// Its nodes as hosts, each reached in a step of its own, which runs `program`. Their own state lies in folders of `home`.
    pub fn hosts(&self, program: &Path, home: &Home) -> Result<Vec<RemoteHost>, SlurmError> {
        let mut command = Command::new("scontrol");
        command.args(["show", "hostnames"]).arg(&self.nodes);
        let names = ask("scontrol", &mut command)?;
        let host = |name: &str| {
            let (job, program, home) = (self.job.clone(), program.to_owned(), home.clone());
            let step = Step { node: name.to_owned(), job, program, home, last_words: Arc::default() };
            RemoteHost::new(name, Box::new(step))
        };
        Ok(names.split_ascii_whitespace().map(host).collect())
    }

    /// The trial that this job trained before it was queued again.
    pub fn trial(&self, home: &Home) -> Option<String> {
        let text = fs::read_to_string(self.trial_file(home)).ok()?;
        Some(text.trim().to_owned()).filter(|id| !id.is_empty())
    }

    /// Remembers which trial this job trains.
    pub fn remember(&self, home: &Home, trial: &TrialId) -> Result<(), SlurmError> {
        keep(self.trial_file(home), &trial.0)?;
        remember(home, trial, &self.job)
    }

    /// Puts the job into the queue again, which ends this process.
    pub fn requeue(&self) -> Result<(), SlurmError> {
        ask("scontrol", Command::new("scontrol").arg("requeue").arg(&self.job.0)).map(drop)
    }

    fn trial_file(&self, home: &Home) -> PathBuf {
        jobs(home).join(format!("{}.trial", self.job))
    }
}

/// Remembers which job trains a trial, or will.
pub fn remember(home: &Home, trial: &TrialId, job: &JobId) -> Result<(), SlurmError> {
    keep(home.trial(trial).job(), &job.0)
}

fn keep(path: PathBuf, text: &str) -> Result<(), SlurmError> {
    let write = fs::create_dir_all(path.parent().unwrap_or(&path))
        .and_then(|()| durable::replace(&path, text.as_bytes()));
    write.map_err(|source| SlurmError::File { path, source })
}

/// The job that trained a trial last, or will train it next.
pub fn job_of(home: &Home, trial: &TrialId) -> Option<JobId> {
    let text = fs::read_to_string(home.trial(trial).job()).ok()?;
    Some(JobId(text.trim().to_owned())).filter(|job| !job.0.is_empty())
}

/// The nodes that have a state folder in `home`, with their names.
pub fn nodes(home: &Home) -> Vec<(String, Home)> {
    let Ok(folders) = fs::read_dir(home.hosts()) else { return Vec::new() };
    let names = folders.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut nodes: Vec<_> = names.map(|name| (name.clone(), home.host(&name))).collect();
    nodes.sort_by(|(a, _), (b, _)| a.cmp(b));
    nodes
}

/// A step of the job on one node.
struct Step {
    node: String,
    job: JobId,
    program: PathBuf,
    home: Home,
    /// What `srun` said last.
    last_words: Arc<Mutex<String>>,
}

impl Dial for Step {
    fn dial(&mut self) -> io::Result<UnixStream> {
        let (near, far) = UnixStream::pair()?;
        let far = OwnedFd::from(far);
        let mut command = Command::new("srun");
        command.args(["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--unbuffered"]);
        command.arg(format!("--jobid={}", self.job)).arg(format!("--nodelist={}", self.node));
        command.arg(&self.program).arg("--state").arg(self.home.host(&self.node).path());
        command.args(["agent", "--stdio", "--shared"]).arg(self.home.path());
        command.stdin(Stdio::from(far.try_clone()?)).stdout(Stdio::from(far)).stderr(Stdio::piped());
        // Ctrl-C is for this program alone.
        command.process_group(0);
        let mut child = command.spawn()?;
        let said = Arc::clone(&self.last_words);
        thread::spawn(move || {
            if let Some(mut stderr) = child.stderr.take() {
                listen(&mut stderr, &said);
            }
            drop(child.wait());
        });
        Ok(near)
    }

    fn last_words(&self) -> Option<String> {
        let said = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        Some(said.trim().replace('\n', "; ")).filter(|said| !said.is_empty())
    }
}

/// Keeps the end of what is said.
fn listen(from: &mut impl Read, said: &Mutex<String>) {
    let mut room = [0; 512];
    while let Ok(length) = from.read(&mut room)
        && length > 0
    {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.push_str(&String::from_utf8_lossy(&room[..length]));
        while said.len() > LAST_WORDS {
            said.remove(0);
        }
    }
}

/// Runs a program of Slurm and gives what it printed, on standard error where it printed nothing else.
fn ask(program: &'static str, command: &mut Command) -> Result<String, SlurmError> {
    ask_with(program, command, b"")
}

fn ask_with(program: &'static str, command: &mut Command, input: &[u8]) -> Result<String, SlurmError> {
    let wrong = |source| SlurmError::NoProgram { program, source };
    // Ctrl-C is for this program alone.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(wrong)?;
    if let Some(mut stdin) = child.stdin.take() {
        // Whoever reads no input says in its answer why not.
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
