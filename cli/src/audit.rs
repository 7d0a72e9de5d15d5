//! Entries that commands write into the audit log.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::LoadedRecipe;
use crate::packages::store;
use crate::this_host;
use dtrain_planner::Plan;
use dtrain_planner::planning::foreign::command_with_values;
use dtrain_recipes::sharing::{self, LockedPackage};
use dtrain_recipes::{LauncherKind, Model, SshBackend};
use dtrain_runner::audit::{self, AuditLog, AuditedAction, AuditedHost, AuditedTrial};
use dtrain_runner::ledger::TrialDetails;
use dtrain_runner::transport::ProgramDigest;
use std::collections::BTreeSet;

/// Key under which a trial's provenance records the owner of its recipe.
pub(crate) const RECIPE: &str = "recipe";

/// Returns the owner of a recipe: the user (`own files`), or the packages it comes from, with commits and
/// digests.
pub(crate) fn recipe_owner(loaded: &LoadedRecipe) -> String {
    let shared = |value: &dtrain_recipes::ResolvedValue| value.origin.source()?.shared.clone();
    let names: BTreeSet<String> = loaded.checked.resolved.iter().filter_map(shared).collect();
    if names.is_empty() {
        return "own files".to_owned();
    }
    let known = store(&loaded.project, false).ok().and_then(|store| sharing::list(&store).ok());
    let known: Vec<LockedPackage> = known.unwrap_or_default();
    let start = |text: &str| text.chars().take(12).collect::<String>();
    let words = names.iter().map(|name| match known.iter().find(|locked| locked.name == *name) {
        Some(locked) => format!("package {name} at {}, tree {}", start(&locked.commit), start(&locked.tree)),
        None => format!("package {name}"),
    });
    words.collect::<Vec<_>>().join("; ")
}

/// Creates the audit log for actions on a trial.
pub(crate) fn audit_log_for(
    context: &Context,
    trial: &TrialDetails,
    plan: &Plan,
) -> Result<AuditLog, CommandError> {
    let recipe = trial.provenance.environment.get(RECIPE).map_or("not known", String::as_str).to_owned();
    let cluster = &plan.recipe.cluster;
    let program = this_host::program()?;
    let digest = ProgramDigest::of(&program).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot read {}", program.display()))
            .cause(error.to_string())
    })?;
    let here = |transport: &str| {
        vec![AuditedHost { host: audit::this_host(), transport: transport.to_owned(), host_key: None }]
    };
    let (transport, key) = match cluster.transport {
        SshBackend::Ssh2 => ("ssh2", "known_hosts"),
        SshBackend::OpenSsh => ("openssh", "known_hosts or certificate"),
    };
    let place = |host: &dtrain_recipes::Host| AuditedHost {
        host: host.address.clone(),
        transport: transport.to_owned(),
        host_key: Some(key.to_owned()),
    };
    let hosts = match cluster.launcher {
        LauncherKind::Local => here("here"),
        LauncherKind::Slurm => here("slurm"),
        LauncherKind::Ssh => cluster.hosts.iter().map(place).collect(),
    };
    let argv = match &plan.recipe.model {
        Model::Command(command) => command_with_values(plan, plan.best(), command).argv,
        _ => Vec::new(),
    };
    let subject =
        AuditedTrial { trial: trial.row.id.clone(), program: digest.to_string(), argv, hosts, recipe };
    Ok(AuditLog::new(&context.home, subject))
}

/// Writes an entry about an action that ends something. A failed write is reported, and does not prevent the
/// action.
pub(crate) fn try_append(context: &Context, audit: &AuditLog, action: AuditedAction) {
    if let Err(error) = audit.write(action, None) {
        context.out.say(&format!("cannot write the audit log {}: {error}", audit.path().display()));
    }
}

/// Writes an entry about an action. Returns `Err` if it cannot be written, so that no action goes unrecorded.
pub(crate) fn append(audit: &AuditLog, action: AuditedAction) -> Result<(), CommandError> {
    audit.write(action, None).map_err(|error| {
        let message = format!("cannot write the audit log {}", audit.path().display());
        CommandError::new(ExitReason::Infrastructure, message)
            .cause(error.to_string())
            .hint("without it nothing is launched; `dtrain doctor` checks the state folder")
    })
}
