//! `dtrain audit`: prints the audit log.

use crate::args::AuditArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::PageStyle;
use crate::render::table::{StyledText, TableColumn, TextRole, age, table};
use crate::trials;
use dtrain_protocol::TrialId;
use dtrain_runner::audit::{self, AuditRecord, AuditedAction};
use serde::Serialize;
use std::borrow::Cow;

#[derive(Serialize)]
struct AuditTrail<'a> {
    entries: &'a [AuditRecord],
    /// Number of unreadable lines in the audit log.
    damaged: u64,
}

/// Prints which user started, stopped or removed trials, and where.
pub(crate) fn run(context: &Context, args: &AuditArgs) -> CommandResult {
    let path = audit::path(&context.home);
    let (mut entries, damaged) = audit::read(&context.home).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot read {}", path.display()))
            .cause(error.to_string())
    })?;
    if let Some(name) = &args.trial {
        let trial = trial(context, &entries, name)?;
        entries.retain(|entry| entry.subject.trial == trial);
    }
    let style = context.out.style();
    if let Some(since) = &args.since {
        let since = milliseconds(since)?;
        entries.retain(|entry| style.now_ms.saturating_sub(entry.at_ms) <= since);
    }
    if damaged > 0 {
        context.out.say(&format!("{damaged} damaged lines in {}", path.display()));
    }
    if context.out.json {
        context.out.json("audit", &AuditTrail { entries: &entries, damaged })?;
    } else if entries.is_empty() {
        context.out.say("no entry matches");
    } else {
        context.out.data(&page(&entries, style))?;
    }
    Ok(ExitReason::Done)
}

/// Finds a trial by name; removed trials, which only the audit log still has, are found by id.
fn trial(context: &Context, entries: &[AuditRecord], name: &str) -> Result<TrialId, CommandError> {
    match entries.iter().find(|entry| entry.subject.trial.0 == name) {
        Some(entry) => Ok(entry.subject.trial.clone()),
        None => trials::find(&trials::read_history(context)?, name),
    }
}

/// Parses a duration such as `7d` or `30 min`, and returns it in milliseconds.
fn milliseconds(text: &str) -> Result<u64, CommandError> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.trim() {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => 0,
    };
    match number.parse::<u64>() {
        Ok(number) if unit > 0 => Ok(number.saturating_mul(unit * 1000)),
        _ => Err(CommandError::new(ExitReason::Usage, format!("--since {text:?} is not a time"))
            .hint("write for example `--since 12h`, `--since 7d` or `--since 2w`")),
    }
}

fn page(entries: &[AuditRecord], style: PageStyle) -> String {
    let column =
        |title, rank, least| TableColumn { title: Cow::Borrowed(title), is_right: false, rank, least };
    let columns = [
        column("AGO", 9, None),
        column("WHO", 8, None),
        column("ACTION", 9, None),
        column("TRIAL", 9, None),
        column("ATTEMPT", 7, None),
        column("HOSTS", 6, Some(12)),
        column("RECIPE", 5, Some(12)),
        column("PROGRAM", 3, None),
        column("COMMAND", 4, Some(12)),
    ];
    let row = |entry: &AuditRecord| -> Vec<StyledText> {
        let subject = &entry.subject;
        let hosts: Vec<String> = subject
            .hosts
            .iter()
            .map(|place| match &place.host_key {
                Some(key) => format!("{} ({}, {key})", place.host, place.transport),
                None => format!("{} ({})", place.host, place.transport),
            })
            .collect();
        let is_end = matches!(entry.action, AuditedAction::Stop | AuditedAction::Kill | AuditedAction::Fence);
        vec![
            age(entry.at_ms, style.now_ms).into(),
            format!("{}@{}", entry.user, entry.controller).into(),
            StyledText::new(action(entry.action), if is_end { TextRole::Notice } else { TextRole::Plain }),
            subject.trial.0.clone().into(),
            entry.attempt.map(|attempt| attempt.to_string()).unwrap_or_default().into(),
            hosts.join(", ").into(),
            subject.recipe.clone().into(),
            subject.program.chars().take(12).collect::<String>().into(),
            subject.argv.join(" ").into(),
        ]
    };
    table(&columns, &entries.iter().map(row).collect::<Vec<_>>(), style)
}

fn action(action: AuditedAction) -> &'static str {
    match action {
        AuditedAction::Run => "run",
        AuditedAction::Resume => "resume",
        AuditedAction::Launch => "launch",
        AuditedAction::Stop => "stop",
        AuditedAction::Kill => "kill",
        AuditedAction::Fence => "fence",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        assert_eq!(milliseconds("2 min").ok(), Some(120_000));
        assert_eq!(milliseconds("1w").ok(), Some(604_800_000));
        for bad in ["", "d", "7", "7 years", "-1d"] {
            assert!(milliseconds(bad).is_err(), "{bad:?}");
        }
    }
}
