//! Times the search over all layouts of Llama 3.1 405B on 16,384 H100s, on one thread, and an answer of
//! `dtrain plan --on`.
//!
//! `cargo bench --workspace --bench search` prints the time of a search with and without its bound, layouts
//! per second, and the ratio to Calculon, for which 217 to 262 configurations per CPU second were published
//! (Isaev et al. 2023). The time of an answer, with Pareto front, alternatives and advice, is printed for
//! Llama 3.1 405B and for DeepSeek-V3, whose batch of 15,360 samples has ten times as many micro-batches.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

#[path = "../../tests/benches/shared/measured.rs"]
mod measured;

use dtrain_planner::analytic::search::{LayoutSearchResult, SearchProblem, search, search_all};
use dtrain_planner::analytic::{Constants, MatmulPrecision, Software, Transformer};
use dtrain_planner::engine::MEGATRON;
use dtrain_planner::engine::{AttentionKernel, SoftwareStyle};
use dtrain_planner::hardware::{HostGroup, gpu};
use dtrain_planner::what_if::{
    DatasheetPlan, DatasheetPlanRequest, NEXT, describe_layout, plan_from_datasheets,
};
use dtrain_recipes::{CheckContext, ConfigLayer, Document, LayoutPins, Recipe, Source, check};
use measured::{Better, Row};
use std::path::Path;
use std::time::Instant;

/// Recipes whose plans are timed, with their number of H100s.
const ANSWERED: [(&str, &str, u32); 2] = [
    ("Llama 3.1 405B", include_str!("../../examples/llama-405b/recipe.toml"), 16_384),
    ("DeepSeek-V3", include_str!("../../examples/published/deepseek-v3.toml"), 2048),
];

/// Configurations per CPU second that Calculon prices at best.
const CALCULON: f64 = 262.0;

fn main() {
    for (name, text, devices) in ANSWERED {
        answer(name, &recipe(text), devices);
    }
    for devices in [1024, 16_384] {
        let problem = llama_405b(devices);
        println!("Llama 3.1 405B on {devices} H100s, global batch {}", problem.batch);
        line(devices, "with a bound", &problem, search);
        let rates = line(devices, "without a bound", &problem, search_all);
        Row {
            section: "Search",
            what: format!("layouts of Llama 3.1 405B on {devices} H100s priced a second, on one thread"),
            unit: "layouts/s",
            better: Better::Higher,
            ours: rates,
            peer: None,
            // Calculon's rate was published for another machine, so it is not written beside what is measured here.
            note: String::new(),
        }
        .print();
    }
}

/// Plans five times and prints the durations.
fn answer(name: &str, recipe: &Recipe, devices: u32) {
    let part = gpu("H100-SXM-80GB").expect("it is in the table");
    let cluster = HostGroup::of(part, devices / 8, 8);
    let request = DatasheetPlanRequest { recipe, cluster, engine: &MEGATRON, next: NEXT };
    let ask = || -> (f64, DatasheetPlan) {
        let begun = Instant::now();
        let found = plan_from_datasheets(&request).expect("a layout fits");
        (begun.elapsed().as_secs_f64(), found)
    };
    let (times, found): (Vec<f64>, Vec<DatasheetPlan>) = (0..5).map(|_| ask()).unzip();
    let (fastest, found) = (times.iter().copied().fold(f64::INFINITY, f64::min), &found[0]);
    println!("{name} on {devices} H100s, the whole answer: {fastest:.2} s, {} layouts", found.layouts);
    println!("  {:.2} s: {}", found.choice.step_seconds, describe_layout(&found.choice.config));
    Row {
        section: "Search",
        what: format!("whole answer of `dtrain plan --on` for {name} on {devices} H100s"),
        unit: "s",
        better: Better::Lower,
        ours: times,
        peer: None,
        note: format!("{} layouts, with the front and {} changes", found.layouts, found.advice.len()),
    }
    .print();
}

fn recipe(text: &str) -> Recipe {
    let document = Document::parse(&Source::file(Path::new("recipe.toml"), ConfigLayer::Recipe, text));
    let checked = check(&document.expect("it is TOML"), &CheckContext::of_file(Path::new("recipe.toml")));
    checked.expect("it is a recipe").recipe
}

/// Searches five times and prints the durations; returns the layouts per second of each.
fn line(
    devices: u32,
    name: &str,
    problem: &SearchProblem,
    search: fn(&SearchProblem, usize) -> LayoutSearchResult,
) -> Vec<f64> {
    let mut times: Vec<f64> = (0..5)
        .map(|_| {
            let begun = Instant::now();
            std::hint::black_box(search(problem, 20));
            begun.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let (median, found) = (times[2], search(problem, 20));
    let rate = found.layouts as f64 / median;
    println!(
        "  {name:14} {:8.1} ms  {:>8} layouts ({} by the bound)  {:5.0} ns each  {:.2e} a second  {:.0} times Calculon",
        1e3 * median,
        found.layouts,
        found.bounded,
        1e9 / rate,
        rate,
        rate / CALCULON,
    );
    Row {
        section: "Search",
        what: format!("search of every layout of Llama 3.1 405B on {devices} H100s, {name}"),
        unit: "s",
        better: Better::Lower,
        ours: times.clone(),
        peer: None,
        note: format!("{} layouts, {} of them ruled out by the bound", found.layouts, found.bounded),
    }
    .print();
    if let Some(best) = found.best.first() {
        println!(
            "                 best {:.2} s, {:.1} GiB: {:?}",
            best.seconds,
            best.bytes / 1024f64.powi(3),
            best.config
        );
    }
    times.into_iter().map(|seconds| found.layouts as f64 / seconds).collect()
}

fn llama_405b(devices: u32) -> SearchProblem {
    let part = gpu("H100-SXM-80GB").expect("it is in the table");
    SearchProblem {
        model: Transformer {
            layers: 126.0,
            hidden: 16_384.0,
            heads: 128.0,
            kv_heads: 8.0,
            head: 128.0,
            head_value: 128.0,
            latent: None,
            window: None,
            ffn: 53_248.0,
            is_gated: true,
            experts: None,
            is_tied: None,
            adapters: None,
            vocabulary: 128_256.0,
            sequence: 8192.0,
            mtp_layers: 0.0,
        },
        cluster: HostGroup::of(part, devices / 8, 8),
        engine: Software::of(SoftwareStyle::Modern, Constants::shipped()),
        runs_on: None,
        kernel: AttentionKernel::Fused,
        products: MatmulPrecision::Bits16,
        state: dtrain_recipes::StatePolicy::PLAIN,
        batch: 2048,
        pins: LayoutPins::default(),
        sync: dtrain_recipes::Synchronisation::EXACT,
        constants: Constants::shipped(),
    }
}
