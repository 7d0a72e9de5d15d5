//! `dtrain fence`.

use crate::args::FenceArgs;
use crate::commands::resume::plan;
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::{audit, hosts, trials};
use dtrain_protocol::{AttemptId, TrialId};
use dtrain_recipes::{Cluster, Host, Launcher};
use dtrain_runner::audit::Action;
use dtrain_runner::driver;
use dtrain_runner::launch::Fences;
use serde::Serialize;

/// What was done.
#[derive(Serialize)]
struct Report {
    trial: TrialId,
    label: String,
    host: String,
    /// Whether the host counts as lost from now on.
    fenced: bool,
    /// The attempt that ran on the host, and was ended.
    ended: Option<AttemptId>,
    /// Why the host could not be asked.
    away: Option<String>,
}

/// Counts a host as lost for one trial, or no longer.
pub(crate) fn run(context: &Context, args: &FenceArgs) -> Outcome {
    let history = trials::read_history(context)?;
    let trial = trials::trial(context, &history, &args.trial)?;
    trials::refuse_imported(&trial)?;
    let carried = plan(&trial)?;
    let cluster = &carried.recipe.cluster;
    let host = host(&trial.row.label, cluster, &args.host)?;
    let (id, label, name) = (&trial.row.id, &trial.row.label, &args.host);
    let folder = context.home.trial(id);
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Infrastructure, format!("cannot write {}", folder.fenced().display()))
            .cause(error.to_string())
            .hint("`dtrain doctor` checks the state folder")
    };
    let mut report = Report {
        trial: id.clone(),
        label: label.clone(),
        host: name.clone(),
        fenced: !args.lift,
        ended: None,
        away: None,
    };
    if args.lift {
        if !Fences::lift(&folder, name).map_err(failed)? {
            return Err(Failure::new(Exit::Usage, format!("{name} is not fenced for {label}")));
        }
        context.out.say(&format!("{name} can be used for {label} again, from its next attempt on"));
    } else {
        folder.create().and_then(|()| Fences::add(&folder, name)).map_err(failed)?;
        let audit = audit::of(context, &trial, &carried)?.on(name);
        audit::mention(context, &audit, Action::Fence);
        let before = AttemptId(trial.attempts.last().map_or(0, |attempt| attempt.number.0) + 1);
        match hosts::one(host, cluster.transport).and_then(|mut host| host.fence(id, before)) {
            Ok(ended) => report.ended = ended,
            Err(reason) => report.away = Some(reason),
        }
        context.out.say(&words(&report));
        if driver::controller(&context.home, id).is_some() {
            context.out.say(&format!("the controller of {label} continues on the other hosts"));
        } else {
            context.out.next(&format!("dtrain resume {label}"));
        }
    }
    if context.out.json {
        context.out.json("fenced", &report)?;
    }
    Ok(Exit::Done)
}

fn words(report: &Report) -> String {
    let Report { label, host, ended, away, .. } = report;
    let what = match (ended, away) {
        (Some(attempt), _) => format!("attempt {attempt} was ended there"),
        (None, None) => "nothing of it runs there".to_owned(),
        (None, Some(reason)) => {
            format!("it cannot be reached ({reason}); what it still runs is ended when it is back")
        }
    };
    format!("{host} counts as lost for {label}: {what}")
}

/// The host of the trial with that name.
fn host(label: &str, cluster: &Cluster, name: &str) -> Result<Host, Failure> {
    if cluster.launcher != Launcher::Ssh {
        let hint = if cluster.launcher == Launcher::Slurm { "`scontrol` drains a node of Slurm" } else { "" };
        let failure =
            Failure::new(Exit::Usage, format!("{label} does not run on hosts that dtrain reaches over SSH"));
        return Err(if hint.is_empty() { failure } else { failure.hint(hint) });
    }
    let known: Vec<&str> = cluster.hosts.iter().map(|host| host.address.as_str()).collect();
    let found = cluster.hosts.iter().find(|host| host.address == name).cloned();
    found.ok_or_else(|| {
        Failure::new(Exit::Usage, format!("{label} has no host {name}"))
            .hint(format!("its hosts are {}", known.join(", ")))
    })
}
