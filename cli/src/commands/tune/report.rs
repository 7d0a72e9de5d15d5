//! Results of a study, as text and as JSON.

use super::confirm::PairedComparison;
use super::insights::StudyInsights;
use super::study_config::{StudyConfig, dimension_title};
use crate::command_error::CommandError;
use crate::context::Context;
use crate::plan_file::StoredPlan;
use crate::render::number::{counted, plain};
use crate::render::table::{StyledText, TableColumn, TextRole, table};
use dtrain_planner::tune::{
    BetterSetting, Recommendation, StudySolver, StudyState, TrialFailure, TrialOutcome, TrialPhase,
    TrialResult,
};
use dtrain_recipes::{Goal, Metric};
use serde::Serialize;
use std::borrow::Cow;

/// JSON document that `dtrain tune --json` prints at the end.
#[derive(Serialize)]
struct StudyResultJson<'a> {
    study: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<u64>,
    metric: &'a Metric,
    trials: &'a [FinishedTrial],
    recommended: &'a Recommendation,
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed: Option<PairedComparison>,
    learned: &'a StudyInsights,
    #[serde(flatten)]
    stored: &'a StoredPlan,
}

/// JSON of an ended trial, with its metric as measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct FinishedTrial {
    /// Number of the trial, from 0.
    trial: u64,
    #[serde(flatten)]
    ended: TrialResult,
}

fn column(title: impl Into<Cow<'static, str>>, is_right: bool) -> TableColumn {
    TableColumn { title: title.into(), is_right, rank: 9, least: None }
}

/// Results of a study, as they are printed.
pub(super) struct StudyReport<'a> {
    pub(super) kept: &'a StudyConfig,
    pub(super) search: &'a StudySolver,
    /// The recommended setting.
    pub(super) best: &'a Recommendation,
    pub(super) confirmed: Option<&'a PairedComparison>,
    pub(super) learned: &'a StudyInsights,
    pub(super) stored: &'a StoredPlan,
    pub(super) name: &'a str,
}

/// Prints the ended trials and the recommended one.
pub(super) fn print_study(context: &Context, told: &StudyReport<'_>) -> Result<(), CommandError> {
    let StudyReport { kept, search, best, confirmed, learned, stored, name } = *told;
    let objective = &kept.base_recipe.objective;
    let (metric, goal) = (&objective.metric, objective.goal());
    let (trials, best) = (&finished_trials(goal, search.study_state()), &with_original_sign(goal, best));
    if context.out.json {
        let confirmed = confirmed.map(|one| comparison_with_original_sign(goal, one));
        let (steps, samples) = (kept.steps.filter(|_| kept.samples.is_none()), kept.samples);
        let tuned = StudyResultJson {
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
    columns.extend(
        dimensions.iter().map(|dimension| column(dimension_title(&dimension.name).to_uppercase(), true)),
    );
    columns.push(column(
        match metric {
            Metric::ValidLoss => "LOSS".to_owned(),
            Metric::ValidAccuracy => "ACCURACY".to_owned(),
            Metric::Named(name) => name.to_uppercase(),
        },
        true,
    ));
    let lines: Vec<Vec<StyledText>> = trials
        .iter()
        .map(|FinishedTrial { trial, ended }| {
            let is_best = *trial == best.trial;
            let mut line = vec![
                StyledText::new(if is_best { "*" } else { "" }, TextRole::Good),
                (trial + 1).to_string().into(),
            ];
            line.extend(ended.values.iter().map(|value| StyledText::from(value.to_string())));
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
    lines.extend(omission_note(best));
    lines.extend(confirmed.map(|confirmed| verdict(confirmed, goal)));
    lines.extend(learned.lines());
    context.out.data(&lines.join("\n"))
}

/// Explains why an estimate's interval excludes the measured value; `None` if it does not.
fn omission_note(best: &Recommendation) -> Option<String> {
    let is_inside = (best.low..=best.high).contains(&best.measured);
    (!is_inside).then(|| {
        "the measurement lies outside the interval: the estimate also follows the trials with similar settings, and takes the rest \
         for chance; `--confirm N` repeats it with other seeds"
            .to_owned()
    })
}

/// Describes in a sentence how the recommended setting compares with its baseline.
pub(super) fn verdict(confirmed: &PairedComparison, goal: Goal) -> String {
    let comparison = &confirmed.comparison;
    let pairs = counted(u64::try_from(comparison.pairs).unwrap_or(u64::MAX), "pair");
    let other =
        format!("{} setting (trial {})", confirmed.baseline_is.as_str(), confirmed.baseline.trial + 1);
    let found = format!("trial {}", confirmed.recommended.trial + 1);
    // Costs are minimized; users see the metric as measured.
    let difference = goal.cost(comparison.difference);
    let margin = comparison.margin.map_or(String::new(), |margin| format!(" ± {}", plain(margin)));
    let by = |difference: f64| format!("{}{margin} (90 % interval, {pairs} of seeds)", plain(difference));
    let failed = match comparison.failed {
        (0, 0) => String::new(),
        (first, second) => format!("; {first} of its trials and {second} of the other's failed"),
    };
    match comparison.verdict {
        BetterSetting::First => {
            format!("confirmed: {found} is better than the {other} by {}{failed}", by(difference.abs()))
        }
        BetterSetting::Second => {
            format!("not confirmed: {found} is worse than the {other} by {}{failed}", by(difference.abs()))
        }
        BetterSetting::NotDistinguishable => {
            format!("not distinguishable: {found} and the {other} differ by {}{failed}", by(difference))
        }
    }
}

/// Converts costs, which are negated if higher is better, back to the metric as measured.
fn comparison_with_original_sign(goal: Goal, confirmed: &PairedComparison) -> PairedComparison {
    let mut shown = confirmed.clone();
    shown.recommended = with_original_sign(goal, &shown.recommended);
    shown.baseline = with_original_sign(goal, &shown.baseline);
    shown.comparison.difference = goal.cost(shown.comparison.difference);
    shown
}

/// Returns the ended trials of a study, by number.
fn finished_trials(goal: Goal, study_state: &StudyState) -> Vec<FinishedTrial> {
    let outcome = |outcome: &TrialOutcome| match *outcome {
        TrialOutcome::Done { value } => TrialOutcome::Done { value: goal.cost(value) },
        TrialOutcome::Pruned { value } => TrialOutcome::Pruned { value: goal.cost(value) },
        TrialOutcome::Failed { reason: why } => TrialOutcome::Failed { reason: why },
    };
    let numbered = (0..).zip(study_state.trials());
    let over = numbered.filter_map(|(trial, seen)| match &seen.status {
        TrialPhase::Ended(found) => Some(FinishedTrial {
            trial,
            ended: TrialResult { values: seen.values.clone(), outcome: outcome(found) },
        }),
        TrialPhase::Running | TrialPhase::Paused => None,
    });
    over.collect()
}

fn with_original_sign(goal: Goal, best: &Recommendation) -> Recommendation {
    let ends = [goal.cost(best.low), goal.cost(best.high)];
    Recommendation {
        measured: goal.cost(best.measured),
        mean: goal.cost(best.mean),
        low: ends[0].min(ends[1]),
        high: ends[0].max(ends[1]),
        ..best.clone()
    }
}

/// Describes why a trial ended without a value of the metric.
pub(super) fn failure_reason(why: TrialFailure) -> &'static str {
    match why {
        TrialFailure::OutOfMemory => "out of memory",
        TrialFailure::Diverged => "diverged",
        TrialFailure::Rejected => "cannot be trained",
        TrialFailure::Crashed => "failed",
        TrialFailure::Unmeasured => "without a value",
        TrialFailure::Lost => "lost",
    }
}

fn result(outcome: &TrialOutcome, is_best: bool) -> StyledText {
    match outcome {
        TrialOutcome::Done { value } => {
            StyledText::new(plain(*value), if is_best { TextRole::Bold } else { TextRole::Plain })
        }
        TrialOutcome::Pruned { value } => {
            StyledText::new(format!("pruned at {}", plain(*value)), TextRole::Dim)
        }
        TrialOutcome::Failed { reason: why } => StyledText::new(self::failure_reason(*why), TextRole::Bad),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::tune::confirm::Baseline;
    use dtrain_planner::tune::{PairedTest, SearchSpace, Study, StudyEvent};

    #[test]
    fn the_sentence_about_other_seeds_has_no_sign_where_it_says_which_is_better() {
        let one = |trial| Recommendation {
            trial,
            values: Vec::new(),
            measured: 0.0,
            mean: 0.0,
            low: 0.0,
            high: 0.0,
        };
        let confirmed = |verdict, difference| PairedComparison {
            study: "s-confirm".into(),
            recommended: one(3),
            baseline: one(0),
            baseline_is: Baseline::Untuned,
            comparison: PairedTest { pairs: 3, difference, margin: Some(0.01), failed: (0, 0), verdict },
        };
        let by = "0.0200 ± 0.0100 (90 % interval, 3 pairs of seeds)";
        let other = "the untuned setting (trial 1)";
        for goal in [Goal::Min, Goal::Max] {
            let better = verdict(&confirmed(BetterSetting::First, -0.02), goal);
            assert_eq!(better, format!("confirmed: trial 4 is better than {other} by {by}"));
            let worse = verdict(&confirmed(BetterSetting::Second, 0.02), goal);
            assert_eq!(worse, format!("not confirmed: trial 4 is worse than {other} by {by}"));
        }
        let same = verdict(&confirmed(BetterSetting::NotDistinguishable, 0.02), Goal::Max);
        assert!(same.starts_with("not distinguishable: ") && same.contains("by -0.0200"), "{same}");
    }

    #[test]
    fn a_measurement_outside_its_interval_is_explained() {
        let best = |measured| Recommendation {
            trial: 0,
            values: Vec::new(),
            measured,
            mean: 77.6,
            low: 68.7,
            high: 86.5,
        };
        assert_eq!((omission_note(&best(68.7)), omission_note(&best(86.5))), (None, None));
        assert!(omission_note(&best(92.3)).is_some_and(|text| text.contains("outside the interval")));
    }

    #[test]
    fn accuracies_have_the_sign_they_are_measured_with() {
        let made_small = Recommendation {
            trial: 0,
            values: Vec::new(),
            measured: -0.9,
            mean: -0.8,
            low: -0.85,
            high: -0.7,
        };
        let told = with_original_sign(Goal::Max, &made_small);
        assert_eq!((told.measured, told.mean, told.low, told.high), (0.9, 0.8, 0.7, 0.85));
        assert_eq!(with_original_sign(Goal::Min, &made_small), made_small);
        let study = Study::new(SearchSpace::default(), 1);
        let ended = [TrialResult { values: Vec::new(), outcome: TrialOutcome::Done { value: -0.9 } }];
        let study_state = StudyState::of(&study, &StudyEvent::of(&ended));
        assert_eq!(
            finished_trials(Goal::Max, &study_state)[0].ended.outcome,
            TrialOutcome::Done { value: 0.9 }
        );
    }
}
