//! Figures of one rank, averaged over recent steps.

/// Weight of a new step in the moving averages of a rank.
const SHARE: f64 = 0.1;

/// Number of steps over which ranks are compared; the controller uses the same number.
pub(super) const STEPS: u64 = 50;

/// Names of the series of a step's phases, in order.
pub(crate) const PHASES: [&str; 6] = [
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "communication_seconds",
    "bubble_seconds",
    "optimizer_seconds",
];

/// Figures of a rank: moving averages over about ten steps, and its latest memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RankFigures {
    pub(crate) steps: u64,
    pub(crate) step: Option<f64>,
    /// Average seconds of each phase per step, in the order of [`PHASES`].
    pub(crate) phases: [f64; 6],
    pub(crate) memory: f64,
    /// Bytes of weights, of gradients and of optimizer moments that the rank holds.
    pub(crate) held: [f64; 3],
    pub(crate) sent: f64,
    /// Average seconds of computation per step over [`STEPS`] steps; slow ranks delay the others.
    pub(super) compute: f64,
}

impl RankFigures {
    /// Adds the figures of a completed step to the rank's averages.
    pub(super) fn finish_step(&mut self) {
        let compute = self.phases[0] + self.phases[1] + self.phases[2] + self.phases[5];
        self.steps += 1;
        #[expect(clippy::cast_precision_loss, reason = "at most some dozen")]
        let share = 1.0 / self.steps.min(STEPS) as f64;
        self.compute += (compute - self.compute) * share;
    }

    pub(super) fn add_figure(&mut self, key: &str, value: f64) {
        let is_first = self.steps == 0;
        let average = |old: f64| if is_first { value } else { old + (value - old) * SHARE };
        match key {
            "step_seconds" if value > 0.0 => {
                self.step = Some(self.step.map_or(value, average));
            }
            "memory_bytes" => self.memory = value,
            "weights_bytes" => self.held[0] = value,
            "gradients_bytes" => self.held[1] = value,
            "optimizer_bytes" => self.held[2] = value,
            "sent_bytes" => self.sent = average(self.sent),
            _ => {
                if let Some(phase) = PHASES.iter().position(|name| *name == key) {
                    self.phases[phase] = average(self.phases[phase]);
                }
            }
        }
    }
}
