//! `dtrain engine`: the environments of engines, made without a network, and what is refused without them.

use super::{RECIPE, corpus, env};
use crate::first_hour::with_untrusted_package;
use dtrain_tests::{TestEnv, root};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Writes wheels of empty packages, and returns their folder.
fn wheels(env: &TestEnv, packages: &[&str]) -> PathBuf {
    let folder = env.path().join("wheels");
    let mut writer = Command::new("python3");
    writer.arg(root().join("tests/data/engines/stub_wheels.py")).arg(&folder).args(packages);
    assert!(writer.status().expect("python3 starts").success());
    folder
}

/// Installs an engine from a folder of wheels in a network namespace that reaches nothing.
fn install(env: &TestEnv, engine: &str, wheels: &str) -> Output {
    let command = env.dtrain(["engine", "install", engine, "--wheels", wheels]);
    let mut alone = Command::new("unshare");
    alone.args(["--map-root-user", "--net"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => alone.env(name, value),
            None => alone.env_remove(name),
        };
    }
    alone.output().expect("unshare starts")
}

#[test]
fn an_engine_is_installed_from_wheels_without_a_network_and_then_listed() {
    let env = env();
    let folder = wheels(&env, &["torch==2.15.0", "transformers==5.24.0"]);
    let wheels = folder.to_str().expect("UTF-8");
    let installed = install(&env, "fsdp", wheels);
    let words = String::from_utf8_lossy(&installed.stderr);
    assert!(installed.status.success(), "{words}");
    let listed = String::from_utf8(env.expect(0, ["engine", "ls"]).stdout).expect("UTF-8");
    let line =
        |engine: &str| listed.lines().find(|line| line.starts_with(engine)).expect("a line").to_owned();
    assert!(line("fsdp").contains("torch 2.15.0, transformers 5.24.0"), "{listed}");
    assert!(line("torchtitan").contains("has no torchtitan"), "{listed}");

    let missing = install(&env, "torchtitan", wheels);
    let words = String::from_utf8_lossy(&missing.stderr);
    assert!(!missing.status.success() && words.contains("No matching distribution"), "{words}");
    let nowhere = install(&env, "fsdp", "/no/wheels");
    let words = String::from_utf8_lossy(&nowhere.stderr);
    assert!(!nowhere.status.success() && words.contains("there is no folder /no/wheels"), "{words}");
}

#[test]
fn a_run_is_refused_before_it_is_recorded_when_packages_are_missing_or_too_old() {
    let env = env();
    let folder = wheels(&env, &["torch==2.7.0", "transformers==4.57.0"]);
    let made =
        Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(env.path().join("old")).status();
    assert!(made.expect("python3 starts").success());
    let site = env.path().join("old/lib");
    let site = std::fs::read_dir(site)
        .expect("a folder")
        .flatten()
        .next()
        .expect("one")
        .path()
        .join("site-packages");
    for wheel in std::fs::read_dir(folder).expect("wheels").flatten() {
        let unpacked =
            Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel.path()).arg(&site).status();
        assert!(unpacked.expect("python3 starts").success());
    }
    let python = format!("cluster.python={}", env.path().join("old/bin/python").display());
    let run = |engine: &str| {
        let output = env.expect(4, ["run", "--no-sample", "--engine", engine, "--set", &python]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let old = run("fsdp");
    for words in ["torch 2.7.0", "transformers 4.57.0", "dtrain engine install fsdp", "this machine"] {
        assert!(old.contains(words), "{words:?} in {old}");
    }
    assert!(run("torchtitan").contains("has no torchtitan"));
    assert!(!env.state().join("trials").exists(), "nothing was recorded");
}

#[test]
fn the_interpreter_of_a_package_does_not_run_before_the_package_is_trusted() {
    let recipe = format!("engine = \"fsdp\"\n{RECIPE}python = \"/usr/bin/true\"\n");
    let house =
        with_untrusted_package(&[("recipe.toml", recipe.as_str()), ("corpus.txt", corpus().as_str())]);
    for arguments in
        [["run", "pack/recipe"].as_slice(), &["plan", "pack/recipe"], &["engine", "ls", "pack/recipe"]]
    {
        let output = house.dtrain(arguments).output().expect("it starts");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && words.contains("dtrain recipe trust pack"),
            "{arguments:?}: {words}"
        );
    }
}
