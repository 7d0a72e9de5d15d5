//! How good `dtrain tune` is at finding what is low in few trials, beside Optuna: `tests/measure tuner`, or, where
//! `target/foreign` has Optuna, `cargo bench --workspace --bench tuner`.
//!
//! Four functions: Branin; Hartmann in six dimensions; `noisylr`, a loss over learning rate, weight decay, warm-up and batch that is
//! measured with noise and diverges beyond a cliff; `layout`, the time of a step over seven settings of a layout, a third of
//! which do not fit. Functions are written in Rust and in Python, and compared at 100 points first. Each study has 100
//! trials; scored is the *true* value of what it would have recommended after 30 and after 100, above the lowest there is: of dtrain
//! what it recommends, of Optuna the trial that measured the lowest, which is its `best_trial`. A trial that cannot be measured
//! has failed for dtrain, and is 8 (`noisylr`) or 30 (`layout`) for Optuna, which has no failures that its samplers learn from.
//!
//! A fifth one, `decoder`, is a real training: `decoder.rs` says what of it is searched, with which budget, and what counts.
//!
//! The first trial of dtrain's usual sampler is the center of the space, of which Optuna knows nothing.
//!
//! Words that follow `--`: names of functions, `time`, `seeds=11`, and `studies=5` for those of the decoder. What Optuna found on
//! functions is kept in `target/tuner`, as its studies depend on nothing but script, version and seed; times are always taken anew,
//! and so are studies of the decoder.

mod decoder;
mod functions;
mod optuna;
mod ours;
#[expect(dead_code, unused_imports, reason = "nothing is trained here")]
#[path = "../shared/mod.rs"]
mod shared;

use dtrain_planner::tune::Sampler;
use dtrain_planner::tune::gaussian_process::PLACES_MOST;
use dtrain_planner::tune::sobol::Sobol;
use functions::{FUNCTIONS, Function};
use optuna::{Optuna, SAMPLERS};
use shared::measured::{Better, Row};
use shared::{Words, say};

const SECTION: &str = "Tuning";
const TRIALS: u64 = 100;
const POINTS: u32 = 100;

/// What is scored where measured values have noise.
const SCORED: &str = "The true value counts: of what dtrain recommends, and of Optuna's `best_trial`, which measured the lowest.";

/// Our samplers, each with the same one of Optuna where it has it.
const OURS: [(&str, Sampler, Option<&str>); 8] = [
    ("auto", Sampler::Auto, None),
    ("random", Sampler::Random, Some("random")),
    ("Sobol", Sampler::Sobol, Some("sobol")),
    ("TPE", Sampler::Tpe, Some("tpe")),
    ("CMA-ES", Sampler::CmaEs, Some("cmaes")),
    ("swarm", Sampler::Swarm, None),
    ("evolution", Sampler::Evolution, None),
    ("grid of 3", Sampler::Grid { levels: 3 }, None),
];

fn main() {
    let words = Words::of_the_command_line();
    let seeds = words.number("seeds", 11);
    let optuna = dtrain_tests::python_with("optuna").map(Optuna::of);
    match &optuna {
        Ok(optuna) => say(&format!("Optuna {}", optuna.version)),
        Err(reason) => say(&format!("Optuna is left out: {reason}")),
    }
    for function in FUNCTIONS.iter().filter(|function| words.want(function.name)) {
        if let Ok(optuna) = &optuna {
            compare(function, optuna);
        }
        quality(function, seeds, optuna.as_ref());
    }
    if words.want("decoder") {
        decoder::measure(words.number("studies", 5));
    }
    if words.want("time") {
        times(optuna.as_ref());
    }
}

/// Panics unless both have the same values at the same points.
fn compare(function: &Function, optuna: &Optuna) {
    let space = (function.space)();
    let sobol = Sobol::new(space.dimensions().len(), 7);
    let points: Vec<_> = (0..POINTS).map(|index| space.values(&sobol.point(index))).collect();
    for (point, theirs) in points.iter().zip(optuna.values(function, &points)) {
        let ours = (function.truth)(point);
        let are_alike = match (ours, theirs) {
            (Some(ours), Some(theirs)) => (ours - theirs).abs() <= 1e-9 * ours.abs().max(1e-3),
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        assert!(are_alike, "{} at {point:?}: {ours:?} in Rust, {theirs:?} in Python", function.name);
    }
    say(&format!("{}: {POINTS} points have the same values in Rust and in Python", function.name));
}

/// The true values above the lowest after 30 and after all trials, one for each seed.
type Found = [Vec<f64>; 2];

fn above(function: &Function, studies: Vec<(f64, f64)>) -> Found {
    let (early, late): (Vec<f64>, Vec<f64>) =
        studies.into_iter().map(|(early, late)| (early - function.lowest, late - function.lowest)).unzip();
    [early, late]
}

fn quality(function: &Function, seeds: u64, optuna: Result<&Optuna, &String>) {
    let theirs: Vec<(&str, Found)> = match optuna {
        Ok(optuna) => {
            let studies = |sampler: &&'static str| {
                (*sampler, above(function, optuna.studies(sampler, function, seeds, TRIALS)))
            };
            SAMPLERS.iter().map(studies).collect()
        }
        Err(_) => Vec::new(),
    };
    let missing = optuna.err().cloned().unwrap_or_default();
    for (name, sampler, same) in OURS {
        let studies = (0..seeds).map(|seed| ours::study(sampler, function, seed, TRIALS)).collect();
        let ours = above(function, studies);
        for (after, trials) in [30, TRIALS].into_iter().enumerate() {
            // The usual sampler is held against the best of Optuna, the others against the same ones.
            let best = theirs.iter().min_by(|a, b| middle(&a.1[after]).total_cmp(&middle(&b.1[after])));
            let peer = match same {
                Some(same) => theirs.iter().find(|(peer, _)| *peer == same),
                None => best.filter(|_| name == "auto"),
            };
            let bar = peer.filter(|_| name == "auto").map(|(_, theirs)| bar(&ours[after], &theirs[after]));
            let titles: Vec<String> = peer.iter().map(|(peer, _)| format!("Optuna {peer}")).collect();
            Row {
                section: SECTION,
                what: format!("{}, {name}, above the lowest after {trials} trials", function.name),
                unit: "",
                better: Better::Lower,
                ours: ours[after].clone(),
                peer: titles
                    .first()
                    .zip(peer)
                    .map(|(title, (_, theirs))| (title.as_str(), theirs[after].clone())),
                note: match peer {
                    Some(_) if function.noise > 0.0 => {
                        bar.map_or_else(|| SCORED.to_owned(), |bar| format!("{bar} {SCORED}"))
                    }
                    _ => bar.unwrap_or_else(|| missing.clone()),
                },
            }
            .print();
            say(&format!("{:10} {name:10} {trials:4} {:.5}", function.name, middle(&ours[after])));
        }
    }
    for (name, theirs) in &theirs {
        say(&format!(
            "{:10} Optuna {name:10} {:.5} {:.5}",
            function.name,
            middle(&theirs[0]),
            middle(&theirs[1])
        ));
    }
}

/// Whether ours are no worse than theirs by more than the range of the middle half of theirs.
fn bar(ours: &[f64], theirs: &[f64]) -> String {
    let mut sorted = theirs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let range = sorted[sorted.len() * 3 / 4] - sorted[sorted.len() / 4];
    let is_held = middle(ours) <= middle(theirs) + range;
    let held = if is_held { "held" } else { "missed" };
    format!(
        "Beside the best sampler of Optuna; the bar, its median and {range:.3} of interquartile range, is {held}."
    )
}

fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// How long a suggestion takes after 100 and after 1,000 trials.
fn times(optuna: Result<&Optuna, &String>) {
    let hartmann = &FUNCTIONS[1];
    let gaussian = Sampler::gaussian(&(hartmann.space)());
    for (name, sampler, peer) in
        [("TPE", Sampler::Tpe, "tpe"), ("GP", gaussian, "gp"), ("CMA-ES", Sampler::CmaEs, "cmaes")]
    {
        for trials in [100, 1000] {
            let repeats = if name == "GP" { if trials > 100 { 3 } else { 12 } } else { 20 };
            let title = format!("Optuna {peer}");
            Row {
                section: SECTION,
                what: format!("{name}, a suggestion after {trials} trials of hartmann6"),
                unit: "ms",
                better: Better::Lower,
                ours: ours::milliseconds(sampler, hartmann, trials, repeats.max(12)),
                peer: optuna.ok().map(|optuna| (title.as_str(), optuna.milliseconds(peer, trials, repeats))),
                note: match optuna {
                    Ok(_) if name == "GP" && trials > PLACES_MOST as u64 => format!(
                        "dtrain's process is fitted to at most {PLACES_MOST} trials, the best and the newest"
                    ),
                    Ok(_) => String::new(),
                    Err(reason) => reason.clone(),
                },
            }
            .print();
        }
    }
}
