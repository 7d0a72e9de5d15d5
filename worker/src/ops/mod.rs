//! Fused operations with their own gradients.
