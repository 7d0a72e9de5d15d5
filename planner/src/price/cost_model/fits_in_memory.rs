//! Decides whether a candidate fits in memory: that of each rank, and the limit of its device for one tensor.

use super::CostModel;
use super::layout_costs::LayoutCosts;
use crate::layout::space::{CandidateId, LayoutOption};
use crate::price::candidate_cost::CandidateCost;
use crate::price::memory::LargestTensor;
use dtrain_protocol::DeviceKind;
use dtrain_recipes::Bytes;
use std::borrow::Borrow;

/// Feasibility of a candidate: its cost if it fits in memory, otherwise the missing bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Feasibility {
    /// The candidate fits in memory and a step has this cost.
    Fits(CandidateCost),
    /// The candidate needs this many bytes more than are available.
    TooMuch(Bytes),
}

impl CostModel<'_> {
    /// Returns the feasibility of candidate `id`: the cost of a step, with pipelines in closed form, or the
    /// missing bytes.
    pub fn feasibility(&self, id: CandidateId) -> Feasibility {
        self.layout_costs(id.option).feasibility(id.micro)
    }

    /// Returns the feasibility of each of many candidates; consecutive candidates of one layout option share
    /// its costs.
    pub fn feasibilities(&self, ids: &[impl Borrow<CandidateId>]) -> Vec<Feasibility> {
        let mut verdicts = Vec::with_capacity(ids.len());
        for of_option in ids.chunk_by(|a, b| a.borrow().option == b.borrow().option) {
            let common = self.layout_costs(of_option[0].borrow().option);
            verdicts.extend(of_option.iter().map(|id| common.feasibility(id.borrow().micro)));
        }
        verdicts
    }

    /// Returns `true` if candidate `id` fits: the memory of a rank suffices, and its device allows the
    /// largest tensor.
    pub fn fits(&self, id: CandidateId) -> bool {
        self.memory(id).total() <= self.available(&self.space.options[id.option as usize])
            && self.oversized_tensor(id).is_none()
    }

    /// Returns the largest tensor of candidate `id` with the limit of its device, if the tensor exceeds the
    /// limit.
    pub fn oversized_tensor(&self, id: CandidateId) -> Option<(LargestTensor, Bytes)> {
        self.layout_costs(id.option).oversized_tensor(id.micro)
    }

    /// Returns the bytes that one rank of `option` may use: nine tenths of its share of the host's memory, or
    /// of its GPU's memory.
    pub fn available(&self, option: &LayoutOption) -> Bytes {
        let pool = self.space.pools[option.pool as usize];
        let share = match pool.device {
            DeviceKind::Cpu => {
                self.case.host.memory_bytes / u64::from((pool.ranks / self.case.host.hosts).max(1))
            }
            DeviceKind::Cuda | DeviceKind::Wgpu => self.gpu_memory(),
        };
        Bytes(share / 10 * 9)
    }

    /// Returns the bytes of memory of the smallest GPU in a host.
    fn gpu_memory(&self) -> u64 {
        self.case.host.gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(0)
    }

    /// Returns the size limit that the device of `option` sets for one tensor; `None` where memory is the
    /// only limit. The worker's runtime limits a tensor to a quarter of the memory with CUDA, and with wgpu
    /// to the largest Vulkan binding.
    pub fn largest_tensor(&self, option: &LayoutOption) -> Option<Bytes> {
        if self.case.engine.is_some() {
            return None;
        }
        match self.space.pools[option.pool as usize].device {
            DeviceKind::Cpu => None,
            DeviceKind::Cuda => Some(Bytes(self.gpu_memory() / 4)),
            DeviceKind::Wgpu => Some(Bytes(i32::MAX.unsigned_abs().into())),
        }
    }
}

impl LayoutCosts<'_> {
    /// Returns the feasibility of the candidate with micro-batch index `micro`, like
    /// [`CostModel::feasibility`].
    fn feasibility(&self, micro: u32) -> Feasibility {
        let needed = self.memory(micro).total();
        if needed > self.available {
            return Feasibility::TooMuch(Bytes(needed.0 - self.available.0));
        }
        if let Some((tensor, most)) = self.oversized_tensor(micro) {
            return Feasibility::TooMuch(Bytes(tensor.bytes.0 - most.0));
        }
        Feasibility::Fits(self.cost_of(needed, self.time(micro, false).total()))
    }

    /// Returns the largest tensor with the limit of the device, if the tensor exceeds it, for micro-batch
    /// index `micro`.
    fn oversized_tensor(&self, micro: u32) -> Option<(LargestTensor, Bytes)> {
        let most = self.largest?;
        let tensor = self.memory.largest_tensor(self.split(micro).0);
        (tensor.bytes > most).then_some((tensor, most))
    }
}
