//! Benchmark: tokens a second of whole training steps of small decoders, compared with PyTorch.
//!
//! `cargo bench --workspace --bench training [-- rounds=3]`: dtrain, PyTorch eager, compiled and under
//! autocast to bf16 take turns, each round with one thread and with two. A step is forward, backward,
//! clipping and AdamW. PyTorch is that of target/foreign, where `tests/measure` installs it.
//!
//! `hidden=256,512` measures models of these widths. `beside=PROGRAM` compares with this bench of another
//! build, a program in its `target/release/deps`, instead of PyTorch.

#[path = "../../tests/benches/shared/measured.rs"]
mod measured;

use dtrain_protocol::{DeviceKind, Pass, Placement};
use dtrain_recipes::{Activation, Decoder, Model, Norm, Optimizer as Rule, Positions, Precision, Recompute};
use dtrain_worker::network::ModelInput;
use dtrain_worker::optimizer::StageOptimizer;
use dtrain_worker::stage::{ForwardOutput, Stage};
use measured::{Better, Row};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The only pass of a step.
const PASS: Pass = Pass { micro: 0, chunk: 0 };

/// Measured steps of a round; they follow [`WARM`] unmeasured ones.
const STEPS: usize = 8;
const WARM: usize = 4;

/// Tokens of a step: 8 samples of 256.
const TOKENS: usize = 8 * 256;

/// PyTorch modes: the argument of the script, and the name in the output.
const WAYS: [(&str, &str); 3] =
    [("eager", "PyTorch eager"), ("compile", "PyTorch compiled"), ("bf16", "PyTorch, autocast to bf16")];

fn main() {
    // The number of threads is fixed when a process starts, so each measurement is a process of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [first, model, hidden, threads] = words.as_slice()
        && first == "train"
    {
        let hidden = hidden.parse().expect("a width");
        let model = if model == "gpt" { gpt(hidden) } else { llama(hidden) };
        let rates = train(model, threads.parse().expect("threads"));
        return say(&serde_json::to_string(&rates).expect("numbers"));
    }
    let said = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    let rounds: usize =
        said("rounds=").map_or(3, |text| text.parse().expect("a whole number follows the sign"));
    for hidden in said("hidden=").unwrap_or("256").split(',') {
        for model in ["gpt", "llama"] {
            for threads in ["1", "2"] {
                match said("beside=") {
                    Some(program) => beside_build(program, model, hidden, threads, rounds),
                    None => beside_torch(model, hidden, threads, rounds),
                }
            }
        }
    }
}

/// Formats the heading of a measurement.
fn words_of(model: &str, hidden: &str, threads: &str) -> String {
    format!("{model} of 4 layers, hidden {hidden}, context 256, batch 8; threads: {threads}")
}

/// Runs this build as the runner runs a worker, and returns its tokens a second.
fn rates_of_dtrain(model: &str, hidden: &str, threads: &str) -> Vec<f64> {
    let program = std::env::current_exe().expect("a program knows where it is");
    let mut command = Command::new(program);
    rates_of(command.args(["train", model, hidden, threads]).env("MIMALLOC_PURGE_DELAY", "-1"))
        .expect("it is this program")
}

/// Measures one model in turn with another build of this bench, which runs without allocator settings.
fn beside_build(program: &str, model: &str, hidden: &str, threads: &str, rounds: usize) {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        ours.extend(rates_of_dtrain(model, hidden, threads));
        let other = rates_of(Command::new(program).args(["train", model, hidden, threads]));
        theirs.extend(other.expect("it is this bench of another build"));
        let (ours, theirs) = (median(&ours), median(&theirs));
        say(&format!(
            "{model} {hidden}, {threads} threads, round {round}: {ours:.0} and {theirs:.0} tokens/s"
        ));
    }
    Row {
        section: "Training",
        what: words_of(model, hidden, threads),
        unit: "tokens/s",
        better: Better::Higher,
        ours,
        peer: Some(("another build", theirs)),
        note: String::new(),
    }
    .print();
}

/// Measures one model with `threads` threads, in turn with PyTorch, and prints a row for each PyTorch mode.
fn beside_torch(model: &str, hidden: &str, threads: &str, rounds: usize) {
    let (mut ours, mut theirs) = (Vec::new(), [const { Vec::new() }; WAYS.len()]);
    let mut missing = [const { String::new() }; WAYS.len()];
    for round in 1..=rounds {
        let rates = rates_of_dtrain(model, hidden, threads);
        say(&format!("{model}, {threads} threads, round {round}: dtrain {:.0} tokens/s", median(&rates)));
        ours.extend(rates);
        for (way, (argument, name)) in WAYS.iter().enumerate() {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let mut command = Command::new(root.join("../target/foreign/bin/python"));
            command.arg(root.join("benches/training_torch.py")).args([model, argument, threads]);
            match rates_of(command.args([&STEPS.to_string(), hidden])) {
                Ok(rates) => {
                    say(&format!(
                        "{model}, {threads} threads, round {round}: {name} {:.0} tokens/s",
                        median(&rates)
                    ));
                    theirs[way].extend(rates);
                }
                Err(reason) => missing[way] = reason,
            }
        }
    }
    for (way, (argument, name)) in WAYS.iter().enumerate() {
        let is_half = *argument == "bf16";
        let note =
            if is_half { "dtrain has no 16-bit arithmetic on CPUs; its value is that of f32" } else { "" };
        Row {
            section: "Training",
            what: words_of(model, hidden, threads),
            unit: "tokens/s",
            better: Better::Higher,
            ours: ours.clone(),
            peer: Some((name, theirs[way].clone())),
            note: if missing[way].is_empty() { note.to_owned() } else { missing[way].clone() },
        }
        .print();
    }
}

/// Runs a command and returns the rates that it prints; `Err` says why there are none.
fn rates_of(command: &mut Command) -> Result<Vec<f64>, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(error.lines().last().unwrap_or("it failed").to_owned());
    }
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = printed.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("{program} printed {line:?}: {error}"))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Trains the model and returns the tokens a second of each measured step.
fn train(model: Decoder, threads: u32) -> Vec<f64> {
    let placement = Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads };
    let device = dtrain_worker::device::open(&placement).expect("the processor is there");
    let model = Model::Decoder(model);
    let mut stage = Stage::build(&model, 0..model.blocks(), 1, Precision::F32, Recompute::None, &device)
        .expect("a stage");
    let rule = Rule::ADAMW;
    let mut optimizer = StageOptimizer::new(&rule, stage.parameters());
    let tokens: Vec<u32> = (0..TOKENS as u32).map(|i| i.wrapping_mul(2_654_435_761) % 512).collect();
    let samples =
        ModelInput::Tokens { inputs: &tokens, targets: &tokens, samples: 8, length: 256, packed: None };
    let steps = (1..=WARM + STEPS).map(|t| {
        let begun = Instant::now();
        stage.gradients().clear();
        let ForwardOutput::Loss(figures) = stage.forward(PASS, None, &samples) else {
            unreachable!("one stage")
        };
        assert!(figures.read().loss_sum.is_finite(), "it trains");
        stage.backward(PASS, None, 1.0, &mut |_, _| {});
        let scale = 1.0 / stage.gradients().norm_squared().sqrt().max(1.0);
        optimizer.step(&mut stage, 1e-3, scale as f32, t as u64);
        TOKENS as f64 / begun.elapsed().as_secs_f64()
    });
    steps.collect::<Vec<_>>().split_off(WARM)
}

#[expect(clippy::print_stdout, reason = "the report of a bench")]
fn say(line: &str) {
    println!("{line}");
}

fn gpt(hidden: u32) -> Decoder {
    Decoder {
        layers: 4,
        hidden,
        heads: 8,
        kv_heads: 8,
        ffn: 4 * hidden,
        vocab: 512,
        context: 256,
        tied: false,
        ..Decoder::small_gpt2()
    }
}

fn llama(hidden: u32) -> Decoder {
    Decoder {
        kv_heads: 4,
        // Two thirds of four times the width: as many parameters as a feed-forward network with two
        // matrices.
        ffn: (8 * hidden).div_ceil(3),
        positions: Positions::Rotary,
        norm: Norm::Rms,
        activation: Activation::Swiglu,
        bias: false,
        ..gpt(hidden)
    }
}
