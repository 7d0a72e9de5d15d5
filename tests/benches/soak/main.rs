//! What share of the time is useful when something fails all the time: `cargo build --release`, then
//! `cargo bench --workspace --bench soak -- minutes=60 every=60 seed=1`, as root.
//!
//! A perceptron trains on four ranks over four hosts of a lab whose network is slow beside its processors. Every so many seconds
//! something fails: all kinds of faults in an order that is drawn from the seed, then again; so are the place and how long it lasts, up
//! to a third of the time to the next. Hosts come back, and the next attempt takes them again; fewer hosts hold the same four ranks. A
//! controller that was killed, or gave up, is brought back by `dtrain resume`. At the end Ctrl-C stops the trial, and the weights it
//! saved are compared, bit by bit, with those of a training of as many steps on this machine that nothing disturbed.
//!
//! Useful is the time of steps that no later attempt had to do again; a step that takes longer than twice the usual counts for that.

mod account;
mod fault;
#[expect(dead_code, unused_imports, reason = "a lab can do more than this bench asks of it")]
#[path = "../../suite/lab/mod.rs"]
mod lab;
#[expect(dead_code, reason = "faults are drawn, not asked for by their names")]
#[path = "../shared/mod.rs"]
mod shared;
mod trial;

use account::{Account, Loss};
use dtrain_protocol::Manifest;
use dtrain_tests::{TestEnv, digest, newest_checkpoint};
use fault::{Drawn, Kind, slow};
use lab::{Lab, Options};
use shared::measured::{Better, Row};
use shared::perceptron::rows;
use shared::{Words, now_ms, say};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use trial::{HOSTS, Trial, recipe};

/// Steps before the first fault.
const WARM_STEPS: u64 = 50;

/// How long what must come may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// What was counted beside the steps.
#[derive(Default)]
struct Counts {
    kinds: BTreeMap<Kind, u32>,
    /// How often the controller gave up and was brought back.
    resumed: u32,
}

fn main() -> ExitCode {
    let words = Words::of_the_command_line();
    let whole = Duration::from_secs(60 * words.number("minutes", 60));
    let every = Duration::from_secs(words.number("every", 60));
    let mut drawn = Drawn::from(words.number("seed", 1));
    let options = Options { hosts: HOSTS.len(), direct: true, disk: 1 << 30 };
    let Some(lab) = Lab::with(&options) else { return ExitCode::SUCCESS };
    let mut trial = Trial::start(&lab);
    trial.reaches(1, PATIENCE);
    slow(&lab);
    trial.reaches(WARM_STEPS, PATIENCE);
    let (began, began_ms, mut counts) = (Instant::now(), now_ms(), Counts::default());
    while began.elapsed() < whole {
        disturb(&lab, &mut trial, &mut drawn, every, &mut counts);
    }
    let account = Account::of(&trial.steps, began_ms, now_ms());
    trial.stop(PATIENCE);
    report(&account, &counts);
    let is_same = compared(&lab);
    Row {
        section: "Soak",
        what: format!(
            "share of the time in steps that count; a fault every {} s for {} minutes on four hosts",
            every.as_secs(),
            whole.as_secs() / 60
        ),
        unit: "%",
        better: Better::Higher,
        ours: vec![100.0 * account.share()],
        peer: None,
        note: format!(
            "{} faults; final weights {} those of an undisturbed run to the last bit",
            counts.kinds.values().sum::<u32>(),
            if is_same { "equal" } else { "differ from" }
        ),
    }
    .print();
    let left: Vec<_> = HOSTS.iter().flat_map(|host| lab.processes(host)).collect();
    if !left.is_empty() {
        say(&format!("left on the hosts: {left:?}"));
    }
    if is_same && left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lets something happen and waits until it is time for the next, and until there was a new step after it was healed.
fn disturb(lab: &Lab, trial: &mut Trial<'_>, drawn: &mut Drawn, every: Duration, counts: &mut Counts) {
    let until = Instant::now() + every;
    trial.listen(Duration::ZERO);
    let fault = drawn.next(&trial.hosts(), every / 3);
    *counts.kinds.entry(fault.kind).or_default() += 1;
    let (struck_ms, lost) = (now_ms(), trial.lost.len());
    fault.befalls(lab, trial);
    trial.listen(Duration::from_millis(500));
    let (healed_ms, reached) = (now_ms(), trial.reached());
    let is_new = |trial: &Trial<'_>| {
        trial.steps.iter().rev().any(|step| step.number > reached && step.at_ms > healed_ms)
    };
    while Instant::now() < until || !is_new(trial) {
        if let Some(ended) = trial.listen(Duration::from_millis(100)) {
            say(&format!(
                "the controller gave up, {ended}; `dtrain resume` brings it back\n{}",
                trial.logs()
            ));
            counts.resumed += 1;
            trial.resume();
        }
        let is_late = Instant::now() > until + PATIENCE;
        assert!(!is_late, "no step since {}\n{}", fault.kind.words(), trial.logs());
    }
    let loss = Loss::since(&trial.steps, struck_ms);
    let lasted = if fault.is_passing() { format!("{:.1} s", fault.lasts.as_secs_f64()) } else { "".into() };
    say(&format!(
        "{:32} {:10} {lasted:>6}: {:5.2} s without a step, {:3} steps again, on {}; {}",
        fault.kind.words(),
        fault.at,
        loss.seconds,
        loss.again,
        trial.hosts().join(" "),
        reasons(&trial.lost[lost..])
    ));
}

/// Why attempts were lost, in words: the first reason, and how many followed.
fn reasons(lost: &[String]) -> String {
    match lost {
        [] => "no attempt was lost".into(),
        [only] => only.clone(),
        [first, others @ ..] => format!("{first}; {} attempts more", others.len()),
    }
}

fn report(account: &Account, counts: &Counts) {
    say("");
    for (kind, count) in &counts.kinds {
        say(&format!("{count:4} × {}", kind.words()));
    }
    let faults: u32 = counts.kinds.values().sum();
    say(&format!(
        "{faults} faults in {:.1} minutes; {} times `dtrain resume` had to help",
        account.seconds / 60.0,
        counts.resumed
    ));
    say(&format!(
        "{} steps count, of {:.3} s usually; {} were done again",
        account.steps, account.usual, account.again
    ));
    say(&format!(
        "effective training time: {:.1} % ({:.1} % were all steps of usual length)",
        100.0 * account.share(),
        100.0 * account.share_at_usual_speed()
    ));
}

/// Whether the last checkpoint is that of a training that nothing disturbed.
fn compared(lab: &Lab) -> bool {
    let output = lab.command("dtrain").args(["checkpoint", "pull", "last", "--to", "final"]).output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let disturbed = lab.home("controller").join("final");
    let steps = steps_of(&disturbed);
    let begun = Instant::now();
    let house = TestEnv::default();
    house.file("rows.csv", rows());
    let recipe = house.file("recipe.toml", recipe() + "\n[cluster]\nranks = 4\n");
    let recipe = recipe.to_str().expect("the path is UTF-8");
    let stop = format!("objective.stop={{ steps = {steps} }}");
    house.expect(0, ["run", recipe, "--no-sample", "--quiet", "--set", stop.as_str()]);
    let (_, undisturbed) = newest_checkpoint(&house.newest_trial());
    assert_eq!(steps_of(&undisturbed), steps, "the reference takes as many steps");
    let is_same = digest(&disturbed) == digest(&undisturbed);
    let words = if is_same { "the same" } else { "NOT the same" };
    let seconds = begun.elapsed().as_secs_f64();
    say(&format!(
        "weights and moments after {steps} steps: {words}, to the last bit, as undisturbed ({seconds:.0} s)"
    ));
    is_same
}

fn steps_of(checkpoint: &Path) -> u64 {
    let manifest = fs::read(checkpoint.join("manifest.json")).expect("a manifest");
    let manifest: Manifest = serde_json::from_slice(&manifest).expect("a manifest is JSON");
    manifest.step.0
}
