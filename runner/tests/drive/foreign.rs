//! Ranks that are somebody else's program.

use crate::world::{World, kill, wait};
use dtrain_protocol::{AttemptId, Event, Rank, StopReason};
use dtrain_runner::{Outcome, Seen, Verdict, driver};
use std::fs;
use std::thread;

pub(crate) fn a_foreign_command_is_run_once_for_each_rank() {
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

pub(crate) fn what_a_foreign_command_started_ends() {
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
