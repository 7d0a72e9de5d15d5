//! How long an all-reduce takes between ranks of this host, beside a plain copy of the same bytes.
//!
//! `cargo bench --workspace --bench collectives [-- SECONDS]` prints the median time of one all-reduce and the bytes
//! per second it comes to (length over time), for shared memory and for mutual TLS over loopback. Each rank is a
//! thread with a mapping or socket of its own. Run it on an idle machine; `SECONDS` (1 by default) are spent on each line.

#![expect(clippy::print_stdout, reason = "a benchmark talks to whoever started it")]

use dtrain_protocol::{AttemptId, Rank, TlsIdentity, TrialId, mapping};
use dtrain_worker::comm::shared_memory::SharedMemory;
use dtrain_worker::comm::tcp::Listener;
use dtrain_worker::comm::{DEADLINE, Group, Seat};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fs::File;
use std::time::{Duration, Instant};

const LENGTHS: [usize; 6] = [1, 256, 16 << 10, 256 << 10, 4 << 20, 32 << 20];

type Maker = Box<dyn FnOnce() -> Box<dyn Group> + Send>;

fn main() {
    let seconds = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(1.0);
    let budget = Duration::from_secs_f64(seconds);
    println!("{:<16} {:>5} {:>12} {:>14} {:>12}", "link", "ranks", "bytes", "median", "bytes/time");
    for length in LENGTHS {
        let (from, mut to) = (vec![1.0f32; length], vec![0.0f32; length]);
        let times = repeat(budget, || to.copy_from_slice(std::hint::black_box(&from)));
        print_line("copy", 1, length, times);
    }
    for ranks in [2, 4] {
        for length in LENGTHS {
            print_line("shared memory", ranks, length, all_reduce(shared_memory(ranks), length, budget));
        }
        for length in LENGTHS {
            print_line("mutual TLS", ranks, length, all_reduce(tls(ranks), length, budget));
        }
    }
}

fn print_line(link: &str, ranks: u32, length: usize, mut times: Vec<Duration>) {
    times.sort();
    let (median, bytes) = (times[times.len() / 2], 4 * length);
    let rate = bytes as f64 / median.as_secs_f64() / 1e9;
    println!("{link:<16} {ranks:>5} {bytes:>12} {:>11.1} µs {rate:>7.3} GB/s", median.as_secs_f64() * 1e6);
}

/// Times of `work`, repeated for `budget` and at least five times, after two that do not count.
fn repeat(budget: Duration, mut work: impl FnMut()) -> Vec<Duration> {
    (0..2).for_each(|_| work());
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || begun.elapsed() < budget {
        let begun = Instant::now();
        work();
        times.push(begun.elapsed());
    }
    times
}

/// Times of rank 0. All ranks repeat as often, which the first round tells them.
fn all_reduce(ranks: Vec<Maker>, length: usize, budget: Duration) -> Vec<Duration> {
    std::thread::scope(|scope| {
        let run = |make: Maker| {
            let mut group = make();
            let mut values = vec![0.0; length];
            let mut once = |group: &mut Box<dyn Group>| {
                let begun = Instant::now();
                group.all_reduce(&mut values).expect("the others are there");
                begun.elapsed()
            };
            let warm = (0..3).map(|_| once(&mut group)).min().expect("three").max(Duration::from_nanos(100));
            let mut repeats = [(budget.as_secs_f64() / warm.as_secs_f64()).clamp(5.0, 100_000.0) as f32];
            group.broadcast(0, &mut repeats).expect("the others are there");
            (0..repeats[0] as usize).map(|_| once(&mut group)).collect::<Vec<_>>()
        };
        let running: Vec<_> = ranks.into_iter().map(|make| scope.spawn(move || run(make))).collect();
        let mut all: Vec<_> = running.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        all.swap_remove(0)
    })
}

fn seat(rank: u32, ranks: u32) -> Seat {
    Seat { trial: TrialId("bench".into()), attempt: AttemptId(1), rank: Rank(rank), ranks }
}

fn shared_memory(ranks: u32) -> Vec<Maker> {
    let file =
        File::from(rustix::fs::memfd_create("bench", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"));
    file.set_len(mapping::bytes(ranks)).expect("length");
    let make = |rank| {
        let file = file.try_clone().expect("a second handle");
        Box::new(move || {
            let joined = SharedMemory::open(&file, mapping::bytes(ranks), &seat(rank, ranks), DEADLINE);
            Box::new(joined.expect("joined")) as Box<dyn Group>
        }) as Maker
    };
    (0..ranks).map(make).collect()
}

fn tls(ranks: u32) -> Vec<Maker> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let (listeners, peers): (Vec<_>, Vec<_>) =
        (0..ranks).map(|_| Listener::bind("127.0.0.1").expect("bound")).unzip();
    let make = |(rank, listener): (u32, Listener)| {
        let (seat, peers) = (seat(rank, ranks), peers.clone());
        let key = KeyPair::generate().expect("a key");
        let name = TlsIdentity::name(&seat.trial, seat.attempt, seat.rank);
        let params = CertificateParams::new(vec![name]).expect("a valid name");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
        let identity = TlsIdentity { authority: authority.clone(), certificate, key: key.serialize_pem() };
        Box::new(move || {
            Box::new(listener.connect(&seat, &peers, &identity, DEADLINE).expect("joined")) as Box<dyn Group>
        }) as Maker
    };
    (0..ranks).zip(listeners).map(make).collect()
}
