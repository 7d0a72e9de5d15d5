//! Gives the files of every sample plan to `tests/data/emit_check.py`, which reads them with Python, bash,
//! PyYAML, and the engines' own parsers where they are installed.

use super::*;
use dtrain_skip::{skip, skip_part};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the sample plans, and those that have more than a sample.
fn all() -> Vec<(String, Plan)> {
    let mut all: Vec<_> = plans().into_iter().map(|(name, plan)| (name.to_owned(), plan)).collect();
    let deepseek = newer::newer(fixtures::deepseek(), Precision::Fp8);
    all.push(("deepseek".into(), newer::in_fp8(deepseek, Some(Fp8Recipe::Blockwise))));
    for scales in [Fp8Recipe::Blockwise, Fp8Recipe::Mxfp8] {
        for (name, plan) in [("llama", llama()), ("experts", experts())] {
            all.push((format!("{name}-{}", scales.name()), newer::in_fp8(plan, Some(scales))));
        }
    }
    all.extend(state::plans().map(|(name, plan)| (name.to_owned(), plan)));
    all
}

#[test]
fn the_engines_own_parsers_read_every_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let folder = tempfile::tempdir().expect("a folder for the files");
    let mut folders = Vec::new();
    for (name, plan) in all() {
        for format in ConfigFormat::ALL {
            let Ok(emitted) = emit(&plan, format) else { continue };
            let own = folder.path().join(format!("{name}-{}", format.word()));
            fs::create_dir(&own).expect("a new folder");
            for ConfigFile { name, text } in emitted.files {
                fs::write(own.join(name), text).expect("the file can be written");
            }
            folders.push(own);
        }
    }
    // `tests/run parsers` puts the engines into the first, `tests/run` PyYAML into the second.
    let own =
        ["target/parsers", "target/test-data/python"].map(|folder| root.join(folder).join("bin/python"));
    let python = own.into_iter().find(|path| path.exists()).unwrap_or_else(|| "python3".into());
    let script = root.join("tests/data/emit_check.py");
    let output = match Command::new(&python).arg(script).args(&folders).output() {
        Ok(output) => output,
        Err(error) => return skip(format_args!("{}: {error}", python.display())),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    for reason in said.lines().filter_map(|line| line.strip_prefix("left out: ")) {
        match reason.split(' ').next() {
            Some("yaml") => skip(format_args!("{reason}; `tests/run` installs PyYAML")),
            // Packages of gigabytes.
            engine => skip_part(&format!("the parser of {}", engine.unwrap_or("an engine")), reason),
        }
    }
}
