//! Profile of one training step: its timeline, its memory and its causes of time.

use crate::price::estimate::Causes;
use crate::price::memory::MemoryBreakdown;
use crate::step::timeline::Timeline;

/// Profile of one training step: the timeline and memory of every stage, and the time by cause.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfile {
    /// Peak memory of a rank of each stage, from the first stage to the last.
    pub memory: Vec<MemoryBreakdown>,
    /// Timeline of the activities in every stage.
    pub timeline: Timeline,
    /// Seconds of the step by cause.
    pub causes: Causes,
}
