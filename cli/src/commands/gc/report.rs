//! Report of `dtrain gc`: removed files by kind.

use super::{CleanupPlan, RetainedFile};
use crate::command_error::CommandError;
use crate::context::Context;
use crate::render::number::counted;
use crate::render::table::{StyledText, TableColumn, TextRole, table};
use dtrain_recipes::Bytes;
use dtrain_runner::store::{Garbage, Kind};
use serde::Serialize;
use std::borrow::Cow;

const KINDS: [Kind; 6] = [
    Kind::PartialCheckpoint,
    Kind::Report,
    Kind::RemovedTrial,
    Kind::UnknownTrial,
    Kind::Program,
    Kind::Tokens,
];

/// Number and size of the removed files of one kind.
#[derive(Serialize)]
struct KindTotal {
    kind: Kind,
    number: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct CleanupReport<'a> {
    dry_run: bool,
    bytes: u64,
    kinds: &'a [KindTotal],
    files: &'a [Garbage],
    kept: &'a [RetainedFile],
}

/// Returns the singular noun phrase for a kind of file.
fn noun(kind: Kind) -> &'static str {
    match kind {
        Kind::PartialCheckpoint => "checkpoint that was never completed",
        Kind::Report => "report of a completed trial",
        Kind::RemovedTrial => "folder of a removed trial",
        Kind::UnknownTrial => "folder of a trial that the history does not know",
        Kind::Program => "copy of another dtrain",
        Kind::Tokens => "file of tokens that no trial uses",
    }
}

/// Formats `number` files of a kind: `2 copies of another dtrain`.
pub(super) fn counted_kind(kind: Kind, number: usize) -> String {
    let noun = noun(kind);
    let (first, rest) = noun.split_once(' ').unwrap_or((noun, ""));
    let rest = if number == 1 { rest.to_owned() } else { rest.replace("that was", "that were") };
    match (first, number) {
        ("copy", 0 | 2..) => format!("{number} copies {rest}"),
        _ => format!("{} {rest}", counted(number as u64, first)),
    }
}

/// Prints the report as text, or as JSON with `--json`.
pub(super) fn print_report(context: &Context, found: &CleanupPlan, is_dry: bool) -> Result<(), CommandError> {
    let of = |kind: Kind| found.leftovers.iter().filter(move |one| one.kind == kind);
    let sums: Vec<KindTotal> = KINDS
        .into_iter()
        .map(|kind| KindTotal { kind, number: of(kind).count(), bytes: of(kind).map(|one| one.bytes).sum() })
        .filter(|sum| sum.number > 0)
        .collect();
    let bytes = sums.iter().map(|sum| sum.bytes).sum();
    if context.out.json {
        let (files, kept) = (&found.leftovers[..], &found.kept[..]);
        return context.out.json("gc", &CleanupReport { dry_run: is_dry, bytes, kinds: &sums, files, kept });
    }
    for RetainedFile { item: what, reason, bytes } in &found.kept {
        let size = bytes.map_or(String::new(), |bytes| format!(" ({})", Bytes(bytes)));
        context.out.say(&format!("kept: {what}{size}: {reason}"));
    }
    if sums.is_empty() {
        context.out.say("everything is needed");
        return Ok(());
    }
    let column =
        |title, is_right| TableColumn { title: Cow::Borrowed(title), is_right, rank: 9, least: None };
    let columns = [column("WHAT", false), column(if is_dry { "WOULD FREE" } else { "FREED" }, true)];
    let mut rows: Vec<Vec<StyledText>> = sums
        .iter()
        .map(|sum| vec![counted_kind(sum.kind, sum.number).into(), Bytes(sum.bytes).to_string().into()])
        .collect();
    rows.push(vec!["total".into(), StyledText::new(Bytes(bytes).to_string(), TextRole::Bold)]);
    context.out.data(&table(&columns, &rows, context.out.style()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted() {
        let counted = |number| KINDS.map(|kind| counted_kind(kind, number));
        assert_eq!(counted(1)[0], "1 checkpoint that was never completed");
        assert_eq!(
            counted(2),
            [
                "2 checkpoints that were never completed",
                "2 reports of a completed trial",
                "2 folders of a removed trial",
                "2 folders of a trial that the history does not know",
                "2 copies of another dtrain",
                "2 files of tokens that no trial uses",
            ]
        );
    }
}
