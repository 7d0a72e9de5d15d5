//! A detached run on four hosts of which one or two fail every minute, for half an hour.

use crate::cluster::detached::{Detached, dtrain};
use crate::lab::{Lab, Options};
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{AttemptId, Rank};
use dtrain_runner::ledger::{History, MetricSample};
use dtrain_tests::TestEnv;
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Names of the hosts.
const HOSTS: [&str; 4] = ["node1", "node2", "node3", "node4"];

/// Size of the disk of each host: small, so that it can be filled.
const DISK: u64 = 1 << 30;

/// Time until the run may end; `TESTS_CHAOS_MINUTES` has another number of minutes.
const MINUTES: u64 = 30;

/// Every so many faults, another host fails at the same time.
const TWO_AT_ONCE: u64 = 6;

const RECIPE: &str = r#"
name = "chaos"

[model]
kind = "decoder"
layers = 4
hidden = 128
heads = 4
context = 64

[data]
train = "text.txt"
valid = "5%"

# Training magnifies differences in the order of sums, and more so with a larger learning rate.
[train]
batch = 192
learning_rate = 3e-5

[validation]
samples = 8

[checkpoint]
every = "3 s"
"#;

/// A fault of one host. What it takes away comes back after a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// All processes of dtrain on the host are killed.
    Kill,
    /// The host is cut off from all others.
    Cut,
    /// The disk of the host becomes full.
    FullDisk,
    /// The host is shut down, and starts again.
    Reboot,
}

const FAULTS: [Fault; 4] = [Fault::Kill, Fault::Cut, Fault::FullDisk, Fault::Reboot];

impl Fault {
    fn begin(self, lab: &Lab, host: &str) {
        match self {
            Self::Kill => lab.kill_processes(host),
            Self::Cut => lab.cut(host),
            Self::FullDisk => lab.fill_disk(host),
            Self::Reboot => lab.shut_down(host),
        }
    }

    fn end(self, lab: &Lab, host: &str) {
        match self {
            Self::Kill => {}
            Self::Cut | Self::FullDisk => lab.heal(host),
            Self::Reboot => lab.start_host(host),
        }
    }
}

/// A fault that is to come.
#[derive(Clone, Copy, Debug)]
struct Planned {
    /// Seconds after the fault before it.
    pause: u64,
    fault: Fault,
    host: usize,
    /// Seconds until the host is well again.
    lasts: u64,
}

/// Returns the faults of a seed: each kind once in every four, every 60 to 90 seconds, and at times two at once.
fn faults(seed: u64) -> impl Iterator<Item = Planned> {
    let draw = move |index: u64, of: u64, below: u64| splitmix64(splitmix64(seed, index), of) % below;
    (0u64..).flat_map(move |index| {
        let mut kinds = FAULTS.to_vec();
        let round = index / 4;
        kinds.sort_by_key(|kind| splitmix64(splitmix64(seed ^ 0xfa, round), *kind as u64));
        let host = draw(index, 1, 4);
        let first = Planned {
            pause: 60 + draw(index, 2, 31),
            fault: kinds[usize::try_from(index % 4).expect("small")],
            host: usize::try_from(host).expect("small"),
            lasts: 15 + draw(index, 3, 21),
        };
        let other = usize::try_from((host + 1 + draw(index, 4, 3)) % 4).expect("small");
        let kind = FAULTS[usize::try_from(draw(index, 5, 4)).expect("small")];
        let second = Planned { pause: 0, fault: kind, host: other, lasts: 15 + draw(index, 6, 21) };
        let is_double = index % TWO_AT_ONCE == TWO_AT_ONCE - 1;
        std::iter::once(first).chain(is_double.then_some(second))
    })
}

/// Causes faults until `until`, and heals all hosts; returns how often each kind began.
#[expect(clippy::print_stdout, reason = "whoever runs it follows what happens")]
fn disturb(lab: &Lab, seed: u64, until: Instant) -> BTreeMap<Fault, u32> {
    let mut counts = BTreeMap::new();
    let mut healing: Vec<(Instant, Fault, usize)> = Vec::new();
    let heal = |healing: &mut Vec<(Instant, Fault, usize)>, all: bool| {
        healing.retain(|(at, fault, host)| {
            let is_due = all || Instant::now() >= *at;
            if is_due {
                println!("  {} is well again after {fault:?}", HOSTS[*host]);
                fault.end(lab, HOSTS[*host]);
            }
            !is_due
        });
    };
    let mut next = Instant::now();
    for planned in faults(seed) {
        next += Duration::from_secs(planned.pause);
        if next > until {
            break;
        }
        while Instant::now() < next {
            heal(&mut healing, false);
            sleep(Duration::from_millis(100));
        }
        // A host has one fault at a time.
        let is_busy = |host: usize| healing.iter().any(|(_, _, busy)| *busy == host);
        let Some(host) = (0..4).map(|more| (planned.host + more) % 4).find(|host| !is_busy(*host)) else {
            continue;
        };
        println!("{:?} of {} for {} s", planned.fault, HOSTS[host], planned.lasts);
        planned.fault.begin(lab, HOSTS[host]);
        *counts.entry(planned.fault).or_default() += 1;
        healing.push((Instant::now() + Duration::from_secs(planned.lasts), planned.fault, host));
    }
    heal(&mut healing, true);
    counts
}

/// Number of steps that four hosts take in a second.
fn speed(lab: &Lab) -> f64 {
    let run = Detached::start(lab, 4, RECIPE, &["objective.stop={ time = \"30 s\" }"]);
    let begun = Instant::now();
    while run.details().attempts.iter().any(|attempt| attempt.ended.is_none()) {
        assert!(begun.elapsed() < Duration::from_secs(120), "{}", run.log());
        sleep(Duration::from_millis(200));
    }
    let steps = run.series("step_seconds");
    steps.len() as f64 / steps.iter().map(|step| step.value).sum::<f64>()
}

/// The losses of the same training on two ranks of this machine, undisturbed.
fn undisturbed(steps: u64) -> Vec<MetricSample> {
    let house = TestEnv::default();
    house.file("text.txt", dtrain_tests::numbered_lines());
    house.file("recipe.toml", RECIPE);
    let stop = format!("objective.stop={{ steps = {steps} }}");
    house.expect(0, ["run", "recipe.toml", "--no-sample", "--set", &stop, "--set", "cluster.ranks=2"]);
    let history = History::open_read_only(&house.history()).expect("a history");
    history.series(&history.find("last").expect("a trial"), "loss", Rank(0)).expect("readable")
}

#[test]
#[ignore = "on request: it takes an hour"]
fn a_detached_run_completes_through_half_an_hour_of_faults() {
    let Some(lab) = Lab::with(&Options { hosts: 4, disk: DISK, ..Options::default() }) else { return };
    let number =
        |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (seed, minutes) = (number("TESTS_CHAOS_SEED", 43), number("TESTS_CHAOS_MINUTES", MINUTES));
    let speed = speed(&lab);
    // With a tenth of the time for what is computed twice, and restarts.
    let steps = (speed * 60.0 * minutes as f64 * 0.9).round() as u64;
    println!("seed {seed}: {speed:.1} steps a second, {steps} steps");
    let stop = format!("objective.stop={{ steps = {steps} }}");
    let begun = Instant::now();
    let run = Detached::start(&lab, 4, RECIPE, &[&stop]);
    let counts = disturb(&lab, seed, begun + Duration::from_secs(60 * minutes));
    println!("{counts:?}");
    while !run.is_completed() {
        assert!(begun.elapsed() < Duration::from_secs(60 * minutes * 2), "it never ends: {}", run.log());
        sleep(Duration::from_millis(500));
    }
    println!("{}", run.log());
    let all = begun.elapsed().as_secs_f64();
    let losses = run.series("loss");
    assert_eq!(losses.len() as u64, steps, "each step counts once");
    assert!(losses.iter().zip(1u64..).all(|(loss, step)| loss.step == step), "and none is left out");
    let training: f64 = run.series("step_seconds").iter().map(|step| step.value).sum();
    println!(
        "{} attempts, {all:.0} s, {training:.0} s in steps that count: {:.1} %",
        run.details().attempts.len(),
        100.0 * training / all
    );
    let repeated = repeated(&run);
    println!("{repeated} steps were computed again on as many ranks, with the same bits");
    let reference = undisturbed(steps);
    let difference = losses.iter().zip(&reference).map(|(one, other)| (one.value - other.value).abs());
    let largest = difference.fold(0.0, f64::max);
    println!("largest difference of a loss from that of an undisturbed run on this machine: {largest:.1e}");
    assert!(largest < 1e-5, "{largest}");
    assert!(
        FAULTS.iter().all(|fault| minutes < MINUTES || counts.get(fault).is_some_and(|count| *count >= 3))
    );
    assert!(training > 0.8 * all, "{training} of {all} s");
    let ended = dtrain(&lab, &["show", "last"]);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// Returns the number of steps that two attempts in a row computed on as many ranks. Asserts that their losses have the
/// same bits.
fn repeated(run: &Detached<'_>) -> u64 {
    let mut ranks: BTreeMap<AttemptId, u32> = BTreeMap::new();
    for rank in 0..16 {
        for (attempt, _) in run.by_attempt("step_seconds", rank) {
            *ranks.entry(attempt).or_default() += 1;
        }
    }
    let all = run.by_attempt("loss", 0);
    let mut count = 0;
    for pair in all.windows(2) {
        let [(before, earlier), (after, later)] = pair else { continue };
        if ranks.get(before) != ranks.get(after) {
            continue;
        }
        let first: BTreeMap<u64, f64> = earlier.iter().map(|loss| (loss.step, loss.value)).collect();
        for loss in later {
            if let Some(known) = first.get(&loss.step) {
                assert_eq!(known.to_bits(), loss.value.to_bits(), "step {} of {after}", loss.step);
                count += 1;
            }
        }
    }
    count
}
