//! Checks of other hosts over SSH, in parallel.

use super::machine::engine_finding;
use super::{CheckStatus, Finding};
use dtrain_recipes::{Bytes, TrainingEngine};
use dtrain_runner::engine_environment::is_installed;
use dtrain_runner::transport::known_hosts::HostKeyError;
use dtrain_runner::transport::{Bastions, FACTS, Ssh, SshTarget, Transport, TransportError, User};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Findings about one host.
#[derive(Debug, Serialize)]
pub(super) struct HostReport {
    /// The host as the user typed it.
    pub(super) host: String,
    pub(super) checks: Vec<Finding>,
}

/// Checks every host in a thread of its own; returns the reports in the order of `hosts`.
pub(super) fn examine(hosts: &[String]) -> Vec<HostReport> {
    let (user, bastions) = (crate::hosts::ssh_user(), Bastions::default());
    std::thread::scope(|scope| {
        let running: Vec<_> =
            hosts.iter().map(|host| scope.spawn(|| checks(host, &user, &bastions))).collect();
        let results = running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| vec![crashed()]));
        hosts.iter().cloned().zip(results).map(|(host, checks)| HostReport { host, checks }).collect()
    })
}

fn crashed() -> Finding {
    Finding::bad("ssh", "the check itself failed", "run it again with RUST_BACKTRACE=1 and report the output")
}

fn checks(host: &str, user: &User, bastions: &Bastions) -> Vec<Finding> {
    let facts = SshTarget::parse(host, user)
        .and_then(|target| Ssh::through(&target, bastions))
        .and_then(|mut ssh| ssh.run(FACTS));
    match facts {
        Ok(output) if output.status == 0 => findings(&output.stdout, now()),
        Ok(output) => {
            let found = format!("the shell ended with {}: {}", output.status, output.stderr.trim());
            vec![Finding::bad("ssh", found, "dtrain needs a POSIX shell as `sh` on the host")]
        }
        Err(error) => vec![unreachable(&error)],
    }
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    i64::try_from(now).unwrap_or(i64::MAX)
}

fn unreachable(error: &TransportError) -> Finding {
    Finding::bad("ssh", crate::hosts::error_chain(error), fix(error))
}

fn fix(error: &TransportError) -> &'static str {
    match error {
        TransportError::Name(..) => "write it as [user@]host[:port]",
        TransportError::Connect { .. } => "check the name, the port, and that sshd runs there",
        TransportError::HostKey { problem: HostKeyError::Unknown, .. } => {
            "compare the fingerprint with the host's own, then accept it once with `ssh`"
        }
        TransportError::HostKey { .. } => "ask the host's administrator before you trust the new key",
        TransportError::KeyFile { .. } => {
            "let your user read it, or correct the SSH configuration that names it"
        }
        TransportError::Authentication { .. } => "add your key with ssh-copy-id, or load it into ssh-agent",
        TransportError::Config { .. } => "correct the SSH configuration until `ssh -G` reads it",
        TransportError::ProxyCommand { .. } => {
            "write `ProxyJump` in the SSH configuration in its place, or `transport = \"openssh\"` below `[cluster]`"
        }
        TransportError::Bastion { source, .. } => fix(source),
        TransportError::Tunnel { .. } => "check the name, the port, and that the bastion may forward to it",
        TransportError::Ssh { .. }
        | TransportError::Stream { .. }
        | TransportError::Program { .. }
        | TransportError::Command { .. }
        | TransportError::Room { .. }
        | TransportError::Damaged { .. }
        | TransportError::Unfit { .. } => "run `ssh` by hand for details",
    }
}

/// Converts the `key=value` lines that [`FACTS`] printed to findings; `now` is in seconds since the Unix
/// epoch.
fn findings(facts: &str, now: i64) -> Vec<Finding> {
    let text =
        |key: &str| facts.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or("");
    let kib = |key: &str| text(key).parse::<u64>().ok().map(|kib| Bytes(kib << 10));
    let mut found = vec![Finding::good("ssh", "host key known, and one of your keys accepted")];
    found.push(match (text("system"), text("machine")) {
        (system, machine) if system.starts_with("Linux") => {
            Finding::good("system", format!("{system} {machine}"))
        }
        (system, _) => Finding::bad("system", format!("`{system}`"), "dtrain runs on Linux"),
    });
    found.push(match text("cores").parse::<u32>() {
        Ok(cores) if cores > 0 => Finding::good("cores", format!("{cores}")),
        _ => Finding::poor("cores", "unknown", "install coreutils, which provides nproc"),
    });
    found.push(room("memory", kib("memory_kib"), 1 << 30, "a small model needs about 1 GiB"));
    found.push(room("free disk", kib("home_free_kib"), 1 << 30, "free some space in the home folder"));
    found.push(match text("clock").parse::<i64>() {
        Ok(clock) if (clock - now).abs() <= 30 => Finding::good("clock", "agrees with this machine's"),
        Ok(clock) => {
            Finding::bad("clock", format!("{} s off this machine's", clock - now), "synchronise it with NTP")
        }
        Err(_) => Finding::poor("clock", "unknown", "check with date"),
    });
    if let Some(program) = text("damaged_programs").split_whitespace().next() {
        found.push(Finding::poor(
            "program",
            format!("the copy of dtrain in ~/.cache/dtrain/bin/{program} is damaged, as by a loss of power"),
            "the next `dtrain run` on this host sends it again",
        ));
    }
    found.push(match (text("gpus"), text("cuda_headers")) {
        ("0" | "", _) => Finding::good("gpu", "no NVIDIA GPU"),
        // Another toolkit, and Python wheels, are looked for there.
        (gpus, "") => Finding::poor(
            "gpu",
            format!("NVIDIA GPUs: {gpus}, and no CUDA toolkit in /usr/local/cuda or /opt/cuda"),
            "`dtrain doctor` on that host looks for CUDA in other folders and in wheels of Python, and checks the driver",
        ),
        (gpus, _) => Finding::good("gpu", format!("NVIDIA GPUs: {gpus}, and CUDA headers")),
    });
    let versions: BTreeMap<String, String> = serde_json::from_str(text("engines")).unwrap_or_default();
    let installed = TrainingEngine::ALL.iter().filter(|engine| is_installed(**engine, &versions));
    found.extend(installed.map(|engine| engine_finding(*engine, &versions)));
    found
}

fn room(name: &'static str, found: Option<Bytes>, least: u64, fix: &str) -> Finding {
    match found {
        Some(bytes) if bytes.0 >= least => Finding::good(name, bytes.to_string()),
        Some(bytes) => Finding::bad(name, bytes.to_string(), fix),
        None => Finding::poor(name, "unknown", "check it by hand"),
    }
}

/// Returns the number of failed checks in all reports.
pub(super) fn count_failed(reports: &[HostReport]) -> usize {
    reports.iter().flat_map(|report| &report.checks).filter(|check| check.verdict == CheckStatus::Bad).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "system=Linux 6.1\nmachine=x86_64\ncores=8\nmemory_kib=16000000\nhome_free_kib=9000000\n\
                         clock=1000\ngpus=0\ncuda_headers=\n";

    fn verdict(facts: &str, name: &str) -> CheckStatus {
        findings(facts, 1010).into_iter().find(|check| check.name == name).expect("it is checked").verdict
    }

    #[test]
    fn each_fault_of_a_host_is_found() {
        assert!(findings(SOUND, 1010).iter().all(|check| check.verdict == CheckStatus::Good));
        for (good, bad, name) in [
            ("Linux 6.1", "Darwin 24", "system"),
            ("memory_kib=16000000", "memory_kib=1000", "memory"),
            ("home_free_kib=9000000", "home_free_kib=10", "free disk"),
            ("clock=1000", "clock=2000", "clock"),
        ] {
            assert_eq!(verdict(&SOUND.replace(good, bad), name), CheckStatus::Bad, "{bad}");
        }
        assert_eq!(verdict("", "cores"), CheckStatus::Poor);
        assert_eq!(verdict(&SOUND.replace("gpus=0", "gpus=2"), "gpu"), CheckStatus::Poor);
        assert_eq!(verdict(&format!("{SOUND}damaged_programs= 12ab\n"), "program"), CheckStatus::Poor);
    }

    #[test]
    fn a_dangerous_name_is_refused_before_anything_is_dialled() {
        let reports = examine(&["-oProxyCommand=x".into(), "a;b".into()]);
        assert_eq!(count_failed(&reports), 2);
    }
}
