//! The launch of an attempt: every host gets the checkpoint, foreign ranks get a rendezvous, and the hosts
//! start their ranks, the leader's last.

use super::super::foreign::Rendezvous;
use super::super::messages::{FetchRefusal, FetchSummary, HostMessage, LeaderMessage};
use super::{ANSWER_TIMEOUT_MS, AttemptEffect, AttemptPhase, LEADER_HOST, Leader, WORK_STALL_MS};
use crate::control_protocol::{LaunchError, PeerAddress};
use crate::machine::Millis;
use dtrain_protocol::{FileEntry, Manifest, StopReason};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A launch that waits for answers of hosts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PendingLaunch {
    stage: LaunchStage,
    /// Hosts that have not answered in the current stage.
    awaited: BTreeSet<u32>,
    /// Time at which the hosts were last asked.
    since: Millis,
}

/// The stage of a launch, by the last request to the hosts.
#[derive(Clone, Debug, PartialEq)]
enum LaunchStage {
    /// The hosts list the files of the checkpoint that they have.
    List { manifest: Option<Arc<str>>, holders: BTreeMap<String, Vec<PeerAddress>> },
    /// The hosts fetch the missing files; `all` sums up the amounts fetched.
    Fetch { all: FetchSummary },
    /// The hosts find free ports.
    Reserve { addresses: BTreeMap<u32, Vec<String>> },
    /// The hosts other than the leader's start their ranks.
    Start { rendezvous: Rendezvous },
    /// The leader's own host starts its ranks.
    StartOwn,
}

impl Leader {
    /// Begins the launch of the attempt.
    pub(super) fn launch(&mut self) {
        if self.ranks.is_empty() {
            return self.refuse("the order has no ranks".to_owned().into());
        }
        match self.settings.resume.clone().filter(|_| self.settings.gathers) {
            Some(folder) => {
                let all: BTreeSet<u32> = self.hosts.keys().copied().collect();
                for host in &all {
                    self.ask(*host, LeaderMessage::ListCheckpoint { folder: folder.clone() });
                }
                self.await_answers(LaunchStage::List { manifest: None, holders: BTreeMap::new() }, all);
            }
            None => self.reserve_rendezvous(),
        }
    }

    fn await_answers(&mut self, stage: LaunchStage, awaited: BTreeSet<u32>) {
        self.phase = AttemptPhase::Launching(PendingLaunch { stage, awaited, since: self.now.moment });
    }

    /// Returns the hosts that have ranks.
    pub(super) fn hosts_with_ranks(&self) -> BTreeSet<u32> {
        self.hosts.iter().filter(|(_, host)| !host.only_lends()).map(|(index, _)| *index).collect()
    }

    /// Handles a host's answer to a request of the launch.
    pub(super) fn handle_launch_answer(&mut self, host: u32, message: HostMessage) {
        let AttemptPhase::Launching(launch) = &mut self.phase else { return };
        if !launch.awaited.remove(&host) {
            return;
        }
        let is_last = launch.awaited.is_empty();
        let (name, peer) = (self.hosts[&host].peer.name.clone(), self.hosts[&host].peer.clone());
        let refused = |reason: String| blame_host(host, &name, reason);
        let hosts = &self.hosts;
        let failed = match (&mut launch.stage, message) {
            (LaunchStage::List { manifest, holders }, HostMessage::Listed { manifest: found, files }) => {
                if manifest.is_none() {
                    *manifest = found;
                }
                for file in files {
                    holders.entry(file).or_default().push(peer.clone());
                }
                None
            }
            (LaunchStage::Fetch { all }, HostMessage::Fetched { outcome }) => match outcome {
                Ok(fetched) => {
                    *all = all.and(&fetched);
                    None
                }
                Err(FetchRefusal { reason, is_of_checkpoint: true, .. }) => {
                    Some(LaunchError::Checkpoint(format!("{name}: {reason}")))
                }
                Err(FetchRefusal { reason, holder, .. }) => {
                    let holder =
                        holder.and_then(|holder| hosts.iter().find(|(_, host)| host.peer.name == holder));
                    Some(match holder {
                        Some((host, holder)) => {
                            blame_host(*host, &holder.peer.name, format!("{name}: {reason}"))
                        }
                        None => refused(reason),
                    })
                }
            },
            (LaunchStage::Reserve { addresses }, HostMessage::Reserved { addresses: found }) => match found {
                Ok(found) => {
                    addresses.insert(host, found);
                    None
                }
                Err(reason) => Some(refused(reason)),
            },
            (LaunchStage::Start { .. } | LaunchStage::StartOwn, HostMessage::Started { outcome }) => {
                outcome.err().map(refused)
            }
            (_, other) => Some(refused(format!("unexpected answer: {other:?}"))),
        };
        match failed {
            Some(reason) => self.refuse(reason),
            None if is_last => self.next_stage(),
            None => {}
        }
    }

    /// Goes on to the next stage of the launch, after all hosts answered.
    fn next_stage(&mut self) {
        let AttemptPhase::Launching(launch) = std::mem::replace(&mut self.phase, AttemptPhase::Over) else {
            return;
        };
        match launch.stage {
            LaunchStage::List { manifest, holders } => self.fetch(manifest, holders),
            LaunchStage::Fetch { all } => {
                if all.bytes > 0 {
                    self.effects.push(AttemptEffect::Note(format!("all hosts together: {all}")));
                }
                self.dismiss_lenders();
                self.reserve_rendezvous();
            }
            LaunchStage::Reserve { mut addresses } => {
                // The leader's ports come first, with the rendezvous port before them.
                let mut all: Vec<String> = addresses.remove(&LEADER_HOST).unwrap_or_default();
                if all.is_empty() {
                    return self.refuse("no port to meet at".to_owned().into());
                }
                let meeting = all.remove(0);
                all.extend(addresses.into_values().flatten());
                let hosts = u32::try_from(self.hosts_with_ranks().len()).unwrap_or(u32::MAX);
                match Rendezvous::at(&self.settings.address, &meeting, hosts, all) {
                    Ok(rendezvous) => self.start(rendezvous),
                    Err(reason) => self.refuse(reason.into()),
                }
            }
            LaunchStage::Start { rendezvous } => self.start_own(rendezvous),
            LaunchStage::StartOwn => {
                self.phase = AttemptPhase::Running;
                self.effects.push(AttemptEffect::Announce);
                if !self.leaving.is_empty() {
                    self.stop(StopReason::Ordered);
                }
            }
        }
    }

    /// Asks every host with ranks to fetch what they read of the checkpoint; foreign programs read all of it.
    ///
    /// A file that fewer than two of these hosts have is fetched whole by one or two more, so that it
    /// survives the loss of any one host.
    fn fetch(&mut self, manifest_text: Option<Arc<str>>, mut holders: BTreeMap<String, Vec<PeerAddress>>) {
        let name = self.settings.resume.clone().unwrap_or_default();
        let Some(text) = manifest_text else {
            let reason = LaunchError::Checkpoint(format!("no host has the checkpoint {name}"));
            return self.refuse(reason);
        };
        let manifest: Manifest = match serde_json::from_str(&text) {
            Ok(manifest) => manifest,
            Err(error) => return self.refuse(LaunchError::Checkpoint(format!("{name}: {error}"))),
        };
        let mut with_holders = |file: FileEntry| {
            let holders = holders.remove(&file.name).unwrap_or_default();
            (file, holders)
        };
        let files: Arc<[_]> = manifest.files.into_iter().map(&mut with_holders).collect();
        let hosts = self.hosts_with_ranks();
        let order: Vec<u32> = hosts.iter().copied().collect();
        let mut keep = BTreeMap::<u32, Vec<String>>::new();
        for (index, (file, holders)) in files.iter().enumerate() {
            let stay: Vec<u32> =
                holders.iter().map(|peer| peer.host).filter(|host| hosts.contains(host)).collect();
            let lacking = order.len().min(2).saturating_sub(stay.len());
            let after = stay.first().and_then(|host| order.iter().position(|other| other == host));
            let first = after.map_or(index, |place| place + 1);
            for keeper in order.iter().cycle().skip(first % order.len()).take(lacking) {
                keep.entry(*keeper).or_default().push(file.name.clone());
            }
        }
        let are_foreign = self.are_foreign();
        for host in &order {
            let (folder, files, manifest) = (name.clone(), Arc::clone(&files), Arc::clone(&text));
            let keep = keep.remove(host).unwrap_or_default();
            let message = if are_foreign {
                LeaderMessage::FetchCheckpoint { folder, files, manifest }
            } else {
                LeaderMessage::FetchParts { folder, files, manifest, keep }
            };
            self.ask(*host, message);
        }
        self.await_answers(LaunchStage::Fetch { all: FetchSummary::default() }, hosts);
    }

    /// Dismisses the hosts that have no ranks.
    fn dismiss_lenders(&mut self) {
        let lenders: Vec<u32> =
            self.hosts.iter().filter(|(_, host)| host.only_lends()).map(|(index, _)| *index).collect();
        for host in lenders {
            self.ask(host, LeaderMessage::Dismiss);
            self.hosts.remove(&host);
        }
    }

    /// Reserves ports on every host for the rendezvous of foreign ranks; dtrain's own ranks need none.
    fn reserve_rendezvous(&mut self) {
        self.dismiss_lenders();
        if !self.are_foreign() {
            return self.start(Rendezvous::default());
        }
        let hosts = self.hosts_with_ranks();
        self.ask_all(|host| LeaderMessage::ReservePorts {
            ranks: host.ranks.end - host.ranks.start,
            is_meeting: host.peer.host == LEADER_HOST,
        });
        self.await_answers(LaunchStage::Reserve { addresses: BTreeMap::new() }, hosts);
    }

    /// Starts the ranks of the other hosts first, as that takes longer.
    fn start(&mut self, rendezvous: Rendezvous) {
        let others: BTreeSet<u32> =
            self.hosts_with_ranks().into_iter().filter(|host| *host != LEADER_HOST).collect();
        if others.is_empty() {
            return self.start_own(rendezvous);
        }
        for host in &others {
            self.ask(*host, LeaderMessage::Start { rendezvous: rendezvous.clone() });
        }
        self.await_answers(LaunchStage::Start { rendezvous }, others);
    }

    fn start_own(&mut self, rendezvous: Rendezvous) {
        self.ask(LEADER_HOST, LeaderMessage::Start { rendezvous });
        self.await_answers(LaunchStage::StartOwn, BTreeSet::from([LEADER_HOST]));
    }

    /// Handles the loss of a host before its ranks were started.
    pub(super) fn host_lost_during_launch(&mut self, host: u32, name: &str, reason: &str) {
        if self.hosts[&host].only_lends() {
            self.hosts.remove(&host);
            if let AttemptPhase::Launching(launch) = &mut self.phase
                && launch.awaited.remove(&host)
                && launch.awaited.is_empty()
            {
                self.next_stage();
            }
            return;
        }
        self.refuse(blame_host(host, name, format!("it is lost: {reason}")));
    }

    /// Gives up a launch whose hosts do not answer or, during a fetch, make no progress.
    pub(super) fn check_launch_timeout(&mut self) {
        let AttemptPhase::Launching(launch) = &self.phase else { return };
        let limit =
            if matches!(launch.stage, LaunchStage::Fetch { .. }) { WORK_STALL_MS } else { ANSWER_TIMEOUT_MS };
        let is_late = |host: &&u32| {
            let worked_at = self.hosts.get(host).map_or(launch.since, |host| host.worked_at);
            self.now.moment >= worked_at.max(launch.since).after(limit)
        };
        let late: Vec<&u32> = launch.awaited.iter().filter(is_late).collect();
        let Some(first) = late.first() else { return };
        let name = self.hosts.get(first).map_or_else(String::new, |host| host.peer.name.clone());
        let others =
            if late.len() == 1 { String::new() } else { format!(", and {} more do not", late.len() - 1) };
        let reason = format!("it did not answer within {} s{others}", limit / 1000);
        self.refuse(blame_host(**first, &name, reason));
    }
}

/// Returns a launch error that names a host as the cause. Only the controller knows the name of the leader's
/// host.
fn blame_host(host: u32, name: &str, reason: String) -> LaunchError {
    if host == LEADER_HOST {
        LaunchError::Other(reason)
    } else {
        LaunchError::OnHost { host: name.into(), reason }
    }
}
