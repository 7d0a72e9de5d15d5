//! A driver, an agent and toy ranks as real processes, killed at whatever moment.
//!
//! This program is all of them: without a known first argument it runs the tests below, those whose names contain
//! one of its arguments.

#![expect(clippy::print_stdout, reason = "a test says how it went")]

mod toy;
mod world;

use dtrain_protocol::{AttemptId, Event, Failure, Rank, StopReason, TrialId, order::mix};
use dtrain_runner::{
    DriveError, Ended, Fact, History, OnInterrupt, Outcome, Seen, Status, Verdict, agent, checkpoints, driver,
};
use std::fs;
use std::io::Write;
use std::panic::catch_unwind;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use world::{RANKS, STEPS, World, kill, wait};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["agent", ..] => agent::run(),
        ["worker", ..] => toy::run(),
        ["controller", verb, root, trial] => controller(verb, Path::new(root), trial),
        filters => run_tests(filters),
    }
}

fn run_tests(filters: &[&str]) -> ExitCode {
    let tests: &[(&str, fn())] = &[
        ("a_trial_completes_and_everything_seen_was_kept", a_trial_completes_and_everything_seen_was_kept),
        ("a_killed_rank_is_relaunched_from_the_newest_checkpoint", a_killed_rank_is_relaunched),
        ("a_killed_agent_takes_its_ranks_along_and_is_replaced", a_killed_agent_is_replaced),
        ("whatever_is_killed_and_when_the_final_state_is_the_same", whatever_is_killed),
        ("training_goes_on_without_a_controller", training_goes_on_without_a_controller),
        ("a_stopped_trial_saves_and_resumes_to_the_same_state", a_stopped_trial_resumes),
        ("the_second_interrupt_kills", the_second_interrupt_kills),
        ("stop_reaches_a_trial_of_another_process", stop_reaches_a_trial_of_another_process),
        ("a_damaged_checkpoint_is_refused_by_name", a_damaged_checkpoint_is_refused_by_name),
        ("out_of_memory_and_divergence_are_verdicts", out_of_memory_and_divergence_are_verdicts),
        ("a_rank_that_talks_nonsense_is_replaced", a_rank_that_talks_nonsense_is_replaced),
        ("what_cannot_be_started_is_tried_again_until_the_user_stops", what_cannot_be_started_is_tried_again),
        ("a_second_controller_is_refused", a_second_controller_is_refused),
        ("only_the_newest_checkpoints_are_kept", only_the_newest_checkpoints_are_kept),
        ("ranks_meet_over_tls", ranks_meet_over_tls),
        ("a_foreign_command_is_run_once_for_each_rank", a_foreign_command_is_run_once_for_each_rank),
        ("what_a_foreign_command_started_ends_with_its_agent", what_a_foreign_command_started_ends),
        ("nothing_runs_is_said_of_what_does_not_run", nothing_runs_is_said_of_what_does_not_run),
    ];
    let chosen: Vec<_> = tests
        .iter()
        .filter(|(name, _)| {
            let mut names = filters.iter().filter(|filter| !filter.starts_with('-')).peekable();
            names.peek().is_none() || names.any(|filter| name.contains(filter))
        })
        .collect();
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((name, test)) = chosen.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let started = Instant::now();
                    let ok = catch_unwind(test).is_ok();
                    failed.fetch_add(usize::from(!ok), Ordering::SeqCst);
                    let word = if ok { "ok" } else { "FAILED" };
                    println!("test {name} ... {word} ({:.1?})", started.elapsed());
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!("{failed} of {} failed", chosen.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A controller that says every fact once it was kept, as a line of JSON.
fn controller(verb: &str, root: &Path, trial: &str) -> ExitCode {
    let world = World::at(root, TrialId(trial.into()));
    let verb = if verb == "start" { driver::start } else { driver::resume };
    let mut say = |seen: &Seen| {
        if let Seen::Fact(fact) = seen {
            let line = serde_json::to_string(fact).expect("facts are JSON") + "\n";
            std::io::stdout().write_all(line.as_bytes()).expect("a file");
        }
    };
    match world.drive_and(verb, &mut say) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => panic!("{error}"),
    }
}

fn a_trial_completes_and_everything_seen_was_kept() {
    let world = World::new();
    let (outcome, seen) = world.drive(driver::start);
    world.assert_completed(&outcome.expect("driven"));
    let facts: Vec<Fact> =
        seen.iter().filter_map(|s| if let Seen::Fact(f) = s { Some(f.clone()) } else { None }).collect();
    assert_eq!(facts, world.facts());
    let history = History::open(&world.home.history()).expect("opens");
    let load = history.series(&world.trial, "system.resident_bytes", Rank(0)).expect("readable");
    assert!(load.iter().all(|sample| sample.value > 0.0), "{load:?}");
    let steps =
        seen.iter().filter(|s| matches!(s, Seen::Event(e) if matches!(e.event, Event::Step(_)))).count();
    assert_eq!(steps as u64, STEPS * u64::from(RANKS), "every step of every rank was seen once");
    assert!(matches!(driver::start, f if matches!(world.drive(f).0, Err(DriveError::Launched(_)))));
    let again = world.drive(driver::resume).0.expect("a completed trial is returned as it ended");
    world.assert_completed(&again);
    world.assert_nothing_lives();
}

fn a_killed_rank_is_relaunched() {
    let world = World::new();
    let outcome = thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start));
        world.wait_for_a_checkpoint();
        kill(&world.card().expect("it runs").ranks[1]);
        driving.join().expect("driven")
    });
    world.assert_completed(&outcome.0.expect("driven"));
    let killed = Ended::Lost(Failure::Exited { code: None, signal: Some(9) });
    let facts = world.facts();
    assert!(facts.contains(&Fact::AttemptEnded { attempt: AttemptId(1), ended: killed }), "{facts:?}");
    assert!(facts.iter().any(|f| matches!(f, Fact::AttemptStarted { attempt: AttemptId(2), from: Some(_) })));
    let waiting = |s: &&Seen| matches!(s, Seen::Status(Status::Waiting { failures: (1, 5), .. }));
    assert_eq!(outcome.1.iter().filter(waiting).count(), 1);
    world.assert_nothing_lives();
}

fn a_killed_agent_is_replaced() {
    let world = World::new();
    let outcome = thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start));
        world.wait_for_a_checkpoint();
        let card = world.card().expect("it runs");
        kill(&card.agent);
        wait("the ranks to follow their agent", || card.ranks.iter().all(|rank| !rank.is_alive()));
        driving.join().expect("driven").0
    });
    world.assert_completed(&outcome.expect("driven"));
    world.assert_nothing_lives();
}

/// Kills ranks, agents and controllers at random moments until the trial has completed.
fn whatever_is_killed() {
    for seed in 0..3u64 {
        let world = World::new();
        let mut draws = 0;
        let mut draw = |bound: u64| {
            draws += 1;
            mix(seed, draws) % bound
        };
        let mut kills = 0;
        let mut child = world.controller("start");
        while kills < 8 {
            thread::sleep(Duration::from_millis(20 + draw(180)));
            if child.try_wait().expect("our child").is_some() {
                break;
            }
            kills += 1;
            let (victims, card) = (draw(8), world.card());
            if let Some(card) = &card {
                if victims & 1 == 1 {
                    kill(&card.ranks[draw(u64::from(RANKS)) as usize]);
                }
                if victims & 2 == 2 {
                    kill(&card.agent);
                }
            }
            if victims & 4 == 4 || card.is_none() {
                child.kill().expect("our child");
                child.wait().expect("our child");
                child = world.controller("resume");
            }
        }
        let until = Instant::now() + Duration::from_secs(30);
        while child.try_wait().expect("our child").is_none() {
            assert!(
                Instant::now() < until,
                "seed {seed}: it should have ended after {kills} kills: {:?}",
                world.facts()
            );
            thread::sleep(Duration::from_millis(5));
        }
        assert!(kills > 0, "seed {seed} disturbed nothing");
        let outcome = world.drive(driver::resume).0.expect("driven");
        world.assert_completed(&outcome);
        let kept = world.facts();
        let said = fs::read_to_string(world.root.join("seen")).expect("controllers said something");
        for line in said.lines() {
            // A controller killed while it says a line says half of it.
            let Ok(fact) = serde_json::from_str::<Fact>(line) else { continue };
            assert!(kept.contains(&fact), "seed {seed}: {fact:?} was acknowledged and lost");
        }
        let starts = kept.iter().filter(|f| matches!(f, Fact::AttemptStarted { .. })).count();
        let ends = kept.iter().filter(|f| matches!(f, Fact::AttemptEnded { .. })).count();
        assert_eq!(starts, ends, "seed {seed}: every attempt ended once");
        world.assert_nothing_lives();
    }
}

fn training_goes_on_without_a_controller() {
    let mut world = World::new();
    world.options.detach = true;
    let outcome = world.drive(driver::start).0.expect("driven");
    let Outcome::Detached { agent: Some(agent) } = outcome else {
        panic!("it should be detached: {outcome:?}")
    };
    assert_eq!(agent, world.card().expect("it runs").agent.id);
    assert!(driver::is_running(&world.home, &world.trial));
    world.wait_for_a_checkpoint();
    world.options = dtrain_runner::Options { on_interrupt: OnInterrupt::Leave, ..Default::default() };
    world.interrupts = Arc::default();
    let left = thread::scope(|scope| {
        let interrupts = Arc::clone(&world.interrupts);
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(60));
            interrupts.add();
        });
        world.drive(driver::attach).0.expect("it runs")
    });
    assert!(matches!(left, Outcome::Detached { .. }), "{left:?}");
    // Nobody looks while it ends; then its spool is enough.
    world.assert_nothing_lives();
    assert!(!driver::is_running(&world.home, &world.trial));
    world.interrupts = Arc::default();
    let (outcome, seen) = world.drive(driver::attach);
    world.assert_completed(&outcome.expect("what it left behind is read"));
    assert!(
        !seen.iter().any(|s| matches!(s, Seen::Event(e) if matches!(e.event, Event::Ready { .. }))),
        "seen before"
    );
}

fn a_stopped_trial_resumes() {
    let world = World::new();
    let outcome = thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start).0);
        world.wait_for_a_checkpoint();
        world.interrupts.add();
        driving.join().expect("driven").expect("driven")
    });
    let Outcome::Ended { verdict: Verdict::Stopped, checkpoint: Some(point), attempts: 1 } = outcome else {
        panic!("it should have stopped: {outcome:?}")
    };
    let ended = Fact::AttemptEnded { attempt: AttemptId(1), ended: Ended::Finished(StopReason::Ordered) };
    assert!(world.facts().contains(&ended));
    assert!(point.step.0 % 10 != 0 || point.step.0 < STEPS, "it saved where it stopped: {point:?}");
    world.assert_nothing_lives();
    let outcome = world.drive(driver::resume).0.expect("driven");
    world.assert_completed(&outcome);
    let spent = world.spent.lock().expect("whole").clone();
    assert!(spent[0] == 0.0 && (0.02..15.0).contains(&spent[1]), "earlier attempts count: {spent:?}");
    let from = Fact::AttemptStarted { attempt: AttemptId(2), from: Some(point.step) };
    assert!(world.facts().contains(&from), "{:?}", world.facts());
}

fn the_second_interrupt_kills() {
    let world = World::new();
    let outcome = thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start).0);
        wait("the ranks", || world.card().is_some());
        world.interrupts.add();
        world.interrupts.add();
        driving.join().expect("driven").expect("driven")
    });
    assert!(matches!(outcome, Outcome::Ended { verdict: Verdict::Stopped, .. }), "{outcome:?}");
    world.assert_nothing_lives();
    world.assert_completed(&world.drive(driver::resume).0.expect("driven"));
}

fn stop_reaches_a_trial_of_another_process() {
    let world = World::new();
    let mut child = world.controller("start");
    world.wait_for_a_checkpoint();
    driver::stop(&world.home, &world.trial).expect("it runs");
    assert!(child.wait().expect("our child").success());
    assert!(world.facts().contains(&Fact::TrialEnded { verdict: Verdict::Stopped }), "{:?}", world.facts());
    world.assert_nothing_lives();
}

fn a_damaged_checkpoint_is_refused_by_name() {
    // The manifest is found wrong by the driver, the weights by a rank.
    for file in ["manifest.json", "rank-00001.bin"] {
        let world = World::new();
        let outcome = thread::scope(|scope| {
            let driving = scope.spawn(|| world.drive(driver::start).0);
            let folder = world.home.trial(&world.trial).checkpoints();
            wait("two checkpoints", || checkpoints::committed(&folder).is_ok_and(|found| found.len() > 1));
            world.interrupts.add();
            driving.join().expect("driven").expect("driven")
        });
        let Outcome::Ended { checkpoint: Some(newest), .. } = outcome else {
            panic!("it saved: {outcome:?}")
        };
        let path = newest.folder.join(file);
        let mut bytes = fs::read(&path).expect("committed");
        bytes[20] ^= 1;
        fs::write(&path, bytes).expect("room on disk");
        let outcome = world.drive(driver::resume).0.expect("driven");
        world.assert_completed(&outcome);
        let refused = world.facts().into_iter().find_map(|fact| match fact {
            Fact::CheckpointRefused { folder, reason, .. } => Some((folder, reason)),
            _ => None,
        });
        let (folder, reason) = refused.expect("it was refused");
        assert!(folder == newest.folder && reason.contains(file), "{file}: {reason}");
        world.assert_nothing_lives();
    }
}

fn out_of_memory_and_divergence_are_verdicts() {
    for (kind, expected) in [("memory 15", Verdict::OutOfMemory), ("nan 15", Verdict::Diverged)] {
        let world = World::new();
        world.sabotage(kind);
        let outcome = world.drive(driver::start).0.expect("driven");
        let Outcome::Ended { verdict, attempts: 1, .. } = outcome else { panic!("one attempt: {outcome:?}") };
        assert_eq!(verdict, expected);
        world.assert_nothing_lives();
    }
}

fn a_rank_that_talks_nonsense_is_replaced() {
    let world = World::new();
    world.sabotage("garble 12");
    let outcome = world.drive(driver::start).0.expect("driven");
    world.assert_completed(&outcome);
    let facts = world.facts();
    let garbled = |fact: &Fact| matches!(fact, Fact::AttemptEnded { ended: Ended::Lost(Failure::Other(words)), .. } if words.contains("rank 1 is not understood"));
    assert!(facts.iter().any(garbled), "{facts:?}");
    world.assert_nothing_lives();
}

fn what_cannot_be_started_is_tried_again() {
    let mut world = World::new();
    world.command = Some(vec!["/nowhere/to/be/found".into()]);
    thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start));
        // Stopping while the next attempt is waited for ends the trial at once.
        wait("three attempts", || {
            let lost = |fact: &&Fact| matches!(fact, Fact::AttemptEnded { ended: Ended::NotLaunched(_), .. });
            world.facts().iter().filter(lost).count() >= 3
        });
        world.interrupts.add();
        let (outcome, seen) = driving.join().expect("driven");
        let outcome = outcome.expect("driven");
        assert!(
            matches!(outcome, Outcome::Ended { verdict: Verdict::Stopped, checkpoint: None, .. }),
            "{outcome:?}"
        );
        let words = |s: &Seen| matches!(s, Seen::Status(Status::Waiting { failure: Failure::Other(w), .. }) if w.contains("rank 0 cannot be started"));
        assert!(seen.iter().any(words), "{seen:?}");
    });
    world.assert_nothing_lives();
}

fn a_second_controller_is_refused() {
    let world = World::new();
    thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start).0);
        world.wait_for_a_checkpoint();
        match world.drive(driver::attach).0 {
            Err(DriveError::Busy { process, .. }) => assert_eq!(process, std::process::id()),
            other => panic!("it is driven already: {other:?}"),
        }
        world.assert_completed(&driving.join().expect("driven").expect("driven"));
    });
}

fn only_the_newest_checkpoints_are_kept() {
    let mut world = World::new();
    world.options.keep = 1;
    world.assert_completed(&world.drive(driver::start).0.expect("driven"));
    let kept = checkpoints::committed(&world.home.trial(&world.trial).checkpoints()).expect("a folder");
    let steps: Vec<u64> = kept.iter().map(|point| point.step.0).collect();
    assert_eq!(steps, [STEPS - 10, STEPS], "never fewer than two");
}

fn ranks_meet_over_tls() {
    let world = World::new().over_tls();
    let (outcome, _) = world.drive(driver::start);
    world.assert_completed(&outcome.expect("driven"));
    let spool = fs::read(world.home.trial(&world.trial).spool(AttemptId(1))).expect("it is kept");
    assert!(!String::from_utf8_lossy(&spool).contains("PRIVATE"), "keys stay out of what is written");
}

fn a_foreign_command_is_run_once_for_each_rank() {
    let mut world = World::new();
    let script = r#"test "$WORLD_SIZE" = 2 && test -n "$MASTER_PORT" && echo "hello from $RANK"
        echo "{\"step\": 1, \"loss\": 0.$RANK}" >"/proc/self/fd/$DTRAIN_EVENTS_FD""#;
    world.command = Some(vec!["sh".into(), "-c".into(), script.into()]);
    let (outcome, seen) = world.drive(driver::start);
    let outcome = outcome.expect("driven");
    let complete = Verdict::Completed(StopReason::Complete);
    assert!(
        matches!(&outcome, Outcome::Ended { verdict, .. } if *verdict == complete),
        "{outcome:?} {seen:?}"
    );
    let losses: Vec<_> = seen
        .iter()
        .filter_map(|s| match s {
            Seen::Event(stamped) => match &stamped.event {
                Event::Step(figures) => Some((stamped.rank, figures.loss)),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert!(losses.len() == 2 && losses.contains(&(Rank(1), 0.1)), "{losses:?}");
    let logs = driver::logs(&world.home, &world.trial).expect("a folder");
    let of: Vec<_> = logs.iter().map(|log| log.of).collect();
    assert_eq!(of, [Some((AttemptId(1), Rank(0))), Some((AttemptId(1), Rank(1))), None]);
    assert_eq!(fs::read_to_string(&logs[1].path).expect("a log"), "hello from 1\n");
    world.assert_nothing_lives();
}

fn what_a_foreign_command_started_ends() {
    let mut world = World::new();
    // The shell dies by the kernel's hand, the process it started by the next controller's.
    let script = format!("sleep 60 & exec tail -f /dev/null {}/nothing", world.root.display());
    world.command = Some(vec!["sh".into(), "-c".into(), format!("({script}) & wait")]);
    thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start).0);
        wait("the ranks", || world.card().is_some());
        let first = world.card().expect("it runs");
        kill(&first.agent);
        wait("the next attempt", || world.card().is_some_and(|card| card.attempt > first.attempt));
        assert!(first.ranks.iter().all(|rank| !rank.is_alive()));
        world.interrupts.add();
        let outcome = driving.join().expect("driven").expect("driven");
        assert!(matches!(outcome, Outcome::Ended { verdict: Verdict::Stopped, .. }), "{outcome:?}");
    });
    world.assert_nothing_lives();
}

fn nothing_runs_is_said_of_what_does_not_run() {
    let world = World::new();
    world.home.trial(&world.trial).create().expect("room on disk");
    assert!(matches!(driver::stop(&world.home, &world.trial), Err(DriveError::NothingRuns(_))));
    assert!(matches!(world.drive(driver::attach).0, Err(DriveError::NothingRuns(_))));
}
