//! Peers that leave, stay silent, or are out of step.

use super::*;

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
