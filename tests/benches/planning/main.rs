//! How long `dtrain plan` takes when the machine was measured before, beside a program that does nothing: `cargo build --release`,
//! then `cargo bench --workspace --bench planning [-- runs=50]`. Both are started in turn.

#[expect(dead_code, unused_imports, reason = "nothing is trained here")]
#[path = "../shared/mod.rs"]
mod shared;

use dtrain_tests::{TestEnv, root};
use shared::measured::{Better, Row};
use shared::{Words, say};
use std::process::{Command, Stdio};
use std::time::Instant;

fn main() {
    let runs = Words::of_the_command_line().number("runs", 50);
    let house = TestEnv::default();
    let recipe = root().join("examples/quickstart/recipe.toml");
    let arguments = ["plan", recipe.to_str().expect("the path is UTF-8"), "--quiet"];
    // The first plan measures the machine, and the history keeps it.
    house.expect(0, arguments);
    let (mut plan, mut nothing) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        plan.push(milliseconds(&mut house.dtrain(arguments)));
        nothing.push(milliseconds(&mut Command::new("true")));
    }
    say(&format!("{runs} runs"));
    Row {
        section: "Planning",
        what: "`dtrain plan` of the quickstart, from process start to end".into(),
        unit: "ms",
        better: Better::Lower,
        ours: plan,
        peer: Some(("`true`", nothing)),
        note: "`true` is what starting any process takes; the plan counts the data and searches every layout"
            .into(),
    }
    .print();
}

/// Milliseconds until a command has ended, successfully.
fn milliseconds(command: &mut Command) -> f64 {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let status = command.status().expect("it starts");
    assert!(status.success(), "{command:?}: {status}");
    1e3 * begun.elapsed().as_secs_f64()
}
