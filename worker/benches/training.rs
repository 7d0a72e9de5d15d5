//! Tokens a second of training steps of a small decoder: `cargo bench --workspace --bench training`.
//!
//! The numbers go to stderr; `DTRAIN_BENCH_THREADS` sets the threads (1).

use dtrain_protocol::{DeviceKind, Pass, Placement};
use dtrain_recipes::{
    Activation, Decoder, Model, Norm, Optimizer as Rule, OptimizerKind, Positions, Precision, Recompute,
};
use dtrain_worker::optimizer::Optimizer;
use dtrain_worker::stage::{Flow, Samples, Stage};
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The only pass of a step.
const PASS: Pass = Pass { micro: 0, chunk: 0 };

fn main() {
    let threads = std::env::var("DTRAIN_BENCH_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let placement = Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads };
    let device = dtrain_worker::device::open(&placement).expect("the processor is there");
    for (name, model) in [("gpt", gpt()), ("llama", llama())] {
        let model = Model::Decoder(model);
        let mut stage = Stage::build(&model, 0..model.blocks(), 1, Precision::F32, Recompute::None, &device)
            .expect("a stage");
        let rule =
            Rule { kind: OptimizerKind::Adamw, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
        let mut optimizer = Optimizer::new(&rule, stage.parameters());
        let tokens: Vec<u32> = (0..8 * 256).map(|i: u32| i.wrapping_mul(2_654_435_761) % 512).collect();
        let samples = Samples::Tokens { inputs: &tokens, targets: &tokens, samples: 8, length: 256 };
        let mut times = Vec::new();
        let mut loss = 0.0;
        for t in 1..=12 {
            let begin = Instant::now();
            stage.gradients().clear();
            if let Flow::Loss { loss_sum, count, .. } = stage.forward(PASS, None, &samples) {
                loss = loss_sum / count as f64;
            }
            let forward = begin.elapsed().as_secs_f64();
            stage.backward(PASS, None, 1.0, &mut |_, _| {});
            let backward = begin.elapsed().as_secs_f64() - forward;
            let scale = 1.0 / stage.gradients().norm_squared().sqrt().max(1.0);
            optimizer.step(&mut stage, 1e-3, scale as f32, t);
            times.push([begin.elapsed().as_secs_f64(), forward, backward]);
        }
        times.sort_by(|a, b| a[0].total_cmp(&b[0]));
        report(name, threads, times[0], times[times.len() / 2], loss);
    }
}

#[expect(clippy::print_stderr, reason = "the report of a bench")]
fn report(name: &str, threads: u32, best: [f64; 3], median: [f64; 3], loss: f64) {
    let rate = |seconds: f64| 2048.0 / seconds;
    let [step, forward, backward] = best.map(|seconds| seconds * 1e3);
    eprintln!(
        "{name}, {threads} threads: best {:.0} tokens/s, median {:.0} ({step:.0} ms: forward {forward:.0}, backward {backward:.0}), loss {loss:.4}",
        rate(best[0]),
        rate(median[0]),
    );
}

fn gpt() -> Decoder {
    Decoder {
        layers: 4,
        hidden: 256,
        heads: 8,
        kv_heads: 8,
        ffn: 1024,
        vocab: 512,
        context: 256,
        positions: Positions::Learned,
        norm: Norm::Layer,
        activation: Activation::Gelu,
        tied: false,
        bias: true,
        experts: None,
    }
}

fn llama() -> Decoder {
    Decoder {
        kv_heads: 4,
        ffn: 683,
        positions: Positions::Rotary,
        norm: Norm::Rms,
        activation: Activation::Swiglu,
        bias: false,
        ..gpt()
    }
}
