//! Ways to run a fixed command on a host and talk to it.
//!
//! A command is always one of the constants of [`Script`]; values travel over standard input, never in a
//! shell string. Two ways: [`Child`] on this machine, [`ssh::Ssh`] on another.

pub mod known_hosts;
pub mod ssh;

use std::io::{self, Write};
use std::process::{Command, Stdio};

/// A fixed program for a remote POSIX shell, sent over its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script(pub(crate) &'static str);

/// The command line that every transport runs; the script follows on standard input.
pub const SHELL: &str = "exec sh -s";

/// Prints what `doctor` wants to know of a host, a `key=value` on each line.
pub const FACTS: Script = Script(
    r#"LC_ALL=C; export LC_ALL
echo "system=$(uname -sr)"
echo "machine=$(uname -m)"
echo "cores=$(nproc 2>/dev/null || echo 0)"
echo "memory_kib=$(awk '/^MemTotal/ {print $2}' /proc/meminfo 2>/dev/null)"
echo "home_free_kib=$(df -Pk "$HOME" 2>/dev/null | awk 'NR==2 {print $4}')"
echo "shm_free_kib=$(df -Pk /dev/shm 2>/dev/null | awk 'NR==2 {print $4}')"
echo "clock=$(date +%s)"
echo "gpus=$(ls -d /proc/driver/nvidia/gpus/* 2>/dev/null | wc -l)"
echo "cuda_headers=$(ls /usr/local/cuda/include/cuda_runtime.h /opt/cuda/include/cuda_runtime.h 2>/dev/null | head -n 1)"
"#,
);

/// What a command left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit status.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A way to run a script on a host.
pub trait Transport {
    /// Runs `script` to its end. An exit status other than 0 is not an error here.
    fn run(&mut self, script: Script) -> Result<Output, TransportError>;
}

/// This machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Child;

impl Transport for Child {
    fn run(&mut self, script: Script) -> Result<Output, TransportError> {
        let failed = |source| TransportError::Stream { host: "this machine".into(), source };
        let mut child = Command::new("sh")
            .args(["-c", SHELL])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(script.0.as_bytes()).map_err(failed)?;
        }
        let output = child.wait_with_output().map_err(failed)?;
        Ok(Output {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// Why a host could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The name or address cannot be used at all.
    #[error("`{0}` is not a host: {1}")]
    Name(String, &'static str),
    /// No connection.
    #[error("cannot connect to {host}")]
    Connect {
        /// Host and port.
        host: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The host's key is not to be trusted.
    #[error("{host}: {problem}; its key is {fingerprint}")]
    HostKey {
        /// Host and port.
        host: String,
        /// Unknown, changed or revoked.
        problem: known_hosts::Distrust,
        /// SHA-256 of the key, as `ssh-keygen -l` prints it.
        fingerprint: String,
    },
    /// No key of ours was accepted.
    #[error("{host} accepted none of the keys tried for user {user}: {tried}")]
    Authentication {
        /// Host and port.
        host: String,
        /// User name.
        user: String,
        /// What was tried.
        tried: String,
    },
    /// SSH failed.
    #[error("ssh to {host} failed while {doing}")]
    Ssh {
        /// Host and port.
        host: String,
        /// What was tried.
        doing: &'static str,
        /// Why not.
        #[source]
        source: ssh2::Error,
    },
    /// The stream failed.
    #[error("the connection to {host} failed")]
    Stream {
        /// Host.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_tells_its_facts() {
        let output = Child.run(FACTS).expect("there is a shell");
        assert_eq!(output.status, 0, "{}", output.stderr);
        let cores = output.stdout.lines().find_map(|line| line.strip_prefix("cores=")).expect("a line");
        assert!(cores.parse::<u32>().expect("a number") >= 1);
    }
}
