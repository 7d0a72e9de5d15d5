//! What a study found, for people and as JSON.

use super::kept::Kept;
use crate::commands::plan::Stored;
use crate::context::Context;
use crate::failure::Failure;
use crate::render::number::loss;
use crate::render::table::{Column, Text, Tone, table};
use dtrain_planner::tune::{Ended, Failure as Why, Outcome, Recommended, Search};
use dtrain_recipes::{Goal, Metric};
use serde::Serialize;

/// What `--json` says.
#[derive(Serialize)]
struct Tuned<'a> {
    study: &'a str,
    steps: u64,
    metric: &'a Metric,
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
    let objective = &kept.settled.objective;
    let (metric, goal) = (&objective.metric, objective.goal());
    let (trials, best) = (&as_measured(goal, &search.ended()), &as_believed(goal, best));
    if context.out.json {
        let tuned = Tuned { study: name, steps: kept.steps, metric, trials, recommended: best, stored };
        return context.out.json_line("tuned", &tuned);
    }
    let dimensions = kept.study.space.dimensions();
    let mut columns = vec![column("", false), column("TRIAL", true)];
    columns.extend(dimensions.iter().map(|dimension| column(short(&dimension.name), true)));
    columns.push(column(
        match metric {
            Metric::ValidLoss => "LOSS",
            Metric::ValidAccuracy => "ACCURACY",
            Metric::Named(_) => "METRIC",
        },
        true,
    ));
    let lines: Vec<Vec<Text>> = trials
        .iter()
        .enumerate()
        .map(|(number, ended)| {
            let is_best = u64::try_from(number) == Ok(best.trial);
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
        "{page}\n{}: {}; measured {}, estimated {} (90 % interval: {} to {}) after {} steps",
        name,
        found.join(", "),
        loss(best.measured),
        loss(best.mean),
        loss(best.low),
        loss(best.high),
        kept.steps,
    ))
}

fn as_measured(goal: Goal, trials: &[Ended]) -> Vec<Ended> {
    let outcome = |outcome: &Outcome| match *outcome {
        Outcome::Done { value } => Outcome::Done { value: goal.cost(value) },
        Outcome::Pruned { value } => Outcome::Pruned { value: goal.cost(value) },
        Outcome::Failed { why } => Outcome::Failed { why },
    };
    let ended = |ended: &Ended| Ended { values: ended.values.clone(), outcome: outcome(&ended.outcome) };
    trials.iter().map(ended).collect()
}

fn as_believed(goal: Goal, best: &Recommended) -> Recommended {
    let ends = [goal.cost(best.low), goal.cost(best.high)];
    Recommended {
        measured: goal.cost(best.measured),
        mean: goal.cost(best.mean),
        low: ends[0].min(ends[1]),
        high: ends[0].max(ends[1]),
        ..best.clone()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracies_have_the_sign_they_are_measured_with() {
        let made_small =
            Recommended { trial: 0, values: Vec::new(), measured: -0.9, mean: -0.8, low: -0.85, high: -0.7 };
        let told = as_believed(Goal::Max, &made_small);
        assert_eq!((told.measured, told.mean, told.low, told.high), (0.9, 0.8, 0.7, 0.85));
        assert_eq!(as_believed(Goal::Min, &made_small), made_small);
        let ended = Ended { values: Vec::new(), outcome: Outcome::Done { value: -0.9 } };
        assert_eq!(as_measured(Goal::Max, &[ended])[0].outcome, Outcome::Done { value: 0.9 });
    }
}
