//! The 1,797 handwritten digits that ship in scikit-learn.

use dtrain_skip::skip;
use dtrain_tests::{TestEnv, root};
use std::fs;

/// A residual network reads the digits of people, to more than 95 % on those it has not seen.
#[test]
fn a_cnn_reads_handwritten_digits() {
    let path = root().join("target/test-data/digits.csv");
    let Ok(table) = fs::read_to_string(&path) else {
        return skip(format_args!(
            "{} is missing; `tests/run` makes it where scikit-learn can be installed",
            path.display()
        ));
    };
    assert_eq!(table.lines().count(), 1 + 1797);
    let house = TestEnv::default();
    house.file("digits.csv", table);
    let recipe = house.file(
        "recipe.toml",
        r#"
name = "handwritten"

[model]
kind = "cnn"
channels = 1
height = 8
width = 8
stages = [32, 64]
blocks = 1
classes = 10

[data]
format = "csv"
train = "digits.csv"
target = "digit"
valid = "20%"

[objective]
metric = "valid.accuracy"
stop = { epochs = 15 }

[train]
batch = 64
learning_rate = 3e-3
seed = 1
"#,
    );
    house.expect(0, ["run", recipe.to_str().expect("the path is UTF-8"), "--quiet"]);
    let last = house.accuracy("last");
    println!("accuracy on digits not seen: {:.2} %", 100.0 * last);
    assert!(last > 0.95, "only {:.2} % of the digits not seen were read", 100.0 * last);
}
