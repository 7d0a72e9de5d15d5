//! The Slurm job that this process runs in, and its nodes as hosts.

use super::super::relay::{Connector, RemoteHost};
use super::{JobId, SlurmError, jobs_folder, remember, run_command, write_file};
use crate::Home;
use crate::files;
use dtrain_protocol::TrialId;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Maximum number of bytes to keep of the error output of `srun`.
const LAST_WORDS: usize = 2048;

/// The Slurm job that this process runs in.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Id of the job.
    pub job: JobId,
    /// True if the job has run before and was requeued.
    pub is_restarted: bool,
    nodes: String,
}

impl Allocation {
    /// Reads the job from the environment variables of Slurm; `None` outside of a job.
    pub fn of_environment() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self {
            job: JobId(variable("SLURM_JOB_ID")?),
            nodes: variable("SLURM_JOB_NODELIST")?,
            is_restarted: variable("SLURM_RESTART_COUNT").is_some_and(|count| count != "0"),
        })
    }

    /// Returns the job's nodes as hosts. Each runs `program` in its own job step, with its state in a folder
    /// of `home`.
    pub fn hosts(&self, program: &Path, home: &Home) -> Result<Vec<RemoteHost>, SlurmError> {
        let mut command = Command::new("scontrol");
        command.args(["show", "hostnames"]).arg(&self.nodes);
        let names = run_command("scontrol", &mut command)?;
        let host = |name: &str| {
            let (job, program, home) = (self.job.clone(), program.to_owned(), home.clone());
            let step = SrunStep { node: name.to_owned(), job, program, home, last_words: Arc::default() };
            RemoteHost::new(name, Box::new(step))
        };
        Ok(names.split_ascii_whitespace().map(host).collect())
    }

    /// Returns the trial that this job trained before it was requeued.
    pub fn trial(&self, home: &Home) -> Option<String> {
        let text = files::read_to_string(&self.trial_file(home)).ok()?;
        Some(text.trim().to_owned()).filter(|id| !id.is_empty())
    }

    /// Stores the trial that this job trains, for the case that the job is requeued.
    pub fn remember(&self, home: &Home, trial: &TrialId) -> Result<(), SlurmError> {
        write_file(self.trial_file(home), &trial.0)?;
        remember(home, trial, &self.job)
    }

    /// Requeues the job, which ends this process.
    pub fn requeue(&self) -> Result<(), SlurmError> {
        run_command("scontrol", Command::new("scontrol").arg("requeue").arg(&self.job.0)).map(drop)
    }

    fn trial_file(&self, home: &Home) -> PathBuf {
        jobs_folder(home).join(format!("{}.trial", self.job))
    }
}

/// A step of the Slurm job on one node, started with `srun`.
struct SrunStep {
    node: String,
    job: JobId,
    program: PathBuf,
    home: Home,
    /// The last error output of `srun`.
    last_words: Arc<Mutex<String>>,
}

impl Connector for SrunStep {
    fn dial(&mut self) -> io::Result<UnixStream> {
        let (near, far) = UnixStream::pair()?;
        let far = OwnedFd::from(far);
        let mut command = Command::new("srun");
        command.args(["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--unbuffered"]);
        command.arg(format!("--jobid={}", self.job)).arg(format!("--nodelist={}", self.node));
        command.arg(&self.program).arg("--state").arg(self.home.host(&self.node).path());
        command.args(["agent", "--stdio", "--shared"]).arg(self.home.path());
        command.stdin(Stdio::from(far.try_clone()?)).stdout(Stdio::from(far)).stderr(Stdio::piped());
        // Ctrl-C must reach this program only.
        command.process_group(0);
        let mut child = command.spawn()?;
        let said = Arc::clone(&self.last_words);
        thread::spawn(move || {
            if let Some(mut stderr) = child.stderr.take() {
                keep_stderr_tail(&mut stderr, &said);
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

/// Keeps the last bytes of the error output of `srun`.
fn keep_stderr_tail(from: &mut impl Read, said: &Mutex<String>) {
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
