//! The stages of a pipeline side by side: what each does when, until the step is over.

use super::{Deciding, Split, Stage, Stages};
use crate::step::picture::{Doing, Timeline, Work, lanes};
use crate::step::schedule::{Shape, passes};
use crate::step::simulate::{PassCost, Walked, walk};
use dtrain_protocol::Arrangement;

impl Stage {
    /// A pass through one of its chunks.
    fn work(&self, chunks: u32) -> Work {
        let v = f64::from(chunks);
        Work {
            forward: self.forward / v,
            backward: self.backward / v,
            weights: self.weights / v,
            sent_forward: self.sent_forward / v,
            sent_backward: self.sent_backward / v,
        }
    }
}

impl Stages<'_> {
    /// One step of every stage, whose lanes end with the step that [`Stages::breakdown`] tells of a walked pipeline; `None`
    /// where the stages wait for each other forever.
    pub(crate) fn timeline(&self, split: &Split) -> Option<Timeline> {
        let (timing, arrangement) = (&self.timing, self.timing.arrangement);
        let Deciding { busiest: (_, busiest), filling, .. } = self.deciding(split);
        let stages: Vec<Stage> = self.stages.iter().map(|steady| timing.stage(steady, split)).collect();
        let works: Vec<Work> = stages.iter().map(|stage| stage.work(arrangement.chunks)).collect();
        let mut lanes = lanes(&works, arrangement.schedule, self.shape(split), filling.message)?;
        let n = f64::from(split.micro_batches);
        let step = self.breakdown(split, true).total() / timing.speeds.whole;
        let waiting = timing.waiting(n * (busiest.forward + busiest.backward), n);
        for (lane, stage) in lanes.iter_mut().zip(&stages) {
            lane.add(Doing::Overhead, n * split.cost.overhead);
            lane.add(Doing::Idle, waiting);
            lane.add(Doing::Communication, stage.end);
            lane.add(Doing::Optimizer, stage.optimizer);
            lane.until(step);
            lane.scale(timing.speeds.whole);
        }
        Some(Timeline { step_seconds: step * timing.speeds.whole, lanes })
    }

    /// Walks the passes of a step action by action, where a message takes `transfer` seconds; see [`walk`].
    pub(super) fn walked(&self, split: &Split, transfer: f64) -> Option<Walked> {
        let Arrangement { chunks, schedule, .. } = *self.timing.arrangement;
        let stages = self.stages.iter().map(|steady| self.timing.stage(steady, split));
        let costs: Vec<PassCost> = stages.map(|stage| stage.work(chunks).cost()).collect();
        let shape = self.shape(split);
        walk(&passes(schedule, shape), shape, &costs, transfer, |_, _, _| {})
    }

    fn shape(&self, split: &Split) -> Shape {
        let Arrangement { layout, chunks, .. } = *self.timing.arrangement;
        Shape { stages: layout.pipeline.get(), chunks, micros: split.micro_batches }
    }
}
