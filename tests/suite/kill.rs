//! Kills a worker, the agent, the controller, or all of them, at any moment: nothing is lost.
//!
//! `DTRAIN_KILLS=30 tests/run kill` kills each of them at 30 moments, `tests/run kill` at 3, and all tests together at 1.

use dtrain_protocol::{Rank, shuffle};
use dtrain_runner::control_protocol::AgentCard;
use dtrain_runner::ledger::History;
use dtrain_runner::process::Process;
use dtrain_tests::{TestEnv, digest, is_named, newest_checkpoint, root};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Worker,
    Agent,
    Controller,
    All,
}

/// The run whose end every other must reach.
struct Reference {
    weights: String,
    losses: BTreeMap<u64, f64>,
    lasts: Duration,
}

fn recipe() -> String {
    root().join("tests/data/tiny/recipe.toml").to_str().expect("the path is UTF-8").to_owned()
}

fn arguments(recipe: &str) -> Vec<&str> {
    let mut all = vec!["run", recipe, "--quiet", "--no-sample"];
    all.extend([
        "--set",
        "objective.stop={ steps = 1500 }",
        "--set",
        "cluster.ranks=2",
        "--set",
        "layout.data=2",
    ]);
    all.extend(["--set", "checkpoint.every=\"100 steps\""]);
    all
}

/// Losses by step of the newest trial, the last attempt winning.
fn losses(house: &TestEnv) -> BTreeMap<u64, f64> {
    let history = History::open_read_only(&house.history()).expect("a history");
    let trial = history.find("last").expect("a trial");
    let points = history.series(&trial, "loss", Rank(0)).expect("losses");
    points.iter().map(|point| (point.step, point.value)).collect()
}

/// Everything acknowledged about the newest trial: (attempt, step) → loss.
fn acknowledged(house: &TestEnv) -> BTreeMap<(u64, u64), f64> {
    let Ok(history) = History::open_read_only(&house.history()) else { return BTreeMap::new() };
    let Ok(trial) = history.find("last") else { return BTreeMap::new() };
    let points = history.series_by_attempt(&trial, "loss", Rank(0)).expect("losses");
    let flat = points.iter().flat_map(|(attempt, points)| points.iter().map(move |point| (attempt.0, point)));
    flat.map(|(attempt, point)| ((attempt, point.step), point.value)).collect()
}

fn trials(house: &TestEnv) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(house.state().join("trials")) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The agent of the newest trial and its ranks, when there is one.
pub(crate) fn card(house: &TestEnv, before: &[PathBuf]) -> Option<AgentCard> {
    let new = trials(house).into_iter().find(|trial| !before.contains(trial))?;
    serde_json::from_slice(&fs::read(new.join("agent.json")).ok()?).ok()
}

pub(crate) fn kill(process: Process) {
    let Some(id) = i32::try_from(process.id).ok().and_then(rustix::process::Pid::from_raw) else { return };
    if is_alive(process) {
        rustix::process::kill_process(id, rustix::process::Signal::KILL).ok();
    }
}

/// Whether the process runs and is the one that was meant, not a later one with its number.
fn is_alive(process: Process) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", process.id)) else { return false };
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    fields.first() != Some(&"Z") && fields.get(19).and_then(|f| f.parse().ok()) == Some(process.started)
}

fn start(house: &TestEnv, recipe: &str) -> Child {
    house.dtrain(arguments(recipe)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
}

/// Processes of this house that still run, by the state folder in their environment.
fn left(house: &TestEnv) -> Vec<String> {
    let marker = format!("DTRAIN_STATE={}", house.state().display());
    let entries = fs::read_dir("/proc").expect("there is /proc");
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let environment = fs::read(path.join("environ")).ok()?;
            let is_ours = environment.split(|byte| *byte == 0).any(|pair| pair == marker.as_bytes());
            is_ours.then(|| path.display().to_string())
        })
        .collect()
}

/// Kills `victim` after `delay`, brings the trial to its end, and checks that nothing was lost.
fn strike(house: &TestEnv, reference: &Reference, victim: Victim, delay: Duration) {
    let recipe = recipe();
    let before = trials(house);
    let mut controller = start(house, &recipe);
    sleep(delay);
    let card = card(house, &before);
    let ranks = card.as_ref().map(|card| card.ranks.clone()).unwrap_or_default();
    if matches!(victim, Victim::Worker | Victim::All) {
        let nth = usize::try_from(delay.as_millis()).unwrap_or(0);
        let some: Vec<_> = if victim == Victim::All {
            ranks.clone()
        } else {
            ranks.iter().copied().cycle().skip(nth % 2).take(1).collect()
        };
        some.into_iter().for_each(kill);
    }
    if matches!(victim, Victim::Agent | Victim::All)
        && let Some(card) = &card
    {
        kill(card.agent);
    }
    if matches!(victim, Victim::Controller | Victim::All) {
        controller.kill().expect("it is ours to kill");
    }
    let status = controller.wait().expect("it ends");
    let at = format!("{victim:?} killed after {delay:?}");
    if trials(house).len() == before.len() {
        return; // it died before there was a trial: nothing was promised
    }
    let promised = acknowledged(house);
    if status.code() != Some(0) {
        assert!(
            victim != Victim::Worker && victim != Victim::Agent,
            "{at}: the controller gave up with {status}"
        );
        house.expect(0, ["resume", "last", "--quiet"]);
    }
    assert_eq!(losses(house), reference.losses, "{at}: the losses of the run without a kill");
    let trial = trials(house).into_iter().find(|trial| !before.contains(trial)).expect("it is there");
    assert_eq!(
        digest(&newest_checkpoint(&trial).1),
        reference.weights,
        "{at}: the weights of the run without a kill"
    );
    let kept = acknowledged(house);
    for (key, loss) in promised {
        assert_eq!(kept.get(&key), Some(&loss), "{at}: a point that was acknowledged is gone: {key:?}");
    }
    let deadline = Instant::now() + Duration::from_secs(15);
    while !left(house).is_empty() {
        assert!(Instant::now() < deadline, "{at}: still there after 15 s: {:?}", left(house));
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn whoever_is_killed_the_run_ends_with_the_same_weights_and_nothing_is_lost() {
    let moments: u32 = std::env::var("DTRAIN_KILLS")
        .map_or(if is_named("kill") { 3 } else { 1 }, |text| text.parse().expect("a number"));
    let house = TestEnv::default();
    let recipe = recipe();
    house.expect(0, arguments(&recipe)); // probes
    let begun = Instant::now();
    house.expect(0, arguments(&recipe));
    let lasts = begun.elapsed();
    let weights = digest(&newest_checkpoint(&house.newest_trial()).1);
    let reference = Reference { weights, losses: losses(&house), lasts };
    assert_eq!(reference.losses.len(), 1500);
    for victim in [Victim::Worker, Victim::Agent, Victim::Controller, Victim::All] {
        for moment in 0..moments {
            let random = shuffle::splitmix64(u64::from(moment), victim as u64) % 1000;
            // One moment in each equal part of the run, anywhere inside its part.
            let share = (f64::from(moment) + random as f64 / 1000.0) / f64::from(moments);
            strike(&house, &reference, victim, reference.lasts.mul_f64(share));
        }
        println!(
            "{victim:?}: {moments} kills within {:.1} s, all weights and losses as without",
            lasts.as_secs_f64()
        );
    }
}
