//! Expert parallelism: routes tokens to the experts of a pass and back (all-to-all).
//!
//! Ranks along the expert axis read samples of their own, and each holds equally many experts, in order. A
//! token is sent as one row for each of its experts: rows are sorted by expert, and by token inside an
//! expert, so that those for one rank are contiguous. Received rows are sorted by expert again, and inside
//! an expert by the sending rank: in the order of tokens over all ranks. Nothing here knows the computation
//! of an expert.
//!
//! Experts are not replicated along their axis, so their gradients are summed by a queue of their own.

use crate::comm::{Incoming, Outgoing};
use crate::mesh::Peers;
use std::ops::Range;
use std::sync::Arc;

/// The routes of the tokens of one pass to their experts. Shared by the operations that send them.
#[derive(Clone, Debug)]
pub(crate) struct TokenRoutes(Arc<RoutingTable>);

#[derive(Debug)]
struct RoutingTable {
    peers: Peers,
    /// Number of experts of a token.
    per_token: usize,
    /// Index of the choice that each sent row belongs to, counted over all tokens.
    choices: Vec<usize>,
    /// Number of rows sent to each rank.
    leaving: Vec<usize>,
    /// Number of rows received from each rank, for each expert of this rank.
    arriving: Vec<Vec<usize>>,
}

impl TokenRoutes {
    /// Computes the routes from `chosen`, the expert of each choice, with `per_token` choices for each token
    /// of this rank; `None` for a dropped choice.
    ///
    /// All ranks must call this, because they exchange the numbers of rows. Panics unless `experts` divide
    /// among them.
    ///
    /// Counted in `planner/src/step/traffic/model_parallel.rs`, `experts`.
    pub(crate) fn of(chosen: &[Option<usize>], per_token: usize, experts: usize, peers: &Peers) -> Self {
        let ranks = peers.size() as usize;
        assert!(experts.is_multiple_of(ranks), "{experts} experts do not divide among {ranks} ranks");
        let mut choices: Vec<_> = (0..chosen.len()).filter(|choice| chosen[*choice].is_some()).collect();
        choices.sort_by_key(|choice| chosen[*choice]);
        // Numbers below 2^24, which f32 holds exactly.
        let mut counts = vec![0.0; experts];
        chosen.iter().flatten().for_each(|expert| counts[*expert] += 1.0);
        let mut told = counts.clone();
        peers.all_to_all(&counts, &mut told);
        let whole = |counts: &[f32]| counts.iter().map(|count| *count as usize).collect::<Vec<_>>();
        let own = experts / ranks;
        let leaving = counts.chunks(own).map(|counts| whole(counts).iter().sum()).collect();
        let arriving = told.chunks(own).map(whole).collect();
        Self(Arc::new(RoutingTable { peers: peers.clone(), per_token, choices, leaving, arriving }))
    }

    /// Iterates over the sent rows in order: the token and the choice of each.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.0.choices.iter().map(|choice| (choice / self.0.per_token, *choice))
    }

    /// Returns the range of received rows for each expert of this rank.
    pub(crate) fn groups(&self) -> Vec<Range<usize>> {
        let mut begin = 0;
        let groups = (0..self.0.arriving[0].len()).map(|expert| {
            let rows = self.0.arriving.iter().map(|experts| experts[expert]).sum::<usize>();
            begin += rows;
            begin - rows..begin
        });
        groups.collect()
    }

    /// Sends rows of `width` values to the ranks of their experts; returns the rows that this rank received,
    /// by expert.
    pub(crate) fn send(&self, rows: Vec<f32>, width: usize) -> Vec<f32> {
        if self.0.peers.size() == 1 {
            return rows;
        }
        let by_rank = self.swap(&rows, &self.0.leaving, &self.arriving(), width);
        let mut by_expert = vec![0.0; by_rank.len()];
        for (from, to) in self.places(width) {
            by_expert[to].copy_from_slice(&by_rank[from]);
        }
        by_expert
    }

    /// Sends received rows of `width` values back to their ranks; returns this rank's own rows in the order
    /// in which they were sent.
    pub(crate) fn send_back(&self, rows: Vec<f32>, width: usize) -> Vec<f32> {
        if self.0.peers.size() == 1 {
            return rows;
        }
        let mut by_rank = vec![0.0; rows.len()];
        for (to, from) in self.places(width) {
            by_rank[to].copy_from_slice(&rows[from]);
        }
        self.swap(&by_rank, &self.arriving(), &self.0.leaving, width)
    }

    /// Returns the number of rows received from each rank.
    fn arriving(&self) -> Vec<usize> {
        self.0.arriving.iter().map(|experts| experts.iter().sum()).collect()
    }

    /// Returns the ranges of each rank's rows for each expert, first in the order of ranks, then in that of
    /// experts.
    fn places(&self, width: usize) -> Vec<(Range<usize>, Range<usize>)> {
        let mut places = Vec::new();
        let mut next: Vec<_> = self.groups().into_iter().map(|group| group.start * width).collect();
        let mut begin = 0;
        for experts in &self.0.arriving {
            for (rows, next) in experts.iter().zip(&mut next) {
                let length = rows * width;
                places.push((begin..begin + length, *next..*next + length));
                begin += length;
                *next += length;
            }
        }
        places
    }

    /// Sends each rank its part of `send` and receives a part from each rank; returns those side by side in
    /// the order of ranks.
    ///
    /// In round `i` a rank sends to the `i`-th behind it and receives from the `i`-th before it, both at
    /// once.
    ///
    /// Counted in `planner/src/step/traffic/model_parallel.rs`, `experts`.
    fn swap(&self, send: &[f32], leaving: &[usize], arriving: &[usize], width: usize) -> Vec<f32> {
        let (rank, ranks) = (self.0.peers.rank() as usize, leaving.len());
        let parts = |rows: &[usize]| {
            let mut begin = 0;
            let part = |rows: &usize| {
                begin += rows * width;
                begin - rows * width..begin
            };
            rows.iter().map(part).collect::<Vec<_>>()
        };
        let (leaving, arriving) = (parts(leaving), parts(arriving));
        let mut received = vec![0.0; arriving.last().map_or(0, |part| part.end)];
        received[arriving[rank].clone()].copy_from_slice(&send[leaving[rank].clone()]);
        let index = |rank: usize| u32::try_from(rank).expect("an index among u32 ranks");
        for round in 1..ranks {
            let (to, from) = ((rank + round) % ranks, (rank + ranks - round) % ranks);
            let outgoing = Outgoing { to: index(to), values: &send[leaving[to].clone()] };
            let incoming = Incoming { from: index(from), values: &mut received[arriving[from].clone()] };
            // Both sides know the number of rows: an empty part is not sent.
            let outgoing = Some(outgoing).filter(|outgoing| !outgoing.values.is_empty());
            let incoming = Some(incoming).filter(|incoming| !incoming.values.is_empty());
            if outgoing.is_some() || incoming.is_some() {
                self.0.peers.exchange(outgoing, incoming);
            }
        }
        received
    }
}
