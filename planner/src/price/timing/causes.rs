//! Where the seconds of a step go, with every communication by itself.

use super::{Deciding, Split, Stage, Stages, Steady, Timing, overlap};
use crate::price::estimate::Causes;
use crate::step::traffic::{Purpose, When};

/// Seconds by purpose.
type Sends = [f64; Purpose::COUNT];

impl Stages<'_> {
    /// As [`Stages::breakdown`] of a walked pipeline, with every communication by itself. What hides behind a pass hides of
    /// all purposes alike.
    pub(crate) fn causes(&self, split: &Split) -> Causes {
        let (timing, time) = (&self.timing, self.breakdown(split, true));
        let (n, whole) = (f64::from(split.micro_batches), timing.speeds.whole);
        let Deciding { busiest: (at, busiest), end: (last, end), .. } = self.deciding(split);
        let steady = &self.stages[at];
        let (passes, after) =
            (timing.in_passes(steady, split, &busiest), timing.after_passes(&self.stages[last], split, &end));
        let sent = |purpose: Purpose| whole * (n * passes[purpose as usize] + after[purpose as usize]);
        let recompute = whole * n * steady.again * split.cost.block_forward / timing.cut();
        Causes {
            forward: time.forward,
            backward: time.backward - recompute,
            recompute,
            gradients: sent(Purpose::Gradients),
            weights: sent(Purpose::Weights),
            tensor: sent(Purpose::Tensor),
            context: sent(Purpose::Context),
            expert: sent(Purpose::Expert),
            tied: sent(Purpose::Tied),
            figures: sent(Purpose::Figures),
            replicas: whole * timing.waiting(n * (busiest.forward + busiest.backward), n),
            bubble: time.bubble,
            optimizer: time.optimizer,
            overhead: time.overhead,
        }
    }
}

impl Timing<'_> {
    /// Exposed in one pass there and back; together they are what `stage` sends in both.
    fn in_passes(&self, steady: &Steady<'_>, split: &Split, stage: &Stage) -> Sends {
        let mut sends = Sends::default();
        let hidden = overlap(self.arrangement.device);
        self.spread(steady, When::Forward, steady.forward.exposed(stage.forward, hidden), &mut sends);
        self.spread(steady, When::Backward, steady.backward.exposed(stage.backward, hidden), &mut sends);
        steady.sender.passes(split.micro, |transfer| {
            let is_in_pass = matches!(transfer.when, When::Forward | When::Backward);
            if is_in_pass && transfer.purpose != Purpose::Pipeline {
                sends[transfer.purpose as usize] += self.seconds(&transfer);
            }
        });
        sends
    }

    /// Exposed at the end of a step; together they are the communication at the end of `stage`.
    fn after_passes(&self, steady: &Steady<'_>, split: &Split, stage: &Stage) -> Sends {
        let mut sends = Sends::default();
        self.spread(steady, When::LastBackward, self.reduction(steady, split, stage), &mut sends);
        let every_step: f64 = self.of(steady, When::Step).iter().sum();
        self.spread(steady, When::Step, every_step, &mut sends);
        // Of what is sent once in several steps, a step has its share: the rest of its end.
        self.spread(steady, When::Meeting, steady.end - every_step, &mut sends);
        steady.sender.passes(split.micro, |transfer| {
            let is_in_pass = matches!(transfer.when, When::Forward | When::Backward);
            if !is_in_pass && transfer.purpose != Purpose::Pipeline {
                sends[transfer.purpose as usize] += self.seconds(&transfer);
            }
        });
        sends
    }

    /// Spreads `exposed` seconds over the purposes of the state that is sent then, as its own seconds are.
    fn spread(&self, steady: &Steady<'_>, when: When, exposed: f64, sends: &mut Sends) {
        let own = self.of(steady, when);
        let all: f64 = own.iter().sum();
        if all > 0.0 {
            sends.iter_mut().zip(own).for_each(|(sum, seconds)| *sum += exposed * seconds / all);
        }
    }

    /// Seconds of the state that is sent then.
    fn of(&self, steady: &Steady<'_>, when: When) -> Sends {
        let mut own = Sends::default();
        steady.sender.state(|transfer| {
            if transfer.when == when {
                own[transfer.purpose as usize] += self.seconds(&transfer);
            }
        });
        own
    }
}
