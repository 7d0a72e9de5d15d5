//! A perceptron trained by dtrain.

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

/// What it reads as `rows.csv`.
pub(crate) fn rows() -> String {
    dtrain_tests::random_rows(2048)
}
