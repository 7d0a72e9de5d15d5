//! What a study found, for people and as JSON.

use super::confirm::Confirmed;
use super::kept::Kept;
use super::learned::Learned;
use crate::context::Context;
use crate::failure::Failure;
use crate::plan_file::Stored;
use crate::render::number::{counted, plain};
use crate::render::table::{Column, Text, Tone, table};
use dtrain_planner::tune::{Ended, Failure as Why, Outcome, Recommended, Search, Standing, Status, Verdict};
use dtrain_recipes::{Goal, Metric};
use serde::Serialize;
use std::borrow::Cow;

/// What `--json` says.
#[derive(Serialize)]
struct Tuned<'a> {
    study: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<u64>,
    metric: &'a Metric,
    trials: &'a [Tried],
    recommended: &'a Recommended,
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed: Option<Confirmed>,
    learned: &'a Learned,
    #[serde(flatten)]
    stored: &'a Stored,
}

/// A trial that is over, with figures as they were measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Tried {
    /// Its number, from 0.
    trial: u64,
    #[serde(flatten)]
    ended: Ended,
}

fn column(title: impl Into<Cow<'static, str>>, is_right: bool) -> Column {
    Column { title: title.into(), is_right, rank: 9, least: None }
}

/// All that a study found.
pub(super) struct Told<'a> {
    pub(super) kept: &'a Kept,
    pub(super) search: &'a Search,
    /// The setting that is to be used.
    pub(super) best: &'a Recommended,
    pub(super) confirmed: Option<&'a Confirmed>,
    pub(super) learned: &'a Learned,
    pub(super) stored: &'a Stored,
    pub(super) name: &'a str,
}

/// Tells how the trials ended and which of them is to be trusted.
pub(super) fn tell(context: &Context, told: &Told<'_>) -> Result<(), Failure> {
    let Told { kept, search, best, confirmed, learned, stored, name } = *told;
    let objective = &kept.settled.objective;
    let (metric, goal) = (&objective.metric, objective.goal());
    let (trials, best) = (&as_measured(goal, search.standing()), &as_believed(goal, best));
    if context.out.json {
        let confirmed = confirmed.map(|one| comparison_as_measured(goal, one));
        let (steps, samples) = (kept.steps.filter(|_| kept.samples.is_none()), kept.samples);
        let tuned = Tuned {
            study: name,
            steps,
            samples,
            metric,
            trials,
            recommended: best,
            confirmed,
            learned,
            stored,
        };
        return context.out.json_line("tuned", &tuned);
    }
    let dimensions = kept.study.space.dimensions();
    let mut columns = vec![column("", false), column("TRIAL", true)];
    columns.extend(dimensions.iter().map(|dimension| column(short(&dimension.name).to_uppercase(), true)));
    columns.push(column(
        match metric {
            Metric::ValidLoss => "LOSS".to_owned(),
            Metric::ValidAccuracy => "ACCURACY".to_owned(),
            Metric::Named(name) => name.to_uppercase(),
        },
        true,
    ));
    let lines: Vec<Vec<Text>> = trials
        .iter()
        .map(|Tried { trial, ended }| {
            let is_best = *trial == best.trial;
            let mut line =
                vec![Text::new(if is_best { "*" } else { "" }, Tone::Good), (trial + 1).to_string().into()];
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
    let after = kept.length();
    let mut lines = vec![format!(
        "{page}\n{}: {}; measured {}, estimated {} (90 % interval: {} to {}){after}",
        name,
        found.join(", "),
        plain(best.measured),
        plain(best.mean),
        plain(best.low),
        plain(best.high),
    )];
    lines.extend(surprise(best));
    lines.extend(confirmed.map(|confirmed| verdict(confirmed, goal)));
    lines.extend(learned.lines());
    context.out.data(&lines.join("\n"))
}

/// Why an estimate can leave out what was measured, as a sentence; `None` where it does not.
fn surprise(best: &Recommended) -> Option<String> {
    let is_inside = (best.low..=best.high).contains(&best.measured);
    (!is_inside).then(|| {
        "the measurement lies outside the interval: the estimate also follows the trials with similar settings, and takes the rest \
         for chance; `--confirm N` repeats it with other seeds"
            .to_owned()
    })
}

/// What the confirming trials say, as a sentence.
pub(super) fn verdict(confirmed: &Confirmed, goal: Goal) -> String {
    let comparison = &confirmed.comparison;
    let pairs = counted(u64::try_from(comparison.pairs).unwrap_or(u64::MAX), "pair");
    let other = format!("{} setting (trial {})", confirmed.against.words(), confirmed.other.trial + 1);
    let found = format!("trial {}", confirmed.found.trial + 1);
    // Costs are made small; people read what was measured.
    let difference = goal.cost(comparison.difference);
    let margin = comparison.margin.map_or(String::new(), |margin| format!(" ± {}", plain(margin)));
    let by = |difference: f64| format!("{}{margin} (90 % interval, {pairs} of seeds)", plain(difference));
    let failed = match comparison.failed {
        (0, 0) => String::new(),
        (first, second) => format!("; {first} of its trials and {second} of the other's failed"),
    };
    match comparison.verdict {
        Verdict::First => {
            format!("confirmed: {found} is better than the {other} by {}{failed}", by(difference.abs()))
        }
        Verdict::Second => {
            format!("not confirmed: {found} is worse than the {other} by {}{failed}", by(difference.abs()))
        }
        Verdict::NotDistinguishable => {
            format!("not distinguishable: {found} and the {other} differ by {}{failed}", by(difference))
        }
    }
}

/// A comparison with figures as they were measured.
fn comparison_as_measured(goal: Goal, confirmed: &Confirmed) -> Confirmed {
    let mut shown = confirmed.clone();
    shown.found = as_believed(goal, &shown.found);
    shown.other = as_believed(goal, &shown.other);
    shown.comparison.difference = goal.cost(shown.comparison.difference);
    shown
}

/// The trials that are over, by number.
fn as_measured(goal: Goal, standing: &Standing) -> Vec<Tried> {
    let outcome = |outcome: &Outcome| match *outcome {
        Outcome::Done { value } => Outcome::Done { value: goal.cost(value) },
        Outcome::Pruned { value } => Outcome::Pruned { value: goal.cost(value) },
        Outcome::Failed { why } => Outcome::Failed { why },
    };
    let numbered = (0..).zip(standing.trials());
    let over = numbered.filter_map(|(trial, seen)| match &seen.status {
        Status::Ended(found) => {
            Some(Tried { trial, ended: Ended { values: seen.values.clone(), outcome: outcome(found) } })
        }
        Status::Running | Status::Paused => None,
    });
    over.collect()
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
pub(super) fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Why a trial has no value, in words.
pub(super) fn why(why: Why) -> &'static str {
    match why {
        Why::OutOfMemory => "out of memory",
        Why::Diverged => "diverged",
        Why::Rejected => "cannot be trained",
        Why::Crashed => "failed",
        Why::Unmeasured => "without a value",
        Why::Lost => "lost",
    }
}

fn result(outcome: &Outcome, is_best: bool) -> Text {
    match outcome {
        Outcome::Done { value } => Text::new(plain(*value), if is_best { Tone::Bold } else { Tone::Plain }),
        Outcome::Pruned { value } => Text::new(format!("pruned at {}", plain(*value)), Tone::Dim),
        Outcome::Failed { why } => Text::new(self::why(*why), Tone::Bad),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::tune::confirm::Against;
    use dtrain_planner::tune::{Comparison, Space, Study, StudyEvent};

    #[test]
    fn the_sentence_about_other_seeds_has_no_sign_where_it_says_which_is_better() {
        let one =
            |trial| Recommended { trial, values: Vec::new(), measured: 0.0, mean: 0.0, low: 0.0, high: 0.0 };
        let confirmed = |verdict, difference| Confirmed {
            study: "s-confirm".into(),
            found: one(3),
            other: one(0),
            against: Against::Untuned,
            comparison: Comparison { pairs: 3, difference, margin: Some(0.01), failed: (0, 0), verdict },
        };
        let by = "0.0200 ± 0.0100 (90 % interval, 3 pairs of seeds)";
        let other = "the untuned setting (trial 1)";
        for goal in [Goal::Min, Goal::Max] {
            let better = verdict(&confirmed(Verdict::First, -0.02), goal);
            assert_eq!(better, format!("confirmed: trial 4 is better than {other} by {by}"));
            let worse = verdict(&confirmed(Verdict::Second, 0.02), goal);
            assert_eq!(worse, format!("not confirmed: trial 4 is worse than {other} by {by}"));
        }
        let same = verdict(&confirmed(Verdict::NotDistinguishable, 0.02), Goal::Max);
        assert!(same.starts_with("not distinguishable: ") && same.contains("by -0.0200"), "{same}");
    }

    #[test]
    fn a_measurement_outside_its_interval_is_explained() {
        let best = |measured| Recommended {
            trial: 0,
            values: Vec::new(),
            measured,
            mean: 77.6,
            low: 68.7,
            high: 86.5,
        };
        assert_eq!((surprise(&best(68.7)), surprise(&best(86.5))), (None, None));
        assert!(surprise(&best(92.3)).is_some_and(|text| text.contains("outside the interval")));
    }

    #[test]
    fn accuracies_have_the_sign_they_are_measured_with() {
        let made_small =
            Recommended { trial: 0, values: Vec::new(), measured: -0.9, mean: -0.8, low: -0.85, high: -0.7 };
        let told = as_believed(Goal::Max, &made_small);
        assert_eq!((told.measured, told.mean, told.low, told.high), (0.9, 0.8, 0.7, 0.85));
        assert_eq!(as_believed(Goal::Min, &made_small), made_small);
        let study = Study::new(Space::default(), 1);
        let ended = [Ended { values: Vec::new(), outcome: Outcome::Done { value: -0.9 } }];
        let standing = Standing::of(&study, &StudyEvent::of(&ended));
        assert_eq!(as_measured(Goal::Max, &standing)[0].ended.outcome, Outcome::Done { value: 0.9 });
    }
}
