//! Ranks that are foreign programs.

use crate::world::{World, kill, wait};
use dtrain_protocol::{AttemptId, Event, Failure, Rank, StampedEvent, StopReason};
use dtrain_recipes::{Framework, Workdir};
use dtrain_runner::launch::relay::WorkdirTransfer;
use dtrain_runner::workdir::WorkdirSnapshot;
use dtrain_runner::{AttemptEnd, DriveOutcome, Fact, TrialEvent, Verdict, driver};
use std::fs;
use std::path::Path;
use std::sync::Arc;
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
        matches!(&outcome, DriveOutcome::Ended { verdict, .. } if *verdict == complete),
        "{outcome:?} {seen:?}"
    );
    let losses: Vec<_> = seen
        .iter()
        .filter_map(|s| match s {
            TrialEvent::Event(stamped) => match &stamped.event {
                Event::Step(figures) => Some((stamped.rank, figures.loss)),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert!(losses.len() == 2 && losses.contains(&(Rank(1), 0.1)), "{losses:?}");
    let logs = dtrain_runner::logs::logs(&world.home, &world.trial).expect("a folder");
    let of: Vec<_> = logs.iter().map(|log| log.of).collect();
    assert_eq!(of, [Some((AttemptId(1), Rank(0))), Some((AttemptId(1), Rank(1))), None]);
    assert_eq!(fs::read_to_string(&logs[1].path).expect("a log"), "hello from 1\n");
    world.assert_nothing_lives();
}

pub(crate) fn a_failed_foreign_command_is_recorded_with_its_last_words() {
    let mut world = World::new();
    let script = r#"echo "step 1 loss 4.5"; echo "step 2 loss 4.25"
        test "$DTRAIN_ATTEMPT" = 2 && exit 0
        test "$RANK" = 0 && sleep 60
        echo "no such file: data.bin" >&2; exit 3"#;
    world.command = Some(vec!["sh".into(), "-c".into(), script.into()]);
    world.progress = vec!["step {step} loss {loss}".into()];
    let (outcome, seen) = world.drive(driver::start);
    let outcome = outcome.expect("driven");
    let DriveOutcome::Ended { verdict: Verdict::Completed(_), attempts: 2, .. } = outcome else {
        panic!("the second attempt does: {outcome:?} {seen:?}")
    };
    let last = ["step 1 loss 4.5", "step 2 loss 4.25", "no such file: data.bin"].map(str::to_owned).into();
    let ended = AttemptEnd::Lost(Failure::Command { code: Some(3), signal: None, last });
    let facts = world.facts();
    assert!(facts.contains(&Fact::AttemptEnded { attempt: AttemptId(1), ended }), "{facts:?}");
    let steps = seen.iter().filter_map(|seen| match seen {
        TrialEvent::Event(StampedEvent { rank: Rank(1), event: Event::Step(figures), .. }) => {
            Some(figures.loss)
        }
        _ => None,
    });
    assert_eq!(steps.take(2).collect::<Vec<_>>(), [4.5, 4.25]);
    world.assert_nothing_lives();
}

pub(crate) fn foreign_ranks_of_hosts_meet_at_the_first() {
    let mut world = World::new();
    world.hosts = Some(2);
    let script = r#"echo "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE" >>"place.$RANK"
        echo "$MASTER_ADDR:$MASTER_PORT $TF_CONFIG" | sed 's/.."index.*//' >>"meeting.$RANK""#;
    world.command = Some(vec!["sh".into(), "-c".into(), script.into()]);
    world.framework = Framework::Tensorflow;
    let outcome = world.drive(driver::start).0.expect("driven");
    assert!(matches!(outcome, DriveOutcome::Ended { verdict: Verdict::Completed(_), .. }), "{outcome:?}");
    let told = |name: &str| fs::read_to_string(world.root.join(name)).expect("each rank wrote it");
    assert_eq!((told("place.0"), told("place.1")), ("0 0 1 0 2\n".into(), "1 0 1 1 2\n".into()));
    assert_eq!(told("meeting.0"), told("meeting.1"));
    world.assert_nothing_lives();
}

pub(crate) fn foreign_ranks_run_in_the_folder_that_their_hosts_received() {
    let mut world = World::new();
    world.hosts = Some(2);
    let project = world.root.join("project");
    fs::create_dir_all(project.join("lib")).expect("room on disk");
    fs::write(project.join("train.sh"), ". ./lib/word.sh; echo $word >here.$RANK").expect("room on disk");
    fs::write(project.join("lib/word.sh"), "word=first").expect("room on disk");
    let take = || WorkdirSnapshot::take(&project, &Workdir::default(), world.home.path()).expect("readable");
    let snapshot = Arc::new(take());
    let store = |host: u32| world.host(host).join("workdirs").join(snapshot.digest());
    let (first, second) = (store(0), store(1));
    fs::write(project.join("lib/word.sh"), "word=second").expect("room on disk");
    let changed = take();
    fs::write(project.join("lib/word.sh"), "word=first").expect("room on disk");
    world.workdir = Some(Arc::clone(&snapshot));
    world.command = Some(vec!["sh".into(), "train.sh".into()]);
    let outcome = world.drive(driver::start).0.expect("driven");
    assert!(matches!(outcome, DriveOutcome::Ended { verdict: Verdict::Completed(_), .. }), "{outcome:?}");
    let told = |path: &Path| fs::read_to_string(path).expect("each rank wrote it in its folder");
    assert_eq!(
        (told(&first.join("here.0")), told(&second.join("here.1"))),
        ("first\n".into(), "first\n".into())
    );

    let mut host = world.remote(1);
    assert_eq!(host.put_workdir(&snapshot, &|_| ()), Ok(WorkdirTransfer::AlreadyThere), "once");
    assert_eq!(host.has_workdir(changed.digest()), Ok(false));
    let refused = host.put_workdir(&changed, &|_| ()).expect_err("the file is not as it was hashed");
    assert!(refused.contains("lib/word.sh"), "{refused}");
    fs::write(second.join("train.sh"), "changed by a program").expect("room on disk");
    let sent = host.put_workdir(&snapshot, &|_| ());
    assert!(matches!(sent, Ok(WorkdirTransfer::Sent { .. })), "{sent:?}");
    assert_eq!(host.has_workdir(snapshot.digest()), Ok(true));
    drop(host);
    world.assert_nothing_lives();
}

pub(crate) fn what_a_foreign_command_started_ends() {
    let mut world = World::new();
    // The kernel kills the shell, the next controller kills its child.
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
        assert!(matches!(outcome, DriveOutcome::Ended { verdict: Verdict::Stopped, .. }), "{outcome:?}");
    });
    world.assert_nothing_lives();
}
