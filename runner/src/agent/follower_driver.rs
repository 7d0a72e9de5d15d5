//! The driver of a follower: it holds ranks for the leader, and ends when the leader is lost.
//!
//! It exchanges heartbeats with the leader four times a second. After two seconds of silence it counts the
//! leader as lost and kills its ranks. The decisions are in [`super::follower`].

use super::follower::HostInput;
use super::host_driver::HostDriver;
use super::messages::{HostMessage, LeaderMessage};
use super::peers::heartbeat::LoopCounters;
use super::peers::link::{LinkEvent, PeerLink};
use super::peers::listener::PeerListener;
use super::peers::{MutualTlsStream, TrialAttempt};
use super::{InboxMessage, POLL_INTERVAL, log_line, refuse, send_reply, termination_flag, write_card};
use crate::control_protocol::{AgentCard, AgentReply, FollowerOrder};
use crate::home::TrialFolder;
use crate::open_file_limit;
use crate::process::Process;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// Holds ranks until the leader dismisses them or is lost.
pub(super) fn run(order: &FollowerOrder) -> ExitCode {
    let (sender, inbox) = channel();
    let mut follower = match FollowerDriver::begin(order, &sender) {
        Ok(follower) => follower,
        Err(words) => return refuse(words.into()),
    };
    let address = follower.address.clone();
    if let Err(error) = send_reply(&AgentReply::Listening { address }) {
        return refuse(format!("the answer: {error}").into());
    }
    match follower.serve(&inbox) {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            log_line(&words);
            ExitCode::FAILURE
        }
    }
}

/// State of a running follower.
struct FollowerDriver<'a> {
    host: HostDriver<'a>,
    folder: TrialFolder,
    /// Address of the follower's listener.
    address: String,
    card: AgentCard,
    inbox: Sender<InboxMessage>,
    leader: Option<PeerLink>,
    loop_counters: Arc<LoopCounters>,
    terminated: Arc<AtomicBool>,
}

impl<'a> FollowerDriver<'a> {
    fn begin(order: &'a FollowerOrder, inbox: &Sender<InboxMessage>) -> Result<Self, String> {
        let folder = TrialFolder::at(&order.folder);
        let words = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let terminated = termination_flag().map_err(words("signals"))?;
        folder.create().map_err(words("the trial's folder"))?;
        let peers = order.assignments.first().map_or(0, |one| one.arrangement.layout.world());
        open_file_limit::ensure_open_file_limit(order.assignments.len(), 0, peers as usize)?;
        let agent = Process::of(std::process::id()).ok_or("this process is not in /proc")?;
        let card = AgentCard { attempt: order.attempt, agent, ranks: Vec::new(), socket: PathBuf::new() };
        write_card(&folder, &card).map_err(words("agent.json"))?;
        let names = TrialAttempt { trial: order.trial.clone(), attempt: order.attempt };
        let listener = PeerListener::bind(&order.seat, names, &folder)?;
        let came = inbox.clone();
        let listener = listener.open(move |stream| drop(came.send(InboxMessage::LeaderConnected(stream))));
        let (address, loop_counters) = (listener.address.clone(), Arc::<LoopCounters>::default());
        let host = HostDriver::new(order, true, Some(listener), None, &loop_counters, inbox);
        let inbox = inbox.clone();
        Ok(Self { host, folder, address, card, inbox, leader: None, loop_counters, terminated })
    }

    /// Serves the leader until the attempt ends; `Err` gives the reason of a failure.
    fn serve(&mut self, inbox: &Receiver<InboxMessage>) -> Result<(), String> {
        loop {
            match inbox.recv_timeout(POLL_INTERVAL) {
                Ok(message) => self.handle_message(message)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the agent holds a sender itself"),
            }
            let told = self.host.poll().map_err(|error| format!("a rank cannot be waited for: {error}"))?;
            self.send_all(told)?;
            if self.terminated.swap(false, Ordering::SeqCst) {
                self.step(HostInput::Terminate)?;
            }
            self.loop_counters.turn();
            if let Some(ended) = self.host.ended.take() {
                self.host.close(ended.is_ok());
                return ended;
            }
        }
    }

    fn handle_message(&mut self, message: InboxMessage) -> Result<(), String> {
        let input = match message {
            // A second connection of the same leader is ignored.
            InboxMessage::LeaderConnected(stream) if self.leader.is_none() => {
                self.leader = Some(self.link(stream)?);
                HostInput::LeaderConnected
            }
            InboxMessage::Leader(LinkEvent::Message(message)) => HostInput::Leader(message),
            InboxMessage::Leader(LinkEvent::Beat(heartbeat)) => HostInput::Beat(heartbeat),
            InboxMessage::Leader(LinkEvent::Lost(reason)) => HostInput::LeaderLost(reason),
            InboxMessage::Event(rank, event) => HostInput::Event(rank, event),
            InboxMessage::OutputClosed { rank, garbled, last } => {
                HostInput::OutputClosed { rank, garbled, last }
            }
            InboxMessage::Done(message) => HostInput::Done(message),
            InboxMessage::LeaderConnected(_)
            | InboxMessage::Follower(..)
            | InboxMessage::Stop
            | InboxMessage::Regroup => return Ok(()),
        };
        self.step(input)
    }

    fn link(&self, stream: MutualTlsStream) -> Result<PeerLink, String> {
        let inbox = self.inbox.clone();
        let hear = move |heard: LinkEvent<LeaderMessage>| drop(inbox.send(InboxMessage::Leader(heard)));
        PeerLink::start(stream, &self.loop_counters, hear)
            .map_err(|error| format!("cannot read from the leader: {error}"))
    }

    fn step(&mut self, input: HostInput) -> Result<(), String> {
        let told = self.host.step(input);
        self.send_all(told)
    }

    fn send_all(&mut self, told: Vec<HostMessage>) -> Result<(), String> {
        for message in told {
            if let HostMessage::Started { outcome: Ok(()) } = &message {
                self.card.ranks = self.host.processes();
                write_card(&self.folder, &self.card).map_err(|error| format!("agent.json: {error}"))?;
            }
            if let Some(leader) = &self.leader {
                leader.send(&message);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
