//! Collectives on every kind of group, against plain arithmetic, to the last bit; and admission.

mod admission;
mod alive;
mod arithmetic;
mod lost;

use super::*;
use crate::comm::loopback::threads;
use crate::comm::shared_memory::SharedMemory;
use crate::comm::tcp::Listener;
use dtrain_protocol::{Rank, TlsIdentity, WaitLimits, shared_memory_layout};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fs::File;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(400);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Threads,
    SharedMemory,
    Tls,
}

const KINDS: [Kind; 3] = [Kind::Threads, Kind::SharedMemory, Kind::Tls];

/// Returns equal limits for silence and for missing progress.
fn within(deadline: Duration) -> WaitLimits {
    limits(deadline, deadline)
}

fn limits(silence: Duration, idle: Duration) -> WaitLimits {
    let (silence_seconds, idle_seconds) = (silence.as_secs_f64(), idle.as_secs_f64());
    WaitLimits { silence_seconds, idle_seconds, step_seconds: Some(2.1) }
}

fn seat(rank: u32, ranks: u32) -> RankId {
    RankId { trial: TrialId("01JTRIAL".into()), attempt: AttemptId(3), rank: Rank(rank), ranks }
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

    fn of(&self, seat: &RankId) -> TlsIdentity {
        self.identity(&TlsIdentity::name(&seat.trial, seat.attempt, seat.rank))
    }
}

fn memory(ranks: u32) -> File {
    let file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"));
    file.set_len(shared_memory_layout::mapping_bytes(ranks)).expect("length");
    file
}

/// Runs `body` on one thread for each rank of a group; returns the results, by rank.
fn on_all<T: Send>(
    kind: Kind,
    ranks: u32,
    deadline: Duration,
    body: impl Fn(Box<dyn ProcessGroup>) -> T + Sync,
) -> Vec<T> {
    on_all_that_work(kind, ranks, within(deadline), |group, _| body(group))
}

/// Runs [`on_all`] for ranks that report their progress.
fn on_all_that_work<T: Send>(
    kind: Kind,
    ranks: u32,
    limits: WaitLimits,
    body: impl Fn(Box<dyn ProcessGroup>, &WorkCounter) -> T + Sync,
) -> Vec<T> {
    let body = &body;
    type Maker = Box<dyn FnOnce(&WaitPolicy) -> Box<dyn ProcessGroup> + Send>;
    let run = |makers: Vec<Maker>| {
        std::thread::scope(|scope| {
            let rank = |make: Maker| {
                let waits = WaitPolicy::new(limits);
                scope.spawn(move || body(make(&waits), &waits.progress))
            };
            let running: Vec<_> = makers.into_iter().map(rank).collect();
            running.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
        })
    };
    let makers: Vec<Maker> = match kind {
        Kind::Threads => threads(ranks, WaitPolicy::new(limits).idle())
            .into_iter()
            .map(|group| Box::new(|_: &WaitPolicy| Box::new(group) as Box<dyn ProcessGroup>) as Maker)
            .collect(),
        Kind::SharedMemory => {
            let file = memory(ranks);
            let make = |rank| {
                let file = file.try_clone().expect("a second handle");
                Box::new(move |waits: &WaitPolicy| {
                    let bytes = shared_memory_layout::mapping_bytes(ranks);
                    Box::new(SharedMemory::open(&file, bytes, &seat(rank, ranks), waits).expect("joined"))
                        as Box<dyn ProcessGroup>
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
                Box::new(move |waits: &WaitPolicy| {
                    Box::new(listener.connect(&seat, &peers, &identity, waits).expect("joined"))
                        as Box<dyn ProcessGroup>
                }) as Maker
            };
            (0..ranks).zip(listeners).map(make).collect()
        }
    };
    run(makers)
}

/// Returns values that no two ranks share and whose sum depends on the order of additions.
fn values(rank: u32, length: usize) -> Vec<f32> {
    let value = |i: usize| {
        let bits = dtrain_protocol::shuffle::splitmix64(u64::from(rank) + 1, i as u64);
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
