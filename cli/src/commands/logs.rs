//! `dtrain logs`: prints the logs of a trial's processes.

use crate::args::LogsArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::render::plan::planned_training;
use crate::render::progress::ProgressDisplay;
use crate::trial_logs::{LogReader, find_logs, unreadable};
use crate::{hosts, trials};
use dtrain_protocol::{AttemptId, Rank};
use dtrain_runner::driver::Viewer;
use dtrain_runner::ledger::TrialDetails;
use serde::Serialize;
use std::time::Duration;

/// JSON of one log line, as `dtrain logs --json` prints it.
#[derive(Serialize)]
struct JsonLogLine<'a> {
    attempt: Option<u64>,
    rank: Option<u32>,
    line: &'a str,
}

/// Prints the logs of a trial's processes.
pub(crate) fn run(context: &Context, args: &LogsArgs) -> CommandResult {
    let history = trials::read_history(context)?;
    let running = match &args.trial {
        None if args.follow => trials::only_running(context, &history)?,
        _ => None,
    };
    let name = args.trial.as_deref().or(running.as_deref()).unwrap_or("last");
    let known = trials::trial(context, &history, name)?;
    let trial = known.row.id.clone();
    if let Some(host) = &known.row.imported_from {
        let what =
            format!("{} was imported: it was trained on {host}, and its logs are there", known.row.label);
        return Err(CommandError::new(ExitReason::Usage, what).hint("run `dtrain logs` on that machine"));
    }
    context.check_trial(&trial)?;
    let mut hosts = hosts::connect_hosts_of_trial(context, &known)?;
    let mut readers: Vec<LogReader> = Vec::new();
    let mut shown: Option<String> = None;
    let mut has_any = false;
    // Reports of the ranks: logs of a built-in model contain only errors.
    let mut viewer = Viewer::after(&context.home, &trial, AttemptId(0));
    let is_wanted = args.rank.is_none_or(|rank| rank == 0);
    let mut progress = if is_wanted { progress(context, &known) } else { None };
    loop {
        // Liveness is checked before reading, so that the last lines are still printed.
        let runs = || trials::trial(context, &history, &trial.0).map(|trial| trial.row.status.is_live());
        let goes_on = args.follow && runs()?;
        for reader in find_logs(context, &trial, &mut hosts)? {
            let is_wanted = args.rank.is_none_or(|rank| reader.of.is_some_and(|(_, of)| of == Rank(rank)));
            if is_wanted && readers.iter().all(|known| known.name != reader.name) {
                readers.push(reader);
            }
        }
        if let Some(progress) = &mut progress {
            viewer
                .show_new_records(progress)
                .map_err(|error| unreadable("the reports", &error.to_string()))?;
            for line in progress.take_lines() {
                has_any = true;
                print(context, None, "progress", &line, &mut shown)?;
            }
        }
        for reader in &mut readers {
            for line in reader.read_new_lines(&trial, &mut hosts, !goes_on)? {
                has_any = true;
                print(context, reader.of, &reader.title(), &line, &mut shown)?;
            }
        }
        if !goes_on {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    if let (Some(rank), true) = (args.rank, readers.is_empty()) {
        return Err(CommandError::new(ExitReason::Usage, format!("the trial has no log of rank {rank}")));
    }
    if !has_any {
        context.out.say("the logs are empty");
    }
    Ok(ExitReason::Done)
}

/// Creates the display that formats a trial's reports; `None`, with a printed reason, if its plan cannot be
/// read.
fn progress(context: &Context, trial: &TrialDetails) -> Option<ProgressDisplay> {
    match trials::plan_of_trial(trial) {
        Ok(plan) => Some(ProgressDisplay::in_lines(context.out, &trial.row.id, planned_training(&plan))),
        Err(failure) => {
            context.out.say(&failure.warning(context.out.paint));
            None
        }
    }
}

fn print(
    context: &Context,
    of: Option<(AttemptId, Rank)>,
    title: &str,
    line: &str,
    shown: &mut Option<String>,
) -> Result<(), CommandError> {
    if context.out.json {
        let line =
            JsonLogLine { attempt: of.map(|(attempt, _)| attempt.0), rank: of.map(|(_, rank)| rank.0), line };
        return context.out.json_line("log", &line);
    }
    if shown.as_deref() != Some(title) {
        *shown = Some(title.to_owned());
        context.out.data(&context.out.paint_data.bold(title))?;
    }
    context.out.write_raw(&format!("{line}\n"))
}
