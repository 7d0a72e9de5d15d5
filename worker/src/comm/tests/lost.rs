//! Peers that leave, stay silent, or are out of step.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

#[test]
fn a_rank_that_leaves_is_lost_and_not_waited_for() {
    for kind in KINDS {
        let results = on_all(kind, 3, Duration::from_secs(30), |mut group| {
            group.barrier().expect("all are there");
            if group.rank() == 1 { None } else { group.all_reduce(&mut [0.0; 8]).err() }
        });
        for error in [&results[0], &results[2]] {
            // A rank that notices first that the second one gave up names that one. After the deadline it
            // would be another error.
            assert!(
                matches!(error, Some(CommError::PeerLost { peer, .. }) if *peer != Rank(9)),
                "{kind:?}: {error:?}"
            );
        }
        let lost =
            |error: &Option<CommError>| matches!(error, Some(CommError::PeerLost { peer: Rank(1), .. }));
        assert!(lost(&results[0]) || lost(&results[2]), "{kind:?}: no rank names rank 1");
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

/// The fault of a cable between two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Swallows all data.
    Cut,
    /// Changes the data.
    Spoilt,
}

/// Returns the address of a cable to `far` for any number of connections, which works until `fault` is set.
fn cable(far: &str, fault: Arc<Mutex<Option<Fault>>>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (address, far) = (listener.local_addr().expect("bound").to_string(), far.to_owned());
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.expect("a rank"), TcpStream::connect(&far).expect("it listens"));
            let back = (far.try_clone().expect("a socket"), near.try_clone().expect("a socket"));
            let [there, home] = [&fault; 2].map(Arc::clone);
            std::thread::spawn(move || carry(near, far, &there));
            std::thread::spawn(move || carry(back.0, back.1, &home));
        }
    });
    address
}

fn carry(mut from: TcpStream, mut to: TcpStream, fault: &Mutex<Option<Fault>>) {
    let mut room = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut room) {
        match *fault.lock().expect("whole") {
            Some(Fault::Cut) => continue,
            Some(Fault::Spoilt) => room[length - 1] ^= 1,
            None => {}
        }
        if to.write_all(&room[..length]).is_err() {
            return;
        }
    }
    drop(to.shutdown(std::net::Shutdown::Both));
}

/// Returns the errors of three ranks in an all-reduce while the cable between the last two is faulty.
fn with_a_faulty_cable(fault: Fault, silence: Duration) -> Vec<Option<CommError>> {
    let authority = Authority::new();
    let listeners: Vec<_> = (0..3).map(|_| Listener::bind("127.0.0.1").expect("bound")).collect();
    let (listeners, peers): (Vec<_>, Vec<_>) = listeners.into_iter().unzip();
    let (switch, meeting) = (Arc::default(), std::sync::Barrier::new(3));
    let mut around = peers.clone();
    around[2] = cable(&peers[2], Arc::clone(&switch));
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3u32)
            .zip(listeners)
            .map(|(rank, listener)| {
                let peers = if rank == 1 { &around } else { &peers };
                let (authority, switch, meeting) = (&authority, &switch, &meeting);
                scope.spawn(move || {
                    let seat = seat(rank, 3);
                    let waits = WaitPolicy::new(limits(silence, Duration::from_secs(600)));
                    let group = listener.connect(&seat, peers, &authority.of(&seat), &waits);
                    let mut group = group.expect("joined");
                    group.barrier().expect("all are there");
                    // No data is in flight any more.
                    meeting.wait();
                    if rank == 1 {
                        *switch.lock().expect("whole") = Some(fault);
                    }
                    meeting.wait();
                    (0..20).find_map(|_| group.all_reduce(&mut [1.0; 20_000]).err())
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

#[test]
fn two_ranks_that_do_not_hear_each_other_end_it_for_all() {
    let errors = with_a_faulty_cable(Fault::Cut, SHORT * 4);
    assert!(errors.iter().all(Option::is_some), "no rank goes on with a part of the others: {errors:?}");
    // The silence ended it, not the ten minutes after which a rank that is heard is given up.
    assert!(!errors.iter().any(|error| matches!(error, Some(CommError::Idle { .. }))), "{errors:?}");
    let names = |index: usize, other: u32| {
        let error = errors[index].as_ref();
        matches!(error, Some(CommError::Silent { peer, .. } | CommError::PeerLost { peer, .. }) if peer.0 == other)
    };
    assert!(names(1, 2) || names(2, 1), "one of the two names the other: {errors:?}");
}

#[test]
fn a_byte_that_arrives_altered_ends_it_for_all() {
    let errors = with_a_faulty_cable(Fault::Spoilt, Duration::from_secs(60));
    assert!(errors.iter().all(Option::is_some), "{errors:?}");
    let is_waited_for =
        |error: &Option<_>| matches!(error, Some(CommError::Silent { .. } | CommError::Idle { .. }));
    assert!(!errors.iter().any(is_waited_for), "the byte ended it, not a silence: {errors:?}");
}
