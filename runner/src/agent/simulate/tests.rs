//! Worlds without a bug keep all promises; each bug breaks one.

use super::bugs::Bug;
use super::controller::RANKS;
use super::cost::{ResourceUsage, THREADS_OF_A_LINK, THREADS_OF_A_RANK, THREADS_OF_AN_AGENT};
use super::{Coverage, RunCost, Setup, World, run};
use crate::machine::TrialInput;
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
        "late launch refused",
        "asked to stop once more",
        "slow link",
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
fn fleet(machines: usize) -> Setup {
    Setup {
        machines,
        most: machines,
        every: 300,
        beat: 250,
        step: 5_000,
        save_every: 60,
        lost_after: 600_000,
        crash: 2_000,
        ..SMALL
    }
}

/// Returns the cost of a launch, a step and a checkpoint.
fn costs(machines: usize) -> [ResourceUsage; 3] {
    let mut reached = Coverage::default();
    let mut world = World::new(1, Setup { every: 86_400, crash: u64::MAX, ..fleet(machines) }, &mut reached);
    world.cost = Some(ResourceUsage::default());
    world.user(TrialInput::Resume);
    let mut until = |done: &dyn Fn(&World) -> bool| {
        let end = world.now + 600_000;
        while !done(&world) {
            world.beat();
            assert!(world.now < end && world.broken.is_none(), "{:?}", world.broken);
        }
        world.cost.replace(ResourceUsage::default()).expect("it is counted")
    };
    let step = |world: &World| world.training.values().next().map_or(0, |training| training.step);
    let steps = 20;
    // By the third step all ranks have sent their one-time events.
    let launch = until(&|world| step(world) == 3);
    let mut each = until(&|world| step(world) == 3 + steps);
    for part in [&mut each.asked, &mut each.told, &mut each.spooled] {
        *part = (part.0.div_ceil(steps), part.1.div_ceil(steps));
    }
    each.spool_fsyncs = each.spool_fsyncs.div_ceil(steps);
    until(&|world| step(world) == world.setup.save_every - 1);
    let checkpoint = until(&|world| step(world) == world.setup.save_every + 1 && !world.committed.is_empty());
    [launch, each, checkpoint]
}

#[test]
fn what_a_fleet_costs_grows_with_its_hosts_and_no_faster() {
    let fleets = [100, 1_000].map(|machines| (machines as u64, costs(machines)));
    println!("| hosts | for a | to hosts | from hosts | in the spool | fsyncs of the spool | of a host |");
    for (machines, costs) in &fleets {
        for (what, cost) in ["launch", "step", "checkpoint"].iter().zip(costs) {
            let words = |(count, bytes): (u64, u64)| format!("{count}: {bytes} B");
            let (asked, told, spooled) = (words(cost.asked), words(cost.told), words(cost.spooled));
            println!(
                "| {machines} | {what} | {asked} | {told} | {spooled} | {} | {} |",
                cost.spool_fsyncs,
                cost.disk_fsyncs / machines
            );
        }
        let ranks = u64::from(RANKS) * THREADS_OF_A_RANK;
        let leader = THREADS_OF_AN_AGENT + ranks + (machines - 1) * THREADS_OF_A_LINK;
        let follower = THREADS_OF_AN_AGENT + ranks + THREADS_OF_A_LINK;
        println!(
            "{machines} hosts: the leader has {} connections and {leader} threads, a follower 1 and {follower}",
            machines - 1
        );
    }
    let [(_, few), (_, many)] = fleets;
    for (few, many) in few.iter().zip(&many) {
        let messages = |cost: &ResourceUsage| cost.asked.0 + cost.told.0 + cost.spooled.0 + cost.disk_fsyncs;
        assert!(messages(many) <= 11 * messages(few), "{few:?}, {many:?}");
        assert!(many.spool_fsyncs <= few.spool_fsyncs + 4, "{few:?}, {many:?}");
    }
    assert_eq!(many[1].asked.0, 1, "a step takes one word of the leader, to the host that mirrors its spool");
}
