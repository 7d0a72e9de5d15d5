//! Reasons for the choice of a plan, and their order.

use super::numbers::bytes_of;
use crate::text::slower;
use dtrain_recipes::Seconds;
use std::fmt;

/// Number of reasons in an answer.
pub(super) const REASONS: usize = 3;

/// Relative difference of step time from which on a slower layout is a reason.
const LEAST: f64 = 0.005;

/// Reason for the choice of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Layouts that are faster in the estimate were not chosen.
    Faster {
        /// Reason why they were not, in words.
        why: String,
    },
    /// A change of the choice needs more memory than there is.
    Memory {
        /// The change, in words.
        change: String,
        /// Peak bytes after the change.
        needed: f64,
        /// Upper end of the interval of these bytes.
        high: f64,
        /// Bytes that the device has.
        available: f64,
    },
    /// The best layout with another value on one axis is slower.
    Slower {
        /// The value, in words.
        change: String,
        /// Seconds of its step over those of the choice, minus one.
        slowdown: f64,
        /// Name of the part of a step that grows most, and by how many seconds; `None` if no part is known.
        cause: Option<(String, f64)>,
        /// True if the part grows by more than the step, as other parts are shorter.
        is_offset: bool,
    },
    /// The reason is a rule, in words.
    Rule(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faster { why } => f.write_str(why),
            Self::Memory { change, needed, available, .. } if needed > available => {
                write!(f, "{change}, the rest unchanged, does not fit: {}", bytes_of(*needed, *available))
            }
            Self::Memory { change, high, available, .. } => {
                write!(f, "{change}, the rest unchanged, may not fit: up to {}", bytes_of(*high, *available))
            }
            Self::Slower { change, slowdown, cause, is_offset } => {
                write!(f, "{change}: {}", slower(*slowdown))?;
                match cause {
                    Some((name, seconds)) if *seconds > 0.0 => {
                        write!(f, ", {} {} longer", takes(name), Seconds(*seconds))?;
                        if *is_offset { f.write_str(", others less") } else { Ok(()) }
                    }
                    _ => Ok(()),
                }
            }
            Self::Rule(words) => f.write_str(words),
        }
    }
}

/// A layout with another value on one axis than the choice.
#[derive(Clone, Debug)]
pub(super) struct SlowerLayout {
    /// The value, in words.
    pub change: String,
    /// Seconds of the step over those of the choice, minus one.
    pub slowdown: f64,
    /// Name of the part of a step that grows most, and by how many seconds.
    pub cause: (String, f64),
    /// True if the value is a degree, a micro-batch, recompute or ZeRO, which tell more than other axes.
    pub is_telling: bool,
    /// The whole layout; changes with one layout are one reason.
    pub layout: String,
}

/// Returns at most `most` of the layouts as reasons, the telling ones first, then the slowest: one for each layout and each part of
/// a step, which takes `step_seconds` with the choice.
pub(super) fn slowest(mut layouts: Vec<SlowerLayout>, most: usize, step_seconds: f64) -> Vec<Reason> {
    layouts.retain(|layout| layout.slowdown >= LEAST);
    layouts.sort_by(|a, b| b.is_telling.cmp(&a.is_telling).then(b.slowdown.total_cmp(&a.slowdown)));
    let mut told: Vec<SlowerLayout> = Vec::new();
    for layout in layouts {
        let is_told = |known: &SlowerLayout| known.layout == layout.layout || known.cause.0 == layout.cause.0;
        if told.len() < most && !told.iter().any(is_told) {
            told.push(layout);
        }
    }
    let reason = |SlowerLayout { change, slowdown, cause, .. }| Reason::Slower {
        change,
        slowdown,
        is_offset: cause.1 > 1.2 * slowdown * step_seconds,
        cause: Some(cause),
    };
    told.into_iter().map(reason).collect()
}

/// Returns the beginning of a sentence about the time of a part of a step. Both cost models name their parts
/// by text; a name without a sentence of its own stands for itself.
fn takes(part: &str) -> String {
    match part {
        "computing" => "computing takes",
        "forward" | "backward" => return format!("the {part} takes"),
        "recompute" => "recomputing takes",
        "gradient sums" | "replicas" => "the all-reduce of gradients takes",
        "weight gathers" | "gathering weights" => "the all-gather of weights takes",
        "tensor parallel" => "its all-reduces take",
        "context ring" | "context parallel" => "exchanging keys and values takes",
        "experts" => "the all-to-all of experts takes",
        "pipeline bubble" => "the pipeline bubble takes",
        "pipeline messages" => "messages between stages take",
        "stragglers" | "slowest replica" => "waiting for the slowest takes",
        "overhead" => "other work takes",
        other => return format!("{other} takes"),
    }
    .into()
}
