//! Step time by cause: computation, the bubble, and each kind of communication apart.

use super::overlap::overlap_share;
use super::{BatchCost, Bottleneck, PipelineTiming, StageTimes, SteadyState, TimingInputs};
use crate::price::estimate::Causes;
use crate::step::traffic::{TrafficPurpose, TransferPhase};

/// Seconds of communication for each [`TrafficPurpose`], by its index.
type SecondsByPurpose = [f64; TrafficPurpose::COUNT];

impl PipelineTiming<'_> {
    /// Returns the step time by cause: the [`PipelineTiming::breakdown`] of a simulated pipeline, with each
    /// kind of communication apart. Overlap with a pass is attributed to all kinds in proportion.
    pub(crate) fn causes(&self, split: &BatchCost) -> Causes {
        let (timing, time) = (&self.timing, self.breakdown(split, true));
        let (n, whole) = (f64::from(split.micro_batches), timing.speeds.whole);
        let Bottleneck { busiest: (at, busiest), end: (last, end), .. } = self.deciding(split);
        let steady = &self.stages[at];
        let (passes, after) =
            (timing.in_passes(steady, split, &busiest), timing.after_passes(&self.stages[last], split, &end));
        let sent = |purpose: TrafficPurpose| whole * (n * passes[purpose as usize] + after[purpose as usize]);
        let recompute = whole * n * steady.again * split.cost.block_forward / timing.cut();
        Causes {
            forward: time.forward,
            backward: time.backward - recompute,
            recompute,
            gradients: sent(TrafficPurpose::Gradients),
            weights: sent(TrafficPurpose::Weights),
            tensor: sent(TrafficPurpose::Tensor),
            context: sent(TrafficPurpose::Context),
            expert: sent(TrafficPurpose::Expert),
            tied: sent(TrafficPurpose::Tied),
            figures: sent(TrafficPurpose::Figures),
            replicas: whole * timing.straggler_wait(n * (busiest.forward + busiest.backward), n),
            bubble: time.bubble,
            optimizer: time.optimizer,
            overhead: time.overhead,
        }
    }
}

impl TimingInputs<'_> {
    /// Returns the exposed seconds of communication in one forward and one backward pass, by purpose; their
    /// sum is that of `stage`.
    fn in_passes(&self, steady: &SteadyState<'_>, split: &BatchCost, stage: &StageTimes) -> SecondsByPurpose {
        let mut sends = SecondsByPurpose::default();
        let hidden = overlap_share(self.arrangement.device);
        self.spread(
            steady,
            TransferPhase::Forward,
            steady.forward.exposed(stage.forward, hidden),
            &mut sends,
        );
        self.spread(
            steady,
            TransferPhase::Backward,
            steady.backward.exposed(stage.backward, hidden),
            &mut sends,
        );
        steady.sender.passes(split.micro, |transfer| {
            let is_in_pass = matches!(transfer.when, TransferPhase::Forward | TransferPhase::Backward);
            if is_in_pass && transfer.purpose != TrafficPurpose::Pipeline {
                sends[transfer.purpose as usize] += self.seconds(&transfer);
            }
        });
        sends
    }

    /// Returns the exposed seconds of communication at the end of a step, by purpose; their sum is that of
    /// `stage`.
    fn after_passes(
        &self,
        steady: &SteadyState<'_>,
        split: &BatchCost,
        stage: &StageTimes,
    ) -> SecondsByPurpose {
        let mut sends = SecondsByPurpose::default();
        self.spread(steady, TransferPhase::LastBackward, self.reduction(steady, split, stage), &mut sends);
        let every_step: f64 = self.of(steady, TransferPhase::Step).iter().sum();
        self.spread(steady, TransferPhase::Step, every_step, &mut sends);
        // Communication done once in several steps counts in proportion: it is the rest of the step's end.
        self.spread(steady, TransferPhase::Meeting, steady.end - every_step, &mut sends);
        steady.sender.passes(split.micro, |transfer| {
            let is_in_pass = matches!(transfer.when, TransferPhase::Forward | TransferPhase::Backward);
            if !is_in_pass && transfer.purpose != TrafficPurpose::Pipeline {
                sends[transfer.purpose as usize] += self.seconds(&transfer);
            }
        });
        sends
    }

    /// Distributes `exposed` seconds over purposes, in proportion to the communication of phase `when`.
    fn spread(
        &self,
        steady: &SteadyState<'_>,
        when: TransferPhase,
        exposed: f64,
        sends: &mut SecondsByPurpose,
    ) {
        let own = self.of(steady, when);
        let all: f64 = own.iter().sum();
        if all > 0.0 {
            sends.iter_mut().zip(own).for_each(|(sum, seconds)| *sum += exposed * seconds / all);
        }
    }

    /// Returns the seconds of communication in phase `when`, by purpose, before any overlap.
    fn of(&self, steady: &SteadyState<'_>, when: TransferPhase) -> SecondsByPurpose {
        let mut own = SecondsByPurpose::default();
        steady.sender.state(|transfer| {
            if transfer.when == when {
                own[transfer.purpose as usize] += self.seconds(&transfer);
            }
        });
        own
    }
}
