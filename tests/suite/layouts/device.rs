//! Layouts on a device train as one rank on the host does: on Mesa's software device, through the backend wgpu.

use super::Case;
use super::parted::{Parted, Trained, words};
use super::world::trained;
use dtrain_protocol::{DeviceKind, Placement};
use dtrain_tests::is_named;
use dtrain_worker::device;
use std::fmt::Write;

/// Steps that are compared.
const STEPS: u64 = 3;

/// Largest relative difference of losses, norms, validations, gradients and weights.
///
/// The device approximates the error function of GELU: gradients of `gpt` differ by 1.5e-5 of their norm, those of `llama` by 4e-7.
const LIMITS: [f64; 5] = [1e-4; 5];

/// Each axis, ZeRO stage, schedule and kind of recompute, and pairs of them.
const LAYOUTS: &[(&str, &[(&str, &str)])] = &[
    ("gpt", &[]),
    ("gpt", &[("data", "2")]),
    ("gpt", &[("data", "2"), ("zero", "1"), ("shard", "2")]),
    ("gpt", &[("data", "2"), ("zero", "2"), ("shard", "2")]),
    ("gpt", &[("data", "2"), ("zero", "3"), ("shard", "2"), ("recompute", "\"full\"")]),
    ("gpt", &[("tensor", "2")]),
    ("gpt", &[("pipeline", "2"), ("schedule", "\"1f1b\"")]),
    ("gpt", &[("recompute", "\"selective\"")]),
    ("llama", &[("tensor", "2"), ("sequence", "true")]),
    ("llama", &[("context", "2")]),
    ("llama", &[("pipeline", "2"), ("schedule", "\"zero_bubble\"")]),
    ("llama", &[("pipeline", "2"), ("schedule", "\"interleaved\""), ("chunks", "3")]),
    ("llama", &[("data", "2"), ("tensor", "2"), ("zero", "1"), ("shard", "2")]),
    ("moe", &[]),
    ("moe", &[("expert", "2")]),
    ("mlp", &[("data", "2"), ("pipeline", "2"), ("schedule", "\"gpipe\"")]),
    ("cnn", &[("data", "2")]),
];

#[test]
fn layouts_on_a_device_train_as_one_rank_on_the_host_does() {
    if let Err(reason) = device::open(&Placement { host: 0, device: DeviceKind::Wgpu, index: 0, threads: 1 })
    {
        return dtrain_skip::skip(reason);
    }
    let mut alone: Vec<(String, Trained)> = Vec::new();
    let (mut wrong, mut worst) = (String::new(), [0.0f64; 5]);
    // Every second one, unless `tests/run layouts` is called.
    let step = if is_named("layouts") { 1 } else { 2 };
    let layouts: Vec<_> = LAYOUTS.iter().step_by(step).collect();
    for (name, pins) in &layouts {
        let case = Case::new(name, pins).on_gpu();
        let one = case.on_one_rank();
        if !alone.iter().any(|(known, _)| *known == one.text()) {
            alone.push((one.text(), trained(&one, STEPS)));
        }
        let expected = &alone.iter().find(|(known, _)| *known == one.text()).expect("it was trained").1;
        let parted = Parted::of(expected, &trained(&case, STEPS));
        println!("{case}: {parted}");
        worst.iter_mut().zip(parted.largest()).for_each(|(worst, found)| *worst = worst.max(found));
        if !parted.is_within(LIMITS) {
            writeln!(wrong, "{case}: {parted}").expect("a string takes everything");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    println!("{} layouts: {}", layouts.len(), words(worst));
}
