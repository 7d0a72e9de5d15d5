//! Training state that a row states: precision of weights, gradients and moments, offload, loss and adapters.

use super::columns;
use super::table::TableRow;
use crate::analytic::{AdaptedMatrices, AdapterDims, Software};
use dtrain_recipes::{FrozenPrecision, LossKernel, MomentPrecision, Offload, StatePolicy, StatePrecision};

/// Precision of stored weights in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredWeights {
    F32,
    Half,
    Int8,
    Nf4,
}

const WEIGHTS: [(&str, StoredWeights); 5] = [
    ("fp32", StoredWeights::F32),
    ("bf16", StoredWeights::Half),
    ("fp16", StoredWeights::Half),
    ("int8", StoredWeights::Int8),
    ("nf4", StoredWeights::Nf4),
];

const MASTER: [(&str, Option<StatePrecision>); 3] =
    [("fp32", Some(StatePrecision::F32)), ("bf16", Some(StatePrecision::Bf16)), ("none", None)];

const MOMENTS: [(&str, MomentPrecision); 4] = [
    ("fp32", MomentPrecision::F32),
    ("bf16", MomentPrecision::Bf16),
    ("fp16", MomentPrecision::Bf16),
    ("int8", MomentPrecision::Int8),
];

const OFFLOAD: [(&str, Offload); 3] =
    [("none", Offload::None), ("optimizer", Offload::Optimizer), ("all", Offload::All)];

const LOSS: [(&str, LossKernel); 3] =
    [("plain", LossKernel::Plain), ("chunked", LossKernel::Chunked), ("fused", LossKernel::Fused)];

const TRAINED: [(&str, bool); 2] = [("all", false), ("adapters", true)];

/// Training state of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateCells {
    /// Precision and place of the state.
    pub(super) policy: StatePolicy,
    /// True if 16-bit weights stand beside a master copy; `None` if the row leaves it open.
    has_master_copy: Option<bool>,
    /// True if the optimizer applies gradients in the backward, which holds none.
    applies_in_backward: bool,
    /// Adapters, if only they are trained.
    pub(super) adapters: Option<AdapterDims>,
}

/// Reads the training state of a row; blank cells stand for the state of the engine.
pub(super) fn state_cells(row: &TableRow) -> Result<StateCells, String> {
    let stored = columns::choice(row, "weights", &WEIGHTS)?;
    let master = columns::choice(row, "master", &MASTER)?;
    let moments = columns::choice(row, "moments", &MOMENTS)?.unwrap_or_default();
    let has_adapters = columns::choice(row, "trained", &TRAINED)?.unwrap_or(false);
    let gradients = columns::choice(row, "gradients", &columns::GRADIENTS)?;
    let is_half = if has_adapters {
        moments == MomentPrecision::Bf16
    } else {
        match master {
            Some(Some(master)) => master == StatePrecision::Bf16,
            Some(None) | None => stored == Some(StoredWeights::Half) && master == Some(None),
        }
    };
    let policy = StatePolicy {
        weights: if is_half { StatePrecision::Bf16 } else { StatePrecision::F32 },
        gradients: None,
        moments,
        offload: columns::choice(row, "offload", &OFFLOAD)?.unwrap_or_default(),
        loss: columns::choice(row, "loss", &LOSS)?.unwrap_or_default(),
    };
    let adapters = if has_adapters { Some(adapters(row, stored)?) } else { None };
    let has_master_copy = master.map(|master| master.is_some());
    let applies_in_backward = gradients == Some(0.0);
    Ok(StateCells {
        policy,
        has_master_copy: has_master_copy.filter(|_| !has_adapters),
        applies_in_backward,
        adapters,
    })
}

impl StateCells {
    /// Sets the copies of weights that the row states in the profile of `engine`.
    pub(super) fn set_copies(&self, engine: &mut Software) {
        if let Some(has_master_copy) = self.has_master_copy {
            engine.profile.has_master_copy = has_master_copy;
        }
        engine.profile.applies_in_backward = self.applies_in_backward;
    }
}

fn adapters(row: &TableRow, stored: Option<StoredWeights>) -> Result<AdapterDims, String> {
    let Some(rank) = row.positive("adapter_rank") else {
        return Err("`trained` is `adapters`, without `adapter_rank`".to_owned());
    };
    let mut matrices = AdaptedMatrices::default();
    for name in row.text("adapter_targets").split_whitespace() {
        match name {
            "all" => matrices = AdaptedMatrices::ALL,
            "q" => matrices.query = true,
            "k" => matrices.key = true,
            "v" => matrices.value = true,
            "o" => matrices.output = true,
            "gate" => matrices.gate = true,
            "up" => matrices.up = true,
            "down" => matrices.down = true,
            _ => {
                return Err(format!(
                    "`adapter_targets` has `{name}`: wanted some of q, k, v, o, gate, up, down, or all"
                ));
            }
        }
    }
    if matrices == AdaptedMatrices::default() {
        return Err("`trained` is `adapters`, without `adapter_targets`".to_owned());
    }
    let frozen = stored.map(|stored| match stored {
        StoredWeights::F32 => FrozenPrecision::F32,
        StoredWeights::Half => FrozenPrecision::Bf16,
        StoredWeights::Int8 => FrozenPrecision::Int8,
        StoredWeights::Nf4 => FrozenPrecision::Nf4,
    });
    Ok(AdapterDims { rank, matrices, frozen })
}
