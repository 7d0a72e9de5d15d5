//! Results and byte counts of collectives.

use super::*;
use proptest::prelude::*;

/// Checks every collective once, on buffers of `length` values.
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
        assert_eq!(mine, rank_range(length, me, ranks));
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

        // Every rank sends forward and receives from behind; none receives first.
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
            check_all(kind, ranks, 3 * shared_memory_layout::SLOT_VALUES + 17);
        }
    }
    check_all(Kind::Tls, 2, (1 << 20) + 5);
}

#[test]
fn every_collective_sends_what_it_says() {
    /// Longer than a small all-reduce, and not a multiple of any number of ranks.
    const LENGTH: usize = 20_011;
    for kind in KINDS {
        for ranks in 1..=4u32 {
            let of_ranks = on_all(kind, ranks, Duration::from_secs(20), |mut group| {
                let (me, next) = (group.rank(), (group.rank() + 1) % ranks);
                let mut buffer = values(me, LENGTH);
                let blocks = values(me, 100 * ranks as usize);
                let mut told = Vec::new();
                let mut before = 0;
                let mut tell = |group: &dyn ProcessGroup| {
                    told.push(group.bytes_sent() - std::mem::replace(&mut before, group.bytes_sent()));
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
        let parts: Vec<_> = (0..size).map(|rank| rank_range(length, rank, size)).collect();
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
            let sum = |group: &mut Box<dyn ProcessGroup>, members: [u32; 2]| {
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
