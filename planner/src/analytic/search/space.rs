//! The search space of a cluster of equal devices: all divisors along each axis.

use crate::analytic::{
    Constants, Degrees, DeviceThroughput, Interconnect, MatmulPrecision, Software, StepConfig, StepInputs,
    Transformer,
};
use crate::engine::{AttentionKernel, EngineSupport, UnsupportedLayout};
use crate::hardware::HostGroup;
use crate::layout::batch_split::divisors;
use dtrain_protocol::{Arrangement, ContextExchange, DeviceKind, RankOrder};
use dtrain_recipes::{LayoutPins, Recompute, StatePolicy, Synchronisation, ZeroStage};

/// A training whose layout is to be found: model, cluster, engine and pins.
#[derive(Clone, Debug)]
pub struct SearchProblem {
    /// Dimensions of the model.
    pub model: Transformer,
    /// Devices to train on.
    pub cluster: HostGroup,
    /// Cost profile of the engine.
    pub engine: Software,
    /// The engine, whose restrictions layouts must meet; `None` if any layout is allowed.
    pub runs_on: Option<EngineSupport>,
    /// Implementation of attention.
    pub kernel: AttentionKernel,
    /// Number format of the products in linear layers.
    pub products: MatmulPrecision,
    /// Precision and place of the training state.
    pub state: StatePolicy,
    /// Samples per step.
    pub batch: u32,
    /// Values that the user fixed on some axes.
    pub pins: LayoutPins,
    /// Synchronization of the replicas.
    pub sync: Synchronisation,
    /// Constants of the cost model.
    pub constants: &'static Constants,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "dimensions are whole and far below 2^32"
)]
pub(crate) fn to_count(dimension: f64) -> u32 {
    dimension.round() as u32
}

pub(in crate::analytic) fn divisors_of(n: u32) -> impl Iterator<Item = u32> {
    divisors(n.into()).into_iter().filter_map(|d| u32::try_from(d).ok())
}

impl SearchProblem {
    /// Returns all combinations of degrees that divide their dimensions, in a fixed order: those with equal
    /// micro-batch costs are adjacent.
    pub fn shapes(&self) -> Vec<Degrees> {
        let devices = self.cluster.devices;
        let heads = to_count(self.model.heads);
        let mut shapes = Vec::new();
        for tensor in divisors_of(devices).filter(|t| heads.is_multiple_of(*t)) {
            for context in divisors_of(devices / tensor).filter(|c| self.cuts_sequence(*c)) {
                for expert in self.expert_degrees(devices) {
                    shapes.extend(self.stages(tensor, context, expert));
                }
            }
        }
        shapes
    }

    /// Returns `true` if a sequence divides into an early and a late piece for each of `context` ranks.
    fn cuts_sequence(&self, context: u32) -> bool {
        context == 1 || to_count(self.model.sequence).is_multiple_of(2 * context)
    }

    fn expert_degrees(&self, most: u32) -> Vec<u32> {
        let count = self.model.experts.map_or(1, |experts| to_count(experts.count));
        divisors_of(count).filter(|expert| most.is_multiple_of(*expert)).collect()
    }

    /// Returns the shapes with the given degrees, by number of stages.
    fn stages(&self, tensor: u32, context: u32, expert: u32) -> impl Iterator<Item = Degrees> + '_ {
        let rest = self.cluster.devices / (tensor * context);
        let deep = move |stages: &u32| *stages <= to_count(self.model.layers);
        let of = move |pipeline: u32| Degrees { tensor, context, expert, pipeline, data: rest / pipeline };
        divisors_of(rest).filter(deep).map(of).filter(move |shape| {
            let ranks = shape.data * context * tensor;
            self.batch.is_multiple_of(shape.data) && ranks.is_multiple_of(expert) && self.is_wanted(shape)
        })
    }

    /// Returns `true` if `shape` satisfies the pins.
    fn is_wanted(&self, shape: &Degrees) -> bool {
        let pins = &self.pins;
        let pinned = [
            (pins.tensor, shape.tensor),
            (pins.context, shape.context),
            (pins.expert, shape.expert),
            (pins.pipeline, shape.pipeline),
        ];
        pinned.into_iter().all(|(pin, degree)| pin.is_none_or(|pin| pin == degree))
    }

    /// Returns the rank placements of `shape`: experts over replicas alone or folded over other ranks, and
    /// both rank orders if they differ.
    pub fn placements(&self, shape: &Degrees) -> Vec<StepConfig> {
        let can_fold = shape.expert > 1 && shape.tensor * shape.context > 1;
        let folds: &[bool] = if can_fold { &[false, true] } else { &[false] };
        let neighbours = shape.tensor * shape.context;
        let HostGroup { devices, per_host, .. } = self.cluster;
        let has_orders = shape.pipeline > 1 && shape.data > 1 && neighbours < per_host && per_host < devices;
        let orders: &[RankOrder] = if has_orders { &ORDERS } else { &ORDERS[..1] };
        let mut all: Vec<StepConfig> = Vec::new();
        for (folded, order) in
            folds.iter().flat_map(|folded| orders.iter().map(move |order| (*folded, *order)))
        {
            let arrangement = Arrangement { order, ..self.arrangement() };
            let any = StepConfig { arrangement, micro_batch: 1, batch: self.batch };
            let is_wanted = |config: &StepConfig| {
                let data = config.arrangement.layout.data.get();
                self.pins.data.is_none_or(|pin| pin == data) && !all.contains(config)
            };
            let placed = any.with_degrees(*shape, folded).filter(is_wanted);
            all.extend(placed);
        }
        all
    }

    /// Returns the context exchanges that the engine supports for the degrees of `config`; they differ only
    /// in time.
    pub fn exchanges(&self, config: &StepConfig) -> Vec<ContextExchange> {
        let degrees = config.degrees();
        if degrees.context == 1 {
            return vec![ContextExchange::Ring];
        }
        let known = self.runs_on.as_ref().map_or(&EXCHANGES[..], |runs| runs.engine.context_exchanges());
        // An engine that has none refuses the degrees, with its reason.
        let known = if known.is_empty() { &[ContextExchange::Ring][..] } else { known };
        let local = |heads: f64| to_count(heads).is_multiple_of(degrees.tensor * degrees.context);
        let has_heads = local(self.model.heads) && local(self.model.kv_heads);
        known.iter().copied().filter(|kind| *kind != ContextExchange::AllToAll || has_heads).collect()
    }

    /// Returns the arrangement from which all layouts of the search are derived.
    fn arrangement(&self) -> Arrangement {
        Arrangement {
            state: self.state,
            precision: self.products.precision(),
            device: DeviceKind::Cuda,
            sync: self.sync,
            ..Arrangement::SINGLE
        }
    }

    /// Returns the recompute modes to try, each with its interval in layers.
    pub fn modes(&self) -> Vec<(Recompute, u32)> {
        const MODES: [(Recompute, u32); 5] = [
            (Recompute::None, 1),
            (Recompute::Selective, 1),
            (Recompute::Full, 1),
            (Recompute::Full, 2),
            (Recompute::Full, 4),
        ];
        let pins = &self.pins;
        let of_pin = pins.recompute_every.filter(|every| MODES.iter().all(|(_, known)| known != every));
        let all = MODES.into_iter().chain(of_pin.map(|every| (Recompute::Full, every)));
        all.filter(|(mode, every)| {
            pins.recompute.is_none_or(|pin| pin == *mode)
                && pins.recompute_every.is_none_or(|pin| pin == *every || *mode != Recompute::Full)
        })
        .collect()
    }

    /// Returns the ZeRO stages to try for the replicas.
    pub fn zeros(&self) -> Vec<ZeroStage> {
        const ALL: [ZeroStage; 4] = [ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3];
        ALL.into_iter().filter(|zero| self.pins.zero.is_none_or(|pin| pin == *zero)).collect()
    }

    /// Returns the shardings to try for a placement: each a ZeRO stage, and the number of replicas that share
    /// state (all, or those of a host).
    pub fn shards(&self, config: &StepConfig) -> Vec<(ZeroStage, u32)> {
        let replicas = config.arrangement.replicas();
        let of_host = (self.cluster.per_host / config.arrangement.layout.tensor.get()).max(1);
        let sizes = [1, 4, 16].map(|hosts| of_host * hosts);
        let smaller =
            sizes.into_iter().filter(|size| *size > 1 && *size < replicas && replicas.is_multiple_of(*size));
        let sizes: Vec<u32> = match self.pins.shard {
            Some(pin) => vec![pin],
            None => std::iter::once(replicas).chain(smaller).collect(),
        };
        let of_stage = |zero: ZeroStage| -> Vec<(ZeroStage, u32)> {
            match zero {
                ZeroStage::Zero0 => vec![(zero, 1)],
                _ => sizes.iter().map(|size| (zero, *size)).collect(),
            }
        };
        self.zeros().into_iter().flat_map(of_stage).collect()
    }

    /// Returns the cost inputs of the layout `config`.
    pub fn at(&self, config: &StepConfig) -> StepInputs<'_> {
        let HostGroup { gpu, watts, .. } = self.cluster;
        let power = watts.map_or(1.0, |watts| gpu.clock_at(watts));
        StepInputs {
            model: &self.model,
            config: *config,
            engine: self.engine,
            device: DeviceThroughput::of(
                gpu,
                self.products,
                self.kernel,
                self.model.head,
                power,
                self.constants,
            ),
            links: Interconnect::of(
                &self.cluster,
                |bandwidth| self.engine.reaches(bandwidth),
                &self.constants.general,
            ),
            kernel: self.kernel,
            products: self.products,
            constants: self.constants,
        }
    }

    /// Returns the engine's most frequent reason to reject a layout that is split along the fewest axes; `None`
    /// if pins and divisibility leave no layout.
    pub fn infeasible_reason(&self) -> Option<UnsupportedLayout> {
        let axes = |shape: &Degrees| {
            let Degrees { tensor, context, expert, pipeline, data: _ } = *shape;
            [tensor, context, expert, pipeline].into_iter().filter(|degree| *degree > 1).count()
        };
        let mut shapes = self.shapes();
        let fewest = shapes.iter().map(axes).min()?;
        shapes.retain(|shape| axes(shape) == fewest);
        let mut reasons: Vec<(u32, UnsupportedLayout)> = Vec::new();
        for placed in shapes.iter().flat_map(|shape| self.placements(shape)) {
            self.any(&placed, &self.shards(&placed), |config| {
                let Some(reason) = self.unsupported(config) else { return false };
                match reasons.iter_mut().find(|(_, known)| *known == reason) {
                    Some((count, _)) => *count += 1,
                    None => reasons.push((1, reason)),
                }
                false
            });
        }
        reasons.into_iter().max_by_key(|(count, _)| *count).map(|(_, reason)| reason)
    }

    /// Returns `true` if `test` holds for some layout of a placement, over all options that matter to
    /// engines.
    fn any(
        &self,
        placed: &StepConfig,
        shards: &[(ZeroStage, u32)],
        mut test: impl FnMut(&StepConfig) -> bool,
    ) -> bool {
        let exchanges = self.exchanges(placed);
        let sequences = if placed.degrees().tensor > 1 { &[false, true][..] } else { &[false][..] };
        let schedules = self.schedules(placed);
        let modes = self.modes();
        shards.iter().any(|(zero, shard)| {
            schedules.iter().any(|passes| {
                modes.iter().any(|(recompute, recompute_every)| {
                    sequences.iter().any(|sequence| {
                        exchanges.iter().any(|exchange| {
                            let arrangement = Arrangement {
                                zero: *zero,
                                shard: *shard,
                                sequence: *sequence,
                                recompute: *recompute,
                                recompute_every: *recompute_every,
                                context_exchange: *exchange,
                                ..passes.of(placed).arrangement
                            };
                            test(&StepConfig { arrangement, ..*placed })
                        })
                    })
                })
            })
        })
    }

    /// Returns `true` if the engine can train the model in some layout.
    pub fn can_train(&self) -> bool {
        let refused = |runs: &EngineSupport| {
            runs.engine.unsupported_training(&runs.training, self.products.precision()).is_some()
        };
        !self.runs_on.as_ref().is_some_and(refused)
    }

    /// Returns `true` if the engine can run the layout `config`.
    pub fn allows(&self, config: &StepConfig) -> bool {
        self.unsupported(config).is_none()
    }

    /// Returns the reason why the engine cannot run the layout `config`; `None` if it can.
    fn unsupported(&self, config: &StepConfig) -> Option<UnsupportedLayout> {
        let EngineSupport { engine, training } = self.runs_on.as_ref()?;
        engine.unsupported_layout(training, &config.arrangement, to_count(config.micro_batches()))
    }

    /// Returns the micro-batch sizes to try for `shape`.
    pub fn micro_batches(&self, shape: &Degrees) -> Vec<u32> {
        let is_wanted = |micro: &u32| self.pins.micro_batch.is_none_or(|pin| pin == *micro);
        divisors_of(self.batch / shape.data).filter(is_wanted).collect()
    }

    /// Returns the settings of sequence parallelism to try for `shape`.
    pub fn sequence_modes(&self, shape: &Degrees) -> &'static [bool] {
        match self.pins.sequence {
            _ if shape.tensor == 1 => &[false],
            None => &[false, true],
            Some(true) => &[true],
            Some(false) => &[false],
        }
    }
}

const EXCHANGES: [ContextExchange; 3] =
    [ContextExchange::Ring, ContextExchange::AllGather, ContextExchange::AllToAll];

const ORDERS: [RankOrder; 2] = [RankOrder::PipelineOutermost, RankOrder::DataOutermost];
