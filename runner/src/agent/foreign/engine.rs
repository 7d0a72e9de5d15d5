//! The program of a rank that a training engine trains.
//!
//! The rank begins as `dtrain worker engine`, which prepares the tokens and the initial weights of the host,
//! and then becomes the Python process of the engine. dtrain's Python package and the configuration of the
//! engine are written into the folder of the run.

use super::super::spawn_context::SpawnContext;
use super::run_folder;
use crate::{engine_environment, engine_package, files};
use dtrain_protocol::{Assignment, EngineProcess};
use dtrain_recipes::{ForeignCommand, Framework};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Writes the files of the engine and the assignment of the rank, and returns the program that the rank
/// runs.
pub(super) fn program(
    assignment: &Assignment,
    engine: &EngineProcess,
    context: &SpawnContext<'_>,
) -> io::Result<ForeignCommand> {
    let folder = run_folder(context).join("engine");
    let package = folder.join("python");
    files::make_folder(&folder)?;
    engine_package::write(&package, engine.files.iter().map(|(name, text)| (name.as_str(), text.as_str())))?;
    let text = |path: &Path| {
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not UTF-8", path.display()));
        path.to_str().map(str::to_owned).ok_or_else(invalid)
    };
    let python =
        engine_environment::interpreter(&context.folder.home(), engine.engine, engine.python.as_deref());
    let local = Assignment {
        engine: Some(EngineProcess { python: Some(text(&python)?), ..engine.clone() }),
        ..assignment.clone()
    };
    let request = folder.join(format!("rank-{}.assignment.json", assignment.rank.0));
    files::write(&request, &serde_json::to_vec(&local)?)?;
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
