//! Breakdown of a trial's time: steps, validations, checkpoints, and the rest.

use super::number::{count, counted, seconds};
use dtrain_recipes::Recipe;
use dtrain_runner::ledger::TrialDetails;

/// Seconds that a trial spent on each activity, over all attempts.
pub(crate) struct TimeSpent {
    /// Seconds from start to end, summed over the attempts.
    wall: f64,
    steps: f64,
    validations: f64,
    /// Number of completed validations.
    validated: u64,
    /// Seconds during which checkpoints blocked the training.
    checkpoints: f64,
    /// Tokens (or samples, without sequences) per second of the whole time; `None` if unknown.
    rate: Option<f64>,
}

impl TimeSpent {
    /// Computes the breakdown for a trial; `None` for a script. `now_ms` is the end of an attempt that is
    /// running.
    pub(crate) fn of(trial: &TrialDetails, now_ms: u64) -> Option<Self> {
        let sum = |key: &str| {
            let summary = trial.figure(key)?;
            Some((summary.points, summary.mean? * summary.points as f64))
        };
        let (made, steps) = sum("step_seconds").filter(|_| !trial.runs_foreign_program())?;
        let (validated, validations) = sum("validation_seconds").unwrap_or_default();
        let (_, checkpoints) = sum("save.stall_seconds").unwrap_or_default();
        let lasted = trial.attempts.iter();
        let lasted = lasted.map(|one| one.ended_ms.unwrap_or(now_ms).saturating_sub(one.started_ms));
        let wall = lasted.sum::<u64>() as f64 / 1e3;
        let recipe = serde_json::from_value::<Recipe>(trial.recipe.clone()).ok();
        let tokens = recipe.map(|recipe| trial.row.batch * recipe.model.sample_tokens());
        let rate = tokens.filter(|_| wall > 0.0).map(|tokens| (made * tokens) as f64 / wall);
        Some(Self { wall, steps, validations, validated, checkpoints, rate })
    }

    /// Formats each activity with its seconds and its share of the whole time.
    pub(crate) fn parts(&self) -> Vec<Vec<String>> {
        let rest = (self.wall - self.steps - self.validations - self.checkpoints).max(0.0);
        let parts = [
            ("training steps".to_owned(), self.steps),
            (counted(self.validated, "validation"), self.validations),
            ("checkpoints".to_owned(), self.checkpoints),
            ("start and others".to_owned(), rest),
        ];
        let share = |part: f64| format!("{:.0}%", 100.0 * part / self.wall.max(1e-9));
        let line = |(what, part): (String, f64)| vec![what, seconds(part), share(part)];
        parts.into_iter().map(line).collect()
    }

    /// Formats the breakdown on one line:
    /// `27.1 s: 22.4 s training steps (83%), …; 9.20 k tokens/s over all of it`.
    pub(crate) fn summary(&self, unit: &str) -> String {
        let parts = self.parts().into_iter().map(|part| format!("{} {} ({})", part[1], part[0], part[2]));
        let rate =
            self.rate.map_or(String::new(), |rate| format!("; {} {unit}/s over all of it", count(rate)));
        format!("{}: {}{rate}", seconds(self.wall), parts.collect::<Vec<_>>().join(", "))
    }
}

/// Formats the breakdown for the trial's page; empty for a script.
pub(super) fn lines(trial: &TrialDetails, now_ms: u64) -> Vec<Vec<String>> {
    let Some(spent) = TimeSpent::of(trial, now_ms) else { return Vec::new() };
    let mut lines = spent.parts();
    lines.push(vec!["in all".to_owned(), seconds(spent.wall)]);
    if let Some(rate) = spent.rate {
        lines.push(vec![format!("{} over all of it", trial.unit_of_speed()), count(rate)]);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::show::tests::trial;
    use dtrain_runner::ledger::Summary;

    #[test]
    fn the_parts_of_the_time_add_up_to_the_wall_clock() {
        let mut trial = trial();
        assert!(TimeSpent::of(&trial, 0).is_none(), "no step was measured");
        let of = |key: &str, points, mean| Summary {
            key: key.into(),
            points,
            mean: Some(mean),
            ..trial.figures[0].clone()
        };
        let figures = [
            of("step_seconds", 900, 6.0),
            of("validation_seconds", 15, 40.0),
            of("save.stall_seconds", 10, 0.5),
        ];
        trial.figures.extend(figures);
        // Its attempts took 300 s and 6,390 s.
        let spent = TimeSpent::of(&trial, 0).expect("steps were measured");
        let all = spent.steps + spent.validations + spent.checkpoints;
        assert_eq!((spent.wall, all), (6690.0, 6005.0));
        let shares: Vec<String> = spent.parts().into_iter().map(|part| part[2].clone()).collect();
        assert_eq!(shares, ["81%", "9%", "0%", "10%"]);
        let words = spent.summary("tokens");
        assert!(words.contains("15 validations (9%)") && words.contains("start and others (10%)"), "{words}");
    }
}
