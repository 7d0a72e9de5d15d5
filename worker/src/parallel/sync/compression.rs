//! Compression of gradient buckets on their way to the other replicas.

use super::TopKCompressor;
use crate::mesh::{CommQueue, HalfFormat};
use dtrain_recipes::Compression;
use std::ops::Range;

/// The compression of the buckets of one vector, and its state.
#[derive(Debug)]
pub enum VectorCompressor {
    /// No compression.
    Exact,
    /// Values rounded to 16 bits.
    Half(HalfFormat),
    /// Only the largest values (top-k).
    Largest(TopKCompressor),
}

impl VectorCompressor {
    /// Creates the compressor that `compress` asks for, for a vector of `length` values.
    pub fn of(compress: Compression, length: usize) -> Self {
        match (compress, HalfFormat::of(compress)) {
            (_, Some(half)) => Self::Half(half),
            (Compression::TopK { keep }, None) => Self::Largest(TopKCompressor::new(length, keep)),
            (_, None) => Self::Exact,
        }
    }

    /// Starts to sum `values`, which are the elements `range` of the vector, over the ranks.
    ///
    /// Counted in `planner/src/step/traffic/data_parallel.rs`, `buckets`.
    pub fn send(&mut self, range: Range<usize>, values: Vec<f32>, queue: &CommQueue) {
        match self {
            Self::Exact => queue.start_all_reduce(values),
            Self::Half(half) => queue.start_half_all_reduce(values, *half),
            Self::Largest(largest) => {
                let mut rows = Vec::new();
                largest.compress(range, &values, (queue.rank(), queue.ranks()), &mut rows);
                queue.start_all_gather(rows);
            }
        }
    }

    /// Returns the sum of `length` values over `ranks` ranks, decoded from the message that arrived.
    pub fn receive(&self, arrived: Vec<f32>, ranks: u32, length: usize) -> Vec<f32> {
        match self {
            Self::Exact | Self::Half(_) => arrived,
            Self::Largest(_) => {
                let mut sum = vec![0.0; length];
                TopKCompressor::decompress_sum(&arrived, ranks, &mut sum);
                sum
            }
        }
    }

    /// Returns the top-k compressor, which stores the residual; `None` for other compressions.
    pub fn largest(&self) -> Option<&TopKCompressor> {
        match self {
            Self::Largest(largest) => Some(largest),
            Self::Exact | Self::Half(_) => None,
        }
    }

    /// Returns the top-k compressor for modification; `None` for other compressions.
    pub fn largest_mut(&mut self) -> Option<&mut TopKCompressor> {
        match self {
            Self::Largest(largest) => Some(largest),
            Self::Exact | Self::Half(_) => None,
        }
    }
}
