//! Every collective on every kind of group, against plain arithmetic, to the last bit; and who is let in.

mod admission;
mod arithmetic;
mod lost;

use super::*;
use crate::comm::loopback::threads;
use crate::comm::shared_memory::SharedMemory;
use crate::comm::tcp::Listener;
use dtrain_protocol::{Rank, TlsIdentity, mapping};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fs::File;

const SHORT: Duration = Duration::from_millis(400);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Threads,
    SharedMemory,
    Tls,
}

const KINDS: [Kind; 3] = [Kind::Threads, Kind::SharedMemory, Kind::Tls];

fn seat(rank: u32, ranks: u32) -> Seat {
    Seat { trial: TrialId("01JTRIAL".into()), attempt: AttemptId(3), rank: Rank(rank), ranks }
}

/// A certificate authority, as an agent makes one for an attempt.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn identity(&self, name: &str) -> TlsIdentity {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a valid name");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        TlsIdentity { authority: self.pem.clone(), certificate, key: key.serialize_pem() }
    }

    fn of(&self, seat: &Seat) -> TlsIdentity {
        self.identity(&TlsIdentity::name(&seat.trial, seat.attempt, seat.rank))
    }
}

fn memory(ranks: u32) -> File {
    let file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"));
    file.set_len(mapping::bytes(ranks)).expect("length");
    file
}

/// Runs `body` on one thread for each rank of a group; returns what they return, by rank.
fn on_all<T: Send>(
    kind: Kind,
    ranks: u32,
    deadline: Duration,
    body: impl Fn(Box<dyn Group>) -> T + Sync,
) -> Vec<T> {
    let body = &body;
    let run = |makers: Vec<Box<dyn FnOnce() -> Box<dyn Group> + Send>>| {
        std::thread::scope(|scope| {
            let running: Vec<_> = makers.into_iter().map(|make| scope.spawn(move || body(make()))).collect();
            running.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
        })
    };
    type Maker = Box<dyn FnOnce() -> Box<dyn Group> + Send>;
    let makers: Vec<Maker> = match kind {
        Kind::Threads => threads(ranks, deadline)
            .into_iter()
            .map(|group| Box::new(|| Box::new(group) as Box<dyn Group>) as Maker)
            .collect(),
        Kind::SharedMemory => {
            let file = memory(ranks);
            let make = |rank| {
                let file = file.try_clone().expect("a second handle");
                Box::new(move || {
                    let bytes = mapping::bytes(ranks);
                    Box::new(SharedMemory::open(&file, bytes, &seat(rank, ranks), deadline).expect("joined"))
                        as Box<dyn Group>
                }) as Maker
            };
            (0..ranks).map(make).collect()
        }
        Kind::Tls => {
            let authority = Authority::new();
            let listeners: Vec<_> = (0..ranks).map(|_| Listener::bind("127.0.0.1").expect("bound")).collect();
            let (listeners, peers): (Vec<_>, Vec<_>) = listeners.into_iter().unzip();
            let make = |(rank, listener): (u32, Listener)| {
                let (seat, peers) = (seat(rank, ranks), peers.clone());
                let identity = authority.of(&seat);
                Box::new(move || {
                    Box::new(listener.connect(&seat, &peers, &identity, deadline).expect("joined"))
                        as Box<dyn Group>
                }) as Maker
            };
            (0..ranks).zip(listeners).map(make).collect()
        }
    };
    run(makers)
}

/// Values that no two ranks share and whose sum depends on the order of additions.
fn values(rank: u32, length: usize) -> Vec<f32> {
    let value = |i: usize| {
        let bits = dtrain_protocol::order::mix(u64::from(rank) + 1, i as u64);
        (bits >> 40) as f32 * if bits & 1 == 0 { 1e-3 } else { -1e3 }
    };
    (0..length).map(value).collect()
}

fn summed(ranks: u32, length: usize) -> Vec<f32> {
    let mut sum = values(0, length);
    for rank in 1..ranks {
        sum.iter_mut().zip(values(rank, length)).for_each(|(sum, value)| *sum += value);
    }
    sum
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
