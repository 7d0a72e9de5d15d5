//! What commands write to the audit log.

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::hosts;
use crate::load::Loaded;
use crate::packages::store;
use dtrain_planner::Plan;
use dtrain_planner::planning::foreign::filled;
use dtrain_recipes::sharing::{self, Locked};
use dtrain_recipes::{Launcher, Model, Transport};
use dtrain_runner::audit::{self, Action, Audit, Place, Subject};
use dtrain_runner::ledger::Trial;
use dtrain_runner::transport::ProgramDigest;
use std::collections::BTreeSet;

/// What provenance calls the recipe's owner.
pub(crate) const RECIPE: &str = "recipe";

/// Whose recipe it is: the user's own, or that of packages with their commits and digests.
pub(crate) fn recipe(loaded: &Loaded) -> String {
    let shared = |value: &dtrain_recipes::Resolved| value.origin.source()?.shared.clone();
    let names: BTreeSet<String> = loaded.checked.resolved.iter().filter_map(shared).collect();
    if names.is_empty() {
        return "own files".to_owned();
    }
    let known = store(&loaded.project, false).ok().and_then(|store| sharing::list(&store).ok());
    let known: Vec<Locked> = known.unwrap_or_default();
    let start = |text: &str| text.chars().take(12).collect::<String>();
    let words = names.iter().map(|name| match known.iter().find(|locked| locked.name == *name) {
        Some(locked) => format!("package {name} at {}, tree {}", start(&locked.commit), start(&locked.tree)),
        None => format!("package {name}"),
    });
    words.collect::<Vec<_>>().join("; ")
}

/// The log, for what is done to a trial.
pub(crate) fn of(context: &Context, trial: &Trial, plan: &Plan) -> Result<Audit, Failure> {
    let recipe = trial.provenance.environment.get(RECIPE).map_or("not known", String::as_str).to_owned();
    let cluster = &plan.recipe.cluster;
    let program = hosts::program()?;
    let digest = ProgramDigest::of(&program).map_err(|error| {
        Failure::new(Exit::Infrastructure, format!("cannot read {}", program.display()))
            .cause(error.to_string())
    })?;
    let here = |transport: &str| {
        vec![Place { host: audit::this_host(), transport: transport.to_owned(), host_key: None }]
    };
    let (transport, key) = match cluster.transport {
        Transport::Ssh2 => ("ssh2", "known_hosts"),
        Transport::OpenSsh => ("openssh", "known_hosts or certificate"),
    };
    let place = |host: &dtrain_recipes::Host| Place {
        host: host.address.clone(),
        transport: transport.to_owned(),
        host_key: Some(key.to_owned()),
    };
    let hosts = match cluster.launcher {
        Launcher::Local => here("here"),
        Launcher::Slurm => here("slurm"),
        Launcher::Ssh => cluster.hosts.iter().map(place).collect(),
    };
    let argv = match &plan.recipe.model {
        Model::Command(command) => filled(plan, plan.best(), command).argv,
        _ => Vec::new(),
    };
    let subject = Subject { trial: trial.row.id.clone(), program: digest.to_string(), argv, hosts, recipe };
    Ok(Audit::new(&context.home, subject))
}

/// Writes an entry about what ends; it ends also where that cannot be written.
pub(crate) fn mention(context: &Context, audit: &Audit, action: Action) {
    if let Err(error) = audit.write(action, None) {
        context.out.say(&format!("cannot write the audit log {}: {error}", audit.path().display()));
    }
}

/// Writes an entry; whoever cannot be written down does nothing.
pub(crate) fn write(audit: &Audit, action: Action) -> Result<(), Failure> {
    audit.write(action, None).map_err(|error| {
        let message = format!("cannot write the audit log {}", audit.path().display());
        Failure::new(Exit::Infrastructure, message)
            .cause(error.to_string())
            .hint("without it nothing is launched; `dtrain doctor` checks the state folder")
    })
}
