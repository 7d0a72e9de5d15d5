//! Recipes that go to others: with what they name, and with commands that work as printed.

use dtrain_tests::TestEnv;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What the program printed on standard error, with all white space as one space.
fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn git(folder: &Path, arguments: &[&str]) {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().expect("git starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A work tree `recipes` whose remote is `../team.git`; returns the folder that both are in.
fn repository(house: &TestEnv) -> PathBuf {
    let root = house.file("recipes/README", "recipes\n").parent().expect("a folder").with_file_name("");
    let folder = root.join("recipes");
    git(&root, &["init", "-q", "--bare", "team.git"]);
    git(&folder, &["init", "-q"]);
    for (key, value) in [("user.name", "a"), ("user.email", "a@example.org"), ("commit.gpgsign", "false")] {
        git(&folder, &["config", key, value]);
    }
    git(&folder, &["remote", "add", "origin", "../team.git"]);
    git(&folder, &["add", "."]);
    git(&folder, &["commit", "-q", "-m", "recipes"]);
    root
}

const SCRIPT: &str = "name = \"script\"\n[model]\nkind = \"command\"\nargv = [\"python3\", \"train.py\"]\n\
    progress = [\"step {step} loss {loss}\"]\n[objective]\nstop = { steps = 1 }\n[cluster]\nranks = 1\n";

#[test]
fn a_published_script_runs_where_it_was_added_as_printed() {
    let house = TestEnv::default();
    let root = repository(&house);
    let recipe = house.file("project/recipe.toml", SCRIPT).display().to_string();
    let publish = ["recipe", "publish", &recipe, "--repository", "recipes", "--allow-file"];
    let refused = words(&house.expect(2, publish));
    assert!(refused.contains("`model.argv`: train.py is not there"), "{refused}");
    house.file("project/train.py", "print('step 1 loss 1')\nprint('the published script')\n");
    let published = words(&house.expect(0, publish));
    assert!(published.contains("with train.py"), "{published}");
    let (_, next) = published.split_once("next: dtrain ").expect("what to type next");
    // From another folder.
    let other = root.join("other");
    std::fs::create_dir(&other).expect("a folder");
    let run = |arguments: &mut dyn Iterator<Item = &str>| {
        let output = house.dtrain(arguments).current_dir(&other).output().expect("it starts");
        assert!(output.status.success(), "{}", words(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&mut next.split(' '));
    run(&mut ["recipe", "trust", "team"].into_iter());
    run(&mut ["run", "team/script"].into_iter());
    assert!(run(&mut ["logs", "last"].into_iter()).contains("the published script"));
}

#[test]
fn a_folder_is_added_by_a_relative_path() {
    let house = TestEnv::default();
    let root = repository(&house);
    house.file("recipes/small.toml", SCRIPT);
    git(&root.join("recipes"), &["add", "."]);
    git(&root.join("recipes"), &["commit", "-q", "-m", "small"]);
    let refused = words(&house.expect(2, ["recipe", "add", "recipes"]));
    assert!(refused.contains("--allow-file"), "{refused}");
    house.expect(0, ["recipe", "add", "./recipes", "--allow-file"]);
    house.expect(0, ["recipe", "show", "recipes/small"]);
}

#[test]
fn a_recipe_that_the_library_does_not_have_is_answered_with_those_it_has() {
    let house = TestEnv::default();
    for command in [["recipe", "show"].as_slice(), &["run"], &["plan"]] {
        let said = words(&house.expect(2, command.iter().chain(&["library/gpt"])));
        for name in ["char-gpt", "gpt2-124m", "tiny-llama"] {
            assert!(said.contains(name), "{name}: {said}");
        }
        let bare = words(&house.expect(2, command.iter().chain(&["char-gpt"])));
        assert!(bare.contains("did you mean library/char-gpt?"), "{bare}");
    }
}
