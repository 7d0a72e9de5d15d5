//! Limits on unauthenticated peers: connections without a verified certificate get ten seconds in all, and
//! few places.
//!
//! If all places are taken, a connection from the address that has the most of them is closed, so that neither silent
//! connections nor a flood of them can keep out a peer with a certificate. Agents and ranks use the same code.

use crate::shuffle::splitmix64;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
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

/// The unauthenticated connections of one listener, of which one is closed if there are too many.
#[derive(Debug)]
pub struct UnauthenticatedPeers {
    most: usize,
    waiting: Mutex<PeerQueue>,
}

#[derive(Debug, Default)]
struct PeerQueue {
    next: u64,
    /// The connections by their numbers, each with the address that it comes from.
    sockets: BTreeMap<u64, (IpAddr, TcpStream)>,
}

/// Returns the number of the connection to close: one of those from the address that has the most, but not the newest.
/// Which one is spread evenly, so that of several attempts of a peer among a flood from its own address some succeed.
fn to_close(sources: &BTreeMap<u64, IpAddr>) -> Option<u64> {
    let mut by_source = BTreeMap::<IpAddr, Vec<u64>>::new();
    for (number, source) in sources {
        by_source.entry(*source).or_default().push(*number);
    }
    let (newest, _) = sources.last_key_value()?;
    let mut most = by_source.into_values().max_by_key(Vec::len)?;
    most.retain(|number| number != newest);
    let any = usize::try_from(splitmix64(0, *newest)).unwrap_or(usize::MAX);
    (!most.is_empty()).then(|| most[any % most.len()])
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

    /// Adds an unauthenticated connection. If there are too many, another one is closed.
    pub fn admit(self: &Arc<Self>, socket: &TcpStream) -> io::Result<PendingPeer> {
        let (source, socket) = (socket.peer_addr()?.ip(), socket.try_clone()?);
        let mut waiting = self.waiting();
        let number = waiting.next;
        waiting.next += 1;
        waiting.sockets.insert(number, (source, socket));
        if waiting.sockets.len() > self.most {
            let sources = waiting.sockets.iter().map(|(number, (source, _))| (*number, *source)).collect();
            let closed = to_close(&sources).and_then(|number| waiting.sockets.remove(&number));
            // Fails if the peer has already disconnected.
            closed.into_iter().for_each(|(_, socket)| drop(socket.shutdown(Shutdown::Both)));
        }
        Ok(PendingPeer { number, all: Arc::clone(self) })
    }

    fn waiting(&self) -> MutexGuard<'_, PeerQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingPeer {
    fn drop(&mut self) {
        self.all.waiting().sockets.remove(&self.number);
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
    fn another_makes_room_for_the_newest_unless_it_is_known_by_now() {
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
        assert!(is_open(0) && is_open(3), "one is known, and the other is the newest");
        assert_eq!([1, 2].map(is_open).iter().filter(|open| **open).count(), 1);
    }

    #[test]
    fn a_flood_from_one_address_closes_its_own_connections() {
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let peers = [(0, address(1)), (1, address(2))];
        let flood = (2..64).map(|number| (number, address(9)));
        let mut waiting: BTreeMap<u64, IpAddr> = peers.into_iter().chain(flood).collect();
        for number in 64..10_000 {
            waiting.insert(number, address(9));
            let closed = to_close(&waiting).expect("there are others");
            assert!(closed > 1 && closed != number, "{closed}");
            waiting.remove(&closed);
        }
        // From the address of a peer, its place is one of many.
        let mut stays = 0;
        for begin in 0..1_000 {
            let mut waiting: BTreeMap<u64, IpAddr> = (begin..begin + 64).map(|n| (n, address(9))).collect();
            for number in begin + 64..begin + 74 {
                waiting.insert(number, address(9));
                let closed = to_close(&waiting).expect("there are others");
                waiting.remove(&closed);
            }
            stays += u32::from(waiting.contains_key(&begin));
        }
        assert!((750..950).contains(&stays), "ten of a flood later, {stays} of 1000 are still there");
    }
}
