//! Limits on unauthenticated peers: connections without a verified certificate get ten seconds in all, and
//! few places.
//!
//! If all places are taken, the oldest connection is closed, so that silent connections cannot keep out a
//! peer with a certificate. Agents and ranks use the same code.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A socket with one deadline for all reads and writes: sending a byte now and then does not extend it
/// (slow-loris protection).
#[derive(Debug)]
pub struct DeadlineStream {
    socket: TcpStream,
    end: Instant,
}

impl DeadlineStream {
    /// Wraps a blocking `socket`, with a deadline that ends after `patience`.
    pub fn new(socket: TcpStream, patience: Duration) -> Self {
        Self { socket, end: Instant::now() + patience }
    }

    /// Returns the socket, with the timeouts of the last read or write still set.
    pub fn into_inner(self) -> TcpStream {
        self.socket
    }

    fn set_remaining_timeout(&self) -> io::Result<()> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it did not identify itself in time"));
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.set_write_timeout(Some(left))
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.set_remaining_timeout()?;
        self.socket.read(room)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.set_remaining_timeout()?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// The unauthenticated connections of one listener. If there are too many, the oldest is closed, so that
/// silent connections keep no peer out.
#[derive(Debug)]
pub struct UnauthenticatedPeers {
    most: usize,
    waiting: Mutex<PeerQueue>,
}

#[derive(Debug, Default)]
struct PeerQueue {
    next: u64,
    sockets: VecDeque<(u64, TcpStream)>,
}

/// The place of one unauthenticated connection, which is freed when this value is dropped.
#[derive(Debug)]
pub struct PendingPeer {
    number: u64,
    all: Arc<UnauthenticatedPeers>,
}

impl UnauthenticatedPeers {
    /// Creates an empty set with room for `most` connections.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, waiting: Mutex::default() })
    }

    /// Adds an unauthenticated connection. If there are too many, the oldest one is closed.
    pub fn admit(self: &Arc<Self>, socket: &TcpStream) -> io::Result<PendingPeer> {
        let socket = socket.try_clone()?;
        let mut waiting = self.waiting();
        let number = waiting.next;
        waiting.next += 1;
        waiting.sockets.push_back((number, socket));
        if waiting.sockets.len() > self.most
            && let Some((_, oldest)) = waiting.sockets.pop_front()
        {
            // Fails if the peer has already disconnected.
            drop(oldest.shutdown(Shutdown::Both));
        }
        Ok(PendingPeer { number, all: Arc::clone(self) })
    }

    fn waiting(&self) -> MutexGuard<'_, PeerQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingPeer {
    fn drop(&mut self) {
        self.all.waiting().sockets.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        (near, listener.accept().expect("it was connected").0)
    }

    #[test]
    fn who_sends_a_byte_now_and_then_gets_no_more_time() {
        let (mut slow, socket) = pair();
        let trickling = thread::spawn(move || {
            while slow.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let mut hurried = DeadlineStream::new(socket, Duration::from_millis(100));
        let mut room = vec![0; 1 << 20];
        let error = hurried.read_exact(&mut room).expect_err("a megabyte would take hours");
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(hurried);
        trickling.join().expect("the other end is closed");
    }

    #[test]
    fn the_oldest_makes_room_for_the_newest_unless_it_is_known_by_now() {
        let strangers = UnauthenticatedPeers::new(2);
        let pairs: Vec<_> = (0..4).map(|_| pair()).collect();
        let enter = |at: usize| strangers.admit(&pairs[at].1).expect("a socket");
        let is_open = |at: usize| {
            let (near, _) = &pairs[at];
            near.set_nonblocking(true).expect("a socket");
            matches!((&*near).read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        };
        let known = enter(0);
        let _second = enter(1);
        drop(known);
        let (_third, _fourth) = (enter(2), enter(3));
        assert_eq!([0, 1, 2, 3].map(is_open), [true, false, true, true]);
    }
}
