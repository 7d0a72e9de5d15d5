//! The program of a rank that a training engine trains.
//!
//! The rank begins as `dtrain worker engine`, which prepares the tokens and the initial weights of the host,
//! and then becomes the Python process of the engine. dtrain's Python package and the configuration of the
//! engine are written into the folder of the run.

use super::super::spawn_context::SpawnContext;
use super::run_folder;
use crate::files;
use dtrain_protocol::{Assignment, EngineProcess};
use dtrain_recipes::{ForeignCommand, Framework};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The files of dtrain's Python package for engines, by their path in the package folder.
const PACKAGE: &[(&str, &str)] = &[
    ("dtrain.py", include_str!("../../../python/dtrain.py")),
    ("dtrain_engines/__init__.py", include_str!("../../../python/dtrain_engines/__init__.py")),
    ("dtrain_engines/checkpoints.py", include_str!("../../../python/dtrain_engines/checkpoints.py")),
    ("dtrain_engines/copies.py", include_str!("../../../python/dtrain_engines/copies.py")),
    ("dtrain_engines/export.py", include_str!("../../../python/dtrain_engines/export.py")),
    ("dtrain_engines/fsdp.py", include_str!("../../../python/dtrain_engines/fsdp.py")),
    ("dtrain_engines/fsdp_model.py", include_str!("../../../python/dtrain_engines/fsdp_model.py")),
    ("dtrain_engines/hosts.py", include_str!("../../../python/dtrain_engines/hosts.py")),
    ("dtrain_engines/job.py", include_str!("../../../python/dtrain_engines/job.py")),
    ("dtrain_engines/last_words.py", include_str!("../../../python/dtrain_engines/last_words.py")),
    ("dtrain_engines/manifest.py", include_str!("../../../python/dtrain_engines/manifest.py")),
    ("dtrain_engines/optimizers.py", include_str!("../../../python/dtrain_engines/optimizers.py")),
    ("dtrain_engines/restore.py", include_str!("../../../python/dtrain_engines/restore.py")),
    ("dtrain_engines/schedule.py", include_str!("../../../python/dtrain_engines/schedule.py")),
    ("dtrain_engines/titan.py", include_str!("../../../python/dtrain_engines/titan.py")),
    (
        "dtrain_engines/titan_checkpoint.py",
        include_str!("../../../python/dtrain_engines/titan_checkpoint.py"),
    ),
    ("dtrain_engines/titan_job.py", include_str!("../../../python/dtrain_engines/titan_job.py")),
    ("dtrain_engines/titan_run.py", include_str!("../../../python/dtrain_engines/titan_run.py")),
    ("dtrain_engines/tokens.py", include_str!("../../../python/dtrain_engines/tokens.py")),
];

/// Writes the files of the engine and the assignment of the rank, and returns the program that the rank
/// runs.
pub(super) fn program(
    assignment: &Assignment,
    engine: &EngineProcess,
    context: &SpawnContext<'_>,
) -> io::Result<ForeignCommand> {
    let folder = run_folder(context).join("engine");
    let package = folder.join("python");
    files::make_folder(&package.join("dtrain_engines"))?;
    let own = engine.files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    for (name, text) in PACKAGE.iter().copied().chain(own) {
        write_if_changed(&package.join(name), text.as_bytes())?;
    }
    let request = folder.join(format!("rank-{}.assignment.json", assignment.rank.0));
    files::write(&request, &serde_json::to_vec(assignment)?)?;
    let text = |path: &Path| {
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not UTF-8", path.display()));
        path.to_str().map(str::to_owned).ok_or_else(invalid)
    };
    Ok(ForeignCommand {
        argv: vec![text(&context.worker.path)?, "worker".into(), "engine".into(), text(&request)?],
        env: BTreeMap::from([
            ("PYTHONPATH".to_owned(), python_path(&text(&package)?)),
            // Files in the recipe's folder do not hide those of the package.
            ("PYTHONSAFEPATH".to_owned(), "1".to_owned()),
        ]),
        framework: Framework::Pytorch,
        progress: Vec::new(),
    })
}

/// Returns the user's `PYTHONPATH` behind the folder `package`.
fn python_path(package: &str) -> String {
    match std::env::var("PYTHONPATH") {
        Ok(others) if !others.is_empty() => format!("{package}:{others}"),
        _ => package.to_owned(),
    }
}

/// Writes a file unless it has this content already: another rank of the host may be importing it.
fn write_if_changed(path: &Path, content: &[u8]) -> io::Result<()> {
    match std::fs::read(path) {
        Ok(found) if found == content => Ok(()),
        _ => files::write(path, content),
    }
}

#[cfg(test)]
mod tests {
    use super::PACKAGE;

    #[test]
    fn every_file_of_the_package_is_sent() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/python/dtrain_engines");
        let files = std::fs::read_dir(folder).expect("the package").flatten();
        let mut found: Vec<_> = files
            .filter_map(|file| file.file_name().into_string().ok())
            .filter(|name| name.ends_with(".py"))
            .map(|name| format!("dtrain_engines/{name}"))
            .collect();
        found.sort();
        let sent: Vec<_> = PACKAGE.iter().map(|(name, _)| (*name).to_owned()).skip(1).collect();
        assert_eq!(found, sent);
    }
}
