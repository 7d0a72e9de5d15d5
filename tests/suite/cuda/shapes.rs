//! Shapes that only CUDA sees: rows that its allocator keeps apart, and more values than 32 bits count.

use super::{Device, LLAMA, Step};
use dtrain_tests::TestEnv;

/// A vocabulary and a context whose rows CUDA's allocator keeps apart, beside some whose rows it does not.
#[test]
fn rows_with_room_behind_them_cost_no_copy() {
    let Some(device) = Device::new(80) else { return };
    let [even, odd] = [[512, 64], [509, 60]].map(|[vocabulary, context]| {
        let (vocabulary, context) = (format!("model.vocab={vocabulary}"), format!("model.context={context}"));
        let settings = ["train.precision=\"bf16\"", "data.tokenizer={ bpe = 300 }", &vocabulary, &context];
        let runs = device.trainings(&settings);
        let step = Step::of(&runs);
        println!("{vocabulary}, {context}: {}", step.words(&runs));
        step
    });
    assert!(odd.launches <= even.launches, "{odd:?} beside {even:?}");
    assert!(odd.moves <= even.moves, "{odd:?} beside {even:?}");
    assert!(odd.allocations <= 0.0, "{odd:?}");
}

/// The scores of 32 heads at a context of 16384 are twice as many values as 32 bits count; everything else is small.
#[test]
fn kernels_index_with_64_bits_where_32_do_not_count_their_values() {
    let Some(mut device) = Device::new(80) else { return };
    device.memory = 1024;
    let house = TestEnv::default();
    let words = (0..60_000).map(|place| format!("{} ", place % 977)).collect::<String>();
    let data = format!("data.train={:?}", house.file("long.txt", words));
    let settings = [
        &LLAMA[..],
        &[
            "model.layers=1",
            "model.hidden=128",
            "model.heads=32",
            "model.context=16384",
            "train.batch=1",
            "layout.micro_batch=1",
            &data,
        ],
    ]
    .concat();
    // Speeds are measured first, so that later only the rank computes.
    device.run(&house, "plan", &settings, 6);
    let calls = device.run(&house, "run", &settings, 6);
    let launches = calls.iter().flat_map(|calls| &calls.launches_by);
    let (mut wide, mut narrow) = (Vec::new(), Vec::new());
    for (kernel, times) in launches {
        println!("{times:>4} {kernel}");
        if kernel.ends_with("_u64") { wide.push(kernel.as_str()) } else { narrow.push(kernel.as_str()) }
    }
    let are = |kernels: &[&str], name: &str| kernels.iter().any(|kernel| kernel.starts_with(name));
    for name in ["softmax_", "softmax_back_"] {
        assert!(are(&wide, name), "{name} launched with 64-bit indices: {wide:?}");
        assert!(!are(&narrow, name), "{name} launched with 32-bit indices");
    }
    for name in ["split_heads_", "join_heads_", "normalise_", "swiglu_", "cross_entropy_rows_", "adamw_step_"]
    {
        assert!(are(&narrow, name), "{name} launched with 32-bit indices: {narrow:?}");
        assert!(!are(&wide, name), "{name} launched with 64-bit indices");
    }
}
