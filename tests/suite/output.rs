//! Output of scripts: metrics are parsed, and unparsed lines are reported.

use dtrain_tests::TestEnv;
use serde_json::Value;
use std::process::Output;

/// A house with a script, and a recipe that reads its output by the templates; and the path of the recipe.
fn house(script: &str, templates: &str, objective: &str) -> (TestEnv, String) {
    let house = TestEnv::default();
    house.file("train.py", script);
    let progress = if templates.is_empty() { String::new() } else { format!("progress = {templates}") };
    let recipe = format!(
        "name = \"script\"\n[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\"]\n{progress}\n\
         [objective]\n{objective}\n[cluster]\nranks = 1\n"
    );
    let recipe = house.file("recipe.toml", recipe).to_str().expect("UTF-8").to_owned();
    (house, recipe)
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Steps and values of a series of the newest trial.
fn series(house: &TestEnv, key: &str) -> Vec<(u64, f64)> {
    let shown = house.expect(0, ["show", "last", "--json", "--series", key]);
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let all = shown["series"].as_array().expect("series");
    let points = all.iter().flat_map(|series| series["points"].as_array().expect("points"));
    points
        .map(|point| (point["step"].as_u64().expect("a step"), point["value"].as_f64().expect("a value")))
        .collect()
}

#[test]
fn a_bar_that_only_returns_the_carriage_is_read_while_it_moves() {
    // It goes on for a minute unless its target is seen.
    let script = "import sys, time\nfor i in range(1, 13):\n    \
        sys.stderr.write('\\rtrain: step %d/60 acc=%.3f \\r' % (i, i / 60))\n    sys.stderr.flush()\n\
        time.sleep(60)\nopen('end', 'w')\n";
    let objective = "metric = \"acc\"\ngoal = \"max\"\nstop = { target = 0.2 }";
    let (house, recipe) = house(script, "[\"step {step}/* acc={acc}\"]", objective);
    let said = words(&house.expect(0, ["run", &recipe]));
    assert!(said.contains("target reached after 12 steps"), "{said}");
    assert!(!std::path::Path::new(&recipe).with_file_name("end").exists(), "it was ended at its target");
    let logs = house.expect(0, ["logs", "last"]).stdout;
    assert!(String::from_utf8_lossy(&logs).contains("step 12/60"));
}

#[test]
fn fractions_of_an_epoch_keep_every_loss() {
    let script =
        "for i in range(1, 9):\n    print({'loss': round(1 / i, 4), 'epoch': 0.25 * i}, flush=True)\n";
    let (house, recipe) = house(script, "[\"'loss': {loss}, 'epoch': {step}\"]", "");
    let said = words(&house.expect(0, ["run", &recipe]));
    assert_eq!(said.matches("not a whole number").count(), 1, "{said}");
    let losses = series(&house, "loss");
    let steps: Vec<u64> = losses.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [250, 500, 750, 1000, 1250, 1500, 1750, 2000]);
    assert_eq!((losses[0].1, losses[7].1), (1.0, 0.125));
    assert!(!said.contains("samples/s"), "no number of samples is known: {said}");
}

#[test]
fn a_counter_that_begins_again_is_continued() {
    let script = "for epoch in range(3):\n    for step in range(1, 5):\n        print('step', step, 'loss', 1 / step)\n";
    let (house, recipe) = house(script, "[\"step {step} * loss {loss}\"]", "");
    let said = words(&house.expect(0, ["run", &recipe]));
    assert!(said.contains("after 12 steps") && said.matches("began again").count() == 1, "{said}");
    assert_eq!(series(&house, "loss").len(), 12);
}

#[test]
fn values_that_are_no_steps_are_ignored_and_said() {
    let script = "import os\nfd = int(os.environ['DTRAIN_EVENTS_FD'])\n\
        for step in (1, 18446744073709551615, -3, 2): os.write(fd, b'{\"step\": %d, \"loss\": 0.5}\\n' % step)\n";
    let (house, recipe) = house(script, "", "");
    let said = words(&house.expect(0, ["run", &recipe]));
    assert!(said.contains("after 2 steps") && said.contains("is ignored"), "{said}");
}

#[test]
fn columns_and_colours_are_read() {
    let script = "for i in range(1, 6): print(i, 0.5 / i, 0.1 * i, sep=',')\n";
    let (columns, recipe) = house(script, "[\"{step},{loss},{acc}\"]", "");
    let said = words(&columns.expect(0, ["run", &recipe]));
    assert!(said.contains("after 5 steps"), "{said}");
    let script = "for i in range(1, 4): print('\\x1b[32mstep \\x1b[1m%d\\x1b[0m loss \\x1b[31m%.4f\\x1b[0m' % (i, 1 / i))\n";
    let (colours, recipe) = house(script, "[\"step {step} loss {loss}\"]", "");
    let said = words(&colours.expect(0, ["run", &recipe]));
    assert!(said.contains("after 3 steps"), "{said}");
}

const CAPITALS: &str =
    "for i in range(1, 4): print('Step: %d Loss: %.3f F1: 0.%d' % (i, 1 / i, i), flush=True)\n";

#[test]
fn a_run_whose_output_matches_no_template_fails_and_shows_both() {
    let (house, recipe) = house(CAPITALS, "[\"step {step} loss {loss}\"]", "");
    let said = words(&house.expect(5, ["run", &recipe]));
    assert!(said.contains("no line of the output of script-1 matched"), "{said}");
    assert!(said.contains("`step {step} loss {loss}`: expected `step`"), "{said}");
    assert!(said.contains("Step: 3 Loss: 0.333"), "the last lines: {said}");
    let log = said.split("--try ").nth(1).and_then(|rest| rest.split('`').next()).expect("a hint");
    let tried = words(&house.expect(2, ["check", &recipe, "--try", log]));
    assert!(tried.contains("no line of"), "{tried}");
}

#[test]
fn a_metric_that_was_never_reported_fails_the_run() {
    let objective = "metric = \"f1\"\ngoal = \"max\"";
    let (capitals, recipe) = house(CAPITALS, "[\"Step: {step} Loss: {loss}\", \"f1 {f1}\"]", objective);
    let said = words(&capitals.expect(5, ["run", &recipe]));
    assert!(said.contains("script-1 never reported `f1`") && said.contains("it reported loss"), "{said}");
    assert!(said.contains("template `f1 {f1}`") && !said.contains("template `Step"), "{said}");
    let (silent, recipe) = house("print('done')\n", "", objective);
    let said = words(&silent.expect(5, ["run", &recipe]));
    assert!(said.contains("never reported `f1`"), "{said}");
}

#[test]
fn a_script_without_templates_and_one_that_reports_otherwise_end_well() {
    let (silent, recipe) = house("print('done')\n", "", "");
    silent.expect(0, ["run", &recipe]);
    let script =
        "import os\nos.write(int(os.environ['DTRAIN_EVENTS_FD']), b'{\"step\": 1, \"loss\": 0.5}\\n')\n";
    let (events, recipe) = house(script, "[\"step {step} loss {loss}\"]", "");
    let said = words(&events.expect(0, ["run", &recipe]));
    assert!(said.contains("after 1 step\n"), "{said}");
}

#[test]
fn a_study_without_a_value_shows_the_last_lines_beside_the_templates() {
    let house = TestEnv::default();
    house.file("train.py", CAPITALS);
    let recipe = house.file(
        "recipe.toml",
        "[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\", \"{params.x}\"]\n\
         progress = [\"step {step} f1 {f1}\"]\n[params]\nx = { uniform = [0.0, 1.0] }\n\
         [objective]\nmetric = \"f1\"\ngoal = \"max\"\n[cluster]\nranks = 1\n",
    );
    let said = words(&house.expect(5, ["tune", recipe.to_str().expect("UTF-8"), "--trials", "1"]));
    assert!(said.contains("without a value") && said.contains("step {step} f1 {f1}"), "{said}");
    assert!(said.contains("| Step: 3 Loss: 0.333 F1: 0.3"), "{said}");
}

#[test]
fn check_tries_templates_on_an_output() {
    let (house, recipe) = house("", "[\"step {step} loss {loss}\", \"epoch {step}: f1 {f1}\"]", "");
    let output = house
        .file("output.txt", "loading\n\nstep 1 loss 4\r\nstep 2 loss 3\n\x1b[1mepoch\x1b[0m 1, f1 0.5\n");
    let output = output.to_str().expect("UTF-8");
    let page = String::from_utf8(house.expect(0, ["check", &recipe, "--try", output]).stdout).expect("UTF-8");
    assert!(page.contains("reads 2 lines") && page.contains("step = 1, loss = 4"), "{page}");
    assert!(page.contains("line 5, column 8: expected `:`, found `, f1 0.5`"), "{page}");
    assert!(page.contains("  epoch 1, f1 0.5\n         ^"), "{page}");
    let json = house.expect(0, ["check", &recipe, "--try", output, "--json"]).stdout;
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!((&json["format"], &json["lines"]), (&"dtrain.template_matches/2".into(), &4.into()));
    let [first, second] = [&json["templates"][0], &json["templates"][1]];
    assert_eq!((&first["matched"], &first["first"]["line"]), (&2.into(), &3.into()));
    assert_eq!(first["first"]["values"]["loss"], 4.0);
    assert_eq!((&second["nearest"]["line"], &second["nearest"]["column"]), (&5.into(), &8.into()));
    house.expect(2, ["check", &recipe, "--try", "nowhere.txt"]);
}

#[test]
fn epochs_that_are_counted_by_themselves_replace_no_step() {
    let script = "n = 0\nfor epoch in range(1, 8):\n    for step in range(1, 6):\n        n += 1\n        \
        print('step', step, 'loss', 1 / n)\n    print('epoch', epoch, 'acc', epoch / 10)\n";
    let templates = "[\"step {step} loss {loss}\", \"epoch {step} acc {acc}\"]";
    let (house, recipe) = house(script, templates, "");
    let said = words(&house.expect(0, ["run", &recipe]));
    assert!(said.contains("after 35 steps") && !said.contains("read no line"), "{said}");
    assert_eq!(series(&house, "loss").len(), 35);
    let epochs: Vec<u64> = series(&house, "acc").iter().map(|(step, _)| *step).collect();
    assert_eq!(epochs, (1..=7).collect::<Vec<_>>());
}

#[test]
fn lines_of_json_with_other_names_have_counters_of_their_own() {
    let script = "import json, os\nf = os.fdopen(int(os.environ['DTRAIN_EVENTS_FD']), 'w')\n\
        for step in range(1, 16):\n    f.write(json.dumps({'step': step, 'loss': 1 / step}) + '\\n')\n    \
        if step % 5 == 0: f.write(json.dumps({'step': step // 5, 'acc': step / 20}) + '\\n')\n";
    let (house, recipe) = house(script, "", "");
    let said = words(&house.expect(0, ["run", &recipe]));
    assert!(said.contains("after 15 steps") && !said.contains("began again"), "{said}");
    assert_eq!(series(&house, "acc").iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_speed_that_is_not_known_is_not_shown() {
    let (once, recipe) = house("print('step 1 loss 0.5')\n", "[\"step {step} loss {loss}\"]", "");
    let said = words(&once.expect(0, ["run", &recipe]));
    assert!(said.contains("training loss    0.5000\n") && !said.contains("typical step"), "{said}");
    let listed = once.expect(0, ["history", "--json"]).stdout;
    let listed: Value = serde_json::from_slice(&listed).expect("JSON");
    let row = listed["trials"].as_array().and_then(|rows| rows.first()).expect("a trial");
    assert_eq!(row["step_seconds"], Value::Null, "{row}");
    let script = "for i in range(1, 5): print('epoch', 0.25 * i, 'loss', 1 / i)\n";
    let objective = "stop = { steps = 4 }";
    let (fractions, recipe) = house(script, "[\"epoch {step} loss {loss}\"]", objective);
    let said = words(&fractions.expect(0, ["run", &recipe]));
    assert!(said.contains("after 1,000 steps") && !said.contains("typical step"), "{said}");
}

#[test]
fn a_bar_that_moves_the_cursor_is_read_while_it_moves() {
    // It goes on for a minute unless its target is seen.
    for bar in ["'\\x1b[1G' + text", "text + '\\b' * len(text)"] {
        let script = format!(
            "import sys, time\nfor i in range(1, 13):\n    text = 'step %d acc=%.3f ' % (i, i / 60)\n    \
             sys.stderr.write({bar})\nsys.stderr.write('\\x1b[1G')\nsys.stderr.flush()\n\
             time.sleep(60)\nopen('end', 'w')\n"
        );
        let objective = "metric = \"acc\"\ngoal = \"max\"\nstop = { target = 0.2 }";
        let (house, recipe) = house(&script, "[\"step {step} acc={acc}\"]", objective);
        let said = words(&house.expect(0, ["run", &recipe]));
        assert!(said.contains("target reached after 12 steps"), "{said}");
        assert!(!std::path::Path::new(&recipe).with_file_name("end").exists(), "it was ended at its target");
    }
}

#[test]
fn lines_of_json_that_are_not_understood_are_quoted_once() {
    let script = "import os\nfd = int(os.environ['DTRAIN_EVENTS_FD'])\n\
        for step in (1, 2): os.write(fd, (str({'step': step, 'loss': 0.5}) + '\\n').encode())\n";
    let (house, recipe) = house(script, "", "");
    let said = words(&house.expect(0, ["run", &recipe]));
    assert_eq!(said.matches("DTRAIN_EVENTS_FD is ignored").count(), 1, "{said}");
    assert!(said.contains("found `{'step': 1, 'loss': 0.5}`"), "{said}");
}

#[test]
fn templates_that_read_no_line_and_losses_that_are_never_finite_are_warned_of() {
    let script = "for i in range(1, 4): print('step', i, 'loss nan')\nprint('Val acc: 0.5')\n";
    let templates = "[\"step {step} loss {loss}\", \"loss {loss}\", \"val acc: {acc}\"]";
    let (house, recipe) = house(script, templates, "");
    let said = words(&house.expect(0, ["run", &recipe]));
    assert!(said.contains("template `val acc: {acc}` read no line: expected `val`"), "{said}");
    assert!(said.contains("`loss {loss}` read no line: an earlier template reads the 3 lines"), "{said}");
    assert!(said.contains("`loss` was never a finite number"), "{said}");
    assert!(!said.contains("`step {step} loss {loss}` read no line"), "{said}");
}

#[test]
fn an_accuracy_in_percent_is_shown_as_one() {
    for (template, line) in [
        ("acc {valid_accuracy}%, loss {valid_loss}", "acc 93.0%"),
        ("acc {valid_accuracy}, loss {valid_loss}", "acc 0.93"),
    ] {
        let script = format!("print('{line}, loss 0.5')\n");
        let (house, recipe) = house(&script, &format!("[\"{template}\"]"), "");
        let said = words(&house.expect(0, ["run", &recipe]));
        assert!(said.contains("accuracy         93.0%"), "{said}");
        assert_eq!(series(&house, "valid.accuracy"), [(1, 0.93)]);
    }
}

#[test]
fn a_dict_of_python_is_read_with_its_braces() {
    let script = "for i in (1, 2): print({'loss': 1 / i, 'epoch': float(i)})\n";
    let (house, recipe) = house(script, "[\"{'loss': {loss}, 'epoch': {step}}\"]", "");
    house.expect(0, ["run", &recipe]);
    assert_eq!(series(&house, "loss"), [(1, 1.0), (2, 0.5)]);
}
