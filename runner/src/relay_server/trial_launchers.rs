//! The launchers of the trials whose agents this process started.

use crate::control_protocol::Program;
use crate::home::Home;
use crate::launch::LocalLauncher;
use dtrain_protocol::TrialId;
use std::collections::BTreeMap;

/// A launcher for each trial that was asked about last, or of which this process started an agent that has not ended.
pub(super) struct TrialLaunchers<'a> {
    home: &'a Home,
    agent: &'a Program,
    /// True if agents end with this thread.
    is_bound: bool,
    launchers: BTreeMap<TrialId, LocalLauncher>,
}

impl<'a> TrialLaunchers<'a> {
    /// Creates launchers that start agents as `agent`.
    pub(super) fn new(home: &'a Home, agent: &'a Program, is_bound: bool) -> Self {
        Self { home, agent, is_bound, launchers: BTreeMap::new() }
    }

    /// Returns the launcher of a trial.
    pub(super) fn of(&mut self, trial: &TrialId) -> &mut LocalLauncher {
        self.launchers.entry(trial.clone()).or_insert_with(|| {
            let launcher = LocalLauncher::starting(&self.home.trial(trial), self.agent);
            if self.is_bound { launcher.bound_to_this_thread() } else { launcher }
        })
    }

    /// Reaps the agents that have ended.
    pub(super) fn reap(&mut self) {
        self.launchers.retain(|_, launcher| launcher.has_children());
    }
}
