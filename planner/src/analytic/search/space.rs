//! The layouts of a cluster of equal devices: all divisors along every axis.

use crate::analytic::{
    Again, Case, Constants, Cut, Device, Engine, Gpu, Kernel, Links, Products, Transformer,
};
use crate::batch::divisors;
use dtrain_recipes::{LayoutPins, PipelineSchedule, Recompute, ZeroStage};

/// Equal devices, equally spread over hosts.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// The part.
    pub gpu: &'static Gpu,
    /// Devices in all.
    pub devices: u32,
    /// Devices of a host.
    pub per_host: u32,
    /// Bytes a second one way between a device and the others of its host, on the data sheet.
    pub link: f64,
    /// Bytes a second of network for each device, on the data sheet.
    pub network: f64,
    /// Bytes of memory of a device that may be used.
    pub memory: f64,
}

/// What is to be trained, and on what.
#[derive(Clone, Debug)]
pub struct Question {
    /// What is trained.
    pub model: Transformer,
    /// The devices.
    pub cluster: Cluster,
    /// The engine.
    pub engine: Engine,
    /// How attention is computed.
    pub kernel: Kernel,
    /// Number format of linear layers.
    pub products: Products,
    /// Samples of a step.
    pub batch: u32,
    /// Axes that are decided.
    pub pins: LayoutPins,
    /// The constants of the model.
    pub constants: &'static Constants,
}

/// Degrees along all axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Ranks that share matrices.
    pub tensor: u32,
    /// Ranks that share a sequence.
    pub context: u32,
    /// Ranks that share experts.
    pub expert: u32,
    /// Stages.
    pub pipeline: u32,
    /// Replicas.
    pub data: u32,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "dimensions are whole and far below 2^32"
)]
pub(crate) fn whole(dimension: f64) -> u32 {
    dimension.round() as u32
}

pub(in crate::analytic) fn divisors_of(n: u32) -> impl Iterator<Item = u32> {
    divisors(n.into()).into_iter().filter_map(|d| u32::try_from(d).ok())
}

impl Cluster {
    /// `hosts` of `per_host` devices each, as the part is usually sold.
    pub fn of(gpu: &'static Gpu, hosts: u32, per_host: u32) -> Self {
        Self {
            gpu,
            devices: hosts * per_host,
            per_host,
            link: gpu.link * 1e9,
            network: gpu.network / 8.0 * 1e9,
            memory: gpu.gibibytes * 1024f64.powi(3),
        }
    }
}

impl Question {
    /// All shapes whose degrees divide what they cut, in a fixed order: those that share units follow each other.
    pub fn shapes(&self) -> Vec<Shape> {
        let devices = self.cluster.devices;
        let heads = whole(self.model.heads);
        let mut shapes = Vec::new();
        for tensor in divisors_of(devices).filter(|t| heads.is_multiple_of(*t)) {
            for context in divisors_of(devices / tensor).filter(|c| self.cuts_sequence(*c)) {
                for expert in self.expert_degrees(devices / tensor) {
                    shapes.extend(self.stages(tensor, context, expert));
                }
            }
        }
        shapes
    }

    /// An early and a late piece of the sequence for each rank.
    fn cuts_sequence(&self, context: u32) -> bool {
        context == 1 || whole(self.model.sequence).is_multiple_of(2 * context)
    }

    fn expert_degrees(&self, most: u32) -> Vec<u32> {
        let count = self.model.experts.map_or(1, |experts| whole(experts.count));
        divisors_of(count).filter(|expert| most.is_multiple_of(*expert)).collect()
    }

    /// The shapes of these degrees, by number of stages.
    fn stages(&self, tensor: u32, context: u32, expert: u32) -> impl Iterator<Item = Shape> + '_ {
        let rest = self.cluster.devices / (tensor * context);
        let deep = move |stages: &u32| *stages <= whole(self.model.layers);
        let of = move |pipeline: u32| Shape { tensor, context, expert, pipeline, data: rest / pipeline };
        divisors_of(rest).filter(deep).map(of).filter(move |shape| {
            let replicas = shape.data * context;
            self.batch.is_multiple_of(shape.data) && replicas.is_multiple_of(expert) && self.is_wanted(shape)
        })
    }

    /// Whether a shape is what the pins ask for.
    fn is_wanted(&self, shape: &Shape) -> bool {
        let pins = &self.pins;
        [
            (pins.tensor, shape.tensor),
            (pins.context, shape.context),
            (pins.expert, shape.expert),
            (pins.pipeline, shape.pipeline),
            (pins.data, shape.data),
        ]
        .into_iter()
        .all(|(pin, degree)| pin.is_none_or(|pin| pin == degree))
    }

    /// What a backward may compute again.
    pub fn modes(&self) -> Vec<Again> {
        match self.pins.recompute {
            None => vec![Again::Nothing, Again::Attention, Again::All],
            Some(Recompute::None) => vec![Again::Nothing],
            Some(Recompute::Selective) => vec![Again::Attention],
            Some(Recompute::Full) => vec![Again::All],
        }
    }

    /// What replicas may shard.
    pub fn zeros(&self) -> Vec<ZeroStage> {
        const ALL: [ZeroStage; 4] = [ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3];
        ALL.into_iter().filter(|zero| self.pins.zero.is_none_or(|pin| pin == *zero)).collect()
    }

    /// A case of a shape, whatever else is open.
    pub fn case(&self, shape: &Shape) -> Case<'_> {
        let Cluster { gpu, per_host, link, network, .. } = self.cluster;
        Case {
            model: &self.model,
            cut: Cut {
                tensor: shape.tensor.into(),
                pipeline: shape.pipeline.into(),
                schedule: PipelineSchedule::OneForwardOneBackward,
                chunks: 1.0,
                context: shape.context.into(),
                expert: shape.expert.into(),
                data: shape.data.into(),
                zero: ZeroStage::Zero0,
                is_sequence_parallel: false,
                again: Again::Nothing,
                micro: 1.0,
                batch: self.batch.into(),
            },
            engine: self.engine,
            device: Device::of(gpu, self.products, self.kernel, self.model.head, 1.0, self.constants),
            links: Links::of(link, network, per_host.into(), &self.constants.general),
            kernel: self.kernel,
            products: self.products,
            constants: self.constants,
        }
    }

    /// The case of a layout that was found.
    pub fn at(&self, cut: &Cut) -> Case<'_> {
        Case { cut: *cut, ..self.case(&Shape { tensor: 1, context: 1, expert: 1, pipeline: 1, data: 1 }) }
    }

    /// Micro-batches of a shape.
    pub fn micro_batches(&self, shape: &Shape) -> Vec<u32> {
        let is_wanted = |micro: &u32| self.pins.micro_batch.is_none_or(|pin| pin == *micro);
        divisors_of(self.batch / shape.data).filter(is_wanted).collect()
    }

    /// Whether ranks that share matrices may hold the sequence in parts.
    pub fn sequence_modes(&self, shape: &Shape) -> &'static [bool] {
        match self.pins.sequence {
            _ if shape.tensor == 1 => &[false],
            None => &[false, true],
            Some(true) => &[true],
            Some(false) => &[false],
        }
    }

    /// Orders of the passes, with the runs of layers of each stage.
    pub fn schedules(&self, shape: &Shape, cut: &Cut) -> Vec<(PipelineSchedule, f64)> {
        let plain = (PipelineSchedule::OneForwardOneBackward, 1.0);
        if shape.pipeline == 1 {
            return vec![plain];
        }
        let mut all = vec![plain, (PipelineSchedule::ZeroBubble, 1.0), (PipelineSchedule::Gpipe, 1.0)];
        let layers = whole(self.model.layers);
        let is_even = layers.is_multiple_of(shape.pipeline);
        if is_even && cut.micro_batches() % cut.pipeline == 0.0 {
            let chunks = divisors_of(layers / shape.pipeline).skip(1);
            all.extend(chunks.map(|chunks| (PipelineSchedule::Interleaved, chunks.into())));
        }
        all.retain(|(schedule, chunks)| {
            self.pins.schedule.is_none_or(|pin| pin == *schedule)
                && self.pins.chunks.is_none_or(|pin| f64::from(pin) == *chunks)
        });
        all
    }
}
