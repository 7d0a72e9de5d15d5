//! Memory of ranks: it falls as the plan predicts, for every method of saving memory.

use dtrain_tests::TestEnv;
use serde_json::Value;

/// Some 19 million weights: 73 MiB, and three times as much for gradients and moments. Sequences are long enough for
/// what is kept for backward to count.
const RECIPE: &str = r#"
[model]
kind = "decoder"
layers = 8
hidden = 448
heads = 8
ffn = 1792
context = 256

[data]
train = "text.txt"
valid = "5%"

[objective]
stop = { steps = 3 }

[train]
batch = 8
learning_rate = 1e-4
precision = "f32"

[layout]
micro_batch = 2

[checkpoint]
every = 100
"#;

/// Measured memory may be this share above or below what was predicted.
const TOLERANCE: f64 = 0.15;

/// Largest peak of a rank in steps without a checkpoint, and what the plan said of it, in MiB.
#[derive(Clone, Copy, Debug)]
struct Peak {
    measured: f64,
    predicted: f64,
}

/// Trains three steps with these keys of `[layout]`; all other axes are one.
fn peak(house: &TestEnv, recipe: &str, pins: &[(&str, &str)]) -> Peak {
    let axes = ["data", "tensor", "pipeline", "context"];
    let degree = |axis: &str| pins.iter().find(|(key, _)| *key == axis).map_or("1", |(_, value)| value);
    let ranks: u32 = axes.iter().map(|axis| degree(axis).parse::<u32>().expect("a degree")).product();
    let mut sets = vec![format!("cluster.ranks={ranks}")];
    sets.extend(axes.iter().map(|axis| format!("layout.{axis}={}", degree(axis))));
    let others = pins.iter().filter(|(key, _)| !axes.contains(key));
    sets.extend(others.map(|(key, value)| format!("layout.{key}={value}")));
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    house.expect(0, ["run", recipe, "--quiet", "--no-sample"].into_iter().chain(sets));
    let shown = house.expect(0, ["show", "last", "--json"]).stdout;
    let shown: Value = serde_json::from_slice(&shown).expect("JSON");
    let trial = &shown["trial"];
    let figures = trial["figures"].as_array().expect("figures");
    let peaks = figures.iter().filter(|figure| figure["key"] == "memory_bytes");
    let measured = peaks.filter_map(|figure| figure["max"].as_f64()).fold(0.0, f64::max);
    let choices = trial["plan"]["choices"].as_array().expect("a plan has choices");
    let trained = choices.iter().find(|choice| choice["candidate"] == trial["candidate"]);
    let memory = trained.expect("one was trained")["estimate"]["memory"].as_object().expect("categories");
    // The copy for a checkpoint exists as long as the disk is slow: its overlap with other memory is unknown.
    let counted = memory.iter().filter(|(category, _)| *category != "checkpoint");
    let predicted: f64 = counted.filter_map(|(_, bytes)| bytes.as_f64()).sum();
    let mebi = f64::from(1 << 20);
    Peak { measured: measured / mebi, predicted: predicted / mebi }
}

#[test]
#[ignore = "on request: it takes ten minutes"]
fn every_way_to_hold_less_holds_as_little_as_predicted() {
    let house = TestEnv::default();
    let line = |i: usize| format!("{} and {} are {}\n", i % 131, i % 77, i % 131 + i % 77);
    house.file("text.txt", (0..20_000).map(line).collect::<String>());
    let recipe = house.file("recipe.toml", RECIPE);
    let recipe = recipe.to_str().expect("the path is UTF-8");
    let cases: [&[(&str, &str)]; 14] = [
        &[],
        &[("recompute", "\"full\"")],
        &[("recompute", "\"full\""), ("recompute_every", "2")],
        &[("data", "4"), ("zero", "0")],
        &[("data", "4"), ("zero", "1")],
        &[("data", "4"), ("zero", "2")],
        &[("data", "4"), ("zero", "3"), ("recompute", "\"full\"")],
        &[("tensor", "2"), ("sequence", "false")],
        &[("tensor", "4"), ("sequence", "false")],
        &[("tensor", "4"), ("sequence", "true")],
        &[("pipeline", "2"), ("schedule", "\"1f1b\"")],
        &[("pipeline", "4"), ("schedule", "\"1f1b\"")],
        &[("pipeline", "4"), ("schedule", "\"gpipe\"")],
        &[("context", "2")],
    ];
    let mut wrong = Vec::new();
    println!("{:<44}{:>10}{:>10}{:>7}", "layout", "predicted", "measured", "off");
    for pins in cases {
        let Peak { measured, predicted } = peak(&house, recipe, pins);
        let off = measured / predicted - 1.0;
        let name: Vec<_> = pins.iter().map(|(key, value)| format!("{key} {value}")).collect();
        let name = if name.is_empty() { "one rank".to_owned() } else { name.join(", ") };
        println!("{name:<44}{predicted:>6.0} MiB{measured:>6.0} MiB{:>6.1}%", 100.0 * off);
        if off.abs() > TOLERANCE {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "off by more than 15 %: {wrong:#?}");
}
