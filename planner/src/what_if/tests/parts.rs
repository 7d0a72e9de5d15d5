//! No answer exceeds the memory of a part or trains in a precision that the part lacks, and every part of a
//! useful size has an answer.

use super::*;
use crate::engine::ALL;
use crate::hardware::gpus;
use crate::rng::SearchRng;
use dtrain_recipes::Recompute;

/// Number of random cases.
const CASES: u64 = 2000;

/// Returns a decoder of the Llama family, or of GPT-2, with the given dimensions.
fn decoder(layers: u32, hidden: u32, kv_heads: u32, ffn: u32, context: u32) -> Recipe {
    let mut recipe = recipe();
    let Model::Decoder(decoder) = &mut recipe.model else { panic!("it is a decoder") };
    *decoder = Decoder { layers, hidden, heads: hidden / 64, kv_heads, ffn, context, ..decoder.clone() };
    recipe
}

fn gpt2_124m() -> Recipe {
    Recipe { model: fixtures::gpt2(), ..recipe() }
}

fn llama_1b() -> Recipe {
    decoder(16, 2048, 8, 8192, 2048)
}

fn models() -> [Recipe; 6] {
    [
        gpt2_124m(),
        decoder(24, 1024, 16, 4096, 1024),
        llama_1b(),
        decoder(28, 3072, 8, 8192, 4096),
        recipe(),
        decoder(40, 5120, 40, 13824, 4096),
    ]
}

/// Describes what is wrong with an answer; `None` if nothing is.
fn wrong(
    found: &DatasheetPlan,
    part: &crate::hardware::GpuSpec,
    pinned: Option<Precision>,
) -> Option<String> {
    let memory = part.memory_bytes();
    let shown = found.ties.iter().chain(&found.next).chain([&found.choice]);
    for layout in shown {
        let precision = layout.config.arrangement.precision;
        if layout.peak_bytes > memory {
            return Some(format!("{:.1} of {:.1} GB", layout.peak_bytes / 1e9, memory / 1e9));
        }
        if !part.has_precision(precision) || pinned.is_some_and(|pinned| pinned != precision) {
            return Some(format!("{precision}"));
        }
    }
    let is_tight = found.choice.peak_bytes_high > memory;
    (is_tight != found.out_of_memory.is_some()).then(|| format!("no warning: {:?}", found.out_of_memory))
}

#[test]
fn no_answer_exceeds_the_memory_or_the_precisions_of_a_part() {
    let models = models();
    let mut random = SearchRng::new(1);
    let (mut bad, mut planned) = (Vec::new(), 0);
    for case in 0..CASES {
        let part = &gpus()[random.pick(gpus().len())];
        let engine = ALL[random.pick(ALL.len())];
        let devices = [1, 1, 2, 3, 4, 5, 6, 7, 8][random.pick(9)];
        let mut recipe = models[random.pick(models.len())].clone();
        let pinned = [
            None,
            None,
            Some(Precision::Bf16),
            Some(Precision::F16),
            Some(Precision::Fp8),
            Some(Precision::F32),
        ];
        let pinned = pinned[random.pick(6)];
        recipe.train.precision = pinned.map_or(Tunable::Auto, Tunable::Pinned);
        recipe.train.batch = Tunable::Pinned(Samples([16, 64, 60, 128][random.pick(4)]));
        let cluster = HostGroup::of(part, 1, devices);
        let Ok(found) = of(&recipe, cluster, engine) else { continue };
        planned += 1;
        if let Some(wrong) = wrong(&found, part, pinned) {
            bad.push(format!("{case}: {} x{devices}, {}: {wrong}", part.name, engine.name()));
        }
    }
    assert!(bad.is_empty(), "{} of {planned} answers:\n{}", bad.len(), bad.join("\n"));
    assert!(planned > CASES / 5, "only {planned} of {CASES} cases have an answer");
}

#[test]
fn every_part_of_eight_gigabytes_or_more_has_a_plan() {
    let mut without = Vec::new();
    for part in gpus().iter().filter(|part| part.sold_gb >= 8) {
        let mut small = llama_1b();
        small.layout.recompute = Some(Recompute::Full);
        // MaxText has no learned positions.
        let of_llama = decoder(12, 768, 12, 3072, 1024);
        let has_plan = |recipe: &Recipe| {
            ALL.into_iter().any(|engine| of(recipe, HostGroup::of(part, 1, 1), engine).is_ok())
        };
        if ![gpt2_124m(), small, of_llama].iter().any(has_plan) {
            without.push(part.name.as_str());
        }
    }
    assert!(without.is_empty(), "{without:?}");
}

/// Compares the closed form with the simulation of every action of every stage, for the best layouts.
#[test]
fn the_first_twenty_candidates_take_as_long_as_their_actions() {
    let mut recipe = recipe();
    recipe.layout.pipeline = Some(4);
    let cluster = on("H100", 64);
    let Asked { problem, .. } =
        problem(&DatasheetPlanRequest { recipe: &recipe, cluster, engine: &MEGATRON, next: NEXT })
            .expect("it can be asked");
    let found = crate::analytic::search::search_front(&problem, 20);
    assert_eq!(found.best.len(), 20);
    for choice in &found.best {
        let walked = stage_timeline::timeline(&problem, &choice.config).expect("it ends").step_seconds;
        assert!((walked / choice.seconds - 1.0).abs() < 0.035, "{walked} {choice:?}");
    }
}
