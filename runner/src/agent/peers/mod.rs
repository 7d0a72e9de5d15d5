//! How the agents of one attempt talk: the leader, which owns the attempt, and a follower on every other host.
//!
//! Every agent has a [`door`]: a listener at which only agents of the same attempt are let in. The leader knocks at the
//! followers' doors and keeps a [`cord`] to each. Files of checkpoints travel on connections of their own ([`fetch`]), so that
//! they hold up nobody's beat.

pub(super) mod cord;
pub(super) mod door;
pub(super) mod fetch;

use super::foreign::Rendezvous;
use dtrain_protocol::strangers::Hurried;
use dtrain_protocol::tls::Tls;
use dtrain_protocol::{AttemptId, Event, FileEntry, Order, Rank, StepId, TlsIdentity, TrialId};
use rustls::{Connection, StreamOwned};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time a connection may take, and a stranger to prove who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection of two agents that know who the other is.
pub(super) struct Secure {
    tls: Connection,
    socket: TcpStream,
}

impl Read for Secure {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if self.tls.read_tls(&mut self.socket)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.tls.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

impl Write for Secure {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.tls.writer().write(bytes)?;
        self.flush()?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

/// Who an agent is to the other agents of its attempt, and where it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Index of its host among the hosts of the attempt; the leader's is 0.
    pub host: u32,
    /// Address to bind, without a port: the one under which the other hosts reach this one.
    pub bind: String,
    /// Its certificate.
    pub identity: TlsIdentity,
    /// Whether the trial's checkpoints lie in one folder that all hosts see.
    #[serde(default)]
    pub is_shared: bool,
}

/// An agent at its door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAddress {
    /// Index of its host.
    pub host: u32,
    /// What people call the host.
    pub name: String,
    /// Address and port.
    pub address: String,
}

/// The first frame on a connection, by who connects.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Greeting {
    /// The leader, to stay.
    Lead,
    /// An agent that wants one file of a checkpoint; the answer is its length, 8 bytes little-endian, and its bytes.
    Read {
        /// Index of the asking agent's host.
        host: u32,
        /// Name of the checkpoint's folder, committed or not.
        folder: String,
        /// Name of the file in it.
        file: String,
    },
}

/// What the leader tells a follower.
///
/// It cannot say what a rank runs: that is in the [`super::FollowerOrder`] of the controller. A message with anything unknown in
/// it ends the connection.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Told {
    /// Say what you have of a checkpoint.
    Show {
        /// Name of its folder.
        folder: String,
    },
    /// Get files of a checkpoint from other hosts, unless they are here.
    Get {
        /// Name of the checkpoint's folder; one that does not exist is made.
        folder: String,
        /// Each with the hosts that have it.
        files: Vec<(FileEntry, Vec<PeerAddress>)>,
        /// Content of the table of contents, of a committed checkpoint.
        manifest: Option<String>,
    },
    /// Find free ports for foreign ranks.
    Reserve {
        /// How many.
        ranks: u32,
    },
    /// Start the ranks of your order.
    Start {
        /// Where foreign ranks meet.
        rendezvous: Rendezvous,
    },
    /// Hand an order on.
    Order {
        /// To which rank.
        rank: Rank,
        /// The order.
        order: Order,
    },
    /// Kill a rank and what it started.
    Kill {
        /// Which.
        rank: Rank,
    },
    /// Put copies and the table of contents beside the files of a checkpoint, all of it durable.
    Prepare {
        /// Steps completed in it.
        step: StepId,
        /// Content of the table of contents.
        manifest: String,
        /// Files of other hosts that are kept here too, each with the hosts that have it.
        copies: Vec<(FileEntry, Vec<PeerAddress>)>,
    },
    /// Give a prepared checkpoint its final name, and remove superfluous ones.
    Commit {
        /// Steps completed in it.
        step: StepId,
        /// Committed checkpoints that are kept.
        keep: u32,
    },
    /// Clear away what lies here of a checkpoint that there will not be.
    Discard {
        /// Steps completed in it.
        step: StepId,
    },
    /// The attempt is over.
    Leave,
}

/// What a follower says to the leader.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// What lies here of the checkpoint that was asked for.
    Shown {
        /// Content of the table of contents, when it is there and is what was committed.
        manifest: Option<String>,
        /// Names of the files that are there in their length.
        files: Vec<String>,
    },
    /// The files that were to be got are here.
    Got,
    /// Ports that are free here.
    Reserved {
        /// As `address:port`, one for each rank.
        addresses: Vec<String>,
    },
    /// The ranks are started.
    Started,
    /// What was told could not be done.
    CouldNot {
        /// Why not.
        reason: String,
        /// Whether the checkpoint is not as it was committed; otherwise it may well be, and cannot be had here now.
        is_of_checkpoint: bool,
    },
    /// The host wants its agent to end.
    Terminated,
    /// A rank said something.
    Event {
        /// The rank.
        rank: Rank,
        /// What.
        event: Event,
    },
    /// All that a rank said was passed on.
    HeardOut {
        /// The rank.
        rank: Rank,
        /// What was wrong with the last thing it wrote.
        garbled: Option<String>,
        /// The last lines that a foreign program printed.
        last: Vec<String>,
    },
    /// The process of a rank ended.
    Exited {
        /// The rank.
        rank: Rank,
        /// As `waitpid` tells it.
        status: i32,
    },
    /// The checkpoint of this step is prepared; `Err` says why not.
    Prepared {
        /// Steps completed in it.
        step: StepId,
        /// How it went.
        outcome: Result<(), String>,
    },
    /// The checkpoint of this step has its final name; `Err` says why not.
    Committed {
        /// Steps completed in it.
        step: StepId,
        /// How it went.
        outcome: Result<(), String>,
    },
}

impl Said {
    /// The rank that it speaks for.
    pub(super) fn rank(&self) -> Option<Rank> {
        match self {
            Self::Event { rank, .. } | Self::HeardOut { rank, .. } | Self::Exited { rank, .. } => Some(*rank),
            Self::Shown { .. }
            | Self::Got
            | Self::Reserved { .. }
            | Self::Started
            | Self::CouldNot { .. }
            | Self::Terminated
            | Self::Prepared { .. }
            | Self::Committed { .. } => None,
        }
    }
}

/// The names of an attempt's agents.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) trial: TrialId,
    pub(super) attempt: AttemptId,
}

impl Names {
    /// The name in the certificate of the agent of `host`.
    pub(super) fn of(&self, host: u32) -> String {
        TlsIdentity::agent_name(&self.trial, self.attempt, host)
    }
}

/// Connects with the agent of a host and greets it.
pub(super) fn knock(tls: &Tls, names: &Names, peer: &PeerAddress, greeting: &Greeting) -> io::Result<Secure> {
    let address = peer.address.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
    let socket = hurried(TcpStream::connect_timeout(&address, HANDSHAKE)?)?;
    let connection = tls.client(&names.of(peer.host)).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    dtrain_protocol::frame::write(&mut stream, greeting)?;
    Ok(Secure { tls: Connection::Client(stream.conn), socket: patient(stream.sock)? })
}

/// A socket for the handshake, and without waiting for more to send.
fn hurried(socket: TcpStream) -> io::Result<Hurried> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    Ok(Hurried::new(socket, HANDSHAKE))
}

/// The socket after the handshake: every read and write has a limit of its own.
fn patient(socket: Hurried) -> io::Result<TcpStream> {
    let socket = socket.into_inner();
    socket.set_read_timeout(Some(HANDSHAKE))?;
    socket.set_write_timeout(Some(HANDSHAKE))?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
