//! Selects the precision that a probe measures.

use crate::layout::space;
use dtrain_protocol::{Arrangement, HostFacts, cannot_run};
use dtrain_recipes::{Precision, Recipe, Tunable};

/// Returns the precision in which to measure a recipe on GPUs: the pinned one, or the fastest that recipe and
/// GPUs allow; F32 on CPUs.
pub fn precision_to_measure(recipe: &Recipe, host: &HostFacts) -> Precision {
    let device = space::device(recipe, host);
    let part = space::known_part(host, device);
    let has = |precision: Precision| part.is_none_or(|part| part.has_precision(precision));
    let allowed = |precision: &Precision| match &recipe.train.precision {
        Tunable::Pinned(pinned) => pinned == precision,
        Tunable::Among(all) => all.contains(precision),
        Tunable::Auto | Tunable::Log { .. } => *precision != Precision::F16 || !has(Precision::Bf16),
    };
    let runs = |precision: &Precision| {
        let arrangement = Arrangement { precision: *precision, device, ..Arrangement::SINGLE };
        cannot_run(&arrangement, &recipe.model).is_none()
    };
    let fastest = [Precision::Bf16, Precision::F16].into_iter().filter(|_| device.is_gpu());
    fastest.filter(allowed).filter(|precision| has(*precision)).find(runs).unwrap_or(Precision::F32)
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
        let volta = Gpu { name: "Tesla V100-SXM2-16GB".into(), ..gpu(DeviceKind::Cuda) };
        let volta = HostFacts { gpus: vec![volta], ..fixtures::host(8) };
        assert_eq!(measured(Tunable::Auto, Devices::Auto, &volta), Precision::F16, "it has no bf16");
        let pinned = Tunable::Pinned(Precision::F16);
        assert_eq!(measured(pinned, Devices::Auto, &wgpu), Precision::F16);
        let among = Tunable::Among(vec![Precision::F32, Precision::F16]);
        assert_eq!(measured(among, Devices::Auto, &cuda), Precision::F16);
    }
}
