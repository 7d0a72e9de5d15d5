//! The pruners for early stopping, one in each file.

pub(super) mod asha;
pub(super) mod hyperband;
pub(super) mod median;
mod rungs;
pub(super) mod threshold;

pub(super) use rungs::Rungs;

#[cfg(test)]
mod tests;
