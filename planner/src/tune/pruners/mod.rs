//! The pruners, one in each file.

pub(super) mod asha;
pub(super) mod hyperband;
pub(super) mod median;
pub(super) mod threshold;

#[cfg(test)]
mod tests;
