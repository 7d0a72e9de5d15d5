//! Agents on several hosts: the first leads, the others follow.

use super::relay::RemoteHost;
use super::{Launcher, Reached};
use crate::agent::{
    AgentCard, AgentOrder, FollowerOrder, OtherHost, PeerAddress, Program, Seat, agent_identities,
};
use dtrain_protocol::{AttemptId, TrialId};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;

/// Starts agents on other hosts.
pub struct ClusterLauncher {
    trial: TrialId,
    hosts: Vec<RemoteHost>,
}

impl ClusterLauncher {
    /// Reaches what runs of a trial on `hosts`, in the order of [`dtrain_protocol::Placement::host`].
    pub fn new(trial: &TrialId, hosts: Vec<RemoteHost>) -> Self {
        Self { trial: trial.clone(), hosts }
    }

    /// Does the same on every host at once; results in their order.
    fn on_all<T: Send>(
        &mut self,
        work: impl Fn(usize, &mut RemoteHost) -> Result<T, String> + Sync,
    ) -> Result<Vec<T>, String> {
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> = self
                .hosts
                .iter_mut()
                .enumerate()
                .map(|(index, host)| {
                    scope
                        .spawn(move || work(index, host).map_err(|reason| format!("{}: {reason}", host.name)))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        })
    }
}

impl Launcher for ClusterLauncher {
    fn launch(&mut self, order: &AgentOrder) -> Result<AgentCard, String> {
        let ranks = ranks_by_host(order, self.hosts.len())?;
        let (trial, attempt) = (order.trial.clone(), order.attempt);
        let hosts = u32::try_from(self.hosts.len()).map_err(|_| "too many hosts")?;
        let identities =
            agent_identities(&trial, attempt, hosts).map_err(|error| format!("certificates: {error}"))?;
        let nowhere = Program::new(PathBuf::new(), []);
        let at_their_doors = self.on_all(|index, host| {
            let bind = host.address()?;
            let seat = Seat { host: index as u32, bind, identity: identities[index].clone() };
            if index == 0 {
                return Ok((seat, None));
            }
            let (trial, worker) = (trial.clone(), nowhere.clone());
            let follower =
                FollowerOrder { trial, attempt, folder: PathBuf::new(), worker, seat: seat.clone() };
            Ok((seat, Some(host.follow(follower)?)))
        });
        let led = at_their_doors.and_then(|seats| {
            let names = self.hosts.iter().map(|host| host.name.clone());
            let others =
                seats.iter().zip(names).zip(&ranks).filter_map(|(((seat, address), name), ranks)| {
                    let address = address.clone()?;
                    Some(OtherHost {
                        peer: PeerAddress { host: seat.host, name, address },
                        ranks: ranks.clone(),
                    })
                });
            let order =
                AgentOrder { others: others.collect(), seat: Some(seats[0].0.clone()), ..order.clone() };
            let leader = &mut self.hosts[0];
            leader.lead(order).map_err(|reason| format!("{}: {reason}", leader.name))
        });
        if led.is_err() {
            // Followers that nobody leads would end by themselves, but not at once.
            self.kill(attempt);
        }
        led
    }

    fn hosts(&self) -> Vec<String> {
        self.hosts.iter().map(|host| host.name.clone()).collect()
    }

    /// The hosts see for themselves, when they bring their parts together.
    fn verify(&mut self, _: &Path) -> Result<(), String> {
        Ok(())
    }

    fn reach(&mut self, attempt: AttemptId, from: u64) -> Reached {
        let leader = &mut self.hosts[0];
        leader.reach(&self.trial, attempt, from).unwrap_or(Reached::Silent)
    }

    fn leftover(&mut self, attempt: AttemptId, from: u64) -> io::Result<Box<dyn Read + Send>> {
        let leftover = self.hosts[0].leftover(&self.trial, attempt, from)?;
        Ok(Box::new(io::Cursor::new(leftover)))
    }

    fn kill(&mut self, attempt: AttemptId) -> bool {
        let trial = self.trial.clone();
        self.on_all(|_, host| host.kill(&trial, attempt)).is_ok_and(|gone| gone.into_iter().all(|gone| gone))
    }
}

/// The ranks of each host, which are neighbours.
fn ranks_by_host(order: &AgentOrder, hosts: usize) -> Result<Vec<Range<u32>>, String> {
    let mut ranges = vec![0..0; hosts];
    let mut last = 0;
    for (rank, assignment) in (0u32..).zip(&order.assignments) {
        let host = assignment.placement.host as usize;
        if host >= hosts || host < last {
            return Err(format!("rank {rank} is placed on host {host} of {hosts}, after one on host {last}"));
        }
        if ranges[host].is_empty() {
            ranges[host] = rank..rank;
        }
        ranges[host].end = rank + 1;
        last = host;
    }
    match ranges.iter().position(Range::is_empty) {
        Some(idle) => Err(format!("host {idle} of {hosts} has no rank")),
        None => Ok(ranges),
    }
}
