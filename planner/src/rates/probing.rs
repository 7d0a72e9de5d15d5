//! Selects the micro-batches and the precision that a probe measures.

use crate::layout::space::{self, CandidateSpace, Capabilities};
use crate::planning::batch;
use crate::planning::plan::PlanRequest;
use crate::price::cost_model::{CostInputs, CostModel};
use crate::rates::calibrate::Factors;
use dtrain_protocol::{Arrangement, HostFacts, cannot_run};
use dtrain_recipes::{Precision, Recipe, Tunable};
use std::num::NonZeroU64;

/// Upper limit on micro-batches to measure.
const PROBES: usize = 5;

/// Returns the micro-batches to measure before `recipe` is planned, ascending: the pinned one, or divisors of
/// the batch up to the largest that fits one rank, evenly spaced in logarithms.
pub fn micro_batches_to_measure(recipe: &Recipe, host: &HostFacts, train_samples: Option<u64>) -> Vec<u32> {
    let request = PlanRequest { train_samples, ..PlanRequest::new(recipe, host) };
    if let Some(micro) = recipe.layout.micro_batch {
        return vec![micro];
    }
    let global = batch(&request).ok().and_then(|batch| NonZeroU64::new(batch.value));
    let abilities = Capabilities::of(recipe, None);
    let space = CandidateSpace::of(recipe, host, None, global.unwrap_or(NonZeroU64::MIN), &abilities);
    let case = CostInputs {
        model: &recipe.model,
        optimizer: &recipe.train.optimizer,
        host,
        engine: None,
        rates: None,
        factors: Factors::default(),
    };
    let cost_model = CostModel::new(case, &space);
    let mut fitting: Vec<u32> =
        space.candidate_ids().filter(|p| cost_model.fits(*p)).map(|p| space.micro(p).get()).collect();
    fitting.sort_unstable();
    fitting.dedup();
    evenly(&fitting, PROBES)
}

/// Returns the precision to measure on GPUs: the pinned one, or the fastest that recipe and GPUs allow; F32
/// on CPUs.
pub fn precision_to_measure(recipe: &Recipe, host: &HostFacts) -> Precision {
    let device = space::device(recipe, host);
    let allowed = |precision: &Precision| match &recipe.train.precision {
        Tunable::Pinned(pinned) => pinned == precision,
        Tunable::Among(all) => all.contains(precision),
        Tunable::Auto | Tunable::Log { .. } => matches!(precision, Precision::F32 | Precision::Bf16),
    };
    let runs = |precision: &Precision| {
        let arrangement = Arrangement { precision: *precision, device, ..Arrangement::SINGLE };
        cannot_run(&arrangement, &recipe.model).is_none()
    };
    let fastest = [Precision::Bf16, Precision::F16].into_iter().filter(|_| device.is_gpu());
    fastest.filter(allowed).find(runs).unwrap_or(Precision::F32)
}

/// Returns at most `count` of the ascending `values`, ends included, evenly spaced in logarithms.
fn evenly(values: &[u32], count: usize) -> Vec<u32> {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return vec![1] };
    let mut chosen: Vec<u32> = (0..u32::try_from(count).unwrap_or(1))
        .filter_map(|step| {
            let along = f64::from(step) / f64::from(u32::try_from(count - 1).unwrap_or(1).max(1));
            let wanted = f64::from(*first) * (f64::from(*last) / f64::from(*first)).powf(along);
            let far = |v: &u32| (f64::from(*v) / wanted).ln().abs();
            values.iter().copied().min_by(|a, b| far(a).total_cmp(&far(b)))
        })
        .collect();
    chosen.dedup();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::planning::plan::{model_digest, rates_key};
    use dtrain_protocol::{DeviceKind, Gpu};
    use dtrain_recipes::Devices;

    #[test]
    fn gpus_are_measured_in_the_precision_that_is_planned() {
        let gpu = |device| Gpu { device, name: "NVIDIA A100".into(), memory_bytes: 80 << 30 };
        let with = |device| HostFacts { gpus: vec![gpu(device)], ..fixtures::host(8) };
        let mut recipe = fixtures::recipe();
        let mut measured = |precision: Tunable<Precision>, devices, host: &HostFacts| {
            recipe.train.precision = precision;
            recipe.cluster.devices = devices;
            let is_of_model = rates_key(&recipe, host) == model_digest(&recipe.model);
            let found = precision_to_measure(&recipe, host);
            assert_eq!(is_of_model, found == Precision::F32, "other products have rates of their own");
            found
        };
        let [cuda, wgpu] = [DeviceKind::Cuda, DeviceKind::Wgpu].map(with);
        assert_eq!(measured(Tunable::Auto, Devices::Auto, &cuda), Precision::Bf16);
        assert_eq!(measured(Tunable::Auto, Devices::Auto, &wgpu), Precision::F32, "it has no bf16");
        assert_eq!(measured(Tunable::Auto, Devices::Cpu, &cuda), Precision::F32);
        assert_eq!(measured(Tunable::Auto, Devices::Auto, &fixtures::host(8)), Precision::F32);
        assert_eq!(measured(Tunable::Pinned(Precision::F32), Devices::Auto, &cuda), Precision::F32);
        let pinned = Tunable::Pinned(Precision::F16);
        assert_eq!(measured(pinned, Devices::Auto, &wgpu), Precision::F16);
        let among = Tunable::Among(vec![Precision::F32, Precision::F16]);
        assert_eq!(measured(among, Devices::Auto, &cuda), Precision::F16);
    }
}
