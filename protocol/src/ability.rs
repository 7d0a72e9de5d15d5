//! What the worker can run today. The planner refuses what it cannot, with the reason told here.

use crate::{Arrangement, Axis, DeviceKind};
use dtrain_recipes::{Model, PipelineSchedule, Precision, Recompute, ZeroStage};

/// Why the worker cannot run this combination, as the end of a sentence; `None` when it can.
///
/// A foreign command brings its own arithmetic and its own layouts: nothing is refused for it here.
pub fn cannot_run(arrangement: &Arrangement, model: &Model) -> Option<String> {
    let Arrangement { layout, zero, recompute, schedule, precision, device, .. } = arrangement;
    if let Model::Command(_) = model {
        return None;
    }
    let is_cut = |axis: &Axis| layout.degree(*axis) > 1 && !matches!(axis, Axis::Data | Axis::Pipeline);
    if let Some(axis) = Axis::ALL.into_iter().find(is_cut) {
        let degree = layout.degree(axis);
        return Some(format!("the worker cuts no work along this axis: {} {degree}", axis.word()));
    }
    if *schedule == PipelineSchedule::ZeroBubble {
        return Some("the worker does a backward in one piece (no zero_bubble schedule)".into());
    }
    match (zero, recompute, precision, device) {
        (ZeroStage::Zero1 | ZeroStage::Zero2 | ZeroStage::Zero3, ..) => {
            Some("the worker's replicas do not shard their state (only zero = 0)".into())
        }
        (_, Recompute::Selective, ..) => Some("the worker recomputes all of a block or nothing".into()),
        (_, _, Precision::Bf16, DeviceKind::Cpu) => {
            Some("bf16 on a CPU is slower than f32 here and is not offered".into())
        }
        (ZeroStage::Zero0, Recompute::None | Recompute::Full, Precision::F32 | Precision::Bf16, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use dtrain_recipes::{Activation, Mlp};
    use std::num::NonZeroU32;

    #[test]
    fn replicas_run_and_everything_else_is_refused_with_its_name() {
        let model = Model::Mlp(Mlp { inputs: 2, hidden: vec![3], classes: 2, activation: Activation::Relu });
        let two = NonZeroU32::MIN.saturating_add(1);
        let replicas = Arrangement { layout: Layout::replicas(two), ..Arrangement::SINGLE };
        let asked = |arrangement: Arrangement| cannot_run(&arrangement, &model);
        assert_eq!(asked(replicas), None);
        let on_gpu = Arrangement { device: DeviceKind::Cuda, precision: Precision::Bf16, ..replicas };
        assert_eq!(asked(Arrangement { recompute: Recompute::Full, ..on_gpu }), None);
        let layout = Layout { tensor: two, ..replicas.layout };
        let cut = asked(Arrangement { layout, ..replicas });
        assert!(cut.is_some_and(|why| why.contains("tensor 2")));
        assert!(asked(Arrangement { zero: ZeroStage::Zero1, ..replicas }).is_some());
        assert!(asked(Arrangement { recompute: Recompute::Selective, ..replicas }).is_some());
        assert!(asked(Arrangement { precision: Precision::Bf16, ..replicas }).is_some());
    }
}
