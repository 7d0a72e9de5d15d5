//! Worlds without a bug keep all promises; each bug breaks one.

use super::bugs::Bug;
use super::reports::Reporting;
use super::{Coverage, RunCost, Setup, run};
use std::time::Instant;

impl RunCost {
    fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.attempts += other.attempts;
        self.milliseconds += other.milliseconds;
    }
}

const SMALL: Setup = Setup {
    machines: 3,
    most: 3,
    seconds: 60,
    every: 6,
    beat: 50,
    step: 200,
    save_every: 4,
    validate_every: 10,
    reporting: Reporting::WithoutTensors,
    lost_after: 20_000,
    crash: 200,
    bug: None,
};

/// Returns a number from the environment.
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn all_promises_hold_in_every_world() {
    let seeds = asked("DTRAIN_SEEDS").unwrap_or(1_500);
    let (mut reached, mut spent, begun) = (Coverage::default(), RunCost::default(), Instant::now());
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let part = |first: u64| {
        let (mut reached, mut spent) = (Coverage::default(), RunCost::default());
        for seed in (first..seeds).step_by(cores as usize) {
            let one = run(seed, SMALL, &mut reached).unwrap_or_else(|words| panic!("seed {seed}: {words}"));
            spent.add(one);
        }
        (reached, spent)
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..cores).map(|first| scope.spawn(move || part(first))).collect();
        for one in parts {
            let (others, more) = one.join().expect("all promises hold");
            spent.add(more);
            for (what, times) in others.0 {
                *reached.0.entry(what).or_default() += times;
            }
        }
    });
    println!(
        "{seeds} worlds in {:.1} s: {} simulated hours, {} attempts, {} messages; {:?}",
        begun.elapsed().as_secs_f64(),
        spent.milliseconds / 3_600_000,
        spent.attempts,
        spent.messages,
        reached.0
    );
    for what in [
        "machine died",
        "machine froze",
        "machine cut off",
        "cut in one direction",
        "controller cut off",
        "controller away",
        "controller crash",
        "controller crash between effects",
        "disk full",
        "a rank could not save",
        "disk slow",
        "rank killed",
        "rank hung",
        "agent killed",
        "asked to stop",
        "attempt killed",
        "launch refused",
        "no machine answers",
        "durable checkpoint",
        "resumed",
        "fetched in parts",
        "copied for a second host",
        "given up",
        "lost with its host",
        "read from a mirror",
        "trained while given up",
        "came back and was ended",
        "named as not fenced",
        "late launch refused",
        "asked to stop once more",
        "slow link",
        "strike",
        "leader cannot connect",
        "found gone",
        "end",
    ] {
        let times = reached.0.get(what).copied().unwrap_or(0);
        assert!(times >= 5, "the chaos reached `{what}` {times} times only: {:?}", reached.0);
    }
}

#[test]
fn every_fault_of_the_code_is_caught() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let setup = Setup { bug: Some(bug), ..SMALL };
        let caught = (0..3_000)
            .find_map(|seed| run(seed, setup, &mut Coverage::default()).err().map(|words| (seed, words)));
        match caught {
            Some((seed, words)) => println!("{bug:?}: seed {seed}: {words}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "no check noticed {missed:?}");
}

#[test]
fn many_machines_keep_all_promises() {
    let machines =
        asked("DTRAIN_FLEET").map_or(FLEET, |machines| usize::try_from(machines).expect("a number"));
    let begun = Instant::now();
    let mut reached = Coverage::default();
    let setup = Setup { seconds: 86_400, ..fleet(machines) };
    let spent = run(1, setup, &mut reached).unwrap_or_else(|words| panic!("{machines} machines: {words}"));
    println!(
        "{machines} machines: {} simulated seconds in {:.1} s, {} attempts, {} messages; {:?}",
        spent.milliseconds / 1000,
        begun.elapsed().as_secs_f64(),
        spent.attempts,
        spent.messages,
        reached.0
    );
    assert!(spent.attempts > 50, "a day of faults has many attempts: {spent:?}");
}

/// Machines of the largest world.
const FLEET: usize = 200;

/// Returns a cluster with a fault every five minutes, steps of five seconds, and a checkpoint every five
/// minutes.
pub(super) fn fleet(machines: usize) -> Setup {
    Setup {
        machines,
        most: machines,
        every: 300,
        beat: 250,
        step: 5_000,
        save_every: 60,
        validate_every: 25,
        reporting: Reporting::FirstRank,
        lost_after: 600_000,
        crash: 2_000,
        ..SMALL
    }
}
