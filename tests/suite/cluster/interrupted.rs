//! Ctrl-C at any moment of a run on several hosts is answered within a second.

use crate::cluster::train::{Run, nothing_is_left};
use crate::lab::Lab;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_tests::{SHORT_TRAINING, numbered_lines};
use rustix::process::Signal;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

/// Interrupts; `DTRAIN_INTERRUPTS=50` is their number.
const INTERRUPTS: u64 = 6;

/// Within what time dtrain says that it heard.
const WITHIN: Duration = Duration::from_secs(1);

/// What it says then.
const HEARD: [&str; 3] = ["stopping after this step", "interrupted; ending", "stopped"];

/// When an interrupt comes: in milliseconds after the first rank is started, or after a host was killed in the middle of training.
fn moment(index: u64) -> (u64, bool) {
    (splitmix64(7, index) % 5_000, index.is_multiple_of(3))
}

#[test]
fn an_interrupt_is_heeded_within_a_second_at_any_moment() {
    let Some(lab) = Lab::start(2) else { return };
    let count =
        std::env::var("DTRAIN_INTERRUPTS").ok().and_then(|text| text.parse().ok()).unwrap_or(INTERRUPTS);
    let cluster = "[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-2]\"]\nranks = 2\n";
    let (text, recipe) = (numbered_lines(), format!("name = \"lab\"\n{SHORT_TRAINING}"));
    let files = [("text.txt", text.as_str()), ("recipe.toml", recipe.as_str()), ("hosts.toml", cluster)];
    for machine in ["controller", "node1", "node2"] {
        files.iter().for_each(|(name, text)| lab.put(machine, name, text));
    }
    let mut slowest = Duration::ZERO;
    for index in 0..count {
        let (milliseconds, is_recovery) = moment(index);
        let mut run = Run::of(&lab, &["checkpoint.every=5", "objective.stop={ steps = 100000 }"]);
        run.hears("starting");
        if is_recovery {
            run.hears("step ");
            lab.kill_processes("node2");
        }
        thread::sleep(Duration::from_millis(milliseconds));
        let begun = Instant::now();
        run.signal(Signal::INT);
        let (at, line) = run.hears_any(&HEARD);
        let took = at.saturating_duration_since(begun);
        println!(
            "{milliseconds} ms{}: {:.3} s: {line}",
            if is_recovery { " after a kill" } else { "" },
            took.as_secs_f64()
        );
        assert!(took <= WITHIN, "{took:?}: {:#?}", run.words());
        slowest = slowest.max(took);
        assert_eq!(run.ends(), Some(130), "{:#?}", run.words());
        nothing_is_left(&lab, &["node1", "node2"]);
        let Output { status, stderr, .. } =
            lab.command("dtrain").args(["rm", "last", "--yes"]).output().expect("the program starts");
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    }
    println!("{count} interrupts, the slowest was heeded after {:.3} s", slowest.as_secs_f64());
}
