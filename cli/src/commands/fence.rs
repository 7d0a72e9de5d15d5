//! `dtrain fence`: marks a host as lost for one trial.

use crate::args::FenceArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::trials::plan_of_trial;
use crate::{audit, hosts, trials};
use dtrain_protocol::{AttemptId, TrialId};
use dtrain_recipes::{Cluster, Host, LauncherKind};
use dtrain_runner::audit::AuditedAction;
use dtrain_runner::driver;
use dtrain_runner::launch::HostList;
use serde::Serialize;

/// JSON document that `dtrain fence --json` prints.
#[derive(Serialize)]
struct FencedHost {
    trial: TrialId,
    label: String,
    host: String,
    /// True if the host now counts as lost for the trial.
    fenced: bool,
    /// Attempt that was running on the host and was ended; `None` if there was none.
    ended: Option<AttemptId>,
    /// Reason why the host did not answer; `None` if it did.
    unreachable: Option<String>,
}

/// Fences a host for one trial, or lifts the fence.
pub(crate) fn run(context: &Context, args: &FenceArgs) -> CommandResult {
    let history = trials::read_history(context)?;
    let trial = trials::trial(context, &history, &args.trial)?;
    trials::refuse_imported(&trial)?;
    let carried = plan_of_trial(&trial)?;
    let cluster = &carried.recipe.cluster;
    let host = host(&trial.row.label, cluster, &args.host)?;
    let (id, label, name) = (&trial.row.id, &trial.row.label, &args.host);
    let folder = context.home.trial(id);
    let failed = |error: std::io::Error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot write {}", folder.fenced().display()))
            .cause(error.to_string())
            .hint("`dtrain doctor` checks the state folder")
    };
    let mut report = FencedHost {
        trial: id.clone(),
        label: label.clone(),
        host: name.clone(),
        fenced: !args.lift,
        ended: None,
        unreachable: None,
    };
    if args.lift {
        if !HostList::remove(&folder.fenced(), name).map_err(failed)? {
            return Err(CommandError::new(ExitReason::Usage, format!("{name} is not fenced for {label}")));
        }
        context.out.say(&format!("{name} can be used for {label} again, from its next attempt on"));
    } else {
        folder.create().and_then(|()| HostList::add(&folder.fenced(), name)).map_err(failed)?;
        let audit = audit::audit_log_for(context, &trial, &carried)?.for_host(name);
        audit::try_append(context, &audit, AuditedAction::Fence);
        let before = AttemptId(trial.attempts.last().map_or(0, |attempt| attempt.number.0) + 1);
        match hosts::connect_one(host, cluster.transport).and_then(|mut host| host.fence(id, before)) {
            Ok(ended) => report.ended = ended,
            Err(reason) => report.unreachable = Some(reason),
        }
        context.out.say(&report_text(&report));
        if driver::controller(&context.home, id).is_some() {
            context.out.say(&format!("the controller of {label} continues on the other hosts"));
        } else {
            context.out.next(&format!("dtrain resume {label}"));
        }
    }
    if context.out.json {
        context.out.json("fenced", &report)?;
    }
    Ok(ExitReason::Done)
}

fn report_text(report: &FencedHost) -> String {
    let FencedHost { label, host, ended, unreachable, .. } = report;
    let what = match (ended, unreachable) {
        (Some(attempt), _) => format!("attempt {attempt} was ended there"),
        (None, None) => "nothing of it runs there".to_owned(),
        (None, Some(reason)) => {
            format!("it cannot be reached ({reason}); what it still runs is ended when it is back")
        }
    };
    format!("{host} counts as lost for {label}: {what}")
}

/// Finds the host named `name` among those of a trial.
fn host(label: &str, cluster: &Cluster, name: &str) -> Result<Host, CommandError> {
    if cluster.launcher != LauncherKind::Ssh {
        let hint =
            if cluster.launcher == LauncherKind::Slurm { "`scontrol` drains a node of Slurm" } else { "" };
        let failure = CommandError::new(
            ExitReason::Usage,
            format!("{label} does not run on hosts that dtrain reaches over SSH"),
        );
        return Err(if hint.is_empty() { failure } else { failure.hint(hint) });
    }
    let known: Vec<&str> = cluster.hosts.iter().map(|host| host.address.as_str()).collect();
    let found = cluster.hosts.iter().find(|host| host.address == name).cloned();
    found.ok_or_else(|| {
        CommandError::new(ExitReason::Usage, format!("{label} has no host {name}"))
            .hint(format!("its hosts are {}", known.join(", ")))
    })
}
