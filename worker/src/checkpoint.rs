//! Reads and writes named ranges of global tensors.
