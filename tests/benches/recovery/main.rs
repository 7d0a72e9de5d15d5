//! How long until the next step after a fault, dtrain beside torchrun: `cargo build --release`, `tests/run foreign` for PyTorch,
//! then `cargo bench --workspace --bench recovery`.
//!
//! Both train the same perceptron on two ranks and save every ten steps. In every round each fault strikes first one, then the
//! other, so that both meet the same machine. A worker is killed or frozen where both ranks are on this machine; a host is
//! killed or cut off in a lab of two hosts, for which this must be root. torchrun runs with its defaults, but for restarts
//! without limit. The next step is the first that is completed by processes which are younger than the fault; of hosts, by the
//! one that is left.
//!
//! Words that follow `--` are names of faults (`killed`, `host`, `cut`, `frozen`), `rounds=3` for the number of rounds and
//! `limit=60` for the seconds after which a training counts as not recovered. Without PyTorch only dtrain is measured.

#[expect(dead_code, unused_imports, reason = "a lab can do more than this bench asks of it")]
#[path = "../../suite/lab/mod.rs"]
mod lab;
mod ours;
#[path = "../shared/mod.rs"]
mod shared;
mod torchrun;
mod training;

use lab::{Lab, Options};
use rustix::process::Signal;
use shared::measured::{Better, Row};
use shared::{Words, now_ms, say};
use std::time::Duration;
use training::{Recovery, Training};

/// Steps before the fault, at least: two checkpoints are behind, and the pace is steady.
const WARM_STEPS: u64 = 25;

/// How long the first steps may take to come.
const TO_BEGIN: Duration = Duration::from_secs(120);

/// What happens to a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A rank is killed.
    Killed,
    /// All processes of a host are killed; its sockets are reset.
    Host,
    /// A host is cut off from all others; nobody is told.
    Cut,
    /// A rank is stopped by a signal.
    Frozen,
}

impl Fault {
    const ALL: [(Self, &str, &str); 4] = [
        (Self::Killed, "killed", "a worker is killed"),
        (Self::Host, "host", "a host dies"),
        (Self::Cut, "cut", "a host is cut off silently"),
        (Self::Frozen, "frozen", "a worker is frozen"),
    ];

    fn needs_hosts(self) -> bool {
        matches!(self, Self::Host | Self::Cut)
    }

    /// Strikes the second rank, or the second host.
    fn strike(self, training: &Training, lab: Option<&Lab>) {
        match (self, lab) {
            (Self::Killed, _) => training.signal(Signal::KILL),
            (Self::Frozen, _) => training.signal(Signal::STOP),
            (Self::Host, Some(lab)) => lab.kill_host("node2"),
            (Self::Cut, Some(lab)) => lab.cut("node2"),
            (Self::Host | Self::Cut, None) => unreachable!("such a training is in a lab"),
        }
    }
}

/// What came of the rounds of one fault, for one of the two.
#[derive(Default)]
struct Column {
    rounds: Vec<Option<Recovery>>,
}

impl Column {
    /// Number of rounds, median and extremes in seconds, and the steps that were done again.
    fn words(&self, limit: Duration) -> String {
        if self.rounds.is_empty() {
            return "-".into();
        }
        let never = f64::INFINITY;
        let mut all: Vec<f64> = self.rounds.iter().map(|one| one.map_or(never, |one| one.seconds)).collect();
        all.sort_by(f64::total_cmp);
        let word = |seconds: f64| match seconds.is_finite() {
            true => format!("{seconds:.2}"),
            false => format!("> {}", limit.as_secs()),
        };
        let (low, high) = (all[(all.len() - 1) / 2], all[all.len() / 2]);
        let median = if high.is_finite() { f64::midpoint(low, high) } else { high };
        let again: Vec<u64> = self.rounds.iter().flatten().map(|one| one.again).collect();
        let again = again.iter().max().map_or(String::new(), |most| format!(", {most} steps again"));
        let (least, most) = (word(all[0]), word(all[all.len() - 1]));
        format!("{} s ({least} to {most}, n {}{again})", word(median), all.len())
    }
}

fn main() {
    let words = Words::of_the_command_line();
    let (rounds, limit) = (words.number("rounds", 3), Duration::from_secs(words.number("limit", 60)));
    let faults = Fault::ALL.iter().filter(|(_, name, _)| words.want(name));
    let python = dtrain_tests::python_with("torch");
    match &python {
        Ok(python) => say(&format!("torchrun of PyTorch {}", torchrun::version(python))),
        Err(reason) => say(&format!("torchrun is left out: {reason}")),
    }
    let mut table = format!("{:28} {:44} {}\n", "seconds to the next step", "dtrain", "torchrun");
    for (fault, _, name) in faults {
        let (mut ours, mut theirs) = (Column::default(), Column::default());
        for round in 1..=rounds {
            let Some(recovery) = measured(*fault, limit, ours::here, ours::on_hosts) else { break };
            say(&format!("round {round}, {name}, dtrain: {}", told(recovery)));
            ours.rounds.push(recovery);
            let Ok(python) = &python else { continue };
            let here = || torchrun::here(python);
            let on_hosts = |lab: &Lab| torchrun::on_hosts(python, lab);
            let Some(recovery) = measured(*fault, limit, here, on_hosts) else { break };
            say(&format!("round {round}, {name}, torchrun: {}", told(recovery)));
            theirs.rounds.push(recovery);
        }
        table += &format!("{name:28} {:44} {}\n", ours.words(limit), theirs.words(limit));
        row(name, &ours, &python.as_ref().map(|_| theirs).map_err(Clone::clone), limit).print();
    }
    say(table.trim_end());
}

/// The row of a fault. Rounds without a next step within the limit are told in the note.
fn row<'a>(fault: &str, ours: &Column, theirs: &Result<Column, String>, limit: Duration) -> Row<'a> {
    let seconds =
        |column: &Column| column.rounds.iter().flatten().map(|one| one.seconds).collect::<Vec<f64>>();
    let late = |name: &str, column: &Column| match column.rounds.iter().filter(|one| one.is_none()).count() {
        0 => String::new(),
        count => {
            let (limit, rounds) = (limit.as_secs(), column.rounds.len());
            format!("{name}: no step within {limit} s in {count} of {rounds}; it may need longer. ")
        }
    };
    let (values, note) = match theirs {
        Ok(theirs) => (seconds(theirs), late("torchrun", theirs)),
        Err(reason) => (Vec::new(), reason.clone()),
    };
    Row {
        section: "Recovery",
        what: format!("{fault}: until the next step"),
        unit: "s",
        better: Better::Lower,
        ours: seconds(ours),
        peer: Some(("torchrun", values)),
        note: late("dtrain", ours) + &note,
    }
}

fn told(recovery: Option<Recovery>) -> String {
    recovery.map_or("no step".into(), |one| format!("{:.2} s, {} steps again", one.seconds, one.again))
}

/// Trains, strikes, and waits for the next step; `None` where no lab can be had.
fn measured(
    fault: Fault,
    limit: Duration,
    here: impl FnOnce() -> Training,
    on_hosts: impl FnOnce(&Lab) -> Training,
) -> Option<Option<Recovery>> {
    if !fault.needs_hosts() {
        return Some(struck(fault, limit, here(), None));
    }
    let lab = Lab::with(&Options { hosts: 2, direct: true, ..Options::default() })?;
    let training = on_hosts(&lab);
    Some(struck(fault, limit, training, Some(&lab)))
}

fn struck(fault: Fault, limit: Duration, mut training: Training, lab: Option<&Lab>) -> Option<Recovery> {
    training.reaches(WARM_STEPS, TO_BEGIN);
    let began_ms = now_ms();
    fault.strike(&training, lab);
    training.recovers(began_ms, limit)
}
