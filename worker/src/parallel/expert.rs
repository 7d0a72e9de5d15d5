//! Expert parallelism: where the tokens of a pass go, and how they get there and back.
//!
//! Ranks along the expert axis read samples of their own, and each holds as many experts as any other, in order. A
//! token leaves as one row for each expert that it was given: rows lie by expert, and by token inside an expert, so
//! that what is for one rank lies side by side. Where they arrive they lie by expert again, and inside an expert by the
//! rank that they came from: in the order of tokens over all ranks. Nothing here knows what an expert computes.
//!
//! Experts are not replicated along their axis, so their gradients are summed by a queue of their own.

use super::Peers;
use crate::comm::{Incoming, Outgoing};
use std::ops::Range;
use std::sync::Arc;

/// Where the tokens of one pass go. Shared by the operations that send them.
#[derive(Clone, Debug)]
pub(crate) struct TokenRoutes(Arc<RoutingTable>);

#[derive(Debug)]
struct RoutingTable {
    peers: Peers,
    /// Experts that a token was given.
    per_token: usize,
    /// Which choice each row carries out, counted over all tokens.
    choices: Vec<usize>,
    /// Rows that leave for each rank.
    leaving: Vec<usize>,
    /// Rows that arrive from each rank, for each expert of this one.
    arriving: Vec<Vec<usize>>,
}

impl TokenRoutes {
    /// From the expert of each choice, `per_token` for each token of this rank; `None` for what goes nowhere.
    ///
    /// Ranks tell each other how many rows come: all of them call this. Panics unless `experts` divide among them.
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

    /// Token and choice of each row that leaves, in order.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.0.choices.iter().map(|choice| (choice / self.0.per_token, *choice))
    }

    /// The rows that arrived for each expert of this rank.
    pub(crate) fn groups(&self) -> Vec<Range<usize>> {
        let mut begin = 0;
        let groups = (0..self.0.arriving[0].len()).map(|expert| {
            let rows = self.0.arriving.iter().map(|experts| experts[expert]).sum::<usize>();
            begin += rows;
            begin - rows..begin
        });
        groups.collect()
    }

    /// Sends rows of `width` values, as they leave, to the ranks of their experts; gives what arrives, by expert.
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

    /// Sends rows of `width` values, by expert as they arrived, back to where they came from; gives this rank's own as
    /// they left.
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

    /// Rows that arrive from each rank.
    fn arriving(&self) -> Vec<usize> {
        self.0.arriving.iter().map(|experts| experts.iter().sum()).collect()
    }

    /// Where the rows of each rank for each expert lie when they lie by rank, and when they lie by expert.
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

    /// Gives each rank its part of `send` and takes a part from each, all laid side by side in the order of ranks.
    ///
    /// In round `i` a rank gives to the `i`-th behind it and takes from the `i`-th before it, both at once.
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
            // Both sides know how many rows there are: nothing is not sent.
            let outgoing = Some(outgoing).filter(|outgoing| !outgoing.values.is_empty());
            let incoming = Some(incoming).filter(|incoming| !incoming.values.is_empty());
            if outgoing.is_some() || incoming.is_some() {
                self.0.peers.exchange(outgoing, incoming);
            }
        }
        received
    }
}
