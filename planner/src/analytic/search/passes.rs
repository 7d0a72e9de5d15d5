//! Orders of the passes of a step, and how its layers are divided among the stages.

use super::space::{Question, divisors_of, whole};
use crate::analytic::{Config, Division, Transformer, Unit};
use dtrain_protocol::{Arrangement, Ends};
use dtrain_recipes::PipelineSchedule;
use std::collections::BTreeMap;

impl Question {
    /// Orders of the passes, with the runs of layers of each stage and what the ends count as. Layers that do not divide are
    /// interleaved where they do with the ends. GPipe is only there where it is pinned: it takes as long as 1F1B and more
    /// memory.
    pub fn schedules(&self, config: &Config) -> Vec<Passes> {
        let plain = Passes { schedule: PipelineSchedule::OneForwardOneBackward, chunks: 1, ends: Ends::FREE };
        let stages = config.arrangement.layout.pipeline.get();
        if stages == 1 {
            return vec![plain];
        }
        let mut all = Vec::new();
        for schedule in [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZeroBubble] {
            all.push(Passes { schedule, ..plain });
        }
        if self.pins.schedule == Some(PipelineSchedule::Gpipe) {
            all.push(Passes { schedule: PipelineSchedule::Gpipe, ..plain });
        }
        let layers = whole(self.model.layers);
        if whole(config.micro_batches()).is_multiple_of(stages) {
            for ends in INTERLEAVED_ENDS {
                let counted = layers + ends.embedding + ends.head;
                if !counted.is_multiple_of(stages) {
                    continue;
                }
                let chunks = divisors_of(counted / stages).skip(1);
                all.extend(chunks.map(|chunks| Passes {
                    schedule: PipelineSchedule::Interleaved,
                    chunks,
                    ends,
                }));
            }
        }
        all.retain(|passes| {
            self.pins.schedule.is_none_or(|pin| pin == passes.schedule)
                && self.pins.chunks.is_none_or(|pin| pin == passes.chunks)
        });
        all
    }

    /// The layout with the layers of its stages divided so that the slowest is as fast as can be, where the schedule leaves that
    /// open.
    pub(in crate::analytic) fn divided(
        &self,
        config: &Config,
        unit: &Unit,
        known: &mut Divisions,
    ) -> (Config, Division) {
        let of = |ends: Ends, known: &mut Divisions| {
            let config = Config { arrangement: Arrangement { ends, ..config.arrangement }, ..*config };
            (config, known.of(&self.model, &config))
        };
        let is_open = config.arrangement.layout.pipeline.get() > 1 && config.arrangement.chunks == 1;
        if !is_open {
            return of(config.arrangement.ends, known);
        }
        let mean = unit.layers(&self.model, 0.0) / self.model.layers;
        let slowest = |division: &Division| {
            let of = |layers: u32, extra: f64| f64::from(layers) * mean + extra;
            of(division.first, unit.embedding).max(of(division.last, unit.head)).max(of(division.most, 0.0))
        };
        let mut best = of(Ends::FREE, known);
        let mut seconds = slowest(&best.1);
        for ends in PLAIN_ENDS {
            let other = of(ends, known);
            let other_seconds = slowest(&other.1);
            let has_layers = other.1.first > 0 && other.1.last > 0;
            if has_layers && other_seconds < seconds && self.allows(&other.0) {
                (best, seconds) = (other, other_seconds);
            }
        }
        best
    }
}

/// What ends may count as where stages have one run each.
pub(super) const PLAIN_ENDS: [Ends; 4] = [
    Ends { embedding: 0, head: 1 },
    Ends { embedding: 1, head: 1 },
    Ends { embedding: 0, head: 2 },
    Ends { embedding: 1, head: 2 },
];

/// What ends may count as where runs are interleaved.
const INTERLEAVED_ENDS: [Ends; 4] = [
    Ends::FREE,
    Ends { embedding: 1, head: 1 },
    Ends { embedding: 0, head: 1 },
    Ends { embedding: 1, head: 0 },
];

/// How the passes of a step are ordered, and its layers divided into runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// Order of the passes.
    pub schedule: PipelineSchedule,
    /// Runs of layers of each stage.
    pub chunks: u32,
    /// What the ends of the model count as.
    pub ends: Ends,
}

impl Passes {
    /// A layout with these.
    pub fn of(self, config: &Config) -> Config {
        let Self { schedule, chunks, ends } = self;
        Config { arrangement: Arrangement { schedule, chunks, ends, ..config.arrangement }, ..*config }
    }
}

/// Divisions that were asked for before.
#[derive(Debug, Default)]
pub(in crate::analytic) struct Divisions(BTreeMap<(u32, u32, Ends), Division>);

impl Divisions {
    pub(in crate::analytic) fn of(&mut self, model: &Transformer, config: &Config) -> Division {
        let Arrangement { layout, chunks, ends, .. } = config.arrangement;
        let key = (layout.pipeline.get(), chunks, ends);
        *self.0.entry(key).or_insert_with(|| Division::of(model, config))
    }
}
