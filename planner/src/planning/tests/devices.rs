//! Plans from measurements on a GPU.

use super::*;
use dtrain_protocol::Rates;

/// Returns rates of one GPU, measured in `precision`.
fn measured_on_gpu(precision: Precision, first_step_seconds: Option<f64>) -> (HostFacts, Rates) {
    let gpu = Gpu { device: DeviceKind::Cuda, name: "NVIDIA H200".into(), memory_bytes: 140 << 30 };
    let host = HostFacts { gpus: vec![gpu], ..fixtures::host(1) };
    let mut rates = Rates { host: host.clone(), ..fixtures::rates(1) };
    for rank in &mut rates.by_ranks {
        (rank.device, rank.precision, rank.first_step_seconds) =
            (DeviceKind::Cuda, precision, first_step_seconds);
    }
    (host, rates)
}

#[test]
fn a_plan_for_a_device_knows_the_time_of_its_first_step() {
    let recipe = fixtures::recipe();
    let told = |first_step_seconds| {
        let (host, rates) = measured_on_gpu(Precision::Bf16, first_step_seconds);
        let plan = plan(&fixtures::request(&recipe, &host, Some(&rates))).expect("it fits");
        (plan.best().price().clone(), explain(&plan))
    };
    let (without, words) = told(None);
    assert!(without.first_step.is_none() && !words.contains("first step"), "{words}");
    let (with, words) = told(Some(41.0));
    assert_eq!(with.first_step, Some(Seconds(41.0)));
    assert!((with.total.0 - without.total.0 - 41.0).abs() < 1e-9);
    assert!((with.total_high.0 - without.total_high.0 - 41.0).abs() < 1e-9);
    assert_eq!(with.total_low, without.total_low, "kernels may be kept");
    assert_eq!(with.step, without.step);
    assert!(words.contains("first step      about 41.0 s more: kernels are compiled and tuned"), "{words}");
    // Without a measurement there is no time of the first step.
    let (host, _) = measured_on_gpu(Precision::F32, None);
    let sheet = plan(&fixtures::request(&recipe, &host, None)).expect("it fits");
    assert!(sheet.best().price().first_step.is_none());
}

#[test]
fn rates_in_16_bits_are_those_of_plans_in_16_bits() {
    let mut recipe = fixtures::recipe();
    (recipe.layout.micro_batch, recipe.layout.recompute) = (Some(4), Some(Recompute::None));
    let mut step = |precision, measured| {
        recipe.train.precision = Tunable::Pinned(precision);
        let (host, rates) = measured_on_gpu(measured, None);
        plan(&fixtures::request(&recipe, &host, Some(&rates)))
            .expect("it fits")
            .best()
            .price()
            .breakdown
            .forward
    };
    let own = step(Precision::F32, Precision::F32);
    assert!((step(Precision::Bf16, Precision::Bf16) / own - 1.0).abs() < 1e-9, "as it was measured");
    assert!((step(Precision::Bf16, Precision::F32) / own - 0.6).abs() < 1e-9);
    assert!((step(Precision::F32, Precision::Bf16) * 0.6 / own - 1.0).abs() < 1e-9);
}

#[test]
fn a_tensor_beyond_a_quarter_of_a_gpu_does_not_fit_and_is_named() {
    let mut recipe = fixtures::recipe();
    let Model::Decoder(small) = fixtures::llama() else { unreachable!("the sample is a decoder") };
    recipe.model = Model::Decoder(Decoder { heads: 8, kv_heads: 8, context: 8192, layers: 1, ..small });
    recipe.train.precision = Tunable::Pinned(Precision::Bf16);
    recipe.layout.recompute = Some(Recompute::Full);
    let told = |recipe: &Recipe, gib: u64| {
        let gpu = Gpu { device: DeviceKind::Cuda, name: "NVIDIA A100".into(), memory_bytes: gib << 30 };
        let host = HostFacts { gpus: vec![gpu], ..fixtures::host(8) };
        plan(&fixtures::request(recipe, &host, None))
    };
    // The scores of 8 heads are 1 GiB a sample: 8 samples in a pass fit into 80 GiB, but not into one tensor
    // of 6 GiB.
    recipe.layout.micro_batch = Some(8);
    assert!(told(&recipe, 80).is_ok());
    let refused = told(&recipe, 24).expect_err("a tensor is too large").to_string();
    assert!(
        refused.contains(
            "the attention scores of a micro-batch would be one tensor of 8.0 GiB; a GPU here gives at most 6.0 GiB \
             to one; use a smaller layout.micro_batch"
        ),
        "{refused}"
    );
    // Without the pin, the plan takes fewer samples in a pass.
    recipe.layout.micro_batch = None;
    let plan = told(&recipe, 24).expect("a smaller micro-batch fits");
    assert!(plan.best().candidate.split.micro() <= 4, "{}", plan.best().candidate);
}
