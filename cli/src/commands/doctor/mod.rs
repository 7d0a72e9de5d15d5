//! `dtrain doctor`: checks whether this machine or other hosts can train, with a fix for each failure, and
//! whether a device computes correctly.

mod cuda;
mod device;
mod gpu;
mod host;
mod machine;
mod place;

use crate::args::DoctorArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::Output;
use crate::render::number::counted;
use dtrain_runner::cuda::{RejectedComponent, ToolkitComponent};
use serde::Serialize;

/// Verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckStatus {
    Good,
    /// The checked thing works, but may be slow or limited.
    Poor,
    /// Training would fail.
    Bad,
}

/// Result of one check: its name, verdict, and finding.
#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    verdict: CheckStatus,
    /// Observation of the check, in words.
    found: String,
    /// Command or action that fixes the problem; `None` if nothing is to be fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
    /// CUDA component that is used; `None` for other checks, and if none was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken: Option<ToolkitComponent>,
    /// Candidates of the CUDA component that were found but not used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    passed_over: Vec<RejectedComponent>,
}

impl Finding {
    fn new(name: &'static str, verdict: CheckStatus, found: impl Into<String>, fix: Option<String>) -> Self {
        Self { name, verdict, found: found.into(), fix, taken: None, passed_over: Vec::new() }
    }

    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, CheckStatus::Good, found, None)
    }

    fn poor(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(name, CheckStatus::Poor, found, Some(fix.into()))
    }

    fn bad(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(name, CheckStatus::Bad, found, Some(fix.into()))
    }

    /// Adds to the finding the CUDA component that is used, and the candidates that were not.
    fn with_part(self, taken: &ToolkitComponent, passed_over: &[RejectedComponent]) -> Self {
        Self { taken: Some(taken.clone()), passed_over: passed_over.to_vec(), ..self }
    }
}

#[derive(Serialize)]
struct MachineReport {
    is_ready: bool,
    checks: Vec<Finding>,
}

#[derive(Serialize)]
struct HostsReport {
    is_ready: bool,
    hosts: Vec<host::HostReport>,
}

/// Checks this machine, one of its devices, or the named hosts over SSH.
pub(crate) fn run(context: &Context, args: &DoctorArgs) -> CommandResult {
    match args.device {
        Some(choice) => device::run(context, choice, args),
        None if args.hosts.is_empty() => this_machine(context),
        None => over_ssh(context, &args.hosts),
    }
}

fn over_ssh(context: &Context, hosts: &[String]) -> CommandResult {
    let reports = host::examine(hosts);
    let failed = host::count_failed(&reports);
    if context.out.json {
        context.out.json("doctor", &HostsReport { is_ready: failed == 0, hosts: reports })?;
    } else {
        for report in &reports {
            context.out.data(&report.host)?;
            for check in &report.checks {
                context.out.data(&line(context.out, check))?;
            }
        }
    }
    if failed > 0 {
        let failed = counted(failed as u64, "check");
        return Err(CommandError::new(
            ExitReason::Preflight,
            format!("not every host is ready to train: {failed} failed"),
        ));
    }
    context.out.say("every host is ready to train");
    Ok(ExitReason::Done)
}

fn this_machine(context: &Context) -> CommandResult {
    let checks = machine::checks(&context.home);
    let failed = checks.iter().filter(|check| check.verdict == CheckStatus::Bad).count();
    if context.out.json {
        context.out.json("doctor", &MachineReport { is_ready: failed == 0, checks })?;
    } else {
        for check in &checks {
            context.out.data(&line(context.out, check))?;
        }
    }
    if failed > 0 {
        let failed = counted(failed as u64, "check");
        return Err(CommandError::new(
            ExitReason::Preflight,
            format!("this machine is not ready to train: {failed} failed"),
        ));
    }
    context.out.say("this machine is ready to train");
    context.out.next("dtrain init");
    Ok(ExitReason::Done)
}

fn line(out: Output, check: &Finding) -> String {
    let paint = out.paint_data;
    let mark = match check.verdict {
        CheckStatus::Good => paint.green("ok  "),
        CheckStatus::Poor => paint.yellow("weak"),
        CheckStatus::Bad => paint.red("FAIL"),
    };
    let fix = check.fix.as_ref().map_or(String::new(), |fix| format!("\n                        fix: {fix}"));
    let others = check
        .passed_over
        .iter()
        .map(|other| format!("\n                        not taken: {}: {}", other.part, other.reason));
    format!("{mark}  {:<16}  {}{}{fix}", check.name, check.found, others.collect::<String>())
}
