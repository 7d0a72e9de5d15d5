//! Timeline of one training step: the activities of every stage.

mod tracks;

use dtrain_protocol::Pass;
use serde::Serialize;
pub(crate) use tracks::{ChunkTimes, stage_tracks};

/// Activities of every pipeline stage in one training step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// Seconds from the start of the step to its end.
    pub step_seconds: f64,
    /// Tracks of the stages, from the first stage to the last.
    pub lanes: Vec<StageTrack>,
}

/// Activities of one pipeline stage, without a gap from the start of a step to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StageTrack {
    /// Activities in order of time; each starts where the one before ends.
    pub spans: Vec<Span>,
}

/// One activity of a stage, with its start and duration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Span {
    /// Kind of the activity.
    pub doing: Activity,
    /// Start of the activity, in seconds from the start of the step.
    pub begin: f64,
    /// Duration of the activity in seconds, above 0.
    pub seconds: f64,
    /// Pass that the activity is part of; `None` for an activity that happens once per step.
    pub pass: Option<Pass>,
}

/// Kind of activity of a pipeline stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Forward pass.
    Forward,
    /// Backward pass; where weight gradients are computed separately, the part for the input.
    Backward,
    /// Computation of weight gradients, where it is separate from the backward pass.
    Weights,
    /// Communication that does not overlap with computing.
    Communication,
    /// Optimizer update.
    Optimizer,
    /// Reading samples and accumulating gradients.
    Overhead,
    /// Idle time, waiting for other stages or replicas.
    Idle,
}

impl Activity {
    /// All kinds of activity, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Forward,
        Self::Backward,
        Self::Weights,
        Self::Communication,
        Self::Optimizer,
        Self::Overhead,
        Self::Idle,
    ];

    /// Returns the name of the kind of activity.
    pub fn words(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Weights => "gradients of weights",
            Self::Communication => "communication",
            Self::Optimizer => "optimizer",
            Self::Overhead => "overhead",
            Self::Idle => "idle",
        }
    }
}

impl StageTrack {
    /// Returns the duration of the track in seconds.
    pub fn seconds(&self) -> f64 {
        self.spans.last().map_or(0.0, |span| span.begin + span.seconds)
    }

    /// Returns the total seconds of all activities of kind `doing`.
    pub fn of(&self, doing: Activity) -> f64 {
        self.spans.iter().filter(|span| span.doing == doing).map(|span| span.seconds).sum()
    }

    /// Appends an activity that happens once per step, after the last one.
    pub(crate) fn add(&mut self, doing: Activity, seconds: f64) {
        self.put(doing, seconds, None);
    }

    /// Appends idle time until `end`, unless the gap is only rounding: less than a billionth of `end`.
    pub(crate) fn until(&mut self, end: f64) {
        let idle = end - self.seconds();
        if idle > 1e-9 * end {
            self.put(Activity::Idle, idle, None);
        }
    }

    /// Multiplies all times of the track by `factor`.
    pub(crate) fn scale(&mut self, factor: f64) {
        for span in &mut self.spans {
            span.begin *= factor;
            span.seconds *= factor;
        }
    }

    fn put(&mut self, doing: Activity, seconds: f64, pass: Option<Pass>) {
        if seconds > 0.0 {
            self.spans.push(Span { doing, begin: self.seconds(), seconds, pass });
        }
    }
}
