//! The combinations of model and arrangement that dtrain's worker supports. The planner rejects all others,
//! for the reason that this module returns.

mod untrainable;

pub use untrainable::{Untrainable, cannot_train};

use crate::{Arrangement, Axis, ContextExchange, DeviceKind, Layout, RankOrder};
use dtrain_recipes::{
    Compression, Decoder, Experts, Model, Precision, Recompute, Synchronisation, ZeroStage,
};
use std::fmt;

/// The reason why the worker cannot run an arrangement of a model. Formats as the end of a sentence, with
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnsupportedReason {
    /// Text of the reason, without its numbers.
    pub reason: &'static str,
    numbers: ReasonDetail,
}

/// The numbers that a reason mentions, and their place in its sentence.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ReasonDetail {
    /// The sentence has no numbers.
    None,
    /// The sentence ends with this axis and its degree.
    Degree(Axis, u32),
    /// The sentence is about a number of experts, and a number of ranks that does not divide it.
    Experts(u32, u32),
    /// The sentence is about a size of shard groups, and a number of expert-parallel ranks.
    Groups(u32, u32),
    /// The sentence is about a number of replicas, and a size of shard groups that does not divide it.
    Replicas(u32, u32),
    /// The sentence begins with this synchronization, and ends with the axis and its degree if there is one.
    Sync(Synchronisation, Option<(Axis, u32)>),
    /// The sentence is about a setting that no layout supports.
    Untrainable(Untrainable),
}

impl UnsupportedReason {
    const fn of(reason: &'static str) -> Self {
        Self { reason, numbers: ReasonDetail::None }
    }

    const fn with(reason: &'static str, numbers: ReasonDetail) -> Self {
        Self { reason, numbers }
    }
}

impl fmt::Display for UnsupportedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason;
        match &self.numbers {
            ReasonDetail::None => f.write_str(reason),
            ReasonDetail::Degree(axis, degree) => write!(f, "{reason}: {} {degree}", axis.word()),
            ReasonDetail::Experts(count, ranks) => {
                write!(f, "{count} experts cannot be divided evenly over {ranks} ranks (model.experts)")
            }
            ReasonDetail::Groups(shard, expert) => {
                write!(
                    f,
                    "groups of {shard} hold unequal numbers of each expert (layout.shard): expert {expert}"
                )
            }
            ReasonDetail::Replicas(replicas, shard) => {
                write!(f, "{replicas} replicas cannot be divided into groups of {shard} (layout.shard)")
            }
            ReasonDetail::Untrainable(untrainable) => untrainable.fmt(f),
            ReasonDetail::Sync(sync, None) => write!(f, "{sync} {reason}"),
            ReasonDetail::Sync(sync, Some((axis, degree))) => {
                write!(f, "{sync} {reason}: {} {degree}", axis.word())
            }
        }
    }
}

/// Returns the reason why the worker cannot run `arrangement` with `model`, as the end of a sentence; `None`
/// if it can.
///
/// A foreign command has its own arithmetic and layouts, and is never rejected here.
pub fn cannot_run(arrangement: &Arrangement, model: &Model) -> Option<String> {
    unsupported_reason(arrangement, model).map(|refusal| refusal.to_string())
}

/// Returns the reason why the worker cannot run `arrangement` with `model`; `None` if it can. [`cannot_run`]
/// formats it.
pub fn unsupported_reason(arrangement: &Arrangement, model: &Model) -> Option<UnsupportedReason> {
    if let Model::Command(_) = model {
        return None;
    }
    if let Some(untrainable) = cannot_train(model, arrangement.precision) {
        return Some(UnsupportedReason {
            reason: untrainable.what,
            numbers: ReasonDetail::Untrainable(untrainable),
        });
    }
    let layout = &arrangement.layout;
    let cut = Axis::ALL.into_iter().filter(|axis| layout.degree(*axis) > 1).find_map(|axis| {
        let numbers = ReasonDetail::Degree(axis, layout.degree(axis));
        cannot_cut(axis, model).map(|reason| UnsupportedReason::with(reason, numbers))
    });
    cut.or_else(|| cannot_spread(arrangement, model))
        .or_else(|| cannot_place(arrangement).map(UnsupportedReason::of))
        .or_else(|| recomputes_in_vain(arrangement, model).map(UnsupportedReason::of))
        .or_else(|| cannot_shard(arrangement))
        .or_else(|| cannot_approximate(arrangement))
        .or_else(|| cannot_multiply(arrangement, model).map(UnsupportedReason::of))
}

fn cannot_multiply(arrangement: &Arrangement, model: &Model) -> Option<&'static str> {
    if matches!(model, Model::Custom(_)) && arrangement.precision != Precision::F32 {
        return Some("a network of your own computes in f32 (train.precision = \"f32\")");
    }
    match (arrangement.precision, arrangement.device) {
        (Precision::Bf16, DeviceKind::Cpu) => {
            Some("bf16 on a CPU is slower than f32 here and is not offered")
        }
        (Precision::F16, DeviceKind::Cpu) => Some("f16 on a CPU is slower than f32 here and is not offered"),
        (Precision::Fp8, _) => unreachable!("the worker has no fp8 on any device"),
        (Precision::Bf16, DeviceKind::Wgpu) => Some("wgpu has no bf16"),
        (Precision::F32, _) | (Precision::Bf16, DeviceKind::Cuda) => None,
        (Precision::F16, DeviceKind::Cuda | DeviceKind::Wgpu) => None,
    }
}

/// Returns the reason why the arrangement is not implemented on its device; `None` if it is.
fn cannot_place(arrangement: &Arrangement) -> Option<&'static str> {
    match arrangement {
        Arrangement { layout, device: DeviceKind::Cuda, .. } if layout.context.get() > 1 => {
            Some("context parallelism computes on CPUs only, not with CUDA")
        }
        Arrangement { context_exchange: ContextExchange::AllGather | ContextExchange::AllToAll, .. } => {
            Some("keys and values are exchanged in a ring only")
        }
        Arrangement { expert_fold: 2.., .. } => Some("experts are spread over the expert axis only"),
        Arrangement { order: RankOrder::DataOutermost, .. } => Some("the pipeline is the outermost axis"),
        _ => None,
    }
}

/// Returns the reason why this model's experts cannot be spread over ranks as arranged; `None` if they can.
fn cannot_spread(arrangement: &Arrangement, model: &Model) -> Option<UnsupportedReason> {
    let Model::Decoder(Decoder { experts: Some(Experts { count, capacity, .. }), .. }) = model else {
        return None;
    };
    let Layout { context, expert, .. } = arrangement.layout;
    if capacity.is_some() && context.get() > 1 {
        let reason = "a capacity counts the tokens of a whole sequence (model.capacity = \"none\")";
        return Some(UnsupportedReason::with(reason, ReasonDetail::Degree(Axis::Context, context.get())));
    }
    if !count.is_multiple_of(expert.get()) {
        let numbers = ReasonDetail::Experts(*count, expert.get());
        return Some(UnsupportedReason::with(
            "experts that cannot be divided evenly over their ranks",
            numbers,
        ));
    }
    if expert.get() == 1 {
        return None;
    }
    if arrangement.device == DeviceKind::Cuda {
        let numbers = ReasonDetail::Degree(Axis::Expert, expert.get());
        return Some(UnsupportedReason::with(
            "expert parallelism computes on CPUs only, not with CUDA",
            numbers,
        ));
    }
    if arrangement.zero != ZeroStage::Zero0 && arrangement.expert_shard().is_none() {
        let numbers = ReasonDetail::Groups(arrangement.shard, expert.get());
        return Some(UnsupportedReason::with(
            "shard groups that hold unequal numbers of each expert",
            numbers,
        ));
    }
    None
}

/// Returns the reason why selective recomputation, that of the attention scores, would save nothing; `None`
/// if it saves memory or is not used.
fn recomputes_in_vain(arrangement: &Arrangement, model: &Model) -> Option<&'static str> {
    if arrangement.recompute != Recompute::Selective {
        return None;
    }
    match (model, arrangement.device) {
        (Model::Mlp(_) | Model::Cnn(_) | Model::Command(_), _) => {
            Some("selective recompute drops attention scores, and this model has no attention")
        }
        (Model::Custom(_), _) => Some(
            "selective recompute drops attention scores, which dtrain cannot tell in a network of your own",
        ),
        (Model::Decoder(_), DeviceKind::Cpu) if arrangement.precision == Precision::F32 => {
            Some("on a CPU in f32, attention scores are never kept (selective recompute saves nothing)")
        }
        (Model::Decoder(_), _) if arrangement.recompute_every > 1 => {
            Some("selective recompute drops the scores of every block (layout.recompute_every = 1)")
        }
        (Model::Decoder(_), _) => None,
    }
}

/// Returns the reason why the replicas cannot shard their state as arranged; `None` if they can.
fn cannot_shard(arrangement: &Arrangement) -> Option<UnsupportedReason> {
    let Arrangement { zero, shard, recompute, recompute_every, .. } = arrangement;
    let replicas = arrangement.replicas();
    if *shard == 0 || !replicas.is_multiple_of(*shard) {
        let numbers = ReasonDetail::Replicas(replicas, *shard);
        return Some(UnsupportedReason::with("replicas that cannot be divided into shard groups", numbers));
    }
    if *zero == ZeroStage::Zero3 && (*recompute, *recompute_every) != (Recompute::Full, 1) {
        // An autograd graph holds its weights: a block waiting for its backward would keep them gathered.
        let reason = "zero = 3 gathers a block again for its backward, and computes it again: \
                      layout.recompute = \"full\"";
        return Some(UnsupportedReason::of(reason));
    }
    None
}

/// Returns the reason why the replicas cannot use the arranged approximate synchronization; `None` if they
/// can.
fn cannot_approximate(arrangement: &Arrangement) -> Option<UnsupportedReason> {
    let Arrangement { layout, zero, sync, .. } = arrangement;
    if sync.is_exact() {
        return None;
    }
    let told = |reason, degree| Some(UnsupportedReason::with(reason, ReasonDetail::Sync(*sync, degree)));
    if *zero != ZeroStage::Zero0 {
        return told("needs replicas with unsharded state (layout.zero = 0)", None);
    }
    let keeps = match sync.compress {
        Compression::None | Compression::F16 | Compression::Bf16 => {
            sync.local.is_some() || sync.staleness > 0
        }
        Compression::PowerSgd { .. } | Compression::TopK { .. } => true,
    };
    let is_late = matches!(sync.compress, Compression::PowerSgd { .. }) || sync.local.is_some();
    if sync.staleness > 0 && is_late {
        return told("sends what cannot wait for a later step (sync.staleness = 0)", None);
    }
    let cuts = |axis: &Axis| *axis != Axis::Data && layout.degree(*axis) > 1;
    // Gradients of experts are summed over fewer ranks than others.
    let axis = Axis::ALL.into_iter().filter(cuts).find(|axis| keeps || *axis == Axis::Expert)?;
    told("works with data parallelism alone", Some((axis, layout.degree(axis))))
}

/// Returns the reason why this model cannot be split along `axis`; `None` if it can.
fn cannot_cut(axis: Axis, model: &Model) -> Option<&'static str> {
    match (axis, model) {
        (Axis::Data | Axis::Pipeline, _)
        | (Axis::Tensor | Axis::Context, Model::Decoder(_) | Model::Command(_)) => None,
        (Axis::Tensor, Model::Custom(_)) => Some(
            "tensor parallelism needs declared cuts, and the parameters of a network of your own have none",
        ),
        (Axis::Tensor, Model::Mlp(_) | Model::Cnn(_)) => Some("tensor parallelism needs a decoder"),
        (Axis::Context, Model::Mlp(_) | Model::Cnn(_) | Model::Custom(_)) => {
            Some("context parallelism needs a decoder")
        }
        (Axis::Expert, Model::Decoder(Decoder { experts: Some(_), .. }) | Model::Command(_)) => None,
        (Axis::Expert, Model::Decoder(_) | Model::Mlp(_) | Model::Cnn(_) | Model::Custom(_)) => {
            Some("expert parallelism needs a model with experts")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_recipes::{DiLoCo, Mlp, MlpActivation, Synchronisation};
    use std::num::NonZeroU32;

    #[test]
    fn replicas_run_and_everything_else_is_refused_with_its_name() {
        let model =
            Model::Mlp(Mlp { inputs: 2, hidden: vec![3], classes: 2, activation: MlpActivation::Relu });
        let two = NonZeroU32::MIN.saturating_add(1);
        let replicas = Arrangement { layout: Layout::replicas(two), ..Arrangement::SINGLE };
        let asked = |arrangement: Arrangement| cannot_run(&arrangement, &model);
        assert_eq!(asked(replicas), None);
        let on_gpu = Arrangement { device: DeviceKind::Cuda, precision: Precision::Bf16, ..replicas };
        assert_eq!(asked(Arrangement { recompute: Recompute::Full, ..on_gpu }), None);
        let layout = Layout { tensor: two, ..replicas.layout };
        let cut = asked(Arrangement { layout, ..replicas });
        assert!(cut.is_some_and(|why| why.contains("decoder") && why.contains("tensor 2")));
        let layout = Layout { context: two, ..replicas.layout };
        let cut = asked(Arrangement { layout, ..replicas });
        assert!(cut.is_some_and(|why| why.contains("context 2")), "an mlp has no sequences");
        let sharded = Arrangement { zero: ZeroStage::Zero3, shard: 2, ..replicas };
        assert!(asked(sharded).is_some_and(|why| why.contains("recompute")));
        assert_eq!(asked(Arrangement { recompute: Recompute::Full, ..sharded }), None);
        assert_eq!(asked(Arrangement { zero: ZeroStage::Zero2, ..sharded }), None);
        let uneven = Arrangement { zero: ZeroStage::Zero1, shard: 3, ..replicas };
        assert!(asked(uneven).is_some_and(|why| why.contains("groups of 3")));
        assert!(asked(Arrangement { precision: Precision::Bf16, ..replicas }).is_some());
    }

    #[test]
    fn replicas_are_kept_alike_approximately_where_they_hold_whole_state() {
        let model =
            Model::Mlp(Mlp { inputs: 2, hidden: vec![3], classes: 2, activation: MlpActivation::Relu });
        let two = NonZeroU32::MIN.saturating_add(1);
        let asked = |sync, change: fn(&mut Arrangement, NonZeroU32)| {
            let mut arrangement = Arrangement { layout: Layout::replicas(two), sync, ..Arrangement::SINGLE };
            change(&mut arrangement, two);
            cannot_run(&arrangement, &model)
        };
        let halves = Synchronisation { compress: Compression::Bf16, ..Synchronisation::EXACT };
        let stale = Synchronisation { staleness: 2, ..halves };
        let local = Some(DiLoCo { every: 4, outer_learning_rate: 0.7, outer_momentum: 0.9 });
        let apart = Synchronisation { local, ..halves };
        let largest = Synchronisation { compress: Compression::TopK { keep: 0.1 }, ..halves };
        for sync in [
            Synchronisation { staleness: 1, ..apart },
            Synchronisation { staleness: 1, compress: Compression::PowerSgd { rank: 1 }, local: None },
        ] {
            assert!(asked(sync, |_, _| {}).is_some_and(|why| why.contains("sync.staleness")));
        }
        for sync in [halves, stale, apart, largest] {
            assert_eq!(asked(sync, |_, _| {}), None);
            let sharded = asked(sync, |a, two| (a.zero, a.shard) = (ZeroStage::Zero1, two.get()));
            assert!(sharded.is_some_and(|why| why.contains("layout.zero")));
            let cut = asked(sync, |a, two| a.layout.pipeline = two);
            assert_eq!(cut.is_some(), sync != halves, "what is rounded on the way keeps nothing: {cut:?}");
        }
    }

    fn decoder(experts: Option<Experts>) -> Model {
        Model::Decoder(Decoder {
            layers: 2,
            hidden: 8,
            heads: 2,
            kv_heads: 2,
            ffn: 16,
            vocab: 11,
            context: 4,
            experts,
            ..Decoder::small_gpt2()
        })
    }

    #[test]
    fn experts_are_spread_where_there_are_experts_in_equal_parts() {
        let n = |degree| NonZeroU32::new(degree).expect("degrees start at one");
        let spread = |expert| Layout { expert: n(expert), ..Layout::SINGLE };
        let asked = |layout, capacity| {
            let experts = Experts { capacity, ..Experts::new(6, 2) };
            cannot_run(&Arrangement { layout, ..Arrangement::SINGLE }, &decoder(Some(experts)))
        };
        assert_eq!(asked(spread(3), Some(1.0)), None);
        assert_eq!(asked(Layout { data: n(2), tensor: n(2), ..spread(2) }, None), None);
        assert_eq!(asked(Layout { context: n(2), ..spread(2) }, None), None);
        assert!(
            asked(spread(4), None).is_some_and(|why| why.contains("6 experts") && why.contains("4 ranks"))
        );
        let split = asked(Layout { context: n(2), ..Layout::SINGLE }, Some(1.0));
        assert!(split.is_some_and(|why| why.contains("capacity") && why.contains("context 2")));
        let dense = Arrangement { layout: spread(2), ..Arrangement::SINGLE };
        assert!(
            cannot_run(&dense, &decoder(None)).is_some_and(|why| why.contains("needs a model with experts"))
        );
    }

    #[test]
    fn selective_recompute_is_refused_where_it_drops_nothing() {
        let decoder = decoder(None);
        let mlp = Model::Mlp(Mlp { inputs: 2, hidden: vec![3], classes: 2, activation: MlpActivation::Relu });
        let selective = Arrangement { recompute: Recompute::Selective, ..Arrangement::SINGLE };
        let on_gpu = Arrangement { device: DeviceKind::Cuda, ..selective };
        assert_eq!(cannot_run(&on_gpu, &decoder), None);
        let every_other = Arrangement { recompute_every: 2, ..on_gpu };
        for (arrangement, model) in [(selective, &decoder), (on_gpu, &mlp), (every_other, &decoder)] {
            let reason = cannot_run(&arrangement, model).expect("it drops nothing");
            assert!(reason.contains("selective"), "{reason}");
        }
    }
}
