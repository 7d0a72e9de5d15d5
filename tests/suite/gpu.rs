//! The program on GPUs, which are Mesa's software device here: ranks are processes with a device each.

use crate::kill::{card, kill};
use dtrain_protocol::{DeviceKind, Placement, Rank};
use dtrain_runner::ledger::History;
use dtrain_tests::{House, root};
use dtrain_worker::device;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Steps of a run.
const STEPS: u64 = 30;

/// Two ranks of the tiny recipe on `devices`, with optimizer state sharded.
fn command(house: &House, devices: &str) -> Command {
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let mut command = house.dtrain(["run", recipe.to_str().expect("UTF-8"), "--quiet", "--no-sample"]);
    for setting in [
        format!("cluster.devices=\"{devices}\""),
        format!("objective.stop={{ steps = {STEPS} }}"),
        "cluster.ranks=2".to_owned(),
        "layout.data=2".to_owned(),
        "layout.zero=1".to_owned(),
        "layout.shard=2".to_owned(),
        "layout.micro_batch=2".to_owned(),
        "checkpoint.every=\"5 steps\"".to_owned(),
    ] {
        command.args(["--set", &setting]);
    }
    command.env(device::SOFTWARE_GPUS, "2").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Losses of the newest trial by step, and how many attempts it took.
fn losses(house: &House) -> Option<(BTreeMap<u64, f64>, usize)> {
    let history = History::open_read_only(&house.history()).ok()?;
    let trial = history.find("last").ok()?;
    let attempts = history.series_by_attempt(&trial, "loss", Rank(0)).ok()?;
    let points = attempts.iter().flat_map(|(_, points)| points);
    Some((points.map(|point| (point.step, point.value)).collect(), attempts.len()))
}

#[test]
fn two_ranks_with_a_device_each_resume_after_one_was_killed() {
    let placement = Placement { host: 0, device: DeviceKind::Wgpu, index: 0, threads: 1 };
    if let Err(reason) = device::open(&placement) {
        return dtrain_skip::skip(reason);
    }
    let host = House::default();
    assert!(command(&host, "cpu").status().expect("it starts").success());
    let (expected, _) = losses(&host).expect("a trial");

    let house = House::default();
    let mut run = command(&house, "gpu").spawn().expect("it starts");
    let begun = Instant::now();
    while losses(&house).is_none_or(|(losses, _)| losses.len() < 10) {
        assert!(begun.elapsed() < Duration::from_secs(300), "it should train");
        sleep(Duration::from_millis(5));
    }
    let ranks = card(&house, &[]).expect("an agent").ranks;
    kill(ranks[1]);
    assert!(run.wait().expect("it ends").success());

    let (found, attempts) = losses(&house).expect("a trial");
    assert_eq!(attempts, 2, "a rank was killed in the middle");
    assert_eq!(found.len() as u64, STEPS);
    let worst = found.iter().map(|(step, loss)| ((loss - expected[step]) / loss).abs()).fold(0.0, f64::max);
    println!("largest relative difference of a loss over {STEPS} steps: {worst:.1e}");
    assert!(worst < 1e-3, "losses on devices differ from those on CPUs by {worst:.1e}");
}
