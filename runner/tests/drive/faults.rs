//! Lost ranks, agents, controllers and checkpoints.

use crate::world::{RANKS, World, kill, signal, wait};
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{AttemptId, Failure};
use dtrain_runner::machine::Blame;
use dtrain_runner::{
    AttemptEnd, ControllerStatus, DriveOutcome, Fact, TrialEvent, Verdict, checkpoints, driver,
};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn a_killed_rank_is_relaunched() {
    let world = World::new();
    let outcome = thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start));
        world.wait_for_a_checkpoint();
        kill(&world.card().expect("it runs").ranks[1]);
        driving.join().expect("driven")
    });
    world.assert_completed(&outcome.0.expect("driven"));
    let killed = AttemptEnd::Lost(Failure::Exited { code: None, signal: Some(9) });
    let facts = world.facts();
    assert!(facts.contains(&Fact::AttemptEnded { attempt: AttemptId(1), ended: killed }), "{facts:?}");
    assert!(facts.iter().any(|f| matches!(f, Fact::AttemptStarted { attempt: AttemptId(2), from: Some(_) })));
    let waiting = |s: &&TrialEvent| {
        matches!(
            s,
            TrialEvent::Status(ControllerStatus::Backoff { failures: (1, _), blame: Blame::Machines, .. })
        )
    };
    assert_eq!(outcome.1.iter().filter(waiting).count(), 1);
    world.assert_nothing_lives();
}

pub(crate) fn a_frozen_rank_is_replaced() {
    let world = World::new();
    let outcome = thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start).0);
        world.wait_for_a_checkpoint();
        signal(&world.card().expect("it runs").ranks[1], Signal::STOP);
        driving.join().expect("driven")
    });
    world.assert_completed(&outcome.expect("driven"));
    let ended = world.facts().into_iter().find_map(|fact| match fact {
        Fact::AttemptEnded { attempt: AttemptId(1), ended: AttemptEnd::Lost(Failure::Other(why)) } => {
            Some(why)
        }
        _ => None,
    });
    assert!(ended.as_ref().is_some_and(|why| why.contains("stopped by a signal")), "{ended:?}");
    world.assert_nothing_lives();
}

pub(crate) fn a_killed_agent_is_replaced() {
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

/// Trains without a controller; returns the spool, and the offset of a complete step in it that no controller
/// has read.
fn unread(world: &World) -> (PathBuf, usize) {
    let detached = world.drive(driver::start).0.expect("driven");
    assert!(matches!(detached, DriveOutcome::Detached { .. }), "{detached:?}");
    let spool = world.home.trial(&world.trial).spool(AttemptId(1));
    // Before the first checkpoint, and not the last record, which may be incomplete.
    let place = || {
        let bytes = fs::read(&spool).unwrap_or_default();
        let (mut at, mut steps) = (0, Vec::new());
        while let Some([a, b, c, d]) = bytes.get(at..at + 4) {
            let length = 8 + u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            let record = bytes.get(at..at + length)?;
            if String::from_utf8_lossy(&record[8..]).contains("gradient_norm") {
                steps.push(at);
            }
            at += length;
        }
        (steps.len() > 2 * 8).then(|| steps[2 * 7])
    };
    wait("eight steps", || place().is_some());
    let place = place().expect("it was there");
    assert!(world.card().expect("it runs").agent.is_alive(), "it goes on meanwhile");
    (spool, place)
}

/// Returns a trial whose controller detached at once.
fn detached() -> World {
    let mut world = World::new().paced(0.05);
    world.options.detach = true;
    world
}

fn flip(spool: &Path, place: usize, bits: u8) {
    let file = fs::OpenOptions::new().read(true).write(true).open(spool).expect("it is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, place as u64).expect("it is that long");
    file.write_all_at(&[byte[0] ^ bits], place as u64).expect("room on disk");
}

pub(crate) fn a_damaged_record_is_skipped_and_told() {
    let mut world = detached();
    let (spool, place) = unread(&world);
    flip(&spool, place + 20, 1);
    world.options.detach = false;
    let (outcome, seen) = world.drive(driver::resume);
    let outcome = outcome.expect("driven");
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 1, .. }), "{outcome:?}");
    world.assert_completed(&outcome);
    let statuses: Vec<_> = seen.iter().filter(|seen| matches!(seen, TrialEvent::Status(_))).collect();
    let told = |seen: &&&TrialEvent| matches!(seen, TrialEvent::Status(ControllerStatus::SpoolRecordSkipped { offset, .. }) if *offset == place as u64);
    assert_eq!(statuses.iter().filter(told).count(), 1, "{statuses:?}");
    let attached =
        |seen: &&&TrialEvent| matches!(seen, TrialEvent::Status(ControllerStatus::Attached { .. }));
    assert_eq!(statuses.iter().filter(attached).count(), 1, "{statuses:?}");
    world.assert_nothing_lives();
}

pub(crate) fn a_spool_that_cannot_be_read_further_is_told_once() {
    let mut world = detached();
    let (spool, place) = unread(&world);
    flip(&spool, place + 3, 0x80);
    world.options.detach = false;
    let (outcome, seen) = world.drive(driver::resume);
    let outcome = outcome.expect("driven");
    // Later events are lost, so another attempt resumes from the newest checkpoint on disk. That may be the
    // last one, so the trial may end before it is attached to.
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 2, .. }), "{outcome:?}");
    world.assert_completed(&outcome);
    let statuses: Vec<_> = seen.iter().filter(|seen| matches!(seen, TrialEvent::Status(_))).collect();
    let told = |seen: &&&TrialEvent| matches!(seen, TrialEvent::Status(ControllerStatus::SpoolDamaged { offset, .. }) if *offset == place as u64);
    assert_eq!(statuses.iter().filter(told).count(), 1, "{statuses:?}");
    let attached =
        |seen: &&&TrialEvent| matches!(seen, TrialEvent::Status(ControllerStatus::Attached { .. }));
    assert!(statuses.iter().filter(attached).count() <= 2, "once for each attempt: {statuses:?}");
    world.assert_nothing_lives();
}

/// Kills ranks, agents and controllers at random moments until the trial has completed.
pub(crate) fn whatever_is_killed() {
    for seed in 0..3u64 {
        let world = World::new();
        let mut draws = 0;
        let mut draw = |bound: u64| {
            draws += 1;
            splitmix64(seed, draws) % bound
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
            // A controller killed while it writes a line leaves half of it.
            let Ok(fact) = serde_json::from_str::<Fact>(line) else { continue };
            assert!(kept.contains(&fact), "seed {seed}: {fact:?} was acknowledged and lost");
        }
        let starts = kept.iter().filter(|f| matches!(f, Fact::AttemptStarted { .. })).count();
        let ends = kept.iter().filter(|f| matches!(f, Fact::AttemptEnded { .. })).count();
        assert_eq!(starts, ends, "seed {seed}: every attempt ended once");
        world.assert_nothing_lives();
    }
}

pub(crate) fn a_damaged_checkpoint_is_refused_by_name() {
    // The driver detects the damaged manifest, a rank the damaged weights.
    for file in ["manifest.json", "rank-00001.bin"] {
        let world = World::new();
        let outcome = thread::scope(|scope| {
            let driving = scope.spawn(|| world.drive(driver::start).0);
            let folder = world.home.trial(&world.trial).checkpoints();
            wait("two checkpoints", || checkpoints::committed(&folder).is_ok_and(|found| found.len() > 1));
            world.interrupts.add();
            driving.join().expect("driven").expect("driven")
        });
        let DriveOutcome::Ended { checkpoint: Some(newest), .. } = outcome else {
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

pub(crate) fn out_of_memory_and_divergence_are_verdicts() {
    for (kind, expected) in [("memory 15", Verdict::OutOfMemory), ("nan 15", Verdict::Diverged)] {
        let world = World::new();
        world.sabotage(kind);
        let outcome = world.drive(driver::start).0.expect("driven");
        let DriveOutcome::Ended { verdict, attempts: 1, .. } = outcome else {
            panic!("one attempt: {outcome:?}")
        };
        assert_eq!(verdict, expected);
        world.assert_nothing_lives();
    }
}

pub(crate) fn a_rank_that_talks_nonsense_is_replaced() {
    let world = World::new();
    world.sabotage("garble 12");
    let outcome = world.drive(driver::start).0.expect("driven");
    world.assert_completed(&outcome);
    let facts = world.facts();
    let garbled = |fact: &Fact| matches!(fact, Fact::AttemptEnded { ended: AttemptEnd::Lost(Failure::Other(words)), .. } if words.contains("cannot decode a message from rank 1"));
    assert!(facts.iter().any(garbled), "{facts:?}");
    world.assert_nothing_lives();
}

pub(crate) fn what_cannot_be_started_is_tried_again() {
    let mut world = World::new();
    world.command = Some(vec!["no\0program".into()]);
    thread::scope(|scope| {
        let driving = scope.spawn(|| world.drive(driver::start));
        // A stop during the backoff ends the trial at once.
        wait("three attempts", || {
            let lost =
                |fact: &&Fact| matches!(fact, Fact::AttemptEnded { ended: AttemptEnd::NotLaunched(_), .. });
            world.facts().iter().filter(lost).count() >= 3
        });
        world.interrupts.add();
        let (outcome, seen) = driving.join().expect("driven");
        let outcome = outcome.expect("driven");
        assert!(
            matches!(outcome, DriveOutcome::Ended { verdict: Verdict::Stopped, checkpoint: None, .. }),
            "{outcome:?}"
        );
        let words = |s: &TrialEvent| matches!(s, TrialEvent::Status(ControllerStatus::Backoff { failure: Failure::Other(w), .. }) if w.contains("rank 0 cannot be started"));
        assert!(seen.iter().any(words), "{seen:?}");
    });
    world.assert_nothing_lives();
}
