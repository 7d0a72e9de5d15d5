//! Files of `dtrain plan --emit` from a recipe whose data has hostile names, run by their target programs.

use super::trap::{ATTACKS, Trap};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs a module whose imports are all answered by stand-ins, and prints its list of files as JSON.
const PYTHON: &str = "
import json, sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

class StandIn(MagicMock):
    __path__ = []

class Anything(MetaPathFinder, Loader):
    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split('.')[0] in ('torchtitan', 'torch', 'datasets') else None
    def create_module(self, spec):
        return StandIn()
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Anything())
names = {'__name__': 'train'}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'), names)
print(json.dumps(names['FILES']))
";

/// A trap with a recipe that names every file whose name is an attack; with their names.
fn laid() -> (Trap, String, Vec<String>) {
    let trap = Trap::set();
    let text = "all work and no play makes a dull day; ".repeat(200);
    let names: Vec<String> =
        ATTACKS.iter().filter_map(|attack| trap.hostile_file(&format!("{attack}.txt"), &text)).collect();
    assert!(names.len() > 20, "{names:?}");
    let patterns: Vec<toml::Value> = names.iter().map(|name| escaped(name).into()).collect();
    let recipe = format!(
        "name = 'emitted'\ndescription = {}\n[model]\nkind = 'decoder'\nfamily = 'llama'\nlayers = 2\nhidden = 32\nheads = 2\ncontext = 32\n\
         [data]\ntrain = {}\nvalid = '10%'\n[objective]\nstop = {{ steps = 20 }}\n[train]\nbatch = 8\nlearning_rate = 1e-3\n\
         [layout]\ndata = 2\nzero = 0\nrecompute = 'full'\nrecompute_every = 1\n[cluster]\nranks = 2\n",
        toml::Value::from(ATTACKS.join(" ")),
        toml::Value::from(patterns),
    );
    let recipe =
        trap.house.file("recipe.toml", recipe.replace("\\u0000", "")).to_str().expect("UTF-8").to_owned();
    (trap, recipe, names)
}

/// As a pattern that means this name only.
fn escaped(name: &str) -> String {
    name.chars().map(|c| if "*?[]".contains(c) { format!("[{c}]") } else { c.to_string() }).collect()
}

#[test]
fn data_may_be_called_anything_in_files_for_other_engines() {
    let (trap, recipe, names) = laid();
    // They stand for the programs that the scripts start, and look at each argument as a shell would not.
    for name in ["srun", "torchrun", "deepspeed", "accelerate", "sbatch", "kubectl"] {
        trap.program(name, "printf '<%s>' \"$0\" \"$@\"");
    }
    trap.program("scontrol", "echo node1");
    for format in ["torchtitan", "megatron", "deepspeed", "hf-trainer", "maxtext", "slurm", "kubernetes"] {
        let folder = trap.folder().join(format);
        let to = folder.to_str().expect("UTF-8");
        trap.ends(trap.dtrain(["plan", &recipe, "--emit", format, "--emit-to", to]), &[0]);
        let mut files = 0;
        for file in fs::read_dir(&folder).expect("the folder was made").flatten() {
            files += 1;
            read(&trap, &file.path(), &names);
        }
        assert!(files > 0, "{format}");
    }
}

/// Reads a file as its target program does.
fn read(trap: &Trap, path: &Path, names: &[String]) {
    let text = fs::read_to_string(path).expect("files are UTF-8");
    let wild = |c: char| c.is_ascii_control() && c != '\n';
    match path.extension().and_then(|end| end.to_str()) {
        Some("sh") => {
            // One line of megatron.sh is data of a program in a quoted here-document: JSON, which has no line breaks.
            let is_data = |line: &str| line.starts_with("FILES = ");
            for data in text.lines().filter(|line| is_data(line)) {
                let files = data.trim_start_matches("FILES = ");
                assert!(serde_json::from_str::<Vec<String>>(files).is_ok(), "{data}");
                assert!(text.contains("<<'END_OF_PROGRAM'\n"), "{text}");
            }
            let rest: String =
                text.lines().filter(|line| !is_data(line)).flat_map(|line| [line, "\n"]).collect();
            only_comments_say_fire(&rest, path);
            let mut script = Command::new("bash");
            script.arg(path).current_dir(path.parent().expect("a folder"));
            script.envs([
                ("SLURM_JOB_NUM_NODES", "1"),
                ("SLURM_JOB_NODELIST", "node1"),
                ("SLURM_JOB_ID", "7"),
                // Of maxtext.sh.
                ("PYTHON", "torchrun"),
            ]);
            let output = trap.ends(trap.with_path(script), &[0]);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                said.contains("torchrun>") || said.contains("deepspeed>") || said.contains("<torchrun>"),
                "{said}"
            );
        }
        Some("yaml") => only_comments_say_fire(&text, path),
        Some("yml") => {
            // One path is data: text in quotes, whose end no name can reach.
            let is_data = |line: &&str| line.starts_with("hf_train_files: ");
            let data =
                text.lines().find(is_data).and_then(|line| line.split_once(' ')).expect("it names data").1;
            assert!(serde_json::from_str::<String>(data).is_ok(), "{data}");
            let rest: String =
                text.lines().filter(|line| !is_data(line)).flat_map(|line| [line, "\n"]).collect();
            only_comments_say_fire(&rest, path);
        }
        Some("json") => {
            let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert!(!value.to_string().contains("fire"), "{text}");
        }
        Some("py") => {
            let mut python = Command::new("python3");
            python.args(["-c", PYTHON]).arg(path);
            let output = trap.ends(trap.with_path(python), &[0]);
            let found: Vec<String> = serde_json::from_slice(&output.stdout).expect("the list of files");
            for name in names {
                let name = escaped(name);
                assert!(found.iter().any(|found| found.ends_with(&name)), "{name:?} is not in {found:?}");
            }
        }
        other => panic!("no program reads {other:?}: {}", path.display()),
    }
    assert!(!text.contains(wild), "{} has control characters", path.display());
}

fn only_comments_say_fire(text: &str, path: &Path) {
    for line in text.lines().filter(|line| line.contains("fire")) {
        assert!(
            line.starts_with('#') && !line.starts_with("#SBATCH") && !line.starts_with("#!"),
            "{}: {line}",
            path.display()
        );
    }
}
