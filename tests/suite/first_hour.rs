//! Mistakes of a new user's first hour: each ends with a clear message, soon, and loses nothing.

use dtrain_runner::ledger::{History, TrialActivity, TrialDetails};
use dtrain_tests::{TestEnv, root};
use std::process::Output;

/// What the program printed on standard error, with all white space as one space.
fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn newest(house: &TestEnv) -> TrialDetails {
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find("last").expect("a trial");
    history.trial(&id, &|_| TrialActivity::None).expect("a trial")
}

/// A recipe that runs a Python script with these lines.
fn script(house: &TestEnv, lines: &str) -> String {
    house.file("train.py", lines);
    let recipe = "name = \"script\"\n[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\"]\n\
        progress = [\"step {step} loss {loss}\"]\n[objective]\nstop = { steps = 100 }\n[cluster]\nranks = 1\n";
    house.file("recipe.toml", recipe).to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_script_that_raises_is_tried_once_and_its_traceback_is_shown() {
    let house = TestEnv::default();
    let lines = "import sys\nfor step in range(1, 100):\n    if step == 7:\n        raise ValueError('bad batch')\n    \
        print('step', step, 'loss', 1 / step, flush=True)\n";
    let recipe = script(&house, lines);
    let output = house.expect(5, ["run", &recipe]);
    let words = words(&output);
    assert!(words.contains("Traceback (most recent call last):"), "{words}");
    assert!(words.contains("line 4, in <module>") && words.contains("ValueError: bad batch"), "{words}");
    let trial = newest(&house);
    assert_eq!((trial.attempts.len(), trial.row.step), (1, 6));
    assert!(trial.figures.iter().all(|figure| figure.key != "valid.accuracy"), "it told no accuracy");
    let shown = String::from_utf8_lossy(&house.expect(0, ["show", "last"]).stdout).into_owned();
    assert!(!shown.contains("accuracy") && !shown.contains("0 samples/s"), "{shown}");
}

#[test]
fn a_program_that_cannot_be_started_is_tried_once() {
    let house = TestEnv::default();
    let recipe = script(&house, "");
    let output = house.expect(5, ["run", &recipe, "--set", r#"model.argv=["python4", "train.py"]"#]);
    assert!(words(&output).contains("python4: not found"), "{}", words(&output));
    assert_eq!(newest(&house).attempts.len(), 1);
    let output = house.expect(5, ["run", &recipe, "--set", r#"model.argv=["./train.py"]"#]);
    assert!(words(&output).contains("./train.py: not executable"), "{}", words(&output));
}

#[test]
fn the_same_exit_code_twice_at_the_same_step_is_the_end() {
    let house = TestEnv::default();
    let recipe = script(&house, "import sys\nprint('step 1 loss 2', flush=True)\nsys.exit(9)\n");
    let output = house.expect(5, ["run", &recipe]);
    assert_eq!(newest(&house).attempts.len(), 2, "{}", words(&output));
}

#[test]
fn a_loss_that_is_not_a_number_is_recorded_as_such() {
    let house = TestEnv::default();
    let recipe = script(
        &house,
        "for step in range(1, 6):\n    print('step', step, 'loss', 'nan' if step == 3 else 1.5)\n",
    );
    house.expect(0, ["run", &recipe]);
    let history = History::open_read_only(&house.history()).expect("a history");
    let id = history.find("last").expect("a trial");
    let losses = history.series(&id, "loss", dtrain_protocol::Rank(0)).expect("losses");
    let losses: Vec<_> = losses.iter().map(|point| (point.step, point.value.is_nan())).collect();
    assert_eq!(losses, [(1, false), (2, false), (3, true), (4, false), (5, false)]);
}

#[test]
fn a_setting_that_does_not_reach_a_command_is_refused_wherever_it_is_said() {
    let house = TestEnv::default();
    let recipe = script(&house, "print('step 1 loss 2', flush=True)\n");
    for (setting, hint) in [
        ("train.learning_rate=0.1", "--learning-rate={train.learning_rate}"),
        ("objective.stop.time='1 min'", "the program ends by itself"),
        ("layout.tensor=2", "`cluster.ranks` sets how many"),
        ("checkpoint.keep=5", "DTRAIN_RUN_DIR"),
    ] {
        let words = words(&house.expect(2, ["run", &recipe, "--set", setting]));
        let key = setting.split('=').next().expect("a key");
        assert!(words.contains(&format!("`{key}` does not apply to a model of kind \"command\"")), "{words}");
        assert!(words.contains("--> --set") && words.contains(hint), "{words}");
    }
    house.file("base.toml", "[train]\nseed = 7\n");
    let text = std::fs::read_to_string(&recipe).expect("just written");
    let child = house.file("child.toml", format!("extends = \"base.toml\"\n{text}"));
    let words = words(&house.expect(2, ["check", child.to_str().expect("UTF-8")]));
    assert!(words.contains("base.toml:2:1") && words.contains("a recipe that this one extends"), "{words}");
    assert!(!house.state().join("trials").exists(), "nothing was recorded");
}

#[test]
fn a_batch_that_the_data_cannot_fill_is_refused_before_a_trial_is_recorded() {
    let house = TestEnv::default();
    let recipe = root().join("tests/data/tiny/recipe.toml");
    let recipe = recipe.to_str().expect("UTF-8");
    for batch in ["10000", "400000", "1000000"] {
        let arguments =
            ["run", recipe, "--set", &format!("train.batch={batch}"), "--set", "layout.micro_batch=1"];
        let words = words(&house.expect(2, arguments));
        assert!(words.contains(&format!("train.batch is {batch}, and the data has")), "{words}");
    }
    assert!(!house.state().join("trials").exists(), "nothing was recorded");
}

#[test]
fn a_model_that_cannot_fit_is_refused_before_anything_is_measured() {
    let house = TestEnv::default();
    house.file("text.txt", "some text to learn from, again and again\n".repeat(400));
    let recipe = "name = \"large\"\n[model]\nkind = \"decoder\"\nfamily = \"llama\"\nlayers = 80\nhidden = 8192\n\
        heads = 64\ncontext = 128\n[data]\ntrain = \"text.txt\"\n[objective]\nstop = { steps = 10 }\n";
    let recipe = house.file("recipe.toml", recipe);
    let output = house.expect(3, ["plan", recipe.to_str().expect("UTF-8")]);
    let words = words(&output);
    assert!(
        words.contains("no layout fits; the nearest is") && words.contains("GiB are available"),
        "{words}"
    );
    assert!(!words.contains("measuring"), "{words}");
}

#[test]
fn steps_alone_do_not_make_hundreds_of_epochs_and_epochs_are_told() {
    let house = TestEnv::default();
    house.file("text.txt", "some text to learn from, again and again\n".repeat(1000));
    let recipe = "name = \"small\"\n[model]\nkind = \"decoder\"\nlayers = 1\nhidden = 32\nheads = 2\ncontext = 128\n\
        [data]\ntrain = \"text.txt\"\n[objective]\nstop = { steps = 600 }\n";
    let recipe = house.file("recipe.toml", recipe);
    let plan = house.expect(0, ["plan", recipe.to_str().expect("UTF-8"), "--json"]);
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).expect("JSON");
    let plan = if plan["batch"].is_null() { &plan["plan"] } else { &plan };
    let seen = 600 * plan["batch"]["value"].as_u64().expect("a batch");
    let samples = plan["train_samples"].as_u64().expect("counted");
    assert!(seen <= 23 * samples, "{seen} of {samples}");
}

#[test]
fn what_init_writes_is_a_sensible_run_and_its_learning_rate_ends_with_the_time() {
    let house = TestEnv::default();
    house.file("text.txt", "some text to learn from, again and again\n".repeat(1000));
    let recipe = "mine.toml";
    let output = house.expect(0, ["init", recipe, "--template", "decoder", "--data", "text.txt"]);
    assert!(words(&output).contains("note: the data has 38.9 k tokens, and the model"), "{}", words(&output));

    let output = house.expect(0, ["plan", recipe, "--explain"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let epochs = shown.lines().find_map(|line| line.strip_prefix("data ")).expect("it tells its epochs");
    let passes = epochs.trim().split(' ').next().and_then(|passes| passes.parse::<f64>().ok());
    assert!(passes.is_some_and(|passes| passes <= 16.6), "{epochs}");

    let path = house.state().with_file_name(recipe);
    let text = std::fs::read_to_string(&path).expect("it was written");
    let stop = "stop = { time = \"2 min\", epochs = 16 }";
    assert!(text.contains(stop), "{text}");
    std::fs::write(&path, text.replace(stop, "stop = { time = \"2 s\" }")).expect("room on disk");
    let output = house.expect(0, ["plan", recipe]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let total = shown.lines().find(|line| line.starts_with("total ")).expect("a total");
    assert!(total.contains("about ") && total.contains("2.0 s, ended by time"), "{total}");
    let output = house.expect(0, ["run", recipe, "--no-sample"]);
    let told = words(&output);
    assert!(told.contains("s left") && told.contains("%)"), "{told}");
    assert!(
        !told.contains(&format!("step {}/", newest(&house).row.step)),
        "no number of steps is made up: {told}"
    );

    let history = History::open_read_only(&house.history()).expect("a history");
    let trial = newest(&house);
    let series = |key| history.series(&trial.row.id, key, dtrain_protocol::Rank(0)).expect("a series");
    let shares: Vec<f64> = series("elapsed").iter().map(|point| point.value).collect();
    let (last, before) = shares.split_last().expect("it took steps");
    assert!((last - 1.0).abs() < 1e-12 && before.iter().all(|share| *share < 1.0), "{shares:?}");
    let rates: Vec<f64> = series("learning_rate").iter().map(|point| point.value).collect();
    let shown = house.expect(0, ["show", "last", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let peak = shown["trial"]["plan"]["learning_rate"]["value"].as_f64().expect("a rate");
    let end = peak * shown["trial"]["plan"]["recipe"]["train"]["final_fraction"].as_f64().expect("a share");
    assert!((rates.last().expect("steps") / end - 1.0).abs() < 1e-9, "{rates:?} do not end at {end}");
}

#[test]
fn a_measurement_without_memory_ends_with_a_word_and_a_hint() {
    let house = TestEnv::default();
    house.file("text.txt", "some text to learn from, again and again\n".repeat(400));
    let recipe = "name = \"large\"\n[model]\nkind = \"decoder\"\nlayers = 1\nhidden = 4096\nheads = 32\ncontext = 128\n\
        [data]\ntrain = \"text.txt\"\n[objective]\nstop = { steps = 10 }\n";
    let recipe = house.file("recipe.toml", recipe);
    let plan = house.dtrain([std::ffi::OsStr::new("plan"), recipe.as_os_str()]);
    let mut shell = std::process::Command::new("bash");
    shell.envs(plan.get_envs().filter_map(|(key, value)| Some((key, value?))));
    shell.args(["-c", "ulimit -v 1500000; exec \"$0\" \"$@\""]).arg(plan.get_program()).args(plan.get_args());
    let output = shell.output().expect("bash starts");
    let words = words(&output);
    assert_eq!(output.status.code(), Some(6), "{words}");
    assert!(words.contains("cannot measure 1 rank: rank 0: out of memory"), "{words}");
    assert!(words.contains("hint: free some memory") && !words.contains("backtrace"), "{words}");
}

/// A git repository with these files, and the house that has added it as `pack` and trusts it.
fn with_package(files: &[(&str, &str)]) -> TestEnv {
    let house = with_untrusted_package(files);
    house.expect(0, ["recipe", "trust", "pack"]);
    house
}

/// The same without the trust.
pub(crate) fn with_untrusted_package(files: &[(&str, &str)]) -> TestEnv {
    let house = TestEnv::default();
    let folder = house.file("origin/README", "recipes\n").parent().expect("a folder").to_owned();
    for (name, text) in files {
        house.file(&format!("origin/{name}"), text);
    }
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.arg("-C").arg(&folder).args(["-c", "user.name=a", "-c", "user.email=a@example.org"]);
        let output = command.args(arguments).output().expect("git starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "recipes"]);
    let url = format!("file://{}", folder.display());
    house.expect(0, ["recipe", "add", &url, "--name", "pack", "--allow-file"]);
    house
}

#[test]
fn a_package_runs_its_own_script() {
    let command = "[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\"]\nprogress = [\"step {step} loss {loss}\"]\n\
        [objective]\nstop = { steps = 1 }\n[cluster]\nranks = 1\n";
    let script =
        "open('cache', 'w').write('own')\nprint('step 1 loss 1')\nprint('the script of the package')\n";
    let house = with_package(&[("deep/cmd.toml", command), ("deep/train.py", script)]);
    house.file("train.py", "print('the script of whoever stands here')\nprint('step 1 loss 2')\n");
    let run = |name: &str| {
        house.expect(0, ["run", name]);
        String::from_utf8_lossy(&house.expect(0, ["logs", "last"]).stdout).into_owned()
    };
    for _ in 0..2 {
        // What a script writes does not make the package another.
        let logs = run("pack/deep/cmd");
        assert!(logs.contains("the script of the package") && !logs.contains("whoever"), "{logs}");
    }
    // Also where the user's own recipe extends it, and after the copy was changed.
    let mine = house.file("mine.toml", "name = \"mine\"\nextends = \"pack/deep/cmd\"\n");
    let pack = house.file("data/dtrain/recipes/pack/note", "");
    let entries = std::fs::read_dir(pack.parent().expect("a folder")).expect("a folder").flatten();
    let copies = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("run-"));
    for copy in copies {
        std::fs::write(copy.path().join("deep/train.py"), "print('changed')\n").expect("room on disk");
    }
    let logs = run(mine.to_str().expect("UTF-8"));
    assert!(logs.contains("the script of the package") && !logs.contains("changed"), "{logs}");
}

#[test]
fn a_resumed_script_of_a_package_is_the_one_that_was_trusted() {
    let command = "[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\"]\nprogress = [\"step {step} loss {loss}\"]\n\
        [objective]\nstop = { steps = 1 }\n[cluster]\nranks = 1\n";
    let script = "import os\nprint('the script of the package')\n\
        if not os.path.exists('ready'): raise ValueError('not yet')\nprint('step 1 loss 1')\n";
    let house = with_package(&[("cmd.toml", command), ("train.py", script)]);
    house.expect(5, ["run", "pack/cmd"]);
    let shown = house.expect(0, ["show", "last", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let copy = std::path::PathBuf::from(shown["trial"]["plan"]["data_root"].as_str().expect("a folder"));
    std::fs::write(copy.join("train.py"), "print('changed')\nprint('step 1 loss 1')\n")
        .expect("room on disk");
    std::fs::write(copy.join("ready"), "").expect("room on disk");
    house.expect(0, ["resume", "last"]);
    let logs = String::from_utf8_lossy(&house.expect(0, ["logs", "last"]).stdout).into_owned();
    assert!(logs.contains("the script of the package") && !logs.contains("changed"), "{logs}");
    // The stored files from which the copy is made are compared with what was trusted.
    let stored = copy.to_str().expect("UTF-8").replace("/run-", "/");
    std::fs::write(std::path::Path::new(&stored).join("train.py"), "print('changed')\n")
        .expect("room on disk");
    std::fs::remove_file(copy.join("ready")).expect("it was there");
    house.expect(2, ["run", "pack/cmd"]);
    let refused = house.expect(2, ["resume", "last"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("not those of a trusted commit"), "{words}");
}

#[test]
fn a_package_reads_its_own_data_and_a_user_may_name_other() {
    let model = "[model]\nkind = \"decoder\"\nlayers = 1\nhidden = 32\nheads = 2\ncontext = 32\n\
        [data]\ntrain = \"text.txt\"\n[objective]\nstop = { steps = 2 }\n[train]\nbatch = 4\n[cluster]\nranks = 1\n";
    let text = "the text of the package\n".repeat(200);
    let house = with_package(&[("own.toml", model), ("text.txt", &text)]);
    house.file("text.txt", "x");
    house.file("other.txt", "another text\n".repeat(100));
    let samples = |more: &[&str]| {
        house.expect(0, ["run", "pack/own", "--no-sample"].iter().chain(more));
        let shown = house.expect(0, ["show", "last", "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        shown["trial"]["plan"]["train_samples"].as_u64().expect("counted")
    };
    assert!(samples(&[]) > 100, "4,800 bytes in samples of 32");
    assert!(samples(&["--set", "data.train=other.txt"]) < 50, "1,300 bytes in samples of 32");
}
