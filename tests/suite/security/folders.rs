//! A recipe folder from another user, with a repository whose settings name programs: none of them runs.

use super::trap::Trap;
use dtrain_tests::root;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A recipe that trains in a moment.
const RECIPE: &str = "[model]\nkind = 'mlp'\ninputs = 2\nhidden = [4]\nclasses = 2\n[data]\ntrain = 'table.csv'\ntarget = 'y'\n\
    [objective]\nstop = { steps = 5 }\n[train]\nbatch = 8\nlearning_rate = 1e-3\n[cluster]\nranks = 1\n";

fn git(folder: &Path, words: &[&str]) {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
    let done =
        Command::new("git").arg("-C").arg(folder).args(identity).args(words).output().expect("git runs");
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A folder with a recipe in a repository, whose files differ from the commit.
fn packed(trap: &Trap, name: &str) -> String {
    let rows: String = (0..64).map(|n| format!("{n},{},{}\n", n % 7, n % 2)).collect();
    trap.house.file(&format!("{name}/table.csv"), format!("a,b,y\n{rows}"));
    trap.house.file(&format!("{name}/.gitattributes"), "* filter=evil diff=evil\n");
    let recipe = trap.house.file(&format!("{name}/recipe.toml"), RECIPE);
    let folder = trap.folder().join(name);
    git(&folder, &["init", "-q"]);
    git(&folder, &["add", "-A"]);
    git(&folder, &["commit", "-q", "-m", "first"]);
    trap.house.file(&format!("{name}/recipe.toml"), format!("{RECIPE}# changed\n"));
    recipe.display().to_string()
}

#[test]
fn no_program_that_a_packed_folder_names_is_run() {
    let trap = Trap::set();
    let fire = trap.folder().join("bin/fire").display().to_string();
    let vectors: [&[(&str, &str)]; 6] = [
        &[("filter.evil.clean", &fire), ("filter.evil.smudge", &fire)],
        &[("filter.evil.process", &fire), ("filter.evil.required", "true")],
        &[("core.fsmonitor", &fire), ("diff.external", &fire)],
        &[("diff.evil.textconv", &fire), ("diff.evil.command", &fire), ("core.pager", &fire)],
        &[("core.hooksPath", "hooks")],
        &[("include.path", "../included")],
    ];
    for (number, vector) in vectors.iter().enumerate() {
        let name = format!("packed-{number}");
        let recipe = packed(&trap, &name);
        let folder = trap.folder().join(&name);
        let included = format!("[filter \"evil\"]\n\tclean = {fire}\n");
        trap.house.file(&format!("{name}/included"), included);
        for hooks in ["hooks", ".git/hooks"] {
            for hook in ["post-index-change", "reference-transaction"] {
                let path = trap.house.file(&format!("{name}/{hooks}/{hook}"), format!("#!/bin/sh\n{fire}\n"));
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
            }
        }
        for (key, value) in *vector {
            git(&folder, &["config", key, value]);
        }
        trap.ends(trap.dtrain(["plan", &recipe]), &[0]);
        trap.ends(trap.dtrain(["run", &recipe]), &[0]);
    }
}

/// One place knows what git must not do.
#[test]
fn git_is_run_in_one_way() {
    fn sources(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).expect("sources are UTF-8");
                let product = text.split("#[cfg(test)]").next().unwrap_or_default();
                if product.contains("Command::new(\"git\")") {
                    found.push(path.strip_prefix(root()).expect("inside").display().to_string());
                }
            }
        }
    }
    let mut found = Vec::new();
    for part in ["recipes", "protocol", "planner", "runner", "worker", "cli"] {
        sources(&root().join(part).join("src"), &mut found);
    }
    assert_eq!(found, ["recipes/src/sharing/git.rs"]);
}

/// burn reads its settings from files of the folder in which a program runs: its logs would go to any file that they name.
#[test]
fn settings_of_burn_in_a_folder_make_it_write_nothing() {
    let trap = Trap::set();
    let rows: String = (0..64).map(|n| format!("{n},{},{}\n", n % 7, n % 2)).collect();
    trap.house.file("packed/table.csv", format!("a,b,y\n{rows}"));
    let recipe = trap.house.file("packed/recipe.toml", RECIPE);
    let written = trap.folder().join("written");
    let sink = format!("level = 'full'\nfile = '{}'\nappend = true\n", written.display());
    for name in ["burn.toml", "Burn.toml"] {
        trap.house
            .file(&format!("packed/{name}"), format!("[autodiff.logger]\n{sink}[fusion.logger]\n{sink}"));
    }
    for name in ["cubecl.toml", "CubeCL.toml"] {
        let parts = ["compilation", "autotune", "profiling"].map(|part| format!("[{part}.logger]\n{sink}"));
        trap.house.file(&format!("packed/{name}"), parts.concat());
    }
    for devices in ["cpu", "gpu"] {
        let device = format!("cluster.devices=\"{devices}\"");
        let mut run = trap.house.dtrain(["run", "recipe.toml", "--quiet", "--no-sample", "--set", &device]);
        let folder = recipe.parent().expect("a folder");
        let output = run.current_dir(folder).env("DTRAIN_SOFTWARE_GPUS", "1").output().expect("it starts");
        println!("{devices}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(devices == "gpu" || output.status.success(), "{output:?}");
        assert!(!written.exists(), "{}", fs::read_to_string(&written).unwrap_or_default());
    }
}
