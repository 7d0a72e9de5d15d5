//! A trial that a command supervises, and the mode in which the command does so.

use dtrain_planner::Plan;
use dtrain_protocol::TrialId;

/// Mode in which a command controls a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunMode {
    /// Launch the trial for the first time.
    Start,
    /// Continue from running ranks, or restart from the newest checkpoint.
    Resume,
    /// Watch the trial without changing it.
    Attach,
    /// Watch the trial until it has stopped.
    Stop,
    /// Control the trial in the background until it ends.
    Supervise,
}

/// A trial to supervise: its plan, the mode, and the sample to print at the end.
pub(crate) struct TrialRun<'a> {
    pub(crate) trial: &'a TrialId,
    pub(crate) label: &'a str,
    pub(crate) plan: &'a Plan,
    pub(crate) how: RunMode,
    pub(crate) detach: bool,
    /// Length of the text that is sampled after training, in tokens.
    pub(crate) sample: u32,
}
