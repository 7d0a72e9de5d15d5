//! Every collective on every kind of group, against plain arithmetic, to the last bit.

use super::*;
use crate::comm::loopback::threads;
use crate::comm::shared_memory::SharedMemory;
use crate::comm::tcp::Listener;
use dtrain_protocol::{Rank, TlsIdentity, mapping};
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fs::File;
use std::sync::mpsc::channel;

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

/// Every collective once, on buffers of `length` values.
fn check_all(kind: Kind, ranks: u32, length: usize) {
    on_all(kind, ranks, Duration::from_secs(20), |mut group| {
        let me = group.rank();
        assert_eq!(group.size(), ranks);
        let what = format!("{kind:?}, rank {me} of {ranks}, {length} values");
        let expected = summed(ranks, length);

        let mut buffer = values(me, length);
        group.all_reduce(&mut buffer).expect("all-reduce");
        assert!(bits(&buffer) == bits(&expected), "all-reduce, {what}");

        let mut buffer = values(me, length);
        let mine = group.reduce_scatter(&mut buffer).expect("reduce-scatter");
        assert_eq!(mine, part(length, me, ranks));
        let own = values(me, length);
        assert!(bits(&buffer[mine.clone()]) == bits(&expected[mine.clone()]), "reduce-scatter, {what}");
        assert!(bits(&buffer[..mine.start]) == bits(&own[..mine.start]), "what others own stays, {what}");
        assert!(bits(&buffer[mine.end..]) == bits(&own[mine.end..]), "what others own stays, {what}");

        group.all_gather(&mut buffer).expect("all-gather");
        assert!(bits(&buffer) == bits(&expected), "all-gather, {what}");

        for root in 0..ranks {
            let mut buffer = values(me, length);
            group.broadcast(root, &mut buffer).expect("broadcast");
            assert!(bits(&buffer) == bits(&values(root, length)), "broadcast from {root}, {what}");
        }

        let block = length / 2;
        let send = values(me, block * ranks as usize);
        let mut recv = vec![0.0; send.len()];
        group.all_to_all(&send, &mut recv).expect("all-to-all");
        for from in 0..ranks {
            let sent = &values(from, block * ranks as usize)[me as usize * block..][..block];
            assert!(
                bits(&recv[from as usize * block..][..block]) == bits(sent),
                "all-to-all from {from}, {what}"
            );
        }

        // Everybody sends forward and receives from behind; nobody receives first.
        if ranks > 1 {
            let (next, previous) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
            let (own, mut theirs) = (values(me, length), vec![0.0; length]);
            let send = Outgoing { to: next, values: &own };
            group
                .exchange(Some(send), Some(Incoming { from: previous, values: &mut theirs }))
                .expect("exchange");
            assert!(bits(&theirs) == bits(&values(previous, length)), "exchange, {what}");
            // One way only, along a line.
            let send = (me + 1 < ranks).then_some(Outgoing { to: next, values: &own });
            let recv = (me > 0).then_some(Incoming { from: previous, values: &mut theirs });
            group.exchange(send, recv).expect("exchange");
        }
        group.barrier().expect("barrier");
    });
}

#[test]
fn all_collectives_agree_with_plain_arithmetic_to_the_last_bit() {
    for kind in KINDS {
        for ranks in 1..=4 {
            for length in [0, 1, 2, 3, 5, 1023, 4096, 4097, 20_001] {
                check_all(kind, ranks, length);
            }
        }
    }
}

#[test]
fn buffers_longer_than_a_slot_go_through_in_pieces() {
    for kind in KINDS {
        for ranks in [2, 3] {
            check_all(kind, ranks, 3 * mapping::SLOT_VALUES + 17);
        }
    }
    check_all(Kind::Tls, 2, (1 << 20) + 5);
}

#[test]
fn every_collective_sends_what_it_says() {
    /// Longer than what is reduced at once, and not a multiple of any number of ranks.
    const LENGTH: usize = 20_011;
    for kind in KINDS {
        for ranks in 1..=4u32 {
            let of_ranks = on_all(kind, ranks, Duration::from_secs(20), |mut group| {
                let (me, next) = (group.rank(), (group.rank() + 1) % ranks);
                let mut buffer = values(me, LENGTH);
                let blocks = values(me, 100 * ranks as usize);
                let mut told = Vec::new();
                let mut before = 0;
                let mut tell = |group: &dyn Group| {
                    told.push(group.sent() - std::mem::replace(&mut before, group.sent()));
                };
                group.all_reduce(&mut buffer).expect("all-reduce");
                tell(&*group);
                group.reduce_scatter(&mut buffer).expect("reduce-scatter");
                tell(&*group);
                group.all_gather(&mut buffer).expect("all-gather");
                tell(&*group);
                group.broadcast(0, &mut buffer).expect("broadcast");
                tell(&*group);
                group.all_to_all(&blocks, &mut blocks.clone()).expect("all-to-all");
                tell(&*group);
                if ranks > 1 {
                    let from = (me + ranks - 1) % ranks;
                    let send = Outgoing { to: next, values: &blocks };
                    let recv = Incoming { from, values: &mut blocks.clone() };
                    group.exchange(Some(send), Some(recv)).expect("exchange");
                }
                tell(&*group);
                told
            });
            let total = |operation: usize| of_ranks.iter().map(|told| told[operation]).sum::<u64>();
            let (n, whole) = (u64::from(ranks), 4 * LENGTH as u64);
            let all = |bytes: u64| bytes * (n - 1);
            let exchanged = if ranks > 1 { n * 400 * n } else { 0 };
            let expected = [2 * all(whole), all(whole), all(whole), all(whole), n * all(400), exchanged];
            assert_eq!([0, 1, 2, 3, 4, 5].map(total), expected, "{kind:?}, {ranks} ranks");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_sequence_of_lengths_is_summed_alike(ranks in 2u32..5, lengths in prop::collection::vec(0usize..9000, 1..12)) {
        let sums = KINDS.map(|kind| {
            on_all(kind, ranks, Duration::from_secs(20), |mut group| {
                let reduce = |length: &usize| {
                    let mut buffer = values(group.rank(), *length);
                    group.all_reduce(&mut buffer).expect("all-reduce");
                    bits(&buffer)
                };
                lengths.iter().map(reduce).collect::<Vec<_>>()
            })
        });
        let expected: Vec<_> = lengths.iter().map(|length| bits(&summed(ranks, *length))).collect();
        for of_kind in &sums {
            for of_rank in of_kind {
                prop_assert!(*of_rank == expected);
            }
        }
    }

    #[test]
    fn parts_are_contiguous_and_nearly_equal(length in 0usize..1000, size in 1u32..9) {
        let parts: Vec<_> = (0..size).map(|rank| part(length, rank, size)).collect();
        prop_assert_eq!((parts[0].start, parts[size as usize - 1].end), (0, length));
        prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].len() >= pair[1].len()));
        prop_assert!(parts[0].len() - parts[size as usize - 1].len() <= 1);
    }
}

#[test]
fn groups_along_two_axes_work_from_two_threads_at_the_same_time() {
    for kind in KINDS {
        on_all(kind, 4, Duration::from_secs(20), |mut group| {
            let me = group.rank();
            let row = [me / 2 * 2, me / 2 * 2 + 1];
            let column = [me % 2, me % 2 + 2];
            let mut along_row = group.split(Channel::Tensor, &row).expect("a row");
            let mut along_column = group.split(Channel::Replicas, &column).expect("a column");
            let sum = |group: &mut Box<dyn Group>, members: [u32; 2]| {
                assert_eq!((group.size(), members[group.rank() as usize]), (2, me));
                for length in [10, 5000, 200_000] {
                    let mut buffer = values(me, length);
                    group.all_reduce(&mut buffer).expect("all-reduce");
                    let other = values(members[1], length);
                    let expected = values(members[0], length).into_iter().zip(other).map(|(a, b)| a + b);
                    assert!(bits(&buffer) == bits(&expected.collect::<Vec<_>>()), "{kind:?} {members:?}");
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| sum(&mut along_row, row));
                sum(&mut along_column, column);
            });
            group.barrier().expect("the whole group still works");
        });
    }
}

#[test]
fn a_rank_that_leaves_is_lost_and_not_waited_for() {
    for kind in KINDS {
        let begun = std::time::Instant::now();
        let results = on_all(kind, 3, Duration::from_secs(30), |mut group| {
            group.barrier().expect("all are there");
            if group.rank() == 1 { None } else { group.all_reduce(&mut [0.0; 8]).err() }
        });
        assert!(begun.elapsed() < Duration::from_secs(10), "{kind:?} waited for the deadline");
        for error in [&results[0], &results[2]] {
            // Who sees the second rank that gave up first, sees that one.
            assert!(
                matches!(error, Some(CommError::PeerLost { peer, .. }) if *peer != Rank(9)),
                "{kind:?}: {error:?}"
            );
        }
        let lost =
            |error: &Option<CommError>| matches!(error, Some(CommError::PeerLost { peer: Rank(1), .. }));
        assert!(lost(&results[0]) || lost(&results[2]), "{kind:?}: nobody names rank 1");
    }
}

#[test]
fn a_silent_rank_runs_into_the_deadline() {
    for kind in KINDS {
        let results = on_all(kind, 2, SHORT, |mut group| {
            if group.rank() == 0 {
                let reduce = group.all_reduce(&mut [0.0; 8]).err();
                // Keeps the group, so that the other does not see it leave before its own wait is over.
                return (reduce, Some(group));
            }
            std::thread::sleep(SHORT * 2);
            (None, Some(group))
        });
        let error = &results[0].0;
        assert!(matches!(error, Some(CommError::TimedOut { peer: Rank(1), .. })), "{kind:?}: {error:?}");
    }
}

#[test]
fn an_exchange_with_a_silent_rank_runs_into_the_deadline() {
    for kind in KINDS {
        let results = on_all(kind, 2, SHORT, |mut group| {
            let mut room = [0.0; 8];
            let error = match group.rank() {
                0 => group.exchange(None, Some(Incoming { from: 1, values: &mut room })).err(),
                _ => {
                    std::thread::sleep(SHORT * 2);
                    None
                }
            };
            (error, Some(group))
        });
        let error = &results[0].0;
        assert!(matches!(error, Some(CommError::TimedOut { peer: Rank(1), .. })), "{kind:?}: {error:?}");
    }
}

#[test]
fn ranks_that_disagree_on_a_length_are_told() {
    for kind in KINDS {
        let results = on_all(kind, 2, Duration::from_secs(5), |mut group| {
            let mut buffer = vec![1.0; 10 + group.rank() as usize];
            group.all_reduce(&mut buffer).err()
        });
        for error in &results {
            let is_told = matches!(error, Some(CommError::OutOfStep { .. } | CommError::PeerLost { .. }));
            assert!(is_told, "{kind:?}: {error:?}");
        }
        let out_of_step = |error: &Option<_>| matches!(error, Some(CommError::OutOfStep { .. }));
        assert!(results.iter().any(out_of_step), "{kind:?}");
    }
}

/// Rank 1 of 2 awaits rank 0, and `intruder` knocks in its place. Returns what rank 1 and the intruder got.
fn knock(
    authority: &Authority,
    intruder: impl FnOnce(&[String]) -> Result<(), CommError> + Send,
) -> (Result<(), CommError>, Result<(), CommError>) {
    let (listener, address) = Listener::bind("127.0.0.1").expect("bound");
    let peers = vec!["127.0.0.1:1".to_owned(), address];
    let identity = authority.of(&seat(1, 2));
    std::thread::scope(|scope| {
        let guard = scope.spawn(|| listener.connect(&seat(1, 2), &peers, &identity, SHORT).map(drop));
        let intruder = intruder(&peers);
        (guard.join().expect("no panic"), intruder)
    })
}

fn connect_as(seat: &Seat, identity: &TlsIdentity, peers: &[String]) -> Result<(), CommError> {
    let (listener, _) = Listener::bind("127.0.0.1").expect("bound");
    listener.connect(seat, peers, identity, SHORT).map(drop)
}

#[test]
fn only_the_right_rank_of_the_right_attempt_is_let_in() {
    let authority = Authority::new();
    let right = authority.of(&seat(0, 2));
    let (guard, guest) = knock(&authority, |peers| connect_as(&seat(0, 2), &right, peers));
    assert!(guard.is_ok() && guest.is_ok(), "the right rank is let in: {guard:?} {guest:?}");

    let foreign = Authority::new().of(&seat(0, 2));
    let wrong_rank = authority.of(&seat(1, 2));
    let mut older = seat(0, 2);
    older.attempt = AttemptId(2);
    let of_older_attempt = authority.of(&older);
    let mixed = TlsIdentity { authority: authority.pem.clone(), ..foreign.clone() };
    for (what, seat, identity) in [
        ("another authority", seat(0, 2), &foreign),
        ("a certificate of another authority, trusting ours", seat(0, 2), &mixed),
        ("another rank's certificate", seat(0, 2), &wrong_rank),
        ("an older attempt", older, &of_older_attempt),
        ("an older attempt's certificate", self::seat(0, 2), &of_older_attempt),
    ] {
        let (guard, intruder) = knock(&authority, |peers| connect_as(&seat, identity, peers));
        assert!(matches!(guard, Err(CommError::Refused { .. })), "{what}: {guard:?}");
        assert!(intruder.is_err(), "{what} was let in");
    }
}

#[test]
fn who_shows_no_certificate_or_talks_plainly_is_turned_away() {
    use std::io::{Read, Write};
    let authority = Authority::new();
    let (guard, _) = knock(&authority, |peers| {
        let mut socket = std::net::TcpStream::connect(&peers[1]).expect("connected");
        socket.write_all(&[0x55; 64]).expect("sent");
        let mut answer = Vec::new();
        drop(socket.read_to_end(&mut answer));
        assert!(answer.len() < 64, "nothing but an alert comes back");
        Ok(())
    });
    assert!(matches!(guard, Err(CommError::Refused { .. })), "{guard:?}");

    let (guard, answer) = knock(&authority, |peers| {
        use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).expect("pem")).expect("a root");
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("protocols")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = TlsIdentity::name(&seat(1, 2).trial, AttemptId(3), Rank(1));
        let name = ServerName::try_from(name).expect("a name");
        let tls = rustls::ClientConnection::new(std::sync::Arc::new(config), name).expect("a client");
        let socket = std::net::TcpStream::connect(&peers[1]).expect("connected");
        let mut stream = rustls::StreamOwned::new(tls, socket);
        let said = stream.write_all(&[0; 32]).and_then(|()| stream.read_exact(&mut [0; 8]));
        said.map_err(|error| CommError::Link(error.to_string()))
    });
    assert!(matches!(guard, Err(CommError::Refused { .. })), "{guard:?}");
    assert!(answer.is_err(), "no certificate, no answer");
}

#[test]
fn a_silent_stranger_keeps_nobody_waiting() {
    let authority = Authority::new();
    let (to, strangers) = channel();
    let begun = std::time::Instant::now();
    let identity = authority.of(&seat(0, 2));
    let (guard, guest) = knock(&authority, |peers| {
        to.send(std::net::TcpStream::connect(&peers[1]).expect("connected")).expect("kept");
        connect_as(&seat(0, 2), &identity, peers)
    });
    assert!(guard.is_ok() && guest.is_ok(), "{guard:?} {guest:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "the stranger was waited for");
    drop(strangers);
}

#[test]
fn shared_memory_of_another_attempt_or_size_is_refused() {
    let file = memory(2);
    let short = SharedMemory::open(&file, mapping::bytes(2) - 1, &seat(0, 2), SHORT);
    assert!(matches!(short, Err(CommError::Link(_))));
    let mut older = seat(1, 2);
    older.attempt = AttemptId(2);
    let join = |seat: Seat| SharedMemory::open(&file, mapping::bytes(2), &seat, SHORT).map(drop);
    let (new, old) = std::thread::scope(|scope| {
        let new = scope.spawn(|| join(seat(0, 2)));
        (new.join().expect("no panic"), join(older))
    });
    assert!(matches!(new, Err(CommError::TimedOut { peer: Rank(1), .. })), "{new:?}");
    assert!(matches!(old, Err(CommError::OutOfStep { peer: Rank(0), .. })), "{old:?}");
}

#[test]
fn ranks_without_a_link_cannot_be_many() {
    let join =
        |ranks| join(&Link::Alone, &seat(0, ranks), SHORT, |_| panic!("nothing to announce")).map(drop);
    assert!(join(1).is_ok());
    assert!(matches!(join(2), Err(CommError::Link(_))));
}
