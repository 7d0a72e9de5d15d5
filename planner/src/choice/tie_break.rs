//! Tie-break between layouts of equal estimated time: one rule for all searches of the planner.

use dtrain_protocol::{Arrangement, Axis};
use dtrain_recipes::{PipelineSchedule, Recompute, ZeroStage};

/// Fraction of the memory above which a layout counts as tight.
pub const TIGHT: f64 = 0.9;

/// Sort key by the simplicity of a layout, the simplest first: headroom in memory, then fewer ranks, fewer
/// axes besides data, fewer tensor-parallel ranks, the simpler schedule, less recompute and less sharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TieBreak {
    /// True if the layout takes more than [`TIGHT`] of the memory.
    pub is_tight: bool,
    ranks: u32,
    axes: usize,
    tensor: u32,
    schedule: u8,
    recompute: Recompute,
    zero: ZeroStage,
}

impl TieBreak {
    /// The tie-break rule in words: why the choice precedes other candidates that are as fast.
    pub const RULE: &'static str = "it leaves more memory free, or has fewer axes, fewer tensor-parallel ranks, a \
                                    simpler schedule or less to recompute, in this order";

    /// Returns the property in which this layout is simpler than `other`, in words; `None` if it is not.
    pub fn advantage_over(&self, other: &Self) -> Option<&'static str> {
        if self >= other {
            return None;
        }
        let steps = [
            (self.is_tight != other.is_tight, "leaves more memory free"),
            (self.ranks != other.ranks, "needs fewer devices"),
            (self.axes != other.axes, "has fewer kinds of parallelism"),
            (self.tensor != other.tensor, "has fewer tensor-parallel ranks"),
            (self.schedule != other.schedule, "has the simpler pipeline schedule"),
            (self.recompute != other.recompute, "recomputes less"),
            (self.zero != other.zero, "shards less"),
        ];
        steps.into_iter().find(|(differs, _)| *differs).map(|(_, words)| words)
    }

    /// Returns the sort key of a layout whose heaviest rank uses the fraction `full` of its memory.
    pub fn of(arrangement: &Arrangement, full: f64) -> Self {
        let layout = &arrangement.layout;
        let axes = Axis::ALL.into_iter().filter(|axis| *axis != Axis::Data && layout.degree(*axis) > 1);
        Self {
            is_tight: full > TIGHT,
            ranks: layout.world(),
            axes: axes.count(),
            tensor: layout.tensor.get(),
            schedule: match arrangement.schedule {
                PipelineSchedule::OneForwardOneBackward => 0,
                PipelineSchedule::Gpipe => 1,
                PipelineSchedule::Interleaved => 2,
                PipelineSchedule::ZeroBubble => 3,
            },
            recompute: arrangement.recompute,
            zero: arrangement.zero,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::Layout;
    use std::num::NonZeroU32;

    #[test]
    fn memory_is_before_axes_and_axes_before_recompute() {
        let two = NonZeroU32::MIN.saturating_add(1);
        let data = Arrangement { layout: Layout::replicas(two), ..Arrangement::SINGLE };
        let tensor = Arrangement { layout: Layout { tensor: two, ..Layout::SINGLE }, ..Arrangement::SINGLE };
        let again = Arrangement { recompute: Recompute::Full, ..data };
        let of = TieBreak::of;
        assert!(of(&tensor, 0.5) < of(&data, 0.95), "what leaves memory comes first");
        assert!(of(&again, 0.5) < of(&tensor, 0.5), "then fewer axes");
        assert!(of(&data, 0.5) < of(&again, 0.5), "then less recomputed");
        assert!(of(&Arrangement::SINGLE, 0.5) < of(&data, 0.5), "and fewer ranks before all of these");
        let advantage = |a: &Arrangement, b: &Arrangement| of(a, 0.5).advantage_over(&of(b, 0.5));
        assert_eq!(advantage(&data, &tensor), Some("has fewer kinds of parallelism"));
        assert_eq!(advantage(&data, &again), Some("recomputes less"));
        assert_eq!([advantage(&tensor, &data), advantage(&data, &data)], [None, None]);
    }
}
