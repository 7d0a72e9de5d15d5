//! Figures mean one thing, and plans follow what was measured last.

use dtrain_tests::{TestEnv, root};
use serde_json::Value;
use std::process::Command;

/// A house with a table and the recipe of a perceptron over it.
fn house() -> (TestEnv, String) {
    let house = TestEnv::default();
    let example = root().join("examples/table-mlp");
    for name in ["recipe.toml", "rings.csv"] {
        house.file(name, std::fs::read(example.join(name)).expect("an example"));
    }
    (house, "recipe.toml".to_owned())
}

/// Seconds of a duration as people read it.
fn seconds(text: &str) -> f64 {
    let (number, unit) = text.split_once(' ').unwrap_or_else(|| panic!("`{text}` has no unit"));
    let number: f64 = number.parse().unwrap_or_else(|_| panic!("`{text}` has no number"));
    number
        * match unit {
            "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            _ => panic!("`{text}` has an odd unit"),
        }
}

/// The cells of a line of `show`, by two blanks or more.
fn cells(page: &str, section: &str, name: &str) -> Vec<String> {
    let lines =
        page.lines().skip_while(|line| *line != section).skip(1).take_while(|line| line.starts_with(' '));
    let line = lines.map(str::trim).find(|line| line.starts_with(&format!("{name}  ")));
    let line = line.unwrap_or_else(|| panic!("no `{name}` below `{section}`:\n{page}"));
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_phases_of_one_rank_add_up_to_the_step() {
    let (house, recipe) = house();
    house.expect(0, ["run", &recipe, "--set", "cluster.ranks=1", "--set", "objective.stop={steps=200}"]);
    let page = String::from_utf8(house.expect(0, ["show", "last"]).stdout).expect("UTF-8");
    let section = "A TYPICAL STEP OF EACH RANK";
    let median = |name: &str| seconds(&cells(&page, section, name)[3]);
    let phases =
        ["forward", "backward", "communication", "pipeline bubble", "optimizer", "samples, overhead"];
    let (step, sum) = (median("step"), phases.into_iter().map(median).sum::<f64>());
    // Each is rounded to a tenth of its unit.
    assert!((sum / step - 1.0).abs() < 0.06, "{sum} and {step}:\n{page}");
    assert_eq!(cells(&page, "SPEED AND MEMORY", "step")[2], cells(&page, section, "step")[3], "{page}");
    // No page calls the rows of a table tokens.
    assert!(page.contains("samples/s") && !page.contains("token"), "{page}");
    for args in [&["history"][..], &["plan", &recipe], &["compare", "last", "last"]] {
        let said = String::from_utf8(house.expect(0, args).stdout).expect("UTF-8");
        assert!(!said.to_lowercase().contains("token") && !said.contains("TOK/S"), "{args:?}: {said}");
    }
}

#[test]
fn a_history_with_a_bad_day_predicts_what_three_good_runs_took() {
    let (house, recipe) = house();
    let predicted = || {
        let plan = house.expect(0, ["plan", &recipe, "--set", "cluster.ranks=1", "--json"]).stdout;
        let plan: Value = serde_json::from_slice(&plan).expect("JSON");
        let choices = plan.pointer("/plan/choices").or(plan.pointer("/choices"));
        choices.and_then(|all| all.pointer("/0/estimate/step")).and_then(Value::as_f64).expect("a step")
    };
    let before = predicted();
    for _ in 0..8 {
        house.expect(0, ["run", &recipe, "--set", "cluster.ranks=1", "--set", "objective.stop={steps=12}"]);
    }
    // What eight runs of this busy machine took is replaced: five on a bad day, then three good ones.
    let times = [9.5, 12.0, 3.1, 10.7, 8.4, 1.03, 0.97, 1.02].map(|times| times * before);
    let lines = "import sqlite3, sys\nbase = sqlite3.connect(sys.argv[1])\n\
        rows = [row for row, in base.execute('SELECT id FROM trial ORDER BY id')]\n\
        assert len(rows) == len(sys.argv) - 2, rows\n\
        for row, seconds in zip(rows, sys.argv[2:]):\n    \
        base.execute('UPDATE trial SET measured_step_seconds = ? WHERE id = ?', (float(seconds), row))\n\
        base.commit()\n";
    let edit = |times: &[f64]| {
        let mut python = Command::new("python3");
        python.args(["-c", lines]).arg(house.history()).args(times.iter().map(f64::to_string));
        assert!(python.status().expect("Python starts").success());
    };
    edit(&times);
    let after = predicted();
    assert!((after / before - 1.0).abs() < 0.15, "{before} before, {after} after three good runs");
    // While the day is bad, the prediction follows it.
    edit(&[times[5], times[6], times[7], 1.01 * before, 1.0 * before, times[0], times[1], times[4]]);
    assert!(predicted() > 3.0 * before, "{} on a bad day", predicted());
}
