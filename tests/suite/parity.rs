//! One rank and two ranks train alike, and the same layout trains the same bits.

use dtrain_protocol::Rank;
use dtrain_runner::ledger::History;
use dtrain_tests::{TestEnv, digest, newest_checkpoint, root};

/// Trains the quickstart for 200 steps on `ranks` ranks; returns its losses and the digest of its last checkpoint.
fn quickstart(house: &TestEnv, ranks: u32) -> (Vec<f64>, String) {
    let recipe = root().join("examples/quickstart/recipe.toml");
    house.expect(
        0,
        [
            "run",
            recipe.to_str().expect("the path is UTF-8"),
            "--quiet",
            "--no-sample",
            "--set",
            &format!("cluster.ranks={ranks}"),
            "--set",
            &format!("layout.data={ranks}"),
            // The planner learns from each run, and may choose otherwise the next time.
            "--set",
            "layout.zero=0",
            "--set",
            "layout.micro_batch=8",
            "--set",
            "layout.recompute=none",
            "--set",
            "objective.stop={ steps = 200 }",
            // Smaller than the example, so that it takes seconds.
            "--set",
            "model.layers=2",
            "--set",
            "model.hidden=64",
            "--set",
            "data.tokenizer=bytes",
            "--set",
            "train.batch=16",
            // Differences of rounding grow with the learning rate.
            "--set",
            "train.learning_rate=1e-3",
        ],
    );
    let history = History::open_read_only(&house.history()).expect("a history was written");
    let trial = history.find("last").expect("a trial was recorded");
    let losses = history.series(&trial, "loss", Rank(0)).expect("losses were recorded");
    let losses: Vec<_> = losses.iter().map(|point| point.value).collect();
    assert_eq!(losses.len(), 200, "one loss for each step");
    (losses, digest(&newest_checkpoint(&house.newest_trial()).1))
}

#[test]
fn two_ranks_train_the_quickstart_like_one_and_twice_to_the_same_bits() {
    let house = TestEnv::default();
    let (one, _) = quickstart(&house, 1);
    let (two, weights) = quickstart(&house, 2);
    let worst = one.iter().zip(&two).map(|(a, b)| ((a - b) / a).abs()).fold(0.0, f64::max);
    println!("largest relative difference of a loss over 200 steps: {worst:.2e}");
    assert!(worst < 1e-4, "one and two ranks part by {worst:.2e}");
    assert!(one[199] < 0.8 * one[0], "it learned nothing: {} to {}", one[0], one[199]);

    let (again, weights_again) = quickstart(&house, 2);
    assert!(two == again, "the same layout gave other losses the second time");
    assert_eq!(weights, weights_again, "the same layout gave other weights the second time");
}
