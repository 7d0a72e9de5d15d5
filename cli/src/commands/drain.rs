//! `dtrain drain`: lets running trials go on without a host, and keeps it free.

use crate::args::DrainArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::hosts::drained;
use crate::trials::{self, history_failure};
use dtrain_protocol::TrialId;
use dtrain_runner::driver;
use dtrain_runner::files;
use dtrain_runner::launch::HostList;
use dtrain_runner::ledger::History;
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant};

/// Time after which trials are named that still use the host.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Interval between two checks whether trials still use the host.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// JSON document that `dtrain drain --json` prints.
#[derive(Serialize)]
struct DrainReport<'a> {
    host: &'a str,
    /// True if no trial uses the host from now on.
    drained: bool,
    /// Trials that used the host and have left it.
    left: Vec<String>,
    /// Trials that still use the host.
    remain: Vec<String>,
}

/// A running trial that uses the host.
struct HostUser {
    id: TrialId,
    label: String,
}

/// Drains a host, or lifts the drain.
pub(crate) fn run(context: &Context, args: &DrainArgs) -> CommandResult {
    let history = trials::read_history(context)?;
    let host = args.host.as_str();
    let path = context.home.drained();
    let failed = |error: std::io::Error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot write {}", path.display()))
            .cause(error.to_string())
            .hint("`dtrain doctor` checks the state folder")
    };
    let mut report = DrainReport { host, drained: !args.lift, left: Vec::new(), remain: Vec::new() };
    if args.lift {
        if !HostList::remove(&path, host).map_err(failed)? {
            return Err(CommandError::new(ExitReason::Usage, format!("{host} is not drained"))
                .hint("`dtrain hosts` lists the hosts"));
        }
        context.out.say(&format!("{host} can be used again; running trials take it after a checkpoint"));
    } else {
        let users = users(context, &history, host)?;
        refuse_unknown(context, &history, host, &users)?;
        HostList::add(&path, host).map_err(failed)?;
        for user in &users {
            report_user(context, user, host);
        }
        let remain = wait(context, &users, host);
        let of = |are_left: bool| {
            let found = users.iter().filter(|user| remain.contains(&user.label) != are_left);
            found.map(|user| user.label.clone()).collect()
        };
        (report.left, report.remain) = (of(true), of(false));
        report_result(context, &report);
    }
    if context.out.json {
        context.out.json("drained", &report)?;
    }
    Ok(if report.remain.is_empty() { ExitReason::Done } else { ExitReason::Infrastructure })
}

/// Returns the running trials whose attempt uses `host`.
fn users(context: &Context, history: &History, host: &str) -> Result<Vec<HostUser>, CommandError> {
    let all =
        trials::live(context, history)?.into_iter().map(|row| HostUser { id: row.id, label: row.label });
    Ok(all.filter(|user| uses(context, &user.id, host)).collect())
}

/// Returns `true` if the newest attempt of a trial uses `host`.
fn uses(context: &Context, trial: &TrialId, host: &str) -> bool {
    let list = files::read_to_string(&context.home.trial(trial).remote_hosts_file()).unwrap_or_default();
    list.lines().any(|name| name == host)
}

fn refuse_unknown(
    context: &Context,
    history: &History,
    host: &str,
    users: &[HostUser],
) -> Result<(), CommandError> {
    let known = history.hosts().map_err(|error| history_failure(&error))?;
    if !users.is_empty() || known.iter().any(|one| one.name == host) || drained(context)?.has(host) {
        return Ok(());
    }
    Err(CommandError::new(ExitReason::Usage, format!("no host named {host} was ever used"))
        .hint("`dtrain hosts` lists them"))
}

fn report_user(context: &Context, user: &HostUser, host: &str) {
    let HostUser { id, label } = user;
    context.out.say(&if driver::controller(&context.home, id).is_some() {
        format!("{label} saves a checkpoint and goes on without {host}")
    } else {
        format!("{label} has no controller that could leave {host}: `dtrain attach {label}` starts one")
    });
}

/// Waits until no trial uses the host; returns the labels of those that still do.
fn wait(context: &Context, users: &[HostUser], host: &str) -> Vec<String> {
    let until = Instant::now() + LEAVE_TIMEOUT;
    loop {
        let remain: Vec<&HostUser> = users.iter().filter(|user| uses(context, &user.id, host)).collect();
        let can_leave = remain.iter().any(|user| driver::controller(&context.home, &user.id).is_some());
        if !can_leave || Instant::now() >= until {
            return remain.into_iter().map(|user| user.label.clone()).collect();
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn report_result(context: &Context, report: &DrainReport<'_>) {
    let host = report.host;
    if report.remain.is_empty() {
        context.out.say(&format!("{host} is drained: no trial uses it"));
        context.out.next(&format!("dtrain drain {host} --lift"));
        return;
    }
    for label in &report.remain {
        let warning = context.out.paint.yellow("warning");
        context.out.say(&format!("{warning}: {label} still uses {host}; `dtrain stop {label}` ends it"));
    }
}
