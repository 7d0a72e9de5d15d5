//! What is put into the queue.

use super::{JobId, SlurmError, ask, ask_with, jobs};
use crate::Home;
use crate::transport::ProgramDigest;
use dtrain_recipes::Slurm;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The script of every job: it becomes the program that its arguments name.
const SCRIPT: &str = "#!/bin/sh\nexec \"$@\"\n";

/// Seconds before the end of a job's time at which it is told.
const BEFORE_THE_END: u32 = 120;

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
        // It gives the job a number that the real one does not get.
        Ok(said.trim().find("to start").map_or_else(|| said.trim(), |at| &said.trim()[at..]).to_owned())
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
