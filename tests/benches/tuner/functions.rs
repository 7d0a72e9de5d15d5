//! The functions that are searched; `peer.py` has the same ones.

use dtrain_planner::tune::{Dimension, Scale, SearchSpace, TrialValue};
use std::f64::consts::PI;

/// A function to be made small.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// What is searched.
    pub(crate) space: fn() -> SearchSpace,
    /// Its value; `None` where it cannot be measured.
    pub(crate) truth: fn(&[TrialValue]) -> Option<f64>,
    /// Standard deviation of a measurement.
    pub(crate) noise: f64,
    /// What a trial counts that cannot be measured.
    pub(crate) failed: f64,
    /// Its lowest value.
    pub(crate) lowest: f64,
}

pub(crate) const FUNCTIONS: [Function; 4] = [
    Function {
        name: "branin",
        space: || {
            SearchSpace::new(vec![
                Dimension::new("x", Scale::Uniform { low: -5.0, high: 10.0 }),
                Dimension::new("y", Scale::Uniform { low: 0.0, high: 15.0 }),
            ])
        },
        truth: |values| Some(branin(number(values, 0), number(values, 1))),
        noise: 0.0,
        failed: f64::INFINITY,
        lowest: 0.397_887_357_729_738_1,
    },
    Function {
        name: "hartmann6",
        space: || {
            let unit = Scale::Uniform { low: 0.0, high: 1.0 };
            SearchSpace::new((0..6).map(|k| Dimension::new(format!("x{k}"), unit.clone())).collect())
        },
        truth: |values| Some(hartmann6(values)),
        noise: 0.0,
        failed: f64::INFINITY,
        lowest: -3.322_368_011_415_515,
    },
    Function {
        name: "noisylr",
        space: || {
            let batches = (4..=10).map(|power| TrialValue::Whole(1 << power)).collect();
            SearchSpace::new(vec![
                Dimension::new("rate", Scale::Log { low: 1e-5, high: 1e-1 }),
                Dimension::new("decay", Scale::Log { low: 1e-4, high: 1.0 }),
                Dimension::new("warmup", Scale::Counts { low: 10, high: 1000 }),
                Dimension::new("batch", Scale::Levels(batches)),
            ])
        },
        truth: noisylr,
        noise: 0.03,
        failed: 8.0,
        lowest: 2.0,
    },
    Function {
        name: "layout",
        space: || {
            let levels = |name: &str, all: &[i64]| {
                Dimension::new(name, Scale::Levels(all.iter().map(|one| TrialValue::Whole(*one)).collect()))
            };
            let recompute = ["none", "selective", "full"].map(|word| TrialValue::Word(word.into()));
            SearchSpace::new(vec![
                levels("tensor", &[1, 2, 4, 8]),
                levels("pipeline", &[1, 2, 4, 8]),
                levels("micro", &[1, 2, 4, 8, 16]),
                levels("zero", &[0, 1, 2, 3]),
                levels("chunks", &[1, 2, 4]),
                levels("bucket", &[5, 10, 25, 50, 100, 200, 400, 800, 1600, 3200]),
                Dimension::new("recompute", Scale::Names(recompute.to_vec())),
            ])
        },
        truth: layout,
        noise: 0.0,
        failed: 30.0,
        lowest: 1.560_803_537_606_569,
    },
];

fn number(values: &[TrialValue], k: usize) -> f64 {
    values[k].number().expect("it is a number")
}

/// Dixon and Szegő 1978; three lowest places.
fn branin(x: f64, y: f64) -> f64 {
    let bent = y - 5.1 / (4.0 * PI.powi(2)) * x * x + 5.0 / PI * x - 6.0;
    bent * bent + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x.cos() + 10.0
}

/// Dixon and Szegő 1978; six lowest places, of which one is the lowest of all.
fn hartmann6(values: &[TrialValue]) -> f64 {
    const ALPHA: [f64; 4] = [1.0, 1.2, 3.0, 3.2];
    const A: [[f64; 6]; 4] = [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ];
    const P: [[f64; 6]; 4] = [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ];
    let term = |k: usize| {
        let squares = (0..6).map(|i| A[k][i] * (number(values, i) - P[k][i]).powi(2));
        ALPHA[k] * (-squares.sum::<f64>()).exp()
    };
    -(0..4).map(term).sum::<f64>()
}

/// A loss over the logarithms of learning rate, weight decay and warm-up, and over the batch; `None` where it diverges.
fn noisylr(values: &[TrialValue]) -> Option<f64> {
    let (u, w, m) = (number(values, 0).log10(), number(values, 1).log10(), number(values, 2).log10());
    let b = number(values, 3).log2();
    if u > -1.9 + 0.3 * (m - 2.0) {
        return None;
    }
    let best = -2.8 + 0.15 * (b - 8.0);
    let rate = 0.05 * (u - best).powi(2) + 0.02 * (w + 1.2).powi(2);
    Some(2.0 + rate + 0.015 * (m - 2.2).powi(2) + 0.004 * (b - 8.0).powi(2))
}

/// Seconds of a step of 7 billion parameters on 64 devices of 8 to a host, batch 512; `None` where it does not fit.
fn layout(values: &[TrialValue]) -> Option<f64> {
    let [tensor, pipeline, micro, zero, chunks, bucket] = [0, 1, 2, 3, 4, 5].map(|k| number(values, k));
    let recompute = values[6].to_string();
    let data = 64.0 / (tensor * pipeline);
    if 512.0 % (data * micro) != 0.0 || (chunks > 1.0 && pipeline == 1.0) {
        return None;
    }
    let passes = (512.0 / (data * micro)).floor();
    let share = 7e9 / (tensor * pipeline);
    let sharded = |from: f64| if zero >= from { data } else { 1.0 };
    let state = 2.0 * share / sharded(3.0) + 2.0 * share / sharded(2.0) + 12.0 * share / sharded(1.0);
    let (kept, again) = match recompute.as_str() {
        "none" => (1.0, 1.0),
        "selective" => (0.4, 1.04),
        _ => (0.08, 1.33),
    };
    let in_flight = micro * 32.0 / pipeline * passes.min(pipeline);
    let activations = in_flight * 0.9e9 * kept / tensor * (1.0 + 0.1 * (chunks - 1.0));
    if state + activations + bucket * 2e6 * 4.0 > 72e9 {
        return None;
    }
    let work = 6.0 * share * 512.0 / data * 2048.0 * again;
    let compute = work / (500e12 * (micro / (micro + 0.35)) * (1.0 - 0.03 * tensor.log2()));
    let bubble = if pipeline > 1.0 { (pipeline - 1.0) / (passes * chunks) } else { 0.0 };
    let sent = micro * 2048.0 * 4096.0 * 2.0;
    let tensors = match tensor > 1.0 {
        true => 4.0 * 32.0 / pipeline * passes * sent * 2.0 * (tensor - 1.0) / tensor / 300e9,
        false => 0.0,
    };
    let hops = if pipeline > 1.0 { passes * chunks * sent / tensor / 40e9 } else { 0.0 };
    let volume = share * 2.0 * if zero >= 3.0 { 3.0 } else { 2.0 } * (data - 1.0) / data;
    let parts = share * 2.0 / (bucket * 1e6);
    let reduce = volume / 40e9 + parts * 60e-6 * if zero >= 2.0 { passes } else { 1.0 } * 0.1;
    let hidden = reduce.min(0.6 * compute) * (1.0 - 1.0 / (1.0 + parts));
    Some(compute * (1.0 + bubble) + tensors + hops + reduce - hidden + 0.02 * passes * 0.1)
}
