//! Admission of ranks to a group.

use super::*;
use std::sync::mpsc::channel;

/// Lets `intruder` connect to rank 1 of 2 in place of rank 0. Returns the results of rank 1 and of the
/// intruder.
fn knock(
    authority: &Authority,
    intruder: impl FnOnce(&[String]) -> Result<(), CommError> + Send,
) -> (Result<(), CommError>, Result<(), CommError>) {
    knock_within(SHORT * 5, authority, intruder)
}

fn knock_within(
    deadline: Duration,
    authority: &Authority,
    intruder: impl FnOnce(&[String]) -> Result<(), CommError> + Send,
) -> (Result<(), CommError>, Result<(), CommError>) {
    let (listener, address) = Listener::bind("127.0.0.1").expect("bound");
    let peers = vec!["127.0.0.1:1".to_owned(), address];
    let identity = authority.of(&seat(1, 2));
    let waits = WaitPolicy::new(within(deadline));
    std::thread::scope(|scope| {
        let guard = scope.spawn(|| listener.connect(&seat(1, 2), &peers, &identity, &waits).map(drop));
        let intruder = intruder(&peers);
        (guard.join().expect("no panic"), intruder)
    })
}

fn connect_as(seat: &RankId, identity: &TlsIdentity, peers: &[String]) -> Result<(), CommError> {
    let (listener, _) = Listener::bind("127.0.0.1").expect("bound");
    listener.connect(seat, peers, identity, &WaitPolicy::new(within(SHORT * 5))).map(drop)
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
    let identity = authority.of(&seat(0, 2));
    let (guard, guest) = knock(&authority, |peers| {
        to.send(std::net::TcpStream::connect(&peers[1]).expect("connected")).expect("kept");
        connect_as(&seat(0, 2), &identity, peers)
    });
    assert!(guard.is_ok() && guest.is_ok(), "while the stranger is silent: {guard:?} {guest:?}");
    drop(strangers);
}

#[test]
fn many_silent_strangers_keep_nobody_out() {
    let authority = Authority::new();
    let (to, strangers) = channel();
    let identity = authority.of(&seat(0, 2));
    let (guard, guest) = knock_within(Duration::from_secs(30), &authority, |peers| {
        for _ in 0..400 {
            to.send(std::net::TcpStream::connect(&peers[1]).expect("connected")).expect("kept");
        }
        let (listener, _) = Listener::bind("127.0.0.1").expect("bound");
        let waits = WaitPolicy::new(within(Duration::from_secs(30)));
        listener.connect(&seat(0, 2), peers, &identity, &waits).map(drop)
    });
    assert!(guard.is_ok() && guest.is_ok(), "{guard:?} {guest:?}");
    drop(strangers);
}

#[test]
fn shared_memory_of_another_attempt_or_size_is_refused() {
    let (file, waits) = (memory(2), WaitPolicy::new(within(SHORT)));
    let short = SharedMemory::open(&file, shared_memory_layout::mapping_bytes(2) - 1, &seat(0, 2), &waits);
    assert!(matches!(short, Err(CommError::Link(_))));
    let mut older = seat(1, 2);
    older.attempt = AttemptId(2);
    let join = |seat: RankId| {
        SharedMemory::open(&file, shared_memory_layout::mapping_bytes(2), &seat, &waits).map(drop)
    };
    let (new, old) = std::thread::scope(|scope| {
        let new = scope.spawn(|| join(seat(0, 2)));
        (new.join().expect("no panic"), join(older))
    });
    assert!(matches!(new, Err(CommError::Silent { peer: Rank(1), .. })), "{new:?}");
    assert!(matches!(old, Err(CommError::OutOfStep { peer: Rank(0), .. })), "{old:?}");
}

#[test]
fn ranks_without_a_link_cannot_be_many() {
    let join = |ranks| {
        join(&RankTransport::Alone, &seat(0, ranks), &WaitPolicy::new(within(SHORT)), |_| {
            panic!("nothing to announce")
        })
        .map(drop)
    };
    assert!(join(1).is_ok());
    assert!(matches!(join(2), Err(CommError::Link(_))));
}
