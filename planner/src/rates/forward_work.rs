//! Work of a forward pass of one sample.

/// Forward work of one sample: FLOPs, and values read or written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardWork {
    /// FLOPs of one block.
    pub block_flops: f64,
    /// Number of weights in one block.
    pub block_weights: f64,
    /// Values that one block reads and writes.
    pub block_values: f64,
    /// FLOPs outside the blocks.
    pub outer_flops: f64,
    /// Number of weights in products outside the blocks.
    pub outer_weights: f64,
    /// Values read and written outside the blocks.
    pub outer_values: f64,
}
