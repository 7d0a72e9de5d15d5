//! `dtrain hosts`: lists hosts with their strikes (recorded failures), and forgives them.

use crate::args::HostsCommand;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::hosts::drained;
use crate::render::number::{counted, remaining};
use crate::render::table::{StyledText, TableColumn, TextRole, age, table};
use crate::trials::{self, history_failure};
use dtrain_runner::Ledger;
use dtrain_runner::ledger::{History, KnownHost};
use dtrain_runner::strikes::{ExcludedHost, Strike, excluded_hosts};
use serde::Serialize;
use std::collections::BTreeMap;

const COLUMNS: [TableColumn; 5] = [
    TableColumn { title: std::borrow::Cow::Borrowed("HOST"), is_right: false, rank: 9, least: Some(8) },
    TableColumn { title: std::borrow::Cow::Borrowed("SEEN"), is_right: true, rank: 5, least: None },
    TableColumn { title: std::borrow::Cow::Borrowed("STRIKES"), is_right: true, rank: 6, least: None },
    TableColumn { title: std::borrow::Cow::Borrowed("LEFT OUT"), is_right: true, rank: 8, least: None },
    TableColumn { title: std::borrow::Cow::Borrowed("WHY"), is_right: false, rank: 7, least: Some(20) },
];

/// JSON document that `dtrain hosts --json` prints: all known hosts, by name.
#[derive(Serialize)]
struct HostStrikes {
    hosts: Vec<HostRow>,
}

/// JSON of one host with its strikes.
#[derive(Serialize)]
struct HostRow {
    host: String,
    /// Time of the host's last answer, in milliseconds since the Unix epoch; `null` if it never answered.
    seen_ms: Option<u64>,
    excluded: Option<ExcludedHost>,
    /// True if the host is drained, and used by no trial.
    drained: bool,
    /// Strikes against the host within the last week, oldest first.
    strikes: Vec<Strike>,
}

/// Lists the known hosts, or forgives the strikes of one. Strikes are kept in the history of this machine.
pub(crate) fn run(context: &Context, command: Option<&HostsCommand>) -> CommandResult {
    match command {
        None => list(context),
        Some(HostsCommand::Forgive { host }) => forgive(context, host),
    }
}

fn list(context: &Context) -> CommandResult {
    let out = context.out;
    let style = out.style();
    let rows = if context.home.history().exists() {
        rows(context, &trials::read_history(context)?, style.now_ms)?
    } else {
        Vec::new()
    };
    if out.json {
        out.json("hosts", &HostStrikes { hosts: rows })?;
        return Ok(ExitReason::Done);
    }
    if rows.is_empty() {
        out.say("no host was used yet; `cluster.hosts` of a recipe names them");
        return Ok(ExitReason::Done);
    }
    let lines: Vec<Vec<StyledText>> = rows.iter().map(|row| line(row, style.now_ms)).collect();
    out.data(&table(&COLUMNS, &lines, style))?;
    if let Some(row) = rows.iter().find(|row| row.excluded.is_some()) {
        out.next(&format!("dtrain hosts forgive {}", row.host));
    }
    Ok(ExitReason::Done)
}

fn rows(context: &Context, history: &History, now_ms: u64) -> Result<Vec<HostRow>, CommandError> {
    let mut all: BTreeMap<String, HostRow> = BTreeMap::new();
    let list = drained(context)?;
    let row = |host: &str| HostRow {
        host: host.into(),
        seen_ms: None,
        excluded: None,
        drained: list.has(host),
        strikes: Vec::new(),
    };
    for host in list.names() {
        all.insert(host.to_owned(), row(host));
    }
    for KnownHost { name, seen_ms } in history.hosts().map_err(|error| history_failure(&error))? {
        all.insert(name.clone(), HostRow { seen_ms: Some(seen_ms), ..row(&name) });
    }
    let strikes = history.strikes().map_err(|error| history_failure(&error))?;
    for strike in &strikes {
        for host in [Some(&strike.host), strike.partner.as_ref()].into_iter().flatten() {
            all.entry(host.clone()).or_insert_with(|| row(host)).strikes.push(strike.clone());
        }
    }
    for one in excluded_hosts(&strikes, now_ms) {
        if let Some(row) = all.get_mut(&one.host) {
            row.excluded = Some(one);
        }
    }
    Ok(all.into_values().collect())
}

fn line(row: &HostRow, now_ms: u64) -> Vec<StyledText> {
    let seen = row.seen_ms.map_or("never".into(), |at| age(at, now_ms));
    let (left_out, why) = match (&row.excluded, row.strikes.last()) {
        _ if row.drained => {
            ("drained".to_owned(), format!("`dtrain drain {} --lift` uses it again", row.host))
        }
        (Some(one), _) => (remaining(one.until_ms, now_ms), format!("{}: {}", one.cause.words(), one.detail)),
        (None, Some(last)) => (String::new(), format!("{}: {}", last.cause.words(), last.detail)),
        (None, None) => (String::new(), String::new()),
    };
    let strikes = if row.strikes.is_empty() { String::new() } else { row.strikes.len().to_string() };
    vec![
        StyledText::new(&row.host, TextRole::Bold),
        StyledText::new(seen, TextRole::Dim),
        strikes.into(),
        StyledText::new(left_out, TextRole::Bad),
        why.into(),
    ]
}

fn forgive(context: &Context, host: &str) -> CommandResult {
    // Opened for reading first, so that a missing history is not created.
    drop(trials::read_history(context)?);
    let mut history = trials::open_history(context)?;
    let is_known = rows(context, &history, context.out.style().now_ms)?.iter().any(|row| row.host == host);
    if !is_known {
        return Err(CommandError::new(ExitReason::Usage, format!("no host named {host} was ever used"))
            .hint("`dtrain hosts` lists them"));
    }
    let strikes = history.forgive(host).map_err(|error| history_failure(&error))?;
    if context.out.json {
        context.out.json("forgiven", &serde_json::json!({ "host": host, "strikes": strikes }))?;
    }
    let strikes = counted(strikes as u64, "strike");
    context.out.say(&format!("{host} is used again; {strikes} forgiven"));
    Ok(ExitReason::Done)
}
