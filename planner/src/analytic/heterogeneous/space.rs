//! The search space of a heterogeneous cluster: degrees that all stages share, and the number of stages on
//! each group.

use super::grouped_layout::{GroupStages, GroupedLayout};
use crate::analytic::search::{SearchProblem, divisors_of, to_count};
use crate::analytic::{Degrees, StepConfig};
use crate::hardware::HostGroup;
use dtrain_protocol::Arrangement;
use dtrain_recipes::{PipelineSchedule, Recompute};

/// Degrees of a single rank, which callers replace.
pub(super) const ONE: Degrees = Degrees::ONE;

/// A training problem on several groups of hosts: one [`SearchProblem`] per group, which differ only in their
/// clusters.
#[derive(Clone, Debug)]
pub struct GroupedProblem {
    problems: Vec<SearchProblem>,
}

/// A degree, or the micro-batch size, that all stages share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharedDegree {
    Tensor,
    Context,
    Expert,
    Data,
    Micro,
}

impl GroupedProblem {
    /// Creates the problem of training on `groups` instead of on the cluster of `problem`.
    ///
    /// # Panics
    /// If there is no group.
    pub fn of(problem: &SearchProblem, groups: &[HostGroup]) -> Self {
        assert!(!groups.is_empty(), "a cluster has devices");
        let on = |cluster: &HostGroup| {
            let kernel = problem.engine.style.kernel_on(cluster.gpu.generation().has_flash);
            SearchProblem { cluster: *cluster, kernel, ..problem.clone() }
        };
        Self { problems: groups.iter().map(on).collect() }
    }

    /// Returns the configuration of `layout`, in the precision and with the synchronization of the problem.
    pub fn config(&self, layout: &GroupedLayout) -> StepConfig {
        let config = layout.config(self.batch());
        let (precision, sync) = (self.first().products.precision(), self.first().sync);
        StepConfig { arrangement: Arrangement { precision, sync, ..config.arrangement }, ..config }
    }

    /// Returns the problem of each group alone.
    pub fn problems(&self) -> &[SearchProblem] {
        &self.problems
    }

    /// Returns the number of samples per step.
    pub fn batch(&self) -> u32 {
        self.first().batch
    }

    /// Returns the number of layers of the model.
    pub fn layers(&self) -> u32 {
        to_count(self.first().model.layers)
    }

    /// Returns the number of devices of all groups together.
    pub fn devices(&self) -> u32 {
        self.problems.iter().map(|problem| problem.cluster.devices).sum()
    }

    /// Returns the problem of the first group, for the properties that all groups share.
    pub(super) fn first(&self) -> &SearchProblem {
        &self.problems[0]
    }

    /// Returns the recompute modes to try, each with its interval in layers, which is 1 unless pinned.
    pub(super) fn modes(&self) -> Vec<(Recompute, u32)> {
        let problem = self.first();
        let every = problem.pins.recompute_every.unwrap_or(1);
        problem.modes().into_iter().filter(|(mode, of)| *of == every || *mode != Recompute::Full).collect()
    }

    /// Returns the highest number of stages, of `width` devices each, that a group has devices for.
    pub(super) fn room(&self, group: usize, width: u32) -> u32 {
        (self.problems[group].cluster.devices / width).min(self.layers())
    }

    /// Returns the values of a degree to try, in ascending order; those of the micro-batch depend on the
    /// replicas of `layout`.
    pub(super) fn values(&self, degree: SharedDegree, layout: &GroupedLayout) -> Vec<u32> {
        let problem = self.first();
        let (model, pins) = (&problem.model, &problem.pins);
        let (all, pin) = match degree {
            SharedDegree::Tensor => (divisors_of(to_count(model.heads)).collect(), pins.tensor),
            SharedDegree::Context => (cuts_of(to_count(model.sequence)), pins.context),
            SharedDegree::Expert => {
                let count = model.experts.map_or(1, |experts| to_count(experts.count));
                (divisors_of(count).collect(), pins.expert)
            }
            SharedDegree::Data => (divisors_of(problem.batch).collect(), pins.data),
            SharedDegree::Micro => (divisors_of(problem.batch / layout.data).collect(), pins.micro_batch),
        };
        let most = self.problems.iter().map(|problem| problem.cluster.devices).max().unwrap_or(1);
        let is_cut = degree != SharedDegree::Micro && degree != SharedDegree::Expert;
        let keep = |value: &u32| pin.is_none_or(|pin| pin == *value) && (!is_cut || *value <= most);
        all.into_iter().filter(keep).collect()
    }

    /// Returns the settings of sequence parallelism to try for the tensor degree of `layout`.
    pub(super) fn sequences(&self, layout: &GroupedLayout) -> &'static [bool] {
        self.first().sequence_modes(&Degrees { tensor: layout.tensor, ..ONE })
    }

    /// Returns the pipeline schedules to try for `layout`, each with its chunks per stage; none if the pins
    /// cannot be met. GPipe is included only if pinned: it takes as long as 1F1B and more memory.
    pub(super) fn schedules(&self, layout: &GroupedLayout) -> Vec<(PipelineSchedule, u32)> {
        let plain = (PipelineSchedule::OneForwardOneBackward, 1);
        let (depth, layers, pins) = (layout.depth(), self.layers(), &self.first().pins);
        if depth <= 1 {
            return vec![plain];
        }
        let mut all = vec![plain, (PipelineSchedule::ZeroBubble, 1)];
        if pins.schedule == Some(PipelineSchedule::Gpipe) {
            all.push((PipelineSchedule::Gpipe, 1));
        }
        if (self.batch() / (layout.data * layout.micro)).is_multiple_of(depth) {
            let chunks = divisors_of(layers).filter(|chunks| *chunks > 1 && *chunks <= layers / depth);
            all.extend(chunks.map(|chunks| (PipelineSchedule::Interleaved, chunks)));
        }
        all.retain(|(schedule, chunks)| {
            pins.schedule.is_none_or(|pin| pin == *schedule) && pins.chunks.is_none_or(|pin| pin == *chunks)
        });
        all
    }

    /// Returns `layout` with every schedule and ZeRO stage.
    pub(super) fn variants(&self, layout: &GroupedLayout) -> Vec<GroupedLayout> {
        let zeros = self.first().zeros();
        let orders = self.schedules(layout).into_iter();
        let all = orders.flat_map(|(schedule, chunks)| {
            zeros.iter().map(move |zero| GroupedLayout { schedule, chunks, zero: *zero, ..layout.clone() })
        });
        all.collect()
    }

    /// Visits `runs`, extended by all orders of the remaining groups and all numbers of stages of `width`
    /// devices on them, until a visit returns `false`.
    pub(super) fn ways(
        &self,
        width: u32,
        runs: &mut Vec<GroupStages>,
        visit: &mut impl FnMut(&[GroupStages]) -> bool,
    ) -> bool {
        let taken: u32 = runs.iter().map(|run| run.stages).sum();
        if self.has_depth(taken) && !visit(runs) {
            return false;
        }
        for group in 0..self.problems.len() {
            if runs.iter().any(|run| run.group == group) {
                continue;
            }
            for stages in 1..=self.room(group, width).min(self.layers() - taken) {
                runs.push(GroupStages { group, stages });
                let goes_on = self.ways(width, runs, visit);
                runs.pop();
                if !goes_on {
                    return false;
                }
            }
        }
        true
    }

    /// Returns `true` if a pipeline may have `depth` stages.
    pub(super) fn has_depth(&self, depth: u32) -> bool {
        let pin = self.first().pins.pipeline;
        depth >= 1 && depth <= self.layers() && pin.is_none_or(|pin| pin == depth)
    }

    /// Returns `true` if the expert degree of `layout` divides the ranks of a stage.
    pub(super) fn shares_experts(&self, layout: &GroupedLayout) -> bool {
        (layout.data * layout.context).is_multiple_of(layout.expert)
    }
}

/// Returns the context degrees that split a sequence of `sequence` tokens into two equal pieces per rank.
fn cuts_of(sequence: u32) -> Vec<u32> {
    let mut cuts: Vec<u32> = divisors_of(sequence).filter(|c| sequence.is_multiple_of(2 * c)).collect();
    if cuts.is_empty() {
        cuts.push(1);
    }
    cuts
}
