//! `dtrain engine`: installs the Python environments of training engines, and shows what is installed.

use crate::args::{EngineCommand, EngineInstallArgs, EngineListArgs, LayerArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::engine_environments::{THIS_MACHINE, on_all_hosts};
use crate::exit_code::ExitReason;
use crate::hosts;
use crate::load_recipe::load_without_running;
use crate::packages::{failure, store, trust};
use dtrain_recipes::TrainingEngine;
use dtrain_recipes::sharing::trust::permit;
use dtrain_runner::engine_environment::{EngineEnvironment, examine, folder, install};
use dtrain_runner::launch::relay::RemoteHost;
use indicatif::ProgressBar;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// JSON document that `dtrain engine` prints: each engine on each host.
#[derive(Serialize)]
struct EngineReport {
    engines: Vec<EngineOnHost>,
}

/// JSON of one engine on one host.
#[derive(Serialize)]
struct EngineOnHost {
    engine: TrainingEngine,
    host: String,
    /// Environment of the engine; `null` if the engine cannot be started.
    environment: Option<EngineEnvironment>,
    /// Reason why the engine cannot be started; `null` if it can.
    problem: Option<String>,
}

/// Installs or lists engines.
pub(crate) fn run(context: &Context, command: EngineCommand) -> CommandResult {
    match command {
        EngineCommand::Install(args) => install_engine(context, &args),
        EngineCommand::Ls(args) => list(context, &args),
    }
}

/// Hosts that the arguments name, with the interpreter that the recipe names.
fn named_hosts(
    context: &Context,
    args: &EngineListArgs,
) -> Result<(Vec<RemoteHost>, Option<String>), CommandError> {
    let LayerArgs { set, cluster } = &args.layers;
    // Without a recipe and its settings, this machine is meant.
    if args.recipe.is_none() && cluster.is_none() && set.is_empty() {
        return Ok((Vec::new(), None));
    }
    let name = args.recipe.as_deref().unwrap_or("recipe.toml");
    let loaded = load_without_running(name, &args.layers, &[])?;
    // Its hosts are connected to, and its interpreter runs there.
    permit(&store(&loaded.project, false)?, &trust()?, &loaded.checked).map_err(|error| failure(&error))?;
    let recipe = loaded.checked.recipe;
    Ok((hosts::connect_all(context, &recipe)?, recipe.cluster.python))
}

fn install_engine(context: &Context, args: &EngineInstallArgs) -> CommandResult {
    let engine = TrainingEngine::from_name(&args.engine).expect("the parser knows the names");
    let (mut others, python) = named_hosts(context, &args.hosts)?;
    if let Some(python) = python {
        context.out.say(&format!(
            "{}: the recipe names {python} in cluster.python, which is used in place of the installed environment",
            context.out.paint.yellow("note")
        ));
    }
    let wheels = args.wheels.as_deref().map(std::path::absolute).transpose().map_err(|error| {
        CommandError::new(ExitReason::Usage, "cannot use the folder of --wheels").cause(error.to_string())
    })?;
    if others.is_empty() {
        context.out.say(&format!("installing {engine} into {}", folder(&context.home, engine).display()));
    } else {
        context.out.say(&format!("installing {engine} on {} hosts", others.len()));
    }
    let progress = context.out.draws().then(ProgressBar::new_spinner);
    if let Some(bar) = &progress {
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    let installed = on_all_hosts(&mut others, |host| {
        let name = host.as_ref().map_or(THIS_MACHINE.to_owned(), |host| host.name.clone());
        let mut say = |line: &str| {
            let text = format!("{name}: {line}");
            match &progress {
                Some(bar) => bar.set_message(text),
                None => context.out.say(&text),
            }
        };
        match host {
            Some(host) => host.install_engine(engine, wheels.as_deref(), &mut say),
            None => install(&context.home, engine, wheels.as_deref(), &mut say),
        }
    });
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    let rows: Vec<_> =
        installed.into_iter().map(|(host, result)| EngineOnHost::new(engine, host, result)).collect();
    let failed = CommandError::new(ExitReason::Infrastructure, format!("{engine} was not installed"));
    let problems: Vec<String> =
        rows.iter().filter_map(|row| Some(format!("{}: {}", row.host, row.problem.as_ref()?))).collect();
    print(context, rows)?;
    if problems.is_empty() {
        context.out.next(&format!("dtrain run recipe.toml --engine {engine}"));
        return Ok(ExitReason::Done);
    }
    let failed = problems.into_iter().fold(failed, CommandError::cause);
    Err(if wheels.as_deref().is_some_and(Path::is_dir) || !others.is_empty() {
        failed
    } else {
        failed.hint("without a network, `--wheels FOLDER` takes packages from a folder")
    })
}

fn list(context: &Context, args: &EngineListArgs) -> CommandResult {
    let (mut others, python) = named_hosts(context, args)?;
    let engines = TrainingEngine::ALL.iter().filter(|engine| engine.is_foreign());
    let mut rows = Vec::new();
    for engine in engines {
        let found = on_all_hosts(&mut others, |host| match host {
            Some(host) => host.engine(*engine, python.as_deref()),
            None => examine(&context.home, *engine, python.as_deref()),
        });
        rows.extend(found.into_iter().map(|(host, result)| EngineOnHost::new(*engine, host, result)));
    }
    print(context, rows)?;
    Ok(ExitReason::Done)
}

impl EngineOnHost {
    fn new(engine: TrainingEngine, host: String, found: Result<EngineEnvironment, String>) -> Self {
        let (environment, problem) = match found {
            Ok(environment) => (Some(environment), None),
            Err(problem) => (None, Some(problem)),
        };
        Self { engine, host, environment, problem }
    }

    fn line(&self) -> String {
        let Self { engine, host, environment, problem } = self;
        let found = match environment {
            Some(environment) => {
                let versions: Vec<_> =
                    environment.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
                format!("{} ({})", versions.join(", "), environment.python.display())
            }
            None => problem.clone().unwrap_or_default(),
        };
        format!("{engine:<10}  {host}: {found}")
    }
}

fn print(context: &Context, engines: Vec<EngineOnHost>) -> Result<(), CommandError> {
    if context.out.json {
        return context.out.json("engine", &EngineReport { engines });
    }
    engines.iter().try_for_each(|row| context.out.data(&row.line()))
}
