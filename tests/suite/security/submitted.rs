//! Input of Slurm: its options one by one as they were written, a constant script, and the arguments as
//! typed.

use super::trap::{ATTACKS, Trap};
use std::fs;
use std::process::Command;

/// Stands for sbatch: keeps its arguments and its input, and answers.
const SBATCH: &str = r#"case " $* " in
*" --test-only "*) echo "sbatch: Job 1 to start at 2030-01-01T00:00:00" >&2 ;;
*) printf '%s\0' "$@" >"$WITNESS/arguments"; cat >"$WITNESS/script"
   for word; do case $word in --export=*) names=${word#--export=} ;; --*) ;; *) break ;; esac; done
   for name in ${names//,/ }; do echo "$name=${!name}"; done >"$WITNESS/environment"; echo 7 ;;
esac"#;

const TRAINING: &str = "[model]\nkind = 'decoder'\nlayers = 1\nhidden = 8\nheads = 1\ncontext = 8\n[data]\ntrain = 'text.txt'\n\
                        [objective]\nstop = { steps = 1 }\n[cluster]\nlauncher = 'slurm'\n";

#[test]
fn a_job_is_submitted_as_it_was_written_and_its_script_is_constant() {
    let trap = Trap::set();
    trap.program("sbatch", SBATCH);
    trap.house.file("text.txt", "text ".repeat(1000));
    let witness = trap.folder();
    let mut submitted = 0;
    for (at, attack) in ATTACKS.iter().enumerate().filter(|(_, attack)| !attack.contains('\0')) {
        // The attack as it is and as the value of an option, and in the name of the recipe's own file.
        let name = format!("{attack}{at}").replace(['/', '\n', '\r'], "_");
        for option in [(*attack).to_owned(), format!("--comment={attack}")] {
            let slurm =
                format!("{TRAINING}[cluster.slurm]\noptions = [{}]\n", toml::Value::from(option.as_str()));
            let recipe = trap.house.file(&format!("./{name}.toml"), slurm);
            let recipe = recipe.to_str().expect("UTF-8");
            drop(fs::remove_file(witness.join("arguments")));
            let mut command = trap.dtrain(["run", recipe, "--detach"]);
            command.env("WITNESS", &witness);
            let code = trap.ends(command, &[0, 2]).status.code();
            assert_eq!(code == Some(0), witness.join("arguments").exists(), "{option:?}");
            if code == Some(0) {
                submitted += 1;
                arrived(&trap, &option, recipe);
            }
        }
        for key in ["partition", "account"] {
            let slurm = format!("{TRAINING}[cluster.slurm]\n{key} = {}\n", toml::Value::from(*attack));
            let recipe = trap.house.file("plain.toml", slurm);
            let mut command = trap.dtrain(["run", recipe.to_str().expect("UTF-8"), "--detach"]);
            command.env("WITNESS", &witness);
            if trap.ends(command, &[0, 2]).status.code() == Some(0) {
                arrived(&trap, &format!("--{key}={attack}"), recipe.to_str().expect("UTF-8"));
            }
        }
    }
    assert!(submitted > 15, "only {submitted} were accepted");
}

/// A secret of the shell that submits the job is neither on its command line nor in its environment, unless the recipe names it.
#[test]
fn a_job_gets_no_variable_that_nobody_named() {
    let trap = Trap::set();
    trap.program("sbatch", SBATCH);
    trap.house.file("text.txt", "text ".repeat(1000));
    let submitted = |environment: &str| {
        let recipe = trap.house.file("job.toml", format!("{TRAINING}[cluster.slurm]\n{environment}\n"));
        let mut command = trap.dtrain(["run", recipe.to_str().expect("UTF-8"), "--detach"]);
        command.env("WITNESS", trap.folder()).env("HF_TOKEN", "canary").env("HF_HOME", "/models");
        trap.ends(command, &[0]);
        let read = |name: &str| fs::read_to_string(trap.folder().join(name)).expect("sbatch wrote it");
        assert!(!read("arguments").contains("canary"));
        read("environment")
    };
    let plain = submitted("");
    assert!(plain.contains("PATH=/") && plain.contains("DTRAIN_STATE=/"), "{plain}");
    assert!(!plain.contains("canary") && !plain.contains("HF_HOME"), "{plain}");
    let named = submitted("environment = [\"HF_HOME\"]");
    assert!(named.contains("HF_HOME=/models\n") && !named.contains("canary"), "{named}");
}

/// The option is one argument, nothing of it is the script, and the job gets the words that were typed.
fn arrived(trap: &Trap, option: &str, recipe: &str) {
    let found = fs::read_to_string(trap.folder().join("arguments")).expect("UTF-8");
    let words: Vec<&str> = found.trim_end_matches('\0').split('\0').collect();
    assert!(words.contains(&option), "{option:?} is not one of {words:?}");
    let script = words.iter().position(|word| !word.starts_with('-')).expect("there is a script");
    assert_eq!(words[script], "/dev/stdin", "the first word that is no option is the script");
    let program = words[script + 1];
    assert!(
        program.starts_with(trap.house.state().to_str().expect("UTF-8")) && program.ends_with("/dtrain"),
        "{program}"
    );
    for once in ["--output=", "--error=", "--chdir="] {
        assert_eq!(
            words[..script].iter().filter(|word| word.starts_with(once)).count(),
            1,
            "{once} in {words:?}"
        );
    }
    assert!(!words[..script].iter().any(|word| word.starts_with("--wrap")), "{words:?}");
    let exported: Vec<_> = words[..script].iter().filter_map(|word| word.strip_prefix("--export")).collect();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_,".contains(c);
    assert!(exported.len() == 1 && exported[0][1..].chars().all(is_name), "names only: {words:?}");
    assert!(!exported[0].contains("ALL,"), "{words:?}");

    let text = fs::read_to_string(trap.folder().join("script")).expect("UTF-8");
    assert_eq!(text, "#!/bin/sh\nexec \"$@\"\n");
    let mut job = Command::new("sh");
    job.arg(trap.folder().join("script")).args(["printf", "%s\\n"]).args(&words[script + 2..]);
    let output = trap.with_path(job).output().expect("sh is there");
    trap.nothing_fired(&|| format!("the job of {option:?}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("\nrun\n{recipe}\n")), "{said:?}");
}
