//! `dtrain estimate`: estimates the cost of training runs listed in a table, and compares it with
//! measurements.

use crate::args::EstimateArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::shell_quoted;
use crate::render::answer::on_several_lines;
use crate::render::estimate::{short, summary, table, unpriced_rows};
use dtrain_planner::analytic::Constants;
use dtrain_planner::benchmarks::{TableRow, estimate_rows, read_table, scores};
use std::io::Read;
use std::path::Path;

/// Estimates the rows of the table in order, and summarizes the errors by source.
pub(crate) fn run(context: &Context, args: &EstimateArgs) -> CommandResult {
    let rows = read(&args.rows)?;
    refuse_unknown(&args.calibrate_on, &rows)?;
    let priced = estimate_rows(&rows, &args.calibrate_on, Constants::shipped());
    let (out, style) = (&context.out, context.out.style());
    let scores = scores(&priced);
    let summary = summary(&scores, style);
    if out.json {
        for row in &priced {
            out.json_line("estimate", row)?;
        }
        out.say(summary.trim_end());
    } else if args.summary || args.explain {
        let rows = if args.summary { String::new() } else { table(&priced, style) + "\n" };
        out.data(&format!("{rows}{summary}{}", unpriced_rows(&priced, style)))?;
    } else {
        let next = next(args, priced.len());
        out.data(&short(&priced, &scores, next.as_deref(), style))?;
        next.iter().for_each(|command| out.next(command));
    }
    Ok(ExitReason::Done)
}

/// Returns the command that prints what an answer for `rows` rows leaves out; `None` if the table is gone, as
/// stdin is.
fn next(args: &EstimateArgs, rows: usize) -> Option<String> {
    let path = &args.rows;
    let known = (!args.calibrate_on.is_empty())
        .then(|| format!("--calibrate-on {}", shell_quoted(args.calibrate_on.join(","))));
    let words = ["dtrain estimate".to_owned(), shell_quoted(path.display())].into_iter().chain(known);
    let words: Vec<String> = words.chain(["--explain".to_owned()]).collect();
    (rows > 1 && path != Path::new("-")).then(|| on_several_lines(words.iter().map(String::as_str)))
}

fn read(path: &Path) -> Result<Vec<TableRow>, CommandError> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        std::fs::read(path).map(|read| bytes = read)
    };
    let wrong = |error: &(dyn std::error::Error + 'static)| {
        CommandError::of(ExitReason::Usage, error).hint("docs/estimate.md lists the columns")
    };
    read.map_err(|error| {
        CommandError::new(ExitReason::Usage, format!("cannot read {}", path.display()))
            .cause(error.to_string())
    })?;
    let rows = read_table(&bytes).map_err(|error| wrong(&error))?;
    if rows.is_empty() {
        return Err(CommandError::new(ExitReason::Usage, format!("{} has no rows", path.display())));
    }
    Ok(rows)
}

/// Refuses ids that no row of the table has: they would calibrate nothing, without a message.
fn refuse_unknown(ids: &[String], rows: &[TableRow]) -> Result<(), CommandError> {
    let missing: Vec<_> =
        ids.iter().filter(|id| !rows.iter().any(|row| row.id == **id)).map(String::as_str).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(CommandError::new(ExitReason::Usage, format!("no row has the id {}", missing.join(", ")))
        .hint("`--calibrate-on` takes ids from the column `id`, separated by commas"))
}
