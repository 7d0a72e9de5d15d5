//! Submission of a Slurm job to the queue with `sbatch`.

use super::{JobId, SlurmError, jobs_folder, run_command, run_command_with_input};
use crate::files;
use crate::transport::ProgramDigest;
use crate::{Home, provenance};
use dtrain_recipes::Slurm;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The script of every job: it executes its arguments as a command.
const SCRIPT: &str = "#!/bin/sh\nexec \"$@\"\n";

/// Seconds before the time limit at which Slurm sends its signal to the job.
const BEFORE_THE_END: u32 = 120;

/// Environment variables that a job gets from the submitting shell, besides those that configure training.
/// Any other may be a secret.
const VARIABLES: [&str; 13] = [
    "HOME",
    "LANG",
    "LOGNAME",
    "NO_COLOR",
    "PATH",
    "SHELL",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
];

/// Prefixes of the names of further environment variables that a job gets.
const FAMILIES: [&str; 2] = ["DTRAIN_", "LC_"];

/// A Slurm job to submit.
#[derive(Clone, Debug)]
pub struct Submission<'a> {
    /// Name of the job in the queue.
    pub name: &'a str,
    /// Resources and options to request from Slurm.
    pub slurm: &'a Slurm,
    /// The state folder, at the same path on all nodes.
    pub home: &'a Home,
    /// Path of the program; the job runs a copy of it from the state folder.
    pub program: &'a Path,
    /// Arguments of the program.
    pub arguments: &'a [OsString],
    /// Working directory of the job.
    pub folder: &'a Path,
}

impl Submission<'_> {
    /// Asks Slurm when and where the job would start, without submitting it.
    pub fn expected(&self) -> Result<String, SlurmError> {
        let mut command = self.sbatch();
        command.arg("--test-only").arg("--wrap=true");
        // `sbatch --test-only` prints on standard error.
        let said = run_command("sbatch", &mut command)?;
        // The printed job number is not that of the real job.
        Ok(said.trim().find("to start").map_or_else(|| said.trim(), |at| &said.trim()[at..]).to_owned())
    }

    /// Submits the job and returns its id.
    pub fn submit(&self) -> Result<JobId, SlurmError> {
        let jobs = jobs_folder(self.home);
        files::make_folder(&jobs).map_err(|source| SlurmError::File { path: jobs.clone(), source })?;
        let program = self.copy_program()?;
        let mut command = self.sbatch();
        // All arguments after the script's name belong to the script, even empty ones and options.
        command.arg("/dev/stdin").arg(program).args(self.arguments);
        let said = run_command_with_input("sbatch", &mut command, SCRIPT.as_bytes())?;
        let number = said.lines().last().unwrap_or("").split(';').next().unwrap_or("").trim();
        Ok(JobId(number.to_owned()))
    }

    fn sbatch(&self) -> Command {
        let jobs = jobs_folder(self.home);
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
        command.arg(self.export(std::env::vars_os().map(|(name, _)| name)));
        command.arg(joined("--chdir=", self.folder.as_os_str()));
        command.arg(joined("--output=", &file(".out"))).arg(joined("--error=", &file(".err")));
        if let Some(partition) = &self.slurm.partition {
            command.arg(format!("--partition={partition}"));
        }
        if let Some(account) = &self.slurm.account {
            command.arg(format!("--account={account}"));
        }
        if !self.slurm.options.iter().any(|option| is_of_cpus_or_memory(option)) {
            // A plan assumes whole nodes.
            command.args(["--exclusive", "--mem=0"]);
        }
        if let Some(time) = self.slurm.time {
            command.arg(format!("--time={}", (time.0 / 60.0).ceil().max(1.0)));
        }
        command.args(&self.slurm.options);
        command
    }

    /// Returns the sbatch option that lists the environment variables for the job. Slurm adds its own.
    fn export(&self, present: impl Iterator<Item = OsString>) -> String {
        let is_named = |name: &str| {
            VARIABLES.contains(&name)
                || provenance::VALUES.contains(&name)
                || FAMILIES.iter().any(|family| name.starts_with(family))
                || self.slurm.environment.iter().any(|wanted| wanted == name)
        };
        // A name with a comma or `=` would be read as several names or a value.
        let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let present = present.filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> =
            present.filter(|name| is_named(name) && is_plain(name) && !name.starts_with("SLURM_")).collect();
        names.sort_unstable();
        // Never empty: an empty list would export all. sbatch itself was found by PATH.
        format!("--export={}", if names.is_empty() { "PATH".to_owned() } else { names.join(",") })
    }

    /// Copies the program to a path that contains its hash, so that a waiting job starts this version.
    fn copy_program(&self) -> Result<PathBuf, SlurmError> {
        let wrong = |path: &Path| {
            let path = path.to_owned();
            move |source| SlurmError::File { path, source }
        };
        let digest = ProgramDigest::of(self.program).map_err(wrong(self.program))?;
        let folder = self.home.path().join("bin").join(digest.to_string());
        let copy = folder.join("dtrain");
        if !copy.exists() {
            files::make_folder(&folder).map_err(wrong(&folder))?;
            let fresh = folder.join(format!("dtrain.{}", std::process::id()));
            files::copy(self.program, &fresh)
                .and_then(|_| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)))
                .and_then(|()| fs::rename(&fresh, &copy))
                .map_err(wrong(&copy))?;
        }
        Ok(copy)
    }
}

/// Returns `true` if an sbatch option limits the job's CPUs or memory on a node.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_gets_variables_by_name_and_no_other() {
        let slurm = Slurm {
            nodes: 1,
            partition: None,
            account: None,
            time: None,
            options: Vec::new(),
            environment: vec!["HF_HOME".into(), "UNSET".into()],
        };
        let (home, path) = (Home::at("/state"), Path::new("/"));
        let submission =
            Submission { name: "a", slurm: &slurm, home: &home, program: path, arguments: &[], folder: path };
        let export = |names: &[&str]| submission.export(names.iter().map(OsString::from));
        let present = [
            "HF_TOKEN",
            "PATH",
            "HF_HOME",
            "AWS_SECRET_ACCESS_KEY",
            "HOME",
            "DTRAIN_TRAIN__SEED",
            "DTRAIN_A,HF_TOKEN",
            "LC_ALL",
            "OMP_NUM_THREADS",
            "OMP_PASSWORD",
            "SLURM_JOB_ID",
            "XDG_RUNTIME_DIR",
        ];
        let expected = "--export=DTRAIN_TRAIN__SEED,HF_HOME,HOME,LC_ALL,OMP_NUM_THREADS,PATH";
        assert_eq!(export(&present), expected);
        assert_eq!(export(&["HF_TOKEN"]), "--export=PATH");
    }
}
