//! What a study found, for people and as JSON.

use super::kept::Kept;
use crate::commands::plan::Stored;
use crate::context::Context;
use crate::failure::Failure;
use crate::render::number::loss;
use crate::render::table::{Column, Text, Tone, table};
use dtrain_planner::tune::{Ended, Failure as Why, Outcome, Recommended, Search};
use serde::Serialize;

/// What `--json` says.
#[derive(Serialize)]
struct Tuned<'a> {
    study: &'a str,
    steps: u64,
    trials: &'a [Ended],
    recommended: &'a Recommended,
    #[serde(flatten)]
    stored: &'a Stored,
}

const fn column(title: &'static str, is_right: bool) -> Column {
    Column { title, is_right, rank: 9, least: None }
}

/// Tells how the trials ended and which of them is to be trusted.
pub(super) fn tell(
    context: &Context,
    kept: &Kept,
    search: &Search,
    best: &Recommended,
    stored: &Stored,
    name: &str,
) -> Result<(), Failure> {
    if context.out.json {
        let tuned =
            Tuned { study: name, steps: kept.steps, trials: search.ended(), recommended: best, stored };
        return context.out.json("tuned", &tuned);
    }
    let dimensions = kept.study.space.dimensions();
    let mut columns = vec![column("", false), column("TRIAL", true)];
    columns.extend(dimensions.iter().map(|dimension| column(short(&dimension.name), true)));
    columns.push(column("RESULT", true));
    let lines: Vec<Vec<Text>> = search
        .ended()
        .iter()
        .enumerate()
        .map(|(number, ended)| {
            let is_best = number == best.trial;
            let mut line =
                vec![Text::new(if is_best { "*" } else { "" }, Tone::Good), (number + 1).to_string().into()];
            line.extend(ended.values.iter().map(|value| Text::from(value.to_string())));
            line.push(result(&ended.outcome, is_best));
            line
        })
        .collect();
    let page = table(&columns, &lines, context.out.style());
    let found: Vec<String> = dimensions
        .iter()
        .zip(&best.values)
        .map(|(dimension, value)| format!("{} {value}", dimension.name))
        .collect();
    context.out.data(&format!(
        "{page}\n{}: {}; measured {}, believed {} (90 % within {} to {}) after {} steps",
        name,
        found.join(", "),
        loss(best.measured),
        loss(best.mean),
        loss(best.low),
        loss(best.high),
        kept.steps,
    ))
}

/// The title of a dimension: its last word.
fn short(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("learning_rate") => "RATE",
        Some("batch") => "BATCH",
        Some("warmup") => "WARM-UP",
        Some("precision") => "PRECISION",
        _ => "VALUE",
    }
}

fn result(outcome: &Outcome, is_best: bool) -> Text {
    match outcome {
        Outcome::Done { value } => Text::new(loss(*value), if is_best { Tone::Bold } else { Tone::Plain }),
        Outcome::Pruned { value } => Text::new(format!("pruned at {}", loss(*value)), Tone::Dim),
        Outcome::Failed { why } => Text::new(
            match why {
                Why::OutOfMemory => "out of memory",
                Why::Diverged => "diverged",
                Why::Rejected => "cannot be trained",
                Why::Lost => "lost",
            },
            Tone::Bad,
        ),
    }
}
