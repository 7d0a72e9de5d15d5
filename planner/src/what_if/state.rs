//! Choice of the training state: the settings that keep the result are tried in turn, the others are proposed
//! with what they cost.

use super::{EngineSupport, fitting};
use crate::analytic::search::{LayoutSearchResult, SearchProblem, fastest};
use crate::analytic::{AdaptedMatrices, AdapterDims, Constants, Software};
use crate::engine::{DEEPSPEED, Engine, HF_TRAINER};
use crate::hardware::HostGroup;
use dtrain_recipes::{
    AdaptedLayers, FrozenPrecision, Lora, LossKernel, MomentPrecision, Offload, StatePins, StatePolicy,
    StatePrecision,
};
use serde::Serialize;

/// Rank of the adapters that a plan proposes.
const RANK: u32 = 16;

/// Number of ways that the error of a recipe that does not fit names.
const WAYS: usize = 3;

/// Searches the layouts of `asked`: with all state on the devices, then with a loss that holds fewer logits,
/// then with optimizer or all state in host memory, as far as engine and pins allow. Returns the first problem
/// with a layout that fits, or the first of all.
pub(super) fn search_that_fits(asked: &SearchProblem, keep: usize) -> (SearchProblem, LayoutSearchResult) {
    let first = fitting::search_that_fits(asked, keep);
    if !first.1.best.is_empty() {
        return first;
    }
    let others = exact_policies(asked).into_iter().map(|state| SearchProblem { state, ..asked.clone() });
    let found = others.map(|problem| fitting::search_that_fits(&problem, keep));
    found.into_iter().find(|(_, found)| !found.best.is_empty()).unwrap_or(first)
}

/// Returns the policies besides that of `problem` that keep the result, those that cost least first.
fn exact_policies(problem: &SearchProblem) -> Vec<StatePolicy> {
    let Some(EngineSupport { engine, training }) = &problem.runs_on else { return Vec::new() };
    let pins = &training.state;
    let mut all = Vec::new();
    for offload in [Offload::None, Offload::Optimizer, Offload::All] {
        for loss in [LossKernel::Plain, LossKernel::Chunked, LossKernel::Fused] {
            let policy = pins.policy(StatePolicy { offload, loss, ..StatePolicy::PLAIN });
            if engine.state_support().has(&policy) && policy != problem.state && !all.contains(&policy) {
                all.push(policy);
            }
        }
    }
    all
}

/// A way to make a training fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WayToFit {
    /// Change of recipe, engine or cluster, in words.
    pub change: String,
    /// Estimated seconds per step.
    pub step_seconds: f64,
    /// Device seconds per step.
    pub device_seconds: f64,
}

/// A change of the training state.
pub(super) struct StateChange {
    /// Keys to set, as a user writes them.
    pub(super) keys: &'static str,
    pub(super) words: &'static str,
    pins: StatePins,
    lora: Option<Option<FrozenPrecision>>,
}

/// Returns the changes of the training state that a plan proposes, given what is pinned.
pub(super) fn changes(pins: StatePins) -> [StateChange; 4] {
    let bf16 = StatePins { weights: StatePrecision::Bf16, moments: MomentPrecision::Bf16, ..pins };
    [
        StateChange {
            keys: "train.state.moments = \"int8\"",
            words: "8-bit moments",
            pins: StatePins { moments: MomentPrecision::Int8, ..pins },
            lora: None,
        },
        StateChange {
            keys: "train.state = { weights = \"bf16\", moments = \"bf16\" }",
            words: "weights and moments of bf16",
            pins: bf16,
            lora: None,
        },
        StateChange {
            keys: "model.lora = { rank = 16 }",
            words: "adapters of rank 16",
            pins,
            lora: Some(None),
        },
        StateChange {
            keys: "model.lora = { rank = 16, base = \"nf4\" }",
            words: "adapters of rank 16 on 4-bit weights",
            pins,
            lora: Some(Some(FrozenPrecision::Nf4)),
        },
    ]
}

impl StateChange {
    /// Returns `problem` after the change, run by `engine`; `None` if the engine lacks it, or if nothing
    /// changes.
    pub(super) fn of(&self, problem: &SearchProblem, engine: &'static dyn Engine) -> Option<SearchProblem> {
        let EngineSupport { training, .. } = problem.runs_on.as_ref()?;
        let mut training = training.clone();
        let mut model = problem.model.clone();
        training.state = self.pins;
        if let Some(frozen) = self.lora {
            if training.model.lora.is_some() || training.model.experts.is_some() {
                return None;
            }
            let alpha = 2.0 * f64::from(RANK);
            training.model.lora = Some(Lora { rank: RANK, alpha, layers: AdaptedLayers::All, base: frozen });
            let matrices = AdaptedMatrices::ALL;
            model.adapters = Some(AdapterDims { rank: RANK.into(), matrices, frozen });
        }
        let precision = problem.products.precision();
        let state = training.state.policy(StatePolicy::PLAIN);
        let is_same = problem
            .runs_on
            .as_ref()
            .is_some_and(|runs| runs.training == training && runs.engine.name() == engine.name());
        if is_same || engine.unsupported_training(&training, precision).is_some() {
            return None;
        }
        let software = Software::of_engine(engine, &training, precision, Constants::shipped());
        Some(SearchProblem {
            model,
            state,
            engine: software,
            kernel: engine.style().kernel_on(problem.cluster.gpu.generation().has_flash),
            runs_on: Some(EngineSupport { engine, training }),
            ..problem.clone()
        })
    }
}

/// Returns the three cheapest ways to make `problem` fit, more devices among them, by device seconds per step.
pub(super) fn ways_to_fit(problem: &SearchProblem) -> Vec<WayToFit> {
    let Some(EngineSupport { engine: own, training }) = problem.runs_on.as_ref() else { return Vec::new() };
    let devices = f64::from(problem.cluster.devices);
    let mut engines: Vec<&'static dyn Engine> = vec![*own];
    for other in [&HF_TRAINER as &'static dyn Engine, &DEEPSPEED] {
        if other.name() != own.name() && other.kinds().contains(&problem.cluster.gpu.kind()) {
            engines.push(other);
        }
    }
    let same = StateChange { keys: "", words: "", pins: training.state, lora: None };
    let mut ways: Vec<WayToFit> = Vec::new();
    for change in std::iter::once(same).chain(changes(training.state)) {
        // The first engine that can: the request's own before others.
        let found = engines.iter().find_map(|engine| {
            let changed = change.of(problem, *engine).or_else(|| {
                (change.keys.is_empty() && engine.name() == own.name()).then(|| problem.clone())
            })?;
            let policies = std::iter::once(changed.state).chain(exact_policies(&changed));
            let found = policies.filter_map(|state| {
                let seconds = fastest(&SearchProblem { state, ..changed.clone() }, f64::INFINITY)?.seconds;
                Some((state, seconds))
            });
            let (state, seconds) = found.min_by(|a, b| a.1.total_cmp(&b.1))?;
            Some((engine.name(), state, seconds))
        });
        let Some((engine, state, seconds)) = found else { continue };
        let mut words = vec![change.keys.to_owned()];
        if engine != own.name() {
            words.push(format!("--engine {engine}"));
        }
        match state.offload {
            Offload::None => {}
            Offload::Optimizer => words.push("optimizer in host memory".to_owned()),
            Offload::All => words.push("state in host memory".to_owned()),
        }
        words.retain(|word| !word.is_empty());
        if words.is_empty() {
            continue;
        }
        ways.push(WayToFit {
            change: words.join(", "),
            step_seconds: seconds,
            device_seconds: seconds * devices,
        });
    }
    ways.sort_by(|a, b| a.device_seconds.total_cmp(&b.device_seconds));
    let more = fitting::enough_devices(problem);
    ways.truncate(if more.is_some() { WAYS - 1 } else { WAYS });
    ways.extend(more.map(|(cluster, seconds)| WayToFit {
        change: more_devices(&cluster),
        step_seconds: seconds,
        device_seconds: seconds * f64::from(cluster.devices),
    }));
    ways.sort_by(|a, b| a.device_seconds.total_cmp(&b.device_seconds));
    ways
}

/// Returns the devices of `cluster` in words.
pub(super) fn more_devices(cluster: &HostGroup) -> String {
    format!("{} ({}x{})", cluster.part_count(), cluster.devices / cluster.per_host, cluster.per_host)
}
