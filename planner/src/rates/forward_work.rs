//! Work of a forward pass: arithmetic, weights and memory traffic per sample.

/// Work of a model's forward pass for one sample: FLOPs, and values read or written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardWork {
    /// FLOPs of one block per sample.
    pub block_flops: f64,
    /// Number of weights in one block.
    pub block_weights: f64,
    /// Number of values that one block reads and writes per sample.
    pub block_values: f64,
    /// FLOPs per sample outside the blocks.
    pub outer_flops: f64,
    /// Number of weights in products outside the blocks.
    pub outer_weights: f64,
    /// Number of values read and written per sample outside the blocks.
    pub outer_values: f64,
}
