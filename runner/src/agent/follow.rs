//! The agent of a host that does not lead: it holds ranks for the leader, and lives no longer than the leader is heard of.
//!
//! It exchanges heartbeats with the leader four times a second. After two seconds of silence it assumes that the leader is lost and
//! kills its ranks. What it does is decided in [`super::follower`].

use super::follower::Input;
use super::host::HostDriver;
use super::messages::{HostMessage, LeaderMessage};
use super::order::{AgentCard, AgentReply, FollowerOrder, Process};
use super::peers::door::Door;
use super::peers::link::{Heard, PeerLink, Pulses};
use super::peers::{Names, Secure};
use super::{BEAT, Message, answer, note, refuse, signals, write_card};
use crate::home::TrialFolder;
use crate::open_files;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// Holds ranks until the leader lets go of them, or is lost.
pub(super) fn run(order: &FollowerOrder) -> ExitCode {
    let (sender, inbox) = channel();
    let mut follower = match Following::begin(order, &sender) {
        Ok(follower) => follower,
        Err(words) => return refuse(words.into()),
    };
    let address = follower.address.clone();
    if let Err(error) = answer(&AgentReply::Listening { address }) {
        return refuse(format!("the answer: {error}").into());
    }
    match follower.serve(&inbox) {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            note(&words);
            ExitCode::FAILURE
        }
    }
}

/// A follower under way.
struct Following<'a> {
    host: HostDriver<'a>,
    folder: TrialFolder,
    /// Where it listens.
    address: String,
    card: AgentCard,
    inbox: Sender<Message>,
    leader: Option<PeerLink>,
    pulses: Arc<Pulses>,
    terminated: Arc<AtomicBool>,
}

impl<'a> Following<'a> {
    fn begin(order: &'a FollowerOrder, inbox: &Sender<Message>) -> Result<Self, String> {
        let folder = TrialFolder::at(&order.folder);
        let words = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let terminated = signals().map_err(words("signals"))?;
        folder.create().map_err(words("the trial's folder"))?;
        let peers = order.assignments.first().map_or(0, |one| one.arrangement.layout.world());
        open_files::suffice(order.assignments.len(), 0, peers as usize)?;
        let agent = Process::of(std::process::id()).ok_or("this process is not in /proc")?;
        let card = AgentCard { attempt: order.attempt, agent, ranks: Vec::new(), socket: PathBuf::new() };
        write_card(&folder, &card).map_err(words("agent.json"))?;
        let names = Names { trial: order.trial.clone(), attempt: order.attempt };
        let door = Door::bind(&order.seat, names, &folder)?;
        let came = inbox.clone();
        let door = door.open(move |stream| drop(came.send(Message::LeaderConnected(stream))));
        let (address, pulses) = (door.address.clone(), Arc::<Pulses>::default());
        let host = HostDriver::new(order, true, Some(door), None, &pulses, inbox);
        let inbox = inbox.clone();
        Ok(Self { host, folder, address, card, inbox, leader: None, pulses, terminated })
    }

    /// Does what the leader asks for; `Err` says in words why it cannot go on.
    fn serve(&mut self, inbox: &Receiver<Message>) -> Result<(), String> {
        loop {
            match inbox.recv_timeout(BEAT) {
                Ok(message) => self.hear(message)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the agent holds a sender itself"),
            }
            let told = self.host.look().map_err(|error| format!("a rank cannot be waited for: {error}"))?;
            self.tell(told)?;
            if self.terminated.swap(false, Ordering::SeqCst) {
                self.step(Input::Terminate)?;
            }
            self.pulses.turn();
            if let Some(ended) = self.host.ended.take() {
                self.host.close(ended.is_ok());
                return ended;
            }
        }
    }

    fn hear(&mut self, message: Message) -> Result<(), String> {
        let input = match message {
            // A second connection of the leader of the same attempt is an echo of the first.
            Message::LeaderConnected(stream) if self.leader.is_none() => {
                self.leader = Some(self.link(stream)?);
                Input::LeaderConnected
            }
            Message::Leader(Heard::Message(message)) => Input::Leader(message),
            Message::Leader(Heard::Beat(pulse)) => Input::Beat(pulse),
            Message::Leader(Heard::Lost(reason)) => Input::LeaderLost(reason),
            Message::Event(rank, event) => Input::Event(rank, event),
            Message::OutputClosed { rank, garbled, last } => Input::OutputClosed { rank, garbled, last },
            Message::Done(message) => Input::Done(message),
            Message::LeaderConnected(_) | Message::Follower(..) | Message::Stop => return Ok(()),
        };
        self.step(input)
    }

    fn link(&self, stream: Secure) -> Result<PeerLink, String> {
        let inbox = self.inbox.clone();
        let hear = move |heard: Heard<LeaderMessage>| drop(inbox.send(Message::Leader(heard)));
        PeerLink::start(stream, &self.pulses, hear)
            .map_err(|error| format!("cannot read from the leader: {error}"))
    }

    fn step(&mut self, input: Input) -> Result<(), String> {
        let told = self.host.step(input);
        self.tell(told)
    }

    fn tell(&mut self, told: Vec<HostMessage>) -> Result<(), String> {
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
