//! A perceptron trained by dtrain.

use std::fmt::Write;

/// The recipe without its name and its cluster; `train.py` of the recovery bench trains the same.
pub(crate) const TRAINING: &str = r#"
[model]
kind = "mlp"
inputs = 64
hidden = [1024, 1024]
classes = 10

[data]
train = "rows.csv"
target = "class"

[objective]
stop = { steps = 1000000 }

[checkpoint]
every = "10 steps"

[train]
batch = 128
learning_rate = 1e-3
precision = "f32"
"#;

/// What it reads as `rows.csv`: rows of numbers that look random, and a class each.
pub(crate) fn rows() -> String {
    let mut text: String = (0..64).map(|column| format!("x{column},")).collect();
    text += "class\n";
    let mut state = 1u64;
    for row in 0..2048 {
        for _ in 0..64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            write!(text, "{:.2},", f64::from((state >> 40) as u32 % 1000) / 500.0 - 1.0)
                .expect("a string grows");
        }
        writeln!(text, "c{}", row % 10).expect("a string grows");
    }
    text
}
