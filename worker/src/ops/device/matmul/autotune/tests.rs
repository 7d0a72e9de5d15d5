//! Autotuning: every candidate computes the product, and the fastest is chosen once.

use super::*;
use crate::ops::tests::gpu;
use burn::tensor::TensorData;
use dtrain_protocol::shuffle::splitmix64;

fn tensor(seed: u64, shape: [usize; 3], device: &Device) -> Tensor<3> {
    let count = shape.iter().product::<usize>() as u64;
    let data = (0..count).map(|at| (splitmix64(seed, at) % 2000) as f32 / 1000.0 - 1.0);
    Tensor::from_data(TensorData::new(data.collect::<Vec<_>>(), shape), device)
}

/// Returns the factors of a product whose sides fill no tile, each in both memory orders, on a device and
/// on the host.
fn factors(device: &Device) -> Vec<[Tensor<3>; 2]> {
    let [lhs, rhs] = [tensor(1, [2, 50, 70], device), tensor(2, [2, 70, 33], device)];
    let [left, right] = [tensor(1, [2, 70, 50], device), tensor(2, [2, 33, 70], device)];
    vec![[lhs.clone(), rhs.clone()], [left.transpose(), rhs], [lhs, right.transpose()]]
}

fn difference(found: Tensor<3>, wanted: Tensor<3>) -> f64 {
    let [found, wanted]: [Vec<f32>; 2] =
        [found, wanted].map(|values| values.cast(FloatDType::F32).into_data().try_to_vec().unwrap());
    assert_eq!(found.len(), wanted.len());
    let apart = |(found, wanted): (&f32, &f32)| f64::from((found - wanted).abs());
    found.iter().zip(&wanted).map(apart).fold(0.0, f64::max)
}

#[test]
fn every_candidate_that_a_device_accepts_computes_the_product() {
    let Some(device) = gpu() else { return };
    // `tests/run autotune` tries all candidates with every product, other runs a third of them with each.
    let is_whole = std::env::var("TESTS_NAMED").is_ok_and(|names| names.contains("autotune"));
    for (number, (device_side, host_side)) in
        factors(&device).into_iter().zip(factors(&Device::flex())).enumerate()
    {
        let [lhs, rhs] = host_side;
        let wanted = lhs.matmul(rhs);
        let [lhs, rhs] = device_side.map(values);
        let problem = GemmShape::of(&lhs, &rhs);
        let mut ran = Vec::new();
        for (place, candidate) in CANDIDATES.into_iter().enumerate() {
            let is_always = ["unit", "naive"].contains(&candidate.name);
            if !(is_whole || is_always || place % 3 == number % 3) {
                continue;
            }
            let out = room(&lhs, &rhs);
            let launched = launch(candidate, &problem, &lhs, &rhs, &out);
            if launched.is_ok() && block_on(lhs.client.sync_buffers([&out.handle])).is_ok() {
                let found = difference(Tensor::from_primitive::<Cube>(out), wanted.clone());
                assert!(found < 1e-4, "{} for {problem} differs by {found}", candidate.name);
                ran.push(candidate.name);
            }
        }
        assert!(ran.contains(&"unit") && ran.contains(&"naive"), "{problem}: {ran:?}");
    }
}

#[test]
fn the_fastest_candidate_is_chosen_once_and_known_to_the_next_process() {
    let Some(device) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [lhs, rhs] = factors(&device).remove(0);
    let wanted = lhs.clone().matmul(rhs.clone());
    let of_process = || KernelTuner {
        limit: TuningBudget { whole: Duration::from_secs(600), each: Duration::from_secs(600) },
        folder: Some(folder.path().to_owned()),
        ..KernelTuner::with_table(folder.path(), "a device")
    };
    let mut first = of_process();
    for _ in 0..2 {
        let out = first.matmul::<3>(values(lhs.clone()), values(rhs.clone()));
        assert!(difference(Tensor::from_primitive::<Cube>(out), wanted.clone()) < 1e-4);
    }
    assert_eq!((first.tuned, first.chosen.len()), (1, 1));
    let choice = first.table.products.values().next().expect("a product").clone();
    assert!(choice.is_complete && choice.tried.len() > 2, "{choice:?}");
    let fastest = choice.tried.iter().filter_map(|one| Some((one.seconds?, &one.kernel)));
    assert_eq!(fastest.min_by(|a, b| a.0.total_cmp(&b.0)).expect("one ran").1, &choice.kernel);
    let mut second = of_process();
    let out = second.matmul::<3>(values(lhs), values(rhs));
    assert!(difference(Tensor::from_primitive::<Cube>(out), wanted) < 1e-4);
    let report = second.report().expect("kernels are chosen");
    assert_eq!((report.tuned, report.known, report.untuned), (0, 1, 0));
}

#[test]
fn when_time_is_over_a_product_takes_the_kernel_of_a_similar_one() {
    let Some(device) = gpu() else { return };
    let mut tuning = KernelTuner {
        limit: TuningBudget { whole: Duration::from_nanos(1), ..TuningBudget::default() },
        ..KernelTuner::of(&device)
    };
    let pair = |rows| [tensor(1, [1, rows, 40], &device), tensor(2, [1, 40, 24], &device)].map(values);
    let [lhs, rhs] = pair(20);
    drop(tuning.matmul::<3>(lhs, rhs));
    let own = *tuning.chosen.values().next().expect("the first candidate was tried, however short the time");
    let choice = tuning.table.products.values().next().expect("a product");
    assert!(!choice.is_complete && choice.tried.len() == 1, "{choice:?}");
    let [lhs, rhs] = pair(30);
    drop(tuning.matmul::<3>(lhs, rhs));
    assert_eq!((tuning.tuned, tuning.untuned), (1, 1));
    assert!(tuning.chosen.len() == 2 && tuning.chosen.values().all(|candidate| *candidate == own));
}

/// A process with more time tries the remaining candidates, and none twice.
#[test]
fn with_more_time_the_other_candidates_are_tried_as_well() {
    let Some(device) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let pair = || [tensor(1, [1, 20, 40], &device), tensor(2, [1, 40, 24], &device)].map(values);
    let tried = |limit: TuningBudget| {
        let mut tuning = KernelTuner { limit, ..KernelTuner::with_table(folder.path(), "a device") };
        let [lhs, rhs] = pair();
        drop(tuning.matmul::<3>(lhs, rhs));
        let choice = tuning.table.products.values().next().expect("a product").clone();
        (tuning.tuned, choice.is_complete, choice.tried.len())
    };
    let hour = Duration::from_secs(3600);
    let short = TuningBudget { whole: hour, each: Duration::from_nanos(1) };
    assert_eq!(tried(short), (1, false, 1));
    assert_eq!(tried(short), (0, false, 1), "the time is the same");
    let (tuned, is_complete, count) = tried(TuningBudget { whole: hour, each: hour });
    assert!(tuned == 1 && is_complete && count > 2, "{count}");
    assert_eq!(tried(TuningBudget { whole: hour, each: hour }), (0, true, count));
}

/// An overflow says nothing about a kernel, and the next product of these sizes is tuned again.
#[test]
fn a_product_that_is_not_finite_chooses_nothing_for_good() {
    let Some(device) = gpu() else { return };
    let limit = TuningBudget { whole: Duration::from_secs(600), each: Duration::from_secs(600) };
    let mut tuning = KernelTuner { limit, ..KernelTuner::default() };
    let [lhs, rhs] = [tensor(1, [1, 20, 40], &device), tensor(2, [1, 40, 24], &device)];
    drop(tuning.matmul::<3>(values(lhs.clone() * f32::MAX), values(rhs.clone() * f32::MAX)));
    assert!(tuning.chosen.is_empty() && tuning.table.products.is_empty());
    drop(tuning.matmul::<3>(values(lhs), values(rhs)));
    assert_eq!((tuning.chosen.len(), tuning.table.products.len()), (1, 1));
}

#[test]
fn a_result_that_differs_is_told_from_rounding() {
    let host = Device::flex();
    let values = |data: [f32; 3]| Tensor::<1>::from_floats(data, &host);
    assert!(apart(values([1.0, 2.0, 3.001]), values([1.0, 2.0, 3.0])) < APART);
    assert!(apart(values([1.0, 2.0, 0.0]), values([1.0, 2.0, 3.0])) > APART);
    assert!(apart(values([1.0, f32::NAN, 3.0]), values([1.0, 2.0, 3.0])) > APART);
    assert!(apart(values([0.0; 3]), values([0.0; 3])) == 0.0, "as on a device that computes nothing");
    assert!(apart(values([1.0; 3]), values([f32::INFINITY; 3])) == 0.0, "nothing to compare with");
    assert!(is_finite(&values([1.0; 3])) && !is_finite(&values([1.0, f32::INFINITY, 0.0])));
}
