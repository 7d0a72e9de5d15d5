//! Slots of a study: hosts, cores and GPUs for each trial that runs in parallel.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use crate::this_host;
use dtrain_planner::Plan;
use dtrain_recipes::{LauncherKind, Model, Recipe};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time for which a host is not used after a failure; each further failure doubles it (backoff).
const DOWN: Duration = Duration::from_secs(60);

/// Number of consecutive failures from which on the backoff stops growing, at 32 minutes.
const LOSSES_MOST: u32 = 5;

/// A place in which one trial of a study can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrialSlot {
    /// Indices in `cluster.hosts` of the slot's hosts; empty for this machine.
    hosts: Vec<usize>,
    /// Index of the slot among those that share its hosts, and their number.
    share: (usize, usize),
    /// Number of the trial that runs in the slot; `None` if it is free.
    pub(crate) trial: Option<u64>,
    /// End of the backoff after a host failure; `None` if the hosts are up.
    down: Option<Instant>,
    /// Number of consecutive failures of the slot's hosts.
    losses: u32,
}

/// All slots of one study.
#[derive(Debug)]
pub(crate) struct SlotPool(Vec<TrialSlot>);

impl SlotPool {
    /// Divides a recipe's hosts into slots. With fewer slots than hosts, each slot has several hosts;
    /// otherwise several slots share a host.
    pub(crate) fn of(recipe: &Recipe) -> Result<Self, CommandError> {
        let count = usize::try_from(recipe.cluster.slots).unwrap_or(usize::MAX);
        let hosts = recipe.cluster.hosts.len();
        let refuse = |message: String, hint: &str| {
            Err(CommandError::new(ExitReason::Usage, message).hint(hint.to_owned()))
        };
        let is_command = matches!(recipe.model, Model::Command(_));
        if count > 1 && recipe.cluster.launcher == LauncherKind::Slurm {
            let message = format!("cluster.slots = {count}: a Slurm job has one slot, all of its nodes");
            return refuse(
                message,
                "start one study for each job, or name the nodes below [[cluster.hosts]]",
            );
        }
        if count > hosts.max(1) && !is_command {
            let message =
                format!("cluster.slots = {count}: trials of dtrain's own models do not share a host");
            return refuse(message, "set it to at most the number of [[cluster.hosts]]");
        }
        if hosts > 0 && count.max(hosts) % count.min(hosts) != 0 {
            let message = format!("cluster.slots = {count} and {hosts} hosts do not divide evenly");
            return refuse(message, "set it to a multiple or to a divisor of the number of hosts");
        }
        let slot = |number: usize| match hosts {
            0 => TrialSlot { share: (number, count), ..TrialSlot::default() },
            _ if count <= hosts => {
                let each = hosts / count;
                let own = (number * each..(number + 1) * each).collect();
                TrialSlot { hosts: own, ..TrialSlot::default() }
            }
            // Neighbouring slots are on different hosts, so that few trials spread.
            _ => TrialSlot {
                hosts: vec![number % hosts],
                share: (number / hosts, count / hosts),
                ..TrialSlot::default()
            },
        };
        Ok(Self((0..count).map(slot).collect()))
    }

    /// Returns the number of slots whose hosts are up, in which trials may run now.
    pub(crate) fn usable(&self) -> usize {
        self.0.iter().filter(|slot| !slot.is_down()).count()
    }

    /// Assigns a trial to a free slot whose hosts are up, or to any free slot if all are down; returns its
    /// number. A study resumed with fewer slots may have more trials than slots: the first slots are then
    /// shared.
    pub(crate) fn acquire(&mut self, trial: u64) -> usize {
        let is_free = |slot: &TrialSlot| slot.trial.is_none();
        let usable = self.0.iter().position(|slot| is_free(slot) && !slot.is_down());
        match usable.or_else(|| self.0.iter().position(is_free)) {
            Some(number) => {
                self.0[number].trial = Some(trial);
                number
            }
            None => usize::try_from(trial).unwrap_or(0) % self.0.len(),
        }
    }

    /// Returns the number of the first slot whose hosts are up; 0 if all are down.
    pub(crate) fn first_up(&self) -> usize {
        self.0.iter().position(|slot| !slot.is_down()).unwrap_or(0)
    }

    /// Frees the slot of an ended trial. If `is_done`, the failures of its hosts are forgotten.
    pub(crate) fn release(&mut self, trial: u64, is_done: bool) {
        let Some(number) = self.0.iter().position(|slot| slot.trial == Some(trial)) else { return };
        self.0[number].trial = None;
        if is_done {
            let well = self.0[number].hosts.clone();
            for slot in self.0.iter_mut().filter(|slot| slot.hosts == well) {
                (slot.down, slot.losses) = (None, 0);
            }
        }
    }

    /// Marks all slots on the hosts of slot `number` as down after a host failure. Returns `true` if another
    /// slot is usable.
    pub(crate) fn mark_down(&mut self, number: usize) -> bool {
        let lost: BTreeSet<usize> = self.0[number].hosts.iter().copied().collect();
        for slot in &mut self.0 {
            // Several trials on a host are lost at the same time.
            if slot.hosts.iter().any(|host| lost.contains(host)) && !slot.is_down() {
                slot.down = Some(Instant::now() + DOWN * (1 << slot.losses));
                slot.losses = (slot.losses + 1).min(LOSSES_MOST);
            }
        }
        !lost.is_empty() && self.usable() > 0
    }

    /// Restricts a recipe to the hosts of slot `number`.
    pub(crate) fn on_hosts(&self, number: usize, recipe: &Recipe) -> Recipe {
        let slot = &self.0[number];
        let mut own = recipe.clone();
        if !slot.hosts.is_empty() {
            own.cluster.hosts = slot.hosts.iter().map(|host| recipe.cluster.hosts[*host].clone()).collect();
            let parts = u32::try_from(recipe.cluster.hosts.len() / slot.hosts.len()).unwrap_or(u32::MAX);
            own.cluster.ranks = recipe.cluster.ranks.map(|ranks| (ranks / parts).max(1));
        }
        own
    }

    /// Returns the share of its host that slot `number` has.
    pub(crate) fn share(&self, number: usize) -> HostShare {
        let (index, of) = self.0[number].share;
        HostShare { index, of, is_here: self.0[number].hosts.is_empty() }
    }
}

/// Restricts a recipe with parallel trials to the hosts of one trial; returns other recipes unchanged.
pub(crate) fn recipe_of_one_slot(recipe: &Recipe) -> Recipe {
    let is_shared = recipe.cluster.slots > 1;
    let slots = is_shared.then(|| SlotPool::of(recipe).ok()).flatten();
    slots.map_or_else(|| recipe.clone(), |slots| slots.on_hosts(0, recipe))
}

/// One of several equal shares of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostShare {
    index: usize,
    of: usize,
    is_here: bool,
}

impl HostShare {
    /// Sets the ranks of a command to the number of GPUs in this share of the machine, unless the recipe sets
    /// them.
    pub(crate) fn ranked(self, recipe: Recipe) -> Recipe {
        let gpus = if self.is_here && self.of > 1 { this_host::facts().gpus.len() } else { 0 };
        let is_command = matches!(recipe.model, Model::Command(_));
        let mut own = recipe;
        if gpus > 0 && is_command {
            own.cluster.ranks = own.cluster.ranks.or(u32::try_from((gpus / self.of).max(1)).ok());
        }
        own
    }

    /// Limits the plan of a command to the cores and GPUs of this share, unless the recipe sets them.
    pub(crate) fn limited(self, plan: Plan) -> Plan {
        let mut own = plan;
        let (cores, gpus) = (own.host.cores, own.host.gpus.len());
        let ranks = own.best().candidate.arrangement.layout.world() / own.host.hosts.get();
        let Model::Command(command) = &mut own.recipe.model else { return own };
        if self.of < 2 {
            return own;
        }
        let of = u32::try_from(self.of).unwrap_or(u32::MAX);
        let threads = (cores / of / ranks.max(1)).max(1);
        command.env.entry("OMP_NUM_THREADS".to_owned()).or_insert(threads.to_string());
        if gpus > 0 {
            let each = (gpus / self.of).max(1);
            let first = (self.index * each) % gpus;
            let devices: Vec<String> = (first..first + each).map(|device| device.to_string()).collect();
            command.env.entry("CUDA_VISIBLE_DEVICES".to_owned()).or_insert(devices.join(","));
        }
        own
    }
}

impl Default for TrialSlot {
    fn default() -> Self {
        Self { hosts: Vec::new(), share: (0, 1), trial: None, down: None, losses: 0 }
    }
}

impl TrialSlot {
    fn is_down(&self) -> bool {
        self.down.is_some_and(|until| Instant::now() < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: usize) -> SlotPool {
        let slot =
            |number| TrialSlot { hosts: vec![number % 2], share: (number / 2, 2), ..TrialSlot::default() };
        SlotPool((0..count).map(slot).collect())
    }

    #[test]
    fn a_lost_host_takes_its_slots_and_no_others() {
        let mut slots = slots(4);
        assert_eq!([0, 1, 2].map(|trial| slots.acquire(trial)), [0, 1, 2]);
        assert!(slots.mark_down(1), "the other host is left");
        slots.release(1, false);
        assert_eq!((slots.usable(), slots.first_up()), (2, 0));
        slots.release(0, false);
        assert_eq!(slots.acquire(3), 0, "1 and 3 are on the host that is lost");
        assert!(!slots.mark_down(0), "none is left");
    }

    #[test]
    fn a_host_that_stays_away_is_left_alone_for_longer_each_time() {
        let mut slots = slots(4);
        let left = |slots: &SlotPool| slots.0[1].down.map(|until| until - Instant::now());
        assert!(slots.mark_down(1) && slots.mark_down(3), "both of its slots are lost at the same time");
        assert!(left(&slots).is_some_and(|left| left <= DOWN));
        slots.0.iter_mut().for_each(|slot| slot.down = None);
        slots.mark_down(1);
        assert!(left(&slots).is_some_and(|left| left > DOWN && left <= 2 * DOWN));
        assert_eq!([5, 6, 7].map(|trial| slots.acquire(trial)), [0, 2, 1]);
        slots.release(7, true);
        assert_eq!((left(&slots), slots.0[1].losses, slots.usable()), (None, 0, 4));
    }

    #[test]
    fn more_trials_than_slots_share_them() {
        let mut slots = slots(2);
        assert_eq!([0, 1, 2, 3].map(|trial| slots.acquire(trial)), [0, 1, 0, 1]);
        slots.release(2, false);
        slots.release(1, false);
        assert_eq!(slots.acquire(4), 1);
    }

    #[test]
    fn this_machine_has_no_other_host() {
        let mut slots = SlotPool(vec![TrialSlot::default()]);
        assert!(!slots.mark_down(0));
        assert_eq!(slots.usable(), 1);
    }
}
