//! Checks whether a candidate fits in memory, that of a rank and that which its device gives to one tensor.

use super::CostModel;
use super::layout_costs::LayoutCosts;
use crate::layout::space::{CandidateId, LayoutOption};
use crate::price::candidate_cost::CandidateCost;
use crate::price::memory::LargestTensor;
use dtrain_protocol::DeviceKind;
use dtrain_recipes::Bytes;
use std::borrow::Borrow;

/// Feasibility of a candidate: its cost, or the missing memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Feasibility {
    /// It fits in memory and a step has this cost.
    Fits(CandidateCost),
    /// It needs this many bytes more than are available.
    TooMuch(Bytes),
}

impl CostModel<'_> {
    /// Returns the cost of a step, with pipelines in closed form; or the bytes that are missing.
    pub fn feasibility(&self, id: CandidateId) -> Feasibility {
        self.layout_costs(id.option).feasibility(id.micro)
    }

    /// Returns the feasibility of many candidates; consecutive candidates of one layout option share its
    /// costs.
    pub fn feasibilities(&self, ids: &[impl Borrow<CandidateId>]) -> Vec<Feasibility> {
        let mut verdicts = Vec::with_capacity(ids.len());
        for of_option in ids.chunk_by(|a, b| a.borrow().option == b.borrow().option) {
            let common = self.layout_costs(of_option[0].borrow().option);
            verdicts.extend(of_option.iter().map(|id| common.feasibility(id.borrow().micro)));
        }
        verdicts
    }

    /// Returns `true` if the memory of a rank suffices and its device allows the largest tensor.
    pub fn fits(&self, id: CandidateId) -> bool {
        self.memory(id).total() <= self.available(&self.space.options[id.option as usize])
            && self.oversized_tensor(id).is_none()
    }

    /// Returns the largest tensor, if it is larger than the device allows, and that limit.
    pub fn oversized_tensor(&self, id: CandidateId) -> Option<(LargestTensor, Bytes)> {
        self.layout_costs(id.option).oversized_tensor(id.micro)
    }

    /// Returns the bytes that one rank of `option` may use: nine tenths of its share of the host's memory, or
    /// of its GPU's.
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

    /// Returns the memory of the smallest GPU, in bytes.
    fn gpu_memory(&self) -> u64 {
        self.case.host.gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(0)
    }

    /// Returns the largest tensor that the device of a rank of `option` allows, in bytes; `None` where memory
    /// is the only limit. The worker's runtime limits a tensor to a quarter of the memory with CUDA, and with
    /// wgpu to the largest Vulkan binding.
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
    /// Like [`CostModel::feasibility`], for a micro-batch of this option.
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

    /// Returns the largest tensor, if it is larger than the device allows, and that limit.
    fn oversized_tensor(&self, micro: u32) -> Option<(LargestTensor, Bytes)> {
        let most = self.largest?;
        let tensor = self.memory.largest_tensor(self.split(micro).0);
        (tensor.bytes > most).then_some((tensor, most))
    }
}
