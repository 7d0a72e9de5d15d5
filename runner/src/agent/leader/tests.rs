//! Tests of the leader's reactions to messages of hosts.

use super::*;
use crate::agent::fixtures;
use crate::agent::messages::RankExit;
use crate::agent::peers::heartbeat::Heartbeat;
use crate::control_protocol::{PeerAddress, STOP_GRACE_MS};
use crate::fact::AttemptEnd;
use dtrain_protocol::{
    AttemptId, MetricTarget, NamedFigure, PhaseTimes, ResidentBytes, StepFigures, TrialId,
};
use dtrain_recipes::{Goal, Metric, Mlp, MlpActivation, Model};
use std::path::PathBuf;

/// Returns a leader of `hosts` hosts with one rank each, all started.
fn leading(hosts: u32) -> Leader {
    leading_with(hosts, false, None)
}

/// Returns the same with a target, for ranks of a foreign program or not.
fn leading_with(hosts: u32, are_foreign: bool, target: Option<MetricTarget>) -> Leader {
    let mut leader = begun(hosts, are_foreign, target);
    let mut answer = |host, message| drop(leader.step(now(), AttemptInput::Host(host, message)));
    if are_foreign {
        for host in 0..hosts {
            // The host of rank 0 also has the rendezvous port.
            let ports = if host == LEADER_HOST { 7000..7002 } else { 7000..7001 };
            let addresses = ports.map(|port| format!("127.0.0.{host}:{port}")).collect();
            answer(host, HostMessage::Reserved { addresses: Ok(addresses) });
        }
    }
    for host in (1..hosts).chain([LEADER_HOST]) {
        answer(host, HostMessage::Started { outcome: Ok(()) });
    }
    leader
}

/// Returns a leader of a foreign program with one rank, which is started.
fn leading_foreign() -> Leader {
    leading_with(1, true, None)
}

/// Returns a leader of `hosts` hosts with one rank each, after its first requests.
fn begun(hosts: u32, are_foreign: bool, target: Option<MetricTarget>) -> Leader {
    let model =
        Model::Mlp(Mlp { inputs: 1, hidden: Vec::new(), classes: 1, activation: MlpActivation::Relu });
    let mut first = fixtures::assignment(TrialId("01T".into()), AttemptId(1), model);
    first.until.target = target;
    let settings = AttemptConfig {
        attempt: AttemptId(1),
        keep: 2,
        gathers: false,
        checkpoints: PathBuf::new(),
        resume: None,
        first,
        address: String::new(),
    };
    let host = |index| {
        let peer = PeerAddress { host: index, name: format!("node{index}"), address: String::new() };
        (index, HostState::new(peer, index..index + 1, Millis(0)))
    };
    Leader::begin(settings, (0..hosts).map(host).collect(), are_foreign, now()).0
}

fn now() -> ClockReading {
    ClockReading { moment: Millis(0), wall_ms: 0 }
}

/// Returns the failures spooled when the rank of `host`, of `hosts`, cannot use its data.
fn without_data(hosts: u32, host: u32) -> Vec<Failure> {
    let event = Event::Failed(Failure::Data("no such file".into()));
    let said = HostMessage::Event { rank: Rank(host), event };
    let effects = leading(hosts).step(now(), AttemptInput::Host(host, said));
    let spooled = effects.into_iter().filter_map(|effect| match effect {
        AttemptEffect::Spool(SpoolRecord::Event(StampedEvent { event: Event::Failed(failure), .. })) => {
            Some(failure)
        }
        _ => None,
    });
    spooled.collect()
}

#[test]
fn data_that_cannot_be_used_is_told_with_its_host_where_there_are_several() {
    let detail = || "no such file".to_owned();
    assert_eq!(without_data(1, 0), [Failure::Data(detail())]);
    assert_eq!(without_data(2, 1), [Failure::DataOn { host: Some("node1".into()), detail: detail() }]);
    assert_eq!(
        without_data(2, 0),
        [Failure::DataOn { host: None, detail: detail() }],
        "its controller knows"
    );
}

/// Lets the only rank ignore an order to stop, and checks that it is killed after `limit_ms`; returns the end
/// of the attempt.
fn deaf(mut leader: Leader, limit_ms: u64) -> Option<AttemptEnd> {
    let at = |milliseconds| ClockReading { moment: Millis(milliseconds), wall_ms: milliseconds };
    let kills = |effects: Vec<AttemptEffect>| {
        effects
            .iter()
            .filter(|effect| matches!(effect, AttemptEffect::Ask(LEADER_HOST, LeaderMessage::Kill { .. })))
            .count()
    };
    let asked = leader.step(at(1_000), AttemptInput::Stop);
    let stop = LeaderMessage::Order { order: Arc::new(Order::Stop) };
    assert!(asked.contains(&AttemptEffect::Ask(LEADER_HOST, stop)), "{asked:?}");
    // Its agent's loop makes progress meanwhile.
    let heartbeat = Heartbeat { turns: 1, ..Heartbeat::default() };
    leader.step(at(999 + limit_ms), AttemptInput::Beat(LEADER_HOST, heartbeat));
    assert_eq!(kills(leader.step(at(999 + limit_ms), AttemptInput::Tick)), 0, "it may still stop by itself");
    let first = kills(leader.step(at(1_000 + limit_ms), AttemptInput::Tick));
    assert_eq!(first + kills(leader.step(at(1_000 + limit_ms), AttemptInput::Tick)), 1);
    let exit = RankExit { code: None, signal: Some(9) };
    leader.step(
        at(1_000 + limit_ms),
        AttemptInput::Host(LEADER_HOST, HostMessage::Exited { rank: Rank(0), exit }),
    );
    let closed = HostMessage::OutputClosed { rank: Rank(0), garbled: None, last: Vec::new() };
    let effects = leader.step(at(1_000 + limit_ms), AttemptInput::Host(LEADER_HOST, closed));
    effects.into_iter().find_map(|effect| match effect {
        AttemptEffect::Spool(SpoolRecord::Over { ended, .. }) => Some(ended),
        _ => None,
    })
}

/// Ends all ranks of a leader as they end when they were asked to stop, and returns the end of the attempt.
fn ended(leader: &mut Leader, hosts: u32) -> Option<AttemptEnd> {
    let mut effects = Vec::new();
    for host in 0..hosts {
        let rank = Rank(host);
        let event = Event::Finished { step: StepId(3), reason: StopReason::Ordered };
        for message in [
            HostMessage::Event { rank, event },
            HostMessage::Exited { rank, exit: RankExit { code: Some(0), signal: None } },
            HostMessage::OutputClosed { rank, garbled: None, last: Vec::new() },
        ] {
            effects.extend(leader.step(now(), AttemptInput::Host(host, message)));
        }
    }
    effects.into_iter().find_map(|effect| match effect {
        AttemptEffect::Spool(SpoolRecord::Over { ended, .. }) => Some(ended),
        _ => None,
    })
}

#[test]
fn when_a_host_leaves_the_ranks_stop_and_the_trial_continues_on_the_others() {
    let leaves = |host| AttemptInput::Host(host, HostMessage::Terminated);
    let cause = LeaveCause::Termination;
    let is_stop = |effect: &AttemptEffect| matches!(effect, AttemptEffect::Ask(_, LeaderMessage::Order { order }) if **order == Order::Stop);
    for (host, name) in [(2, Some("node2".to_owned())), (LEADER_HOST, None)] {
        let mut leader = leading(3);
        let asked = leader.step(now(), leaves(host)).iter().filter(|effect| is_stop(effect)).count();
        assert_eq!(asked, 3, "every host's ranks save");
        let left = AttemptEnd::Lost(Failure::HostLeft { host: name, cause });
        assert_eq!(ended(&mut leader, 3), Some(left));
    }
    let stopped = Some(AttemptEnd::Finished(StopReason::Ordered));
    let mut all = leading(2);
    (0..2).for_each(|host| drop(all.step(now(), leaves(host))));
    assert_eq!(ended(&mut all, 2), stopped, "no host is left");
    for hosts in [1, 2] {
        let mut of_a_cluster = leading(hosts);
        of_a_cluster.settings.gathers = true;
        (0..hosts).for_each(|host| drop(of_a_cluster.step(now(), leaves(host))));
        let left = Failure::HostLeft { host: None, cause: LeaveCause::Termination };
        assert_eq!(
            ended(&mut of_a_cluster, hosts),
            Some(AttemptEnd::Lost(left)),
            "its controller has others"
        );
    }
    let mut by_user = leading(2);
    by_user.step(now(), leaves(1));
    by_user.step(now(), AttemptInput::Stop);
    assert_eq!(ended(&mut by_user, 2), stopped, "the user stopped it");
    let mut gone = leading(2);
    gone.step(now(), leaves(1));
    let effects = gone.step(now(), AttemptInput::Lost(1, "closed".into()));
    let is_left = |effect: &AttemptEffect| {
        matches!(
            effect,
            AttemptEffect::Spool(SpoolRecord::Event(StampedEvent {
                event: Event::Failed(Failure::HostLeft { .. }),
                ..
            }))
        )
    };
    assert!(effects.iter().any(is_left), "it had no time to save: {effects:?}");
}

/// A notice leaves an unknown time, so that the ranks are not hurried. One during the launch waits until the ranks run.
#[test]
fn a_host_that_gave_notice_leaves_once_the_ranks_run() {
    let notice = |host| AttemptInput::Host(host, HostMessage::NoticeGiven);
    let is_stop = |effect: &AttemptEffect| matches!(effect, AttemptEffect::Ask(_, LeaderMessage::Order { order }) if **order == Order::Stop);
    let left = |host| Some(AttemptEnd::Lost(Failure::HostLeft { host, cause: LeaveCause::Notice }));
    for (host, name) in [(1, Some("node1".to_owned())), (LEADER_HOST, None)] {
        let mut leader = leading(2);
        assert_eq!(leader.step(now(), notice(host)).iter().filter(|effect| is_stop(effect)).count(), 2);
        assert_eq!(leader.kill_at, None);
        assert_eq!(ended(&mut leader, 2), left(name));
    }
    let mut early = begun(2, false, None);
    let started = || HostMessage::Started { outcome: Ok(()) };
    early.step(now(), AttemptInput::Host(1, started()));
    assert!(!early.step(now(), notice(1)).iter().any(is_stop), "the launch goes on");
    let effects = early.step(now(), AttemptInput::Host(LEADER_HOST, started()));
    assert_eq!(effects.iter().filter(|effect| is_stop(effect)).count(), 2);
    assert_eq!(ended(&mut early, 2), left(Some("node1".to_owned())));
    let mut alone = leading(1);
    alone.step(now(), notice(LEADER_HOST));
    assert_eq!(ended(&mut alone, 1), Some(AttemptEnd::Finished(StopReason::Ordered)), "as after SIGTERM");
}

/// A full disk: the second checkpoint in a row that one of several hosts cannot save ends the attempt, and names the host.
#[test]
fn a_host_that_cannot_save_twice_is_left() {
    let fails = |leader: &mut Leader, host: u32, step| {
        let event = Event::SaveFailed { step: StepId(step), reason: "no room".into(), retries: false };
        let message = HostMessage::Event { rank: Rank(host), event };
        let effects = leader.step(now(), AttemptInput::Host(host, message));
        effects.into_iter().find_map(|effect| match effect {
            AttemptEffect::Spool(SpoolRecord::Event(StampedEvent {
                event: Event::Failed(failure), ..
            })) => Some(failure),
            _ => None,
        })
    };
    for (host, name) in [(1, Some("node1".to_owned())), (LEADER_HOST, None)] {
        let mut leader = leading(2);
        leader.settings.gathers = true;
        assert_eq!(fails(&mut leader, host, 10), None, "it may find room");
        let storage = Failure::Storage { host: name, detail: "no room".into() };
        assert_eq!(fails(&mut leader, host, 20), Some(storage));
    }
    let mut alone = leading(1);
    alone.settings.gathers = true;
    assert_eq!([10, 20, 30].map(|step| fails(&mut alone, 0, step)), [None, None, None], "there is no other");
}

/// Returns `true` if a leader asks its ranks to stop when the rank of `host` reports `event`.
fn stops(leader: &mut Leader, host: u32, event: Event) -> bool {
    let effects =
        leader.step(now(), AttemptInput::Host(host, HostMessage::Event { rank: Rank(host), event }));
    let is_stop = |effect: &AttemptEffect| matches!(effect, AttemptEffect::Ask(_, LeaderMessage::Order { order }) if **order == Order::Stop);
    effects.iter().any(is_stop)
}

fn printed(loss: f64, learning_rate: f64, gradient_norm: Option<f64>) -> Event {
    Event::Step(StepFigures {
        step: StepId(5),
        loss,
        gradient_norm,
        learning_rate,
        elapsed: None,
        noise: None,
        tokens: 0,
        times: PhaseTimes::default(),
        memory_bytes: 0,
        sent_bytes: 0,
        held: ResidentBytes::default(),
    })
}

#[test]
fn a_program_that_ignores_the_order_to_stop_is_killed_and_has_stopped() {
    assert_eq!(deaf(leading_foreign(), STOP_GRACE_MS), Some(AttemptEnd::Finished(StopReason::Ordered)));
}

#[test]
fn a_rank_that_says_nothing_after_the_order_to_stop_is_killed_and_has_stopped() {
    let leader = leading(1);
    let seconds = leader.settings.first.waits.idle_seconds;
    let limit = u64::try_from(Duration::from_secs_f64(seconds).as_millis()).expect("minutes");
    assert_eq!(deaf(leader, limit), Some(AttemptEnd::Finished(StopReason::Ordered)));
}

#[test]
fn a_script_reaches_a_target_on_any_figure_that_it_reports() {
    for (metric, reached, missed) in [
        ("loss", printed(0.1, 1.0, None), printed(0.3, 0.1, None)),
        ("learning_rate", printed(1.0, 0.1, None), printed(0.1, f64::NAN, None)),
        ("gradient_norm", printed(1.0, 1.0, Some(0.1)), printed(0.1, 0.1, None)),
    ] {
        let target = MetricTarget { metric: Metric::from(metric.to_owned()), goal: Goal::Min, value: 0.2 };
        let leader = || leading_with(2, true, Some(target.clone()));
        assert!(stops(&mut leader(), 0, reached), "{metric}");
        assert!(!stops(&mut leader(), 0, missed), "{metric}");
    }
}

#[test]
fn a_target_is_held_against_the_lowest_rank_that_reports() {
    let target = MetricTarget { metric: Metric::Named("f1".into()), goal: Goal::Max, value: 0.9 };
    let mut leader = leading_with(3, true, Some(target));
    let f1 = |step, value| Event::Metrics {
        step: StepId(step),
        figures: vec![NamedFigure { name: "f1".into(), value }],
    };
    assert!(!stops(&mut leader, 1, f1(1, 0.5)));
    assert!(!stops(&mut leader, 2, f1(2, 0.95)));
    assert!(stops(&mut leader, 1, f1(2, 0.9)));
}

#[test]
fn a_higher_rank_waits_with_a_target_until_no_lower_one_can_report() {
    let target = MetricTarget { metric: Metric::Named("f1".into()), goal: Goal::Max, value: 0.9 };
    let leader = || leading_with(2, true, Some(target.clone()));
    let f1 = |step, value| Event::Metrics {
        step: StepId(step),
        figures: vec![NamedFigure { name: "f1".into(), value }],
    };
    let mut slow = leader();
    assert!(!stops(&mut slow, 1, f1(1, 0.95)), "rank 0 may still begin");
    assert!(!stops(&mut slow, 0, f1(1, 0.5)));
    assert!(!stops(&mut slow, 1, f1(2, 0.95)), "the lower rank counts");
    assert!(stops(&mut slow, 0, f1(2, 0.9)));
    let mut alone = leader();
    assert!(!stops(&mut alone, 1, f1(1, 0.95)));
    assert!(stops(&mut alone, 1, f1(2, 0.5)), "only the higher rank reports");
    let mut ended = leader();
    let closed = HostMessage::OutputClosed { rank: Rank(0), garbled: None, last: Vec::new() };
    ended.step(now(), AttemptInput::Host(LEADER_HOST, closed));
    let exit = RankExit { code: Some(0), signal: None };
    ended.step(now(), AttemptInput::Host(LEADER_HOST, HostMessage::Exited { rank: Rank(0), exit }));
    assert!(stops(&mut ended, 1, f1(1, 0.95)), "the lower rank has ended");
}

#[test]
fn a_target_that_is_reached_is_recorded_once() {
    let target = MetricTarget { metric: Metric::from("loss".to_owned()), goal: Goal::Min, value: 0.2 };
    let mut leader = leading_with(1, true, Some(target));
    let mut report = |loss| {
        let message = HostMessage::Event { rank: Rank(0), event: printed(loss, 1.0, None) };
        let effects = leader.step(now(), AttemptInput::Host(LEADER_HOST, message));
        let is_reached = |effect: &&AttemptEffect| {
            matches!(effect, AttemptEffect::Spool(SpoolRecord::TargetReached { .. }))
        };
        effects.iter().filter(is_reached).count()
    };
    assert_eq!([0.5, 0.1, 0.1, 0.5].map(&mut report), [0, 1, 0, 0]);
}
