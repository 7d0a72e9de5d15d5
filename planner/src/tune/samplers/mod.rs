//! The ways to choose, one in each file.

pub(super) mod gaussian;
pub(super) mod random;
pub(super) mod sobol;
