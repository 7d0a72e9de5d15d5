mod own;
mod parts;
mod requests;
mod state;
mod worker;

use super::*;
use crate::analytic::MatmulPrecision;
use crate::analytic::search::SearchAxis;
use crate::benchmarks::{self, TableRow};
use crate::engine::{Engine, HF_TRAINER, MEGATRON, TORCHTITAN};
use crate::fixtures;
use crate::hardware::{HostGroup, gpu};
use crate::price::candidate_cost::CandidateCost;
use crate::text::{WIDTH, wrapped};
use dtrain_recipes::{Activation, Cnn, Samples, ZeroStage};

/// Returns a recipe of an 8B Llama.
fn recipe() -> Recipe {
    let mut recipe = fixtures::recipe();
    recipe.name = "llama-8b".into();
    let Model::Decoder(decoder) = &mut recipe.model else { panic!("the sample is a decoder") };
    *decoder = Decoder {
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        ffn: 14336,
        vocab: 128_256,
        context: 8192,
        activation: Activation::Swiglu,
        tied: false,
        bias: false,
        ..*decoder
    };
    recipe.train.batch = Tunable::Pinned(Samples(128));
    recipe
}

fn on(part: &str, devices: u32) -> HostGroup {
    let gpu = gpu(part).expect("it is in the table");
    HostGroup { devices, ..HostGroup::of(gpu, 1, 8.min(devices)) }
}

fn of(
    recipe: &Recipe,
    cluster: HostGroup,
    engine: &'static dyn Engine,
) -> Result<DatasheetPlan, DatasheetPlanError> {
    plan_from_datasheets(&DatasheetPlanRequest { recipe, cluster, engine, next: NEXT })
}

#[test]
fn an_outlook_reads_as_ever() {
    let found = of(&recipe(), on("H100", 64), &MEGATRON).expect("it fits");
    let answer = crate::answer::Answer::of_datasheet_plan(&found, &on("H100", 64)).text(80, 5, 1);
    insta::assert_snapshot!("llama_8b_on_64_h100", answer);
    insta::assert_snapshot!("llama_8b_on_64_h100_in_full", wrapped(&explain(&found, NEXT), WIDTH));
}

#[test]
fn as_many_ties_and_next_layouts_are_told_as_asked_for() {
    let (recipe, cluster) = (recipe(), on("H100", 64));
    let found =
        plan_from_datasheets(&DatasheetPlanRequest { recipe: &recipe, cluster, engine: &MEGATRON, next: 9 });
    let found = found.expect("it fits");
    let told = |top| explain(&found, top).lines().filter(|line| line.contains(" a step, ")).count();
    assert_eq!(found.next.len(), 9);
    assert_eq!([told(0), told(3), told(9)], [0, found.ties.len().min(3) + 3, found.ties.len().min(9) + 9]);
}

#[test]
fn changes_that_do_not_fit_would_be_faster_and_a_search_refuses_them() {
    let found = of(&recipe(), on("H100", 64), &MEGATRON).expect("it fits");
    assert!(found.memory_limits.iter().any(|limit| limit.change == "micro-batch 2"), "{found:?}");
    for limit in &found.memory_limits {
        assert!(limit.step_seconds < found.choice.step_seconds && limit.peak_bytes > found.memory_bytes);
    }
    let mut pinned = recipe();
    pinned.layout = LayoutPins {
        tensor: Some(1),
        pipeline: Some(1),
        context: Some(1),
        micro_batch: Some(2),
        zero: Some(ZeroStage::Zero2),
        recompute: Some(dtrain_recipes::Recompute::None),
        ..LayoutPins::default()
    };
    let refused = of(&pinned, on("H100", 64), &MEGATRON);
    assert!(matches!(refused, Err(DatasheetPlanError::NothingFits { .. })), "{refused:?}");
    pinned.layout = LayoutPins { micro_batch: Some(1), ..LayoutPins::default() };
    let found = of(&pinned, on("H100", 64), &MEGATRON).expect("it fits");
    assert!(found.memory_limits.iter().all(|limit| !limit.change.starts_with("micro-batch")), "{found:?}");
}

#[test]
fn what_newer_models_have_is_priced() {
    let Model::Decoder(model) = fixtures::deepseek() else { panic!("the sample is a decoder") };
    let found = transformer(&model);
    let latent = found.latent.expect("it has latent attention");
    assert_eq!((latent.query, latent.key_value, latent.rotary), (48.0, 32.0, 8.0));
    assert_eq!((found.head, found.head_value, found.mtp_layers), (32.0, 16.0, 1.0));
    let experts = found.experts.expect("it has experts");
    assert_eq!((found.ffn, experts.shared, experts.dense_layers), (512.0, 96.0, 1.0));
    assert_eq!(experts.ffn, f64::from(model.ffn));
    // Both count the same, norms aside.
    let norms = model.layers * (2 * model.hidden + 48 + 32) + model.hidden;
    let embedding = u64::from(model.vocab) * u64::from(model.hidden);
    let active = model.active_parameters() - u64::from(norms) - embedding;
    #[expect(clippy::cast_precision_loss, reason = "a small model")]
    let active = active as f64;
    assert_eq!(found.active(), active);
    let window = |every| {
        let sliding = Decoder {
            window: Some(dtrain_recipes::SlidingWindow { tokens: 128, every, rotary_base: None }),
            ..model.clone()
        };
        transformer(&sliding).window.map(|window| (window.tokens, window.share))
    };
    assert_eq!([window(None), window(Some(4))], [Some((128.0, 1.0)), Some((128.0, 0.75))]);
    let products = |fp8| precision::products(Precision::Fp8, fp8);
    assert_eq!(products(None), MatmulPrecision::Bits8);
    assert_eq!(products(Some(dtrain_recipes::Fp8Recipe::Blockwise)), MatmulPrecision::Blocks8);
}

#[test]
fn seconds_and_bytes_are_the_sums_of_their_parts() {
    let found = of(&recipe(), on("H100", 64), &HF_TRAINER).expect("it fits");
    for priced in found.ties.iter().chain(&found.next).chain([&found.choice]) {
        let seconds: f64 = priced.causes.iter().map(|(_, seconds)| seconds).sum();
        let bytes: f64 = priced.bytes.iter().map(|(_, bytes)| bytes).sum();
        assert!((seconds / priced.step_seconds - 1.0).abs() < 1e-12, "{priced:?}");
        assert!((bytes / priced.peak_bytes - 1.0).abs() < 1e-12, "{priced:?}");
        assert!(priced.causes.iter().all(|(_, seconds)| *seconds >= 0.0), "{priced:?}");
        assert!(
            priced.step_seconds_low < priced.step_seconds && priced.step_seconds < priced.step_seconds_high
        );
    }
}

#[test]
fn what_loses_is_not_faster_than_the_fastest_and_says_why() {
    let found = of(&recipe(), on("H100", 64), &MEGATRON).expect("it fits");
    let fastest = found.ties.iter().map(|tie| tie.step_seconds).fold(found.choice.step_seconds, f64::min);
    assert!(found.choice.step_seconds <= (1.0 + TIE) * fastest);
    assert!(found.alternatives.iter().all(|loser| loser.step_seconds >= fastest), "{:?}", found.alternatives);
    let tensor = found
        .alternatives
        .iter()
        .find(|loser| (loser.axis, loser.value.as_str()) == (SearchAxis::Tensor, "tensor 32"));
    let tensor = tensor.expect("it fits, and loses");
    assert_eq!(tensor.cause.0, "tensor parallel", "{tensor:?}");
    assert!(!found.alternatives.iter().any(|loser| loser.axis == SearchAxis::Data
        && loser.value == format!("data {}", found.choice.config.degrees().data)));
}

/// Regression test: ties of a large model once chose the simplest layout even if a faster one needed less
/// memory.
#[test]
fn no_layout_is_faster_than_the_choice_and_needs_less_memory() {
    let mut recipe = recipe();
    let Model::Decoder(decoder) = &mut recipe.model else { panic!("the sample is a decoder") };
    *decoder = Decoder { layers: 126, hidden: 16_384, heads: 128, ffn: 53_248, ..*decoder };
    recipe.train.batch = Tunable::Pinned(Samples(2048));
    let found = of(&recipe, on("H100", 2048 * 8), &MEGATRON).expect("it fits");
    let chosen = found.tradeoffs.choice.cost;
    let better = found.tradeoffs.pareto_front.iter().find(|point| {
        point.cost.step_seconds < chosen.step_seconds
            && point.cost.memory_fraction < chosen.memory_fraction
            && point.devices <= found.tradeoffs.choice.devices
    });
    assert!(better.is_none(), "{chosen:?} is bettered by {better:?}");
}

#[test]
fn more_devices_take_less_time_and_more_hours() {
    let (few, many) = (on("H100", 64), on("H100", 512));
    let mut recipe = recipe();
    recipe.train.batch = Tunable::Pinned(Samples(1024));
    let (few, many) =
        (of(&recipe, few, &MEGATRON).expect("fits"), of(&recipe, many, &MEGATRON).expect("fits"));
    assert!(many.choice.step_seconds < few.choice.step_seconds);
    assert!(many.device_hours.expect("steps are counted") > few.device_hours.expect("steps are counted"));
}

#[test]
fn what_cannot_be_priced_is_refused_with_its_reason() {
    let message = |recipe: &Recipe, cluster| of(recipe, cluster, &MEGATRON).expect_err("refused").to_string();
    let mut small = on("H100", 8);
    small.memory = 4e9;
    assert!(message(&recipe(), small).contains("GiB"), "{}", message(&recipe(), small));
    let mut third = recipe();
    third.layout.tensor = Some(3);
    assert!(message(&third, on("H100", 8)).contains("must divide"));
    let mut open = recipe();
    open.train.batch = Tunable::Auto;
    open.objective.stop =
        dtrain_recipes::StopConditions { time: Some(dtrain_recipes::Seconds(60.0)), ..Default::default() };
    assert!(message(&open, on("H100", 8)).contains("train.batch"));
    let mut image = recipe();
    image.model =
        Model::Cnn(Cnn { channels: 3, height: 8, width: 8, stages: vec![8], blocks: 1, classes: 2 });
    assert!(message(&image, on("H100", 8)).contains("cnn"));
    let mut pinned = recipe();
    pinned.layout.shares = Some(vec![1, 2]);
    assert!(message(&pinned, on("H100", 8)).contains("layout.shares"));
}

/// Nine hosts divide a batch of 128 worse than eight, and 33 not at all.
#[test]
fn hosts_that_only_slow_a_step_stay_idle() {
    let mut last = f64::INFINITY;
    for hosts in [8, 9, 12, 13, 33] {
        let found = of(&recipe(), on("H100", 8 * hosts), &MEGATRON).expect("it fits");
        assert!(found.choice.step_seconds <= 1.05 * last, "{hosts} hosts: {last} {:?}", found.choice);
        assert_eq!(found.choice.config.ranks() as u32, found.devices - found.idle);
        let request = DatasheetPlanRequest {
            recipe: &recipe(),
            cluster: on("H100", 8 * hosts),
            engine: &MEGATRON,
            next: NEXT,
        };
        let plan = to_plan(&request, &found, ("/data".into(), "0")).expect("it is a plan");
        assert_eq!(plan.host.hosts.get() * 8, found.devices - found.idle, "hosts that work");
        let said = explain(&found, NEXT).contains("stay idle");
        assert_eq!(said, found.idle > 0, "{hosts} hosts");
        assert!(hosts != 33 || found.idle > 0, "no layout has 264 ranks");
        last = found.choice.step_seconds;
    }
}

#[test]
fn advice_is_what_a_search_with_the_change_finds() {
    let cluster = on("A100-40GB", 32);
    let mut slow = cluster;
    slow.network.bandwidth /= 64.0;
    let found = of(&recipe(), slow, &MEGATRON).expect("it fits");
    let fastest = |cluster| {
        let request = DatasheetPlanRequest { recipe: &recipe(), cluster, engine: &MEGATRON, next: NEXT };
        let Asked { problem, .. } = problem(&request).expect("it can be asked");
        crate::analytic::search::fastest(&problem, f64::INFINITY).expect("it fits").seconds
    };
    let speed = fastest(slow) / fastest(slow.with_network(2.0 * slow.network.bandwidth)) - 1.0;
    let advice = found.advice.iter().find(|advice| advice.change.contains("network")).expect("it is asked");
    assert!((advice.speed - speed).abs() < 1e-9, "{advice:?} {speed}");
    assert!(advice.speed > 0.05, "a slow network is worth a change: {advice:?}");
    assert!(found.advice.windows(2).all(|pair| pair[0].speed >= pair[1].speed), "{:?}", found.advice);
    assert!(found.advice.iter().all(|advice| advice.speed > -0.5), "{:?}", found.advice);
}

#[test]
fn fewer_devices_take_longer_for_less_money_and_nothing_named_betters_the_choice() {
    let mut recipe = recipe();
    recipe.cluster.price = Some(2.0);
    recipe.objective.stop = dtrain_recipes::StopConditions { steps: Some(1000), ..Default::default() };
    let usual = on("H100", 64);
    let cluster = usual.with_network(usual.network.bandwidth / 64.0);
    let found = of(&recipe, cluster, &MEGATRON).expect("it fits");
    let Tradeoffs { choice, pareto_front: front, distinct: named } = &found.tradeoffs;
    assert!((choice.cost.step_seconds / found.choice.step_seconds - 1.0).abs() < 1e-12);
    assert_eq!(choice.device_hours, found.device_hours);
    assert_eq!(choice.money, found.device_hours.map(|hours| 2.0 * hours));
    let cheapest = named
        .iter()
        .map(|index| &front[*index])
        .min_by(|a, b| a.money.partial_cmp(&b.money).expect("numbers"));
    let cheapest = cheapest.expect("something is named");
    assert!(cheapest.devices < 64 && cheapest.money < choice.money, "{cheapest:?}");
    assert!(cheapest.cost.step_seconds > choice.cost.step_seconds, "{cheapest:?}");
    let is_worse = |cost: &CandidateCost| {
        cost.step_seconds >= choice.cost.step_seconds
            && cost.memory_fraction >= choice.cost.memory_fraction
            && cost.device_seconds >= choice.cost.device_seconds
    };
    assert!(named.iter().all(|index| !is_worse(&front[*index].cost)));
    assert!(front.windows(2).all(|pair| pair[0].cost.step_seconds <= pair[1].cost.step_seconds));
}

#[test]
fn a_loser_is_slower_by_the_sum_of_its_causes() {
    let found = of(&recipe(), on("H100", 64), &MEGATRON).expect("it fits");
    for loser in &found.alternatives {
        let grown: f64 = loser.time_delta.iter().map(|(_, seconds)| seconds).sum();
        let slower = loser.step_seconds - found.choice.step_seconds;
        assert!((grown - slower).abs() < 1e-9 * loser.step_seconds, "{loser:?}");
        assert_eq!(loser.is_tied, loser.slowdown.abs() <= TIE, "{loser:?}");
    }
}

#[test]
fn what_is_drawn_of_a_step_is_what_is_priced() {
    for (pipeline, data) in [(1, 8), (4, 2), (8, 1)] {
        let mut recipe = recipe();
        recipe.layout.pipeline = Some(pipeline);
        recipe.layout.data = Some(data);
        recipe.layout.tensor = Some(8);
        let found = of(&recipe, on("H100", 64), &MEGATRON).expect("it fits");
        let drawn = found.timeline.expect("it ends");
        let ratio = drawn.step_seconds / found.choice.step_seconds;
        // The closed form approximates passes and messages of a pipeline; without a pipeline it is exact.
        let most = if pipeline == 1 { 1e-9 } else { 0.1 };
        assert!((ratio - 1.0).abs() < most, "pipeline {pipeline}: {ratio}");
        for lane in &drawn.lanes {
            assert!((lane.seconds() / drawn.step_seconds - 1.0).abs() < 1e-9);
        }
        assert_eq!((drawn.lanes.len(), found.stages.len()), (pipeline as usize, pipeline as usize));
        let total = |stage: &Vec<(&str, f64)>| stage.iter().map(|(_, bytes)| bytes).sum::<f64>();
        let heaviest = found.stages.iter().map(total).fold(0.0, f64::max);
        assert!((heaviest / found.choice.peak_bytes - 1.0).abs() < 1e-9, "pipeline {pipeline}");
    }
}

/// Returns the table row that describes the choice of a plan.
fn as_row(found: &DatasheetPlan, framework: &str, attention: &str) -> TableRow {
    let StepConfig { arrangement, micro_batch, batch } = found.choice.config;
    let degrees = found.choice.config.degrees();
    let recompute = match arrangement.recompute {
        dtrain_recipes::Recompute::None => "none",
        dtrain_recipes::Recompute::Selective => "selective",
        dtrain_recipes::Recompute::Full => "full",
    };
    let cells = [
        ("id", "one".to_owned()),
        ("framework", framework.into()),
        ("attention", attention.into()),
        ("hardware", found.gpu.0.clone()),
        ("gpu_mem_gib", "80".into()),
        ("gpus_per_node", "8".into()),
        ("num_gpus", (found.devices - found.idle).to_string()),
        ("model", "llama-3-8b".into()),
        ("layers", "32".into()),
        ("hidden", "4096".into()),
        ("heads", "32".into()),
        ("kv_heads", "8".into()),
        ("ffn", "14336".into()),
        ("gated_mlp", "1".into()),
        ("vocab", "128256".into()),
        ("seq", "8192".into()),
        ("precision", "bf16".into()),
        ("global_batch", batch.to_string()),
        ("micro_batch", micro_batch.to_string()),
        ("tp", degrees.tensor.to_string()),
        ("pp", degrees.pipeline.to_string()),
        ("cp", degrees.context.to_string()),
        ("dp", degrees.data.to_string()),
        ("vp", arrangement.chunks.to_string()),
        ("zero", (arrangement.zero as u8).to_string()),
        ("seq_parallel", u8::from(arrangement.sequence).to_string()),
        ("recompute", recompute.into()),
        ("notes", "compile".into()),
    ];
    TableRow::of(cells.into_iter().map(|(name, cell)| (name.to_owned(), cell)).collect(), 1)
}

/// `plan --on` and `estimate` give the same layout the same price.
#[test]
fn a_plan_and_the_estimate_of_its_row_agree() {
    let engines: [(&'static dyn Engine, &str, &str); 3] = [
        (&MEGATRON, "Megatron-Core", "fused"),
        (&HF_TRAINER, "Hugging Face Trainer", "flash"),
        (&TORCHTITAN, "torchtitan compile", "flash"),
    ];
    for (engine, framework, attention) in engines {
        for (devices, pins) in
            [(8, vec![]), (64, vec![]), (64, vec!["tensor"]), (128, vec!["pipeline"]), (256, vec!["micro"])]
        {
            let mut recipe = recipe();
            // The table has no columns for these.
            recipe.layout.recompute_every = Some(1);
            recipe.layout.context = Some(1);
            for pin in pins {
                match pin {
                    "tensor" => recipe.layout.tensor = Some(2),
                    "pipeline" if engine.name() != HF_TRAINER.name() => recipe.layout.pipeline = Some(4),
                    _ => recipe.layout.micro_batch = Some(1),
                }
            }
            let Ok(found) = of(&recipe, on("H100", devices), engine) else { continue };
            let config = found.choice.config.arrangement;
            let is_said = (config.shard == 1 || config.shard == config.replicas())
                && config.ends.are_free()
                && config.order.is_pipeline_outermost();
            if !is_said {
                continue;
            }
            let row = as_row(&found, framework, attention);
            let priced = benchmarks::estimate_rows(&[row], &[], Constants::shipped()).remove(0);
            let (here, there) = (found.choice.step_seconds, priced.step_seconds.expect("it can be priced"));
            assert!(
                (there / here - 1.0).abs() < 1e-9,
                "{} on {devices}: {here} {there} {:?}",
                engine.name(),
                found.choice.config
            );
            let bytes = priced.peak_bytes.expect("it can be priced") / found.choice.peak_bytes;
            assert!((bytes - 1.0).abs() < 1e-9, "{} on {devices}: {bytes}", engine.name());
        }
    }
}
