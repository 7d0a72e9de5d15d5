//! What the worker can run today. The planner refuses what it cannot, with the reason told here.

use crate::{Axis, DeviceKind, Layout};
use dtrain_recipes::{Model, Precision, Recompute, ZeroStage};

/// Why the worker cannot run this combination, as the end of a sentence; `None` when it can.
///
/// A foreign command brings its own arithmetic and its own layouts: nothing is refused for it here.
pub fn cannot_run(
    layout: &Layout,
    zero: ZeroStage,
    recompute: Recompute,
    precision: Precision,
    device: DeviceKind,
    model: &Model,
) -> Option<String> {
    if let Model::Command(_) = model {
        return None;
    }
    if let Some(axis) = Axis::ALL.iter().find(|axis| **axis != Axis::Data && layout.degree(**axis) > 1) {
        let degree = layout.degree(*axis);
        return Some(format!("the worker cuts work along the data axis only, not {} {degree}", word(*axis)));
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

/// The axis in a word.
fn word(axis: Axis) -> &'static str {
    match axis {
        Axis::Tensor => "tensor",
        Axis::Context => "context",
        Axis::Expert => "expert",
        Axis::Data => "data",
        Axis::Pipeline => "pipeline",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_recipes::{Activation, Mlp};
    use std::num::NonZeroU32;

    #[test]
    fn replicas_run_and_everything_else_is_refused_with_its_name() {
        let model = Model::Mlp(Mlp { inputs: 2, hidden: vec![3], classes: 2, activation: Activation::Relu });
        let one = NonZeroU32::MIN;
        let two = NonZeroU32::MIN.saturating_add(1);
        let layout = Layout { tensor: one, context: one, expert: one, data: two, pipeline: one };
        let asked = |layout: Layout, zero, recompute, precision, device| {
            cannot_run(&layout, zero, recompute, precision, device, &model)
        };
        use {DeviceKind::*, Precision::*, ZeroStage::*};
        assert_eq!(asked(layout, Zero0, Recompute::None, F32, Cpu), None);
        assert_eq!(asked(layout, Zero0, Recompute::Full, Bf16, Cuda), None);
        let cut = asked(Layout { pipeline: two, ..layout }, Zero0, Recompute::None, F32, Cpu);
        assert!(cut.is_some_and(|why| why.contains("pipeline 2")));
        assert!(asked(layout, Zero1, Recompute::None, F32, Cpu).is_some());
        assert!(asked(layout, Zero0, Recompute::Selective, F32, Cpu).is_some());
        assert!(asked(layout, Zero0, Recompute::None, Bf16, Cpu).is_some());
    }
}
