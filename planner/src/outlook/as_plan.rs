//! The choice of an outlook as a plan, so that it can be written for another engine.

use super::{Outlook, OutlookRequest, products};
use crate::analytic::{Again, Products};
use crate::calibrate::Factors;
use crate::plan::{FORMAT, Plan, Ranked};
use crate::{BatchSplit, Candidate, Rejection, pace};
use dtrain_protocol::{Arrangement, DeviceKind, Gpu, HostFacts, Layout};
use dtrain_recipes::{Precision, Recompute, ZeroStage};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

/// The choice of `found`, the outlook of `request`, as a plan of one choice. Its times and its memory are not in it: they are
/// those of another engine. `Err` when ranks or batch cannot be cut so by whole numbers.
pub fn as_plan(
    request: &OutlookRequest<'_>,
    found: &Outlook,
    (data_root, program): (PathBuf, &str),
) -> Result<Plan, Rejection> {
    let (recipe, cut) = (request.recipe, &found.choice.cut);
    let uneven = |what: &str, value: f64| Rejection::CannotRun(format!("{what} would be {value}"));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be whole")]
    let whole = |what: &str, value: f64| {
        let is_whole = value.fract() == 0.0 && value >= 1.0 && value < f64::from(u32::MAX);
        NonZeroU32::new(value as u32).filter(|_| is_whole).ok_or_else(|| uneven(what, value))
    };
    let layout = Layout {
        tensor: whole("tensor", cut.tensor)?,
        context: whole("context", cut.context)?,
        expert: whole("expert", cut.expert)?,
        // The ranks that share experts are among the replicas of all that is no expert.
        data: whole("data over expert", cut.data / cut.expert)?,
        pipeline: whole("pipeline", cut.pipeline)?,
    };
    let single = Arrangement { layout, ..Arrangement::SINGLE };
    let arrangement = Arrangement {
        zero: cut.zero,
        shard: if cut.zero == ZeroStage::Zero0 { 1 } else { single.replicas() },
        sequence: cut.is_sequence_parallel,
        recompute: match cut.again {
            Again::Nothing => Recompute::None,
            Again::Attention | Again::EverySecondProduct => Recompute::Selective,
            Again::All => Recompute::Full,
        },
        schedule: cut.schedule,
        chunks: whole("chunks", cut.chunks)?.get(),
        precision: match products(recipe) {
            Products::Bits32 => Precision::F32,
            Products::Bits16 => Precision::Bf16,
            Products::Bits8 | Products::Blocks8 | Products::Blocks4 => Precision::Fp8,
        },
        device: DeviceKind::Cuda,
        ..single
    };
    let batch = NonZeroU64::new(found.batch.value).unwrap_or(NonZeroU64::MIN);
    let readers = NonZeroU32::new(layout.readers()).unwrap_or(NonZeroU32::MIN);
    let split = BatchSplit::of(batch, whole("micro-batch", cut.micro)?, readers)?;
    let learning_rate = found.learning_rate.value;
    // Cores of the hosts are not known; torchrun gives each rank one thread unless told otherwise.
    let candidate = Candidate { arrangement, split, threads: 1, learning_rate };
    let pace = pace::pace(recipe, batch.get(), None, None, found.choice.step_seconds);
    let hosts = NonZeroU32::new(found.devices / found.per_host).unwrap_or(NonZeroU32::MIN);
    Ok(Plan {
        format: FORMAT,
        recipe: recipe.clone(),
        settings: BTreeMap::new(),
        data_root,
        host: host(found, hosts),
        rates: None,
        factors: Factors::default(),
        seed: recipe.train.seed,
        program: program.into(),
        train_samples: None,
        valid_samples: None,
        batch: found.batch.clone(),
        learning_rate: found.learning_rate.clone(),
        choices: vec![Ranked { candidate, estimate: None, pace, tie: false }],
        priced: found.layouts,
        weighed: None,
        alternatives: Vec::new(),
        rejected: Vec::new(),
    })
}

/// The hosts that the outlook is for. What is not known of them is zero.
fn host(found: &Outlook, hosts: NonZeroU32) -> HostFacts {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
    let memory_bytes = found.memory_bytes as u64;
    let gpu = Gpu { name: found.gpu.0.clone(), memory_bytes };
    HostFacts {
        name: format!("{hosts}x{} {}", found.per_host, found.gpu.0),
        hosts,
        processor: String::new(),
        cores: 0,
        memory_bytes: 0,
        gpus: vec![gpu; found.per_host as usize],
    }
}
