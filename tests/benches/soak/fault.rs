//! What befalls a trial, drawn from a seed.

use super::lab::{Direction, Lab};
use super::shared::send;
use super::trial::{HOSTS, Trial, pause};
use dtrain_protocol::shuffle;
use rustix::process::Signal;
use std::time::Duration;

/// Bytes a second that a host sends, and is sent: then steps take as long as the network, and the processors have time for what
/// happens.
const NETWORK: u64 = 40 << 20;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    WorkerKilled,
    WorkerFrozen,
    FollowerKilled,
    LeaderKilled,
    HostFrozen,
    HostDies,
    HostCut,
    HostDeaf,
    HostDumb,
    TwoApart,
    DiskFull,
    ControllerKilled,
    ControllerCut,
}

impl Kind {
    /// Every kind, with its words.
    pub(crate) const ALL: [(Self, &str); 13] = [
        (Self::WorkerKilled, "a worker is killed"),
        (Self::WorkerFrozen, "a worker is frozen"),
        (Self::FollowerKilled, "an agent is killed"),
        (Self::LeaderKilled, "the leading agent is killed"),
        (Self::HostFrozen, "all processes of a host freeze"),
        (Self::HostDies, "a host dies"),
        (Self::HostCut, "a host is cut off"),
        (Self::HostDeaf, "a host hears nothing"),
        (Self::HostDumb, "a host is not heard"),
        (Self::TwoApart, "two hosts do not hear each other"),
        (Self::DiskFull, "the disk of a host is full"),
        (Self::ControllerKilled, "the controller is killed"),
        (Self::ControllerCut, "the controller is cut off"),
    ];

    pub(crate) fn words(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, words)| words)
    }
}

/// A fault: what, where, and for how long where it is over by itself.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// The machine; of two that are set apart the second is the next.
    pub(crate) at: String,
    pub(crate) lasts: Duration,
    other: String,
}

/// Draws faults: all kinds in random order, then again.
pub(crate) struct Drawn {
    seed: u64,
    drawn: u64,
    round: Vec<Kind>,
}

impl Drawn {
    pub(crate) fn from(seed: u64) -> Self {
        Self { seed, drawn: 0, round: Vec::new() }
    }

    /// The next fault of a trial on `hosts`, the first of which leads. It lasts half a second at least.
    pub(crate) fn next(&mut self, hosts: &[String], longest: Duration) -> Fault {
        if self.round.is_empty() {
            self.round = Kind::ALL.iter().map(|(kind, _)| *kind).collect();
        }
        let index = self.below(self.round.len());
        let kind = self.round.swap_remove(index);
        let any = self.below(hosts.len());
        let follower = self.below(hosts.len() - 1) + 1;
        let host = match kind {
            Kind::ControllerKilled | Kind::ControllerCut => None,
            Kind::LeaderKilled => Some(0),
            Kind::FollowerKilled => Some(follower),
            _ => Some(any),
        };
        let name = |host: usize| hosts[host % hosts.len()].clone();
        let other = host.map_or_else(String::new, |host| name(host + 1));
        let thousandth = u32::try_from(self.below(1000)).expect("it is less");
        let least = Duration::from_millis(500);
        let lasts = least + (longest.saturating_sub(least) / 1000) * thousandth;
        Fault { kind, at: host.map_or("controller".into(), name), lasts, other }
    }

    fn below(&mut self, count: usize) -> usize {
        self.drawn += 1;
        let count = u64::try_from(count).expect("few");
        usize::try_from(shuffle::splitmix64(self.seed, self.drawn) % count)
            .expect("it is less than the count")
    }
}

impl Fault {
    /// Strikes, and heals what does not heal by itself once it has lasted long enough.
    pub(crate) fn befalls(&self, lab: &Lab, trial: &mut Trial<'_>) {
        let host = self.at.as_str();
        match self.kind {
            Kind::WorkerKilled => signal_one(lab, host, "worker", Signal::KILL),
            Kind::WorkerFrozen => signal_one(lab, host, "worker", Signal::STOP),
            Kind::FollowerKilled | Kind::LeaderKilled => signal_one(lab, host, "agent", Signal::KILL),
            Kind::HostFrozen => {
                signal_all(lab, host, Signal::STOP);
                pause(self.lasts);
                signal_all(lab, host, Signal::CONT);
            }
            Kind::HostDies => {
                lab.kill_host(host);
                pause(self.lasts);
                lab.start_host(host);
            }
            Kind::HostCut => self.heals(lab, || lab.cut(host)),
            Kind::HostDeaf => self.heals(lab, || lab.cut_one_way(host, Direction::To)),
            Kind::HostDumb => self.heals(lab, || lab.cut_one_way(host, Direction::From)),
            Kind::TwoApart => self.heals(lab, || lab.cut_between(host, &self.other)),
            Kind::DiskFull => self.heals(lab, || lab.fill_disk(host)),
            Kind::ControllerKilled => {
                trial.kill_controller();
                pause(self.lasts);
                trial.resume();
            }
            Kind::ControllerCut => {
                lab.cut(host);
                pause(self.lasts);
                lab.heal(host);
            }
        }
    }

    /// Whether it is over by itself after a while.
    pub(crate) fn is_passing(&self) -> bool {
        !matches!(
            self.kind,
            Kind::WorkerKilled | Kind::WorkerFrozen | Kind::FollowerKilled | Kind::LeaderKilled
        )
    }

    fn heals(&self, lab: &Lab, strike: impl FnOnce()) {
        strike();
        pause(self.lasts);
        lab.heal(&self.at);
        lab.slow(&self.at, NETWORK);
    }
}

/// Lets the network of all hosts be as slow as that of a cluster is beside its processors.
pub(crate) fn slow(lab: &Lab) {
    HOSTS.iter().for_each(|host| lab.slow(host, NETWORK));
}

/// Signals one process of a host whose command ends so; none when there is none.
fn signal_one(lab: &Lab, host: &str, name: &str, signal: Signal) {
    let all = lab.processes(host);
    if let Some(process) = all.iter().find(|process| process.is_hidden_command(name)) {
        send(process.id, signal);
    }
}

fn signal_all(lab: &Lab, host: &str, signal: Signal) {
    for process in lab.processes(host) {
        send(process.id, signal);
    }
}
