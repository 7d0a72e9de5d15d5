use super::*;
use crate::Candidate;
use crate::emit::{ConfigFormat, emit};
use crate::engine::TrainingSpec;
use crate::explain;
use crate::fixtures;
use crate::planning::micro_batches_to_measure::micro_batches_to_measure;
use crate::price::estimate::Estimate;
use crate::rates::calibrate::newest_observations;
use dtrain_protocol::{DeviceKind, Gpu, HostFacts};
use dtrain_recipes::*;
use proptest::prelude::*;
use std::num::NonZeroU32;

mod devices;

fn planned(recipe: &Recipe, cores: u32) -> Plan {
    let (host, rates) = (fixtures::host(cores), fixtures::rates(cores));
    plan(&fixtures::request(recipe, &host, Some(&rates))).expect("the sample fits")
}

fn refused(change: impl FnOnce(&mut Recipe, &mut HostFacts)) -> String {
    let (mut recipe, mut host) = (fixtures::recipe(), fixtures::host(2));
    change(&mut recipe, &mut host);
    plan(&fixtures::request(&recipe, &host, None)).expect_err("it cannot be planned").to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn the_same_request_gives_the_same_plan_in_any_order_of_inputs(
        cores in 1u32..9, seed: u64, reversed: bool, measured in prop::collection::vec(0.5f64..2.0, 0..4),
    ) {
        let (recipe, host, mut rates) = (fixtures::recipe(), fixtures::host(cores), fixtures::rates(cores));
        let candidate = planned(&recipe, cores).best().candidate.clone();
        let observe = |seconds: &f64| StepObservation { candidate: candidate.clone(), predicted: Seconds(1.0), measured: Seconds(*seconds) };
        let mut observations: Vec<_> = measured.iter().map(observe).collect();
        let first = plan(&PlanRequest { observations: &observations, seed, ..fixtures::request(&recipe, &host, Some(&rates)) });
        let stamp = RatesStamp { digest: rates_digest(&rates), measured_at_ms: rates.measured_at_ms };
        if reversed {
            rates.by_ranks.reverse();
            observations.reverse();
        }
        let again = plan(&PlanRequest { observations: &observations, seed, ..fixtures::request(&recipe, &host, Some(&rates)) });
        let again = again.map(|plan| Plan { rates: Some(stamp), ..plan });
        prop_assert_eq!(first, again);
    }

    #[test]
    fn a_stored_plan_reads_back_the_same(cores in 1u32..5, measured: bool) {
        let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(cores), fixtures::rates(cores));
        let plan = plan(&fixtures::request(&recipe, &host, measured.then_some(&rates))).expect("it fits");
        let read = read(&serde_json::to_string_pretty(&plan).expect("it serializes"));
        prop_assert_eq!(read.digest(), plan.digest());
        prop_assert_eq!(read, plan);
    }

    #[test]
    fn every_choice_is_whole_and_in_order(cores in 1u32..9, batch in 1u64..65) {
        let mut recipe = fixtures::recipe();
        recipe.train.batch = Tunable::Pinned(Samples(batch));
        let plan = planned(&recipe, cores);
        let ties = plan.choices.iter().take_while(|choice| choice.is_tied).count();
        prop_assert!(ties >= 1 && plan.choices[ties..].iter().all(|choice| !choice.is_tied));
        prop_assert!(plan.choices[ties..].windows(2).all(|w| w[0].price().step.0 <= w[1].price().step.0));
        for choice in &plan.choices {
            let (RankedCandidate { candidate, run_length: pace, .. }, estimate) = (choice, choice.price());
            prop_assert_eq!(candidate.split.global(), batch);
            prop_assert!(estimate.memory_peak <= estimate.memory_available);
            prop_assert!((estimate.breakdown.total() / estimate.step.0 - 1.0).abs() < 1e-9);
            prop_assert!(estimate.step_low.0 < estimate.step.0 && estimate.step.0 < estimate.step_high.0);
            prop_assert!(pace.warmup.value * 5 <= pace.schedule_steps.max(5));
        }
    }
}

#[test]
fn late_gradients_take_shorter_steps_and_one_replica_has_none() {
    let rate = |staleness, data| {
        let mut recipe = fixtures::recipe();
        recipe.sync.staleness = staleness;
        recipe.layout = LayoutPins { data: Some(data), pipeline: Some(1), tensor: Some(1), ..recipe.layout };
        planned(&recipe, 2).learning_rate.value
    };
    assert!((rate(3, 2) / rate(0, 2) - 0.25).abs() < 0.05, "{}", rate(3, 2));
    assert_eq!(rate(3, 1).to_bits(), rate(0, 1).to_bits());
}

#[test]
fn two_ranks_are_chosen_where_they_are_faster_and_one_where_they_are_not() {
    let mut recipe = fixtures::recipe();
    recipe.layout.pipeline = Some(1);
    assert_eq!(planned(&recipe, 2).best().candidate.arrangement.layout.world(), 2);
    let (host, mut rates) = (fixtures::host(2), fixtures::rates(2));
    for entry in &mut rates.by_ranks[1].all_reduce {
        entry.1 *= 1000.0;
    }
    let slow = plan(&fixtures::request(&recipe, &host, Some(&rates))).expect("it fits");
    assert_eq!(slow.best().candidate.arrangement.layout.world(), 1);
    let two = slow.alternatives.iter().find(|a| a.value == "2 ranks × 1 thread").expect("it is told");
    assert!(two.speed < -0.3 && two.cause.starts_with("weight gathers +"), "{two:?}");
}

/// Planned for the worker alone, most of these could not be emitted: torchtitan and Hugging Face's Trainer have no ZeRO-1,
/// DeepSpeed no pipeline, MaxText recomputes blocks.
#[test]
fn what_is_planned_for_an_engine_can_be_written_for_it() {
    let host = HostFacts { memory_bytes: 64 << 30, ..fixtures::host(4) };
    let rates = fixtures::rates(4);
    let mut refused = 0;
    for format in ConfigFormat::ALL {
        let Some(engine) = format.engine() else { continue };
        for pipeline in [None, Some(2)] {
            let mut recipe = fixtures::recipe();
            recipe.layout.pipeline = pipeline;
            recipe.cluster.ranks = Some(4);
            let request = fixtures::request(&recipe, &host, Some(&rates));
            let for_worker = plan(&request).expect("the worker runs it");
            refused += u32::from(emit(&for_worker, format).is_err());
            let planned = plan(&PlanRequest { engine: Some(engine), ..request });
            if pipeline.is_some() && matches!(format, ConfigFormat::Deepspeed | ConfigFormat::HfTrainer) {
                let reason = planned.expect_err("it has no pipeline").to_string();
                assert!(reason.contains("does not support pipeline parallelism ("), "{reason}");
                continue;
            }
            let planned = planned.expect("it fits");
            let Model::Decoder(model) = &recipe.model else { panic!("it is a decoder") };
            let training = TrainingSpec::of(model, &recipe.train);
            for RankedCandidate { candidate, .. } in &planned.choices {
                let passes = candidate.split.micro_batches().get();
                assert_eq!(
                    engine.unsupported_layout(&training, &candidate.arrangement, passes),
                    None,
                    "{candidate}"
                );
            }
            emit(&planned, format).expect("it can be written");
        }
    }
    assert!(refused >= 3, "{refused} plans for the worker cannot be written");
}

#[test]
fn the_predicted_step_is_the_sum_one_can_do_by_hand() {
    let mut recipe = fixtures::recipe();
    recipe.layout.micro_batch = Some(8);
    recipe.cluster.ranks = Some(1);
    let best = planned(&recipe, 1).best().clone();
    // The sample's profile: f = 0.002 + 0.006 · 8 a block; backward 2.1 f; outside f and 1.5 f; overhead 0.1
    // f.
    let f = 0.050;
    let micro = 4.0 * (f + 2.1 * f) + 2.5 * f + 0.1 * f;
    #[expect(clippy::cast_precision_loss, reason = "a few millions")]
    let optimizer = 2e-9 * recipe.model.parameters() as f64;
    let expected = 4.0 * micro + optimizer;
    assert!((best.price().step.0 - expected).abs() < 1e-9, "{} and {expected}", best.price().step.0);
    assert!((best.price().tokens_per_second - 32.0 * 256.0 / expected).abs() < 1e-6);
}

#[test]
fn recomputation_is_chosen_when_memory_asks_for_it() {
    let mut recipe = fixtures::recipe();
    recipe.layout.micro_batch = Some(32);
    recipe.cluster.ranks = Some(1);
    let rates = fixtures::rates(2);
    let at = |mib: u64| {
        let host = HostFacts { memory_bytes: mib << 20, ..fixtures::host(2) };
        plan(&fixtures::request(&recipe, &host, Some(&rates)))
    };
    assert_eq!(at(4096).expect("it fits").best().candidate.arrangement.recompute, Recompute::None);
    let tight = (100..4096).step_by(20).filter_map(|mib| at(mib).ok());
    let tight = tight.map(|plan| plan.best().candidate.arrangement.recompute).next();
    assert_eq!(tight, Some(Recompute::Full), "the smallest host that fits at all");
    let text = at(100).expect_err("nothing fits into 100 MiB").to_string();
    assert!(text.contains("the nearest is one rank") && text.contains("90.0 MiB are available"), "{text}");
}

#[test]
fn earlier_trials_correct_the_estimate_and_are_named() {
    let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(2), fixtures::rates(2));
    let before = plan(&fixtures::request(&recipe, &host, Some(&rates))).expect("it fits").best().clone();
    let slower = Seconds(before.price().step.0 * 1.3);
    let seen = StepObservation {
        candidate: before.candidate.clone(),
        predicted: before.price().step,
        measured: slower,
    };
    let observations = vec![seen; 4];
    let request =
        PlanRequest { observations: &observations, ..fixtures::request(&recipe, &host, Some(&rates)) };
    let after = plan(&request).expect("it fits").best().clone();
    assert!((after.price().step.0 / slower.0 - 1.0).abs() < 0.05, "{} and {slower}", after.price().step);
    let width = |e: &Estimate| e.step_high.0 / e.step.0;
    assert!(width(after.price()) < width(before.price()));
    assert!(after.price().source.contains("corrected by 3 earlier trials"), "{}", after.price().source);
}

#[test]
fn a_bad_day_is_forgotten_after_three_good_runs() {
    let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(2), fixtures::rates(2));
    let planned = plan(&fixtures::request(&recipe, &host, Some(&rates))).expect("it fits");
    let quiet = planned.best().clone();
    let of = |ranked: &RankedCandidate, times: f64| StepObservation {
        candidate: Candidate { learning_rate: times, ..ranked.candidate.clone() },
        predicted: ranked.price().step,
        measured: Seconds(ranked.price().step.0 * times),
    };
    // The same layout on the slow day, and one that communicates.
    let ranks = |ranked: &&RankedCandidate| ranked.candidate.arrangement.layout.world();
    let parallel = planned.choices.iter().max_by_key(ranks).expect("there are choices");
    assert!(ranks(&parallel) > 1, "{}", parallel.candidate);
    for slow in [&quiet, parallel] {
        let good = [1.02, 0.97, 1.05].map(|times| of(&quiet, times));
        let bad = [9.5, 12.0, 3.1, 10.7, 8.4].map(|times| of(slow, times));
        let observations = [&good[..], &bad].concat();
        let request =
            PlanRequest { observations: &observations, ..fixtures::request(&recipe, &host, Some(&rates)) };
        let again = plan(&request).expect("it fits");
        let off = again.best().price().step.0 / quiet.price().step.0 - 1.0;
        assert!(off.abs() < 0.15, "{off:+.2} after {}: {:?}", slow.candidate, again.factors);
        // One slow run among good ones changes nothing.
        let one = [of(&quiet, 1.0), of(&quiet, 9.0), of(&quiet, 1.04)];
        let request = PlanRequest { observations: &one, ..request };
        let off = plan(&request).expect("it fits").best().price().step.0 / quiet.price().step.0 - 1.0;
        assert!(off.abs() < 0.15, "{off:+.2}");
    }
    let two = newest_observations(&[of(&quiet, 1.0), of(&quiet, 9.0)]);
    let between = 3.0 * quiet.price().step.0;
    assert!(two.iter().all(|one| (one.measured.0 / between - 1.0).abs() < 1e-9), "{two:?}");
}

#[test]
fn the_data_sheet_is_doubted_more_than_a_measurement() {
    let (recipe, host, rates) = (fixtures::recipe(), fixtures::host(2), fixtures::rates(2));
    let width = |rates| {
        let plan = plan(&fixtures::request(&recipe, &host, rates)).expect("it fits");
        let e = plan.best().price();
        (e.step_high.0 / e.step_low.0, e.source.clone())
    };
    let (sheet, said) = width(None);
    assert!(sheet > 3.0 * width(Some(&rates)).0);
    assert!(said.contains("data sheet"), "{said}");
}

#[test]
fn gpus_are_used_where_there_are_any() {
    let mut recipe = fixtures::recipe();
    recipe.model = fixtures::gpt2();
    let gpu = Gpu { device: DeviceKind::Cuda, name: "NVIDIA H200".into(), memory_bytes: 140 << 30 };
    let host = HostFacts { gpus: vec![gpu.clone(), gpu], ..fixtures::host(16) };
    let plan = plan(&fixtures::request(&recipe, &host, None)).expect("it fits");
    let best = &plan.best().candidate;
    assert_eq!(best.arrangement.device, DeviceKind::Cuda);
    assert!(best.arrangement.layout.world() <= 2);
    assert_eq!(best.arrangement.precision, Precision::Bf16, "twice the products a second");
}

#[test]
fn a_run_that_only_time_ends_has_no_last_step_but_a_schedule() {
    let mut recipe = fixtures::recipe();
    recipe.objective.stop = StopConditions { time: Some(Seconds(60.0)), ..StopConditions::default() };
    recipe.train.batch = Tunable::Auto;
    let plan = planned(&recipe, 2);
    let best = plan.best();
    assert_eq!(best.run_length.steps, None);
    assert_eq!(best.price().total, Seconds(60.0));
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let scheduled = best.run_length.schedule_steps as f64 * best.price().step.0;
    assert!((50.0..=60.0).contains(&scheduled), "{scheduled}");
}

#[test]
fn what_cannot_be_planned_is_refused_with_the_key_to_change() {
    let gpu = refused(|recipe, _| recipe.cluster.devices = Devices::Cuda);
    assert!(gpu.contains("has no CUDA device"), "{gpu}");
    let epochs = refused(|recipe, _| {
        recipe.objective.stop = StopConditions { epochs: Some(1.0), ..StopConditions::default() }
    });
    assert!(epochs.contains("number of training samples"), "{epochs}");
    let both = refused(|recipe, _| recipe.objective.stop.epochs = Some(1.0));
    assert!(both.contains("number of training samples"), "tokens would silently win: {both}");
    let endless = refused(|recipe, _| recipe.objective.stop = StopConditions::default());
    assert!(endless.contains("objective.stop needs one of"), "{endless}");
}

#[test]
fn pins_that_cannot_be_met_are_named() {
    let expert = refused(|recipe, _| recipe.layout.expert = Some(2));
    assert!(expert.contains("expert parallelism needs a model with experts: expert 2"), "{expert}");
    let batch = refused(|recipe, _| {
        recipe.layout.data = Some(2);
        recipe.train.batch = Tunable::Pinned(Samples(15));
    });
    assert!(batch.contains("a batch of 15 cannot be split"), "{batch}");
    assert!(batch.contains("multiple of layout.data"), "{batch}");
    let ranks = refused(|recipe, _| {
        recipe.cluster.ranks = Some(3);
        recipe.layout.data = Some(2);
    });
    assert!(ranks.contains("cluster.ranks must be"), "{ranks}");
}

#[test]
fn what_is_measured_covers_what_may_be_chosen() {
    let (mut recipe, host) = (fixtures::recipe(), fixtures::host(2));
    let asked = |recipe: &Recipe, host: &HostFacts| micro_batches_to_measure(recipe, host, None);
    assert_eq!(asked(&recipe, &host), [1, 2, 8, 16, 32]);
    let small = HostFacts { memory_bytes: 400 << 20, ..fixtures::host(2) };
    assert!(asked(&recipe, &small).last().is_some_and(|largest| *largest < 32), "32 does not fit");
    recipe.train.batch = Tunable::Pinned(Samples(1));
    assert_eq!(asked(&recipe, &host), [1]);
    recipe.layout.micro_batch = Some(6);
    assert_eq!(asked(&recipe, &host), [6]);
}

#[test]
fn a_profile_that_rounds_to_nothing_still_gives_a_plan_that_reads_back() {
    let (recipe, host, mut rates) = (fixtures::recipe(), fixtures::host(2), fixtures::rates(2));
    for entry in &mut rates.by_ranks {
        for p in &mut entry.profile {
            *p = dtrain_protocol::ProfilePoint {
                micro_batch: p.micro_batch,
                block_forward: 0.0,
                block_backward: 0.0,
                outer_forward: 0.0,
                outer_backward: 0.0,
                overhead: 0.0,
            };
        }
        entry.optimizer_seconds_per_parameter = 0.0;
        entry.all_reduce.clear();
    }
    let plan = plan(&fixtures::request(&recipe, &host, Some(&rates))).expect("it fits");
    let stored = serde_json::to_string(&plan).expect("it serializes");
    assert_eq!(read(&stored), plan);
}

/// Returns the plan stored in a text.
fn read(text: &str) -> Plan {
    let json = serde_json::from_str(text).expect("it is JSON");
    Plan::read(&json).expect("it is a plan of this format")
}

#[test]
fn a_plan_of_another_format_or_without_a_field_is_not_read() {
    let (recipe, host) = (fixtures::recipe(), fixtures::host(2));
    let plan = plan(&fixtures::request(&recipe, &host, None)).expect("it fits");
    let stored = serde_json::to_value(&plan).expect("it serializes");
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut changed = stored.clone();
        change(&mut changed);
        Plan::read(&changed).expect_err("it was changed").to_string()
    };
    let newer = refused(&|plan| plan["format"] = 99.into());
    assert_eq!(newer, "it has format 99; this version reads up to 2");
    let huge = refused(&|plan| plan["format"] = u64::MAX.into());
    assert!(huge.starts_with("it has format 18446744073709551615; "), "{huge}");
    let partial = refused(&|plan| drop(plan.as_object_mut().expect("an object").remove("data_root")));
    assert_eq!(partial, "it is not a plan: missing field `data_root`");
    assert_eq!(refused(&|plan| plan["choices"] = serde_json::json!([])), "it has no choices");
}

#[test]
fn the_reasons_of_a_large_host_are_few() {
    let (recipe, host) = (fixtures::recipe(), fixtures::host(64));
    let plan = plan(&fixtures::request(&recipe, &host, None)).expect("it fits");
    assert!(plan.rejected.len() < 15, "{} reasons", plan.rejected.len());
    assert!(plan.rejected.iter().any(|r| r.heading.ends_with("over the replicas") && r.count > 10));
}

#[test]
fn a_foreign_command_is_planned_without_a_price() {
    let mut recipe = fixtures::recipe();
    recipe.model = Model::Command(ForeignCommand {
        argv: vec!["true".into()],
        framework: Framework::Jax,
        progress: Vec::new(),
        env: BTreeMap::new(),
    });
    (recipe.data, recipe.objective.stop, recipe.cluster.ranks) = (None, StopConditions::default(), None);
    let hosts = |hosts| HostFacts { hosts: NonZeroU32::new(hosts).expect("not zero"), ..fixtures::host(2) };
    let of = |recipe: &Recipe, host: &HostFacts| plan(&fixtures::request(recipe, host, None));
    let planned = of(&recipe, &hosts(3)).expect("it is planned");
    assert_eq!((planned.best().candidate.arrangement.layout.world(), &planned.best().estimate), (3, &None));
    assert_eq!(read(&serde_json::to_string(&planned).expect("JSON")), planned);
    let told = explain(&planned);
    assert!(told.contains("true") && told.contains("data 3"), "{told}");
    recipe.cluster.ranks = Some(4);
    assert_eq!(of(&recipe, &hosts(2)).expect("planned").best().candidate.arrangement.layout.world(), 4);
    let uneven = of(&recipe, &hosts(3)).expect_err("4 ranks on 3 hosts").to_string();
    assert!(uneven.contains('4') && uneven.contains('3'), "{uneven}");
}
