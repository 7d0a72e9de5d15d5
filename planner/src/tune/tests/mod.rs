//! Whole studies of toy functions.

mod chance;
mod resume;
mod runs;
mod samplers;
mod toys;
