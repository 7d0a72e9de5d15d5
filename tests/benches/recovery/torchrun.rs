//! The same training by PyTorch, under torchrun.

use super::lab::Lab;
use super::shared::Step;
use super::training::Training;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The script.
const SCRIPT: &str = include_str!("train.py");

/// Its version.
pub(crate) fn version(python: &Path) -> String {
    let words = ["-c", "import torch; print(torch.__version__)"];
    let output = Command::new(python).args(words).output().expect("it was found");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Two ranks on this machine.
pub(crate) fn here(python: &Path) -> Training {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("train.py");
    fs::write(&script, SCRIPT).expect("room on disk");
    let mut command = Command::new(python);
    command.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]);
    command.args(["--max-restarts", "1000"]).arg(script).arg(folder.path());
    Training::start(&mut command, step, process_of, folder)
}

/// A rank on each of two hosts, of which one may be lost. Both meet at the first, whose steps are the ones that are heard.
pub(crate) fn on_hosts(python: &Path, lab: &Lab) -> Training {
    let mut hosts = ["node1", "node2"].map(|host| {
        lab.put(host, "train.py", SCRIPT);
        let address = lab.address(host).to_string();
        let meet = format!("{}:29400", lab.address("node1"));
        let mut command = lab.on(host, python);
        command
            .args(["-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"])
            .args(["--rdzv-backend", "c10d", "--rdzv-id", "recovery", "--rdzv-endpoint", &meet])
            .args(["--local-addr", &address, "--max-restarts", "1000", "train.py", "."])
            .env("GLOO_SOCKET_IFNAME", "eth0");
        command
    });
    let other = hosts[1].stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let other = other.expect("it starts");
    Training::start(&mut hosts[0], step, process_of, other)
}

/// The step that a line of the script's output tells of.
fn step(line: &str) -> Option<Step> {
    let mut words = line.strip_prefix("step ")?.split(' ');
    let rank = words.next()?.parse().ok()?;
    let life = words.next()?.parse().ok()?;
    let number = words.next()?.parse().ok()?;
    Some(Step { life, rank, number, at_ms: words.next()?.parse().ok()? })
}

/// The process that last completed a step as this rank.
fn process_of(seen: &[Step], rank: u32) -> u32 {
    let last = seen.iter().rev().find(|step| step.rank == rank).expect("each rank made steps");
    u32::try_from(last.life).expect("it is the number of a process")
}
