//! Profile of one step: its timeline, its memory and its causes.

use crate::price::estimate::Causes;
use crate::price::memory::MemoryBreakdown;
use crate::step::timeline::Timeline;

/// Profile of one step: timeline and memory of every stage, and the time by cause.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfile {
    /// Peak memory of a rank of each stage, from the first stage to the last.
    pub memory: Vec<MemoryBreakdown>,
    /// Activities of every stage.
    pub timeline: Timeline,
    /// Time of the step by cause.
    pub causes: Causes,
}
