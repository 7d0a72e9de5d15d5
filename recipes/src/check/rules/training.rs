//! Finds contradictions between the objective, its stop conditions, the optimizer and the tuner.

use super::Rules;
use crate::check::parsed::ParsedValue;
use crate::check::walk::section_origin;
use crate::keys::Kind;
use crate::objective::{Goal, Metric};
use crate::problem::Problem;
use crate::train::{OptimizerKind, Precision};
use crate::tune::PrunerKind;

impl Rules<'_> {
    pub(super) fn objective(&mut self) {
        let limits = ["steps", "samples", "tokens", "epochs", "time"];
        let has_limit =
            limits.iter().any(|limit| self.values.get(&format!("objective.stop.{limit}")).is_some());
        let needs_limit = self.values.kind.is_some_and(|kind| kind != Kind::Command);
        if needs_limit && !has_limit && !self.values.is_wrong("objective") {
            self.no_limit();
        }
        let Some(metric) = self.values.text("objective.metric").map(Metric::from) else { return };
        self.goal(&metric);
        self.target(&metric);
    }

    /// Checks that the model reports the metric, and that the goal is the direction in which the metric
    /// improves.
    fn goal(&mut self, metric: &Metric) {
        let known = match metric {
            Metric::ValidLoss => Goal::Min,
            Metric::ValidAccuracy => Goal::Max,
            Metric::Named(name) => {
                if self.values.kind.is_some_and(|kind| kind != Kind::Command) {
                    let message = format!("`{name}` is no metric of this model");
                    let hint =
                        "known are \"valid.loss\" and \"valid.accuracy\"; a command may report any metric";
                    self.wrong(message, &["objective.metric", "model.kind"], hint);
                } else if let Some(hint) = not_a_series(name) {
                    let message = format!("`{name}` is not recorded as a metric");
                    self.wrong(message, &["objective.metric"], hint);
                } else if self.values.get("objective.goal").is_none() {
                    let message =
                        format!("missing `objective.goal`: is a smaller or a larger `{name}` better?");
                    let hint = "write `goal = \"min\"` or `goal = \"max\"` below `[objective]`";
                    self.wrong(message, &["objective.metric"], hint);
                }
                return;
            }
        };
        if self.values.one_of("objective.goal").is_some_and(|goal: Goal| goal != known) {
            let message = format!("the goal of `{metric}` is \"{known}\"");
            self.wrong(message, &["objective.goal", "objective.metric"], "remove `goal`");
        }
        if *metric == Metric::ValidAccuracy && self.values.reads_tokens() {
            self.wrong(
                "accuracy is measured for mlp and cnn; a decoder has \"valid.loss\"".to_owned(),
                &["objective.metric", "model.kind"],
                "write `metric = \"valid.loss\"`",
            );
        }
    }

    /// Checks that the target value is one that the metric can reach.
    fn target(&mut self, metric: &Metric) {
        let Some(target) = self.values.real("objective.stop.target") else { return };
        let keys = ["objective.stop.target", "objective.metric"];
        match metric {
            Metric::ValidAccuracy if !(target > 0.0 && target <= 1.0) => {
                let message =
                    format!("a target of {target} cannot be reached: accuracy is a share from 0 to 1");
                self.wrong(message, &keys, "write for example `target = \"97%\"`");
            }
            Metric::ValidLoss if target < 0.0 => {
                let message =
                    format!("a target of {target} cannot be reached: cross-entropy is never below 0");
                self.wrong(message, &keys, "");
            }
            Metric::ValidAccuracy | Metric::ValidLoss | Metric::Named(_) => {}
        }
    }

    /// Checks that the pruner of `[tune]` has the settings that it needs.
    pub(super) fn tune(&mut self) {
        let is_threshold = self.values.one_of("tune.pruner") == Some(PrunerKind::Threshold);
        let has_threshold = self.values.real("tune.threshold").is_some();
        if is_threshold && !has_threshold {
            let message = "the pruner \"threshold\" needs `tune.threshold`".to_owned();
            self.wrong(message, &["tune.pruner"], "write for example `threshold = 10.0` below `[tune]`");
        }
        if has_threshold && !is_threshold {
            let message = "`tune.threshold` is for the pruner \"threshold\"".to_owned();
            self.wrong(
                message,
                &["tune.threshold", "tune.pruner"],
                "write `pruner = \"threshold\"`, or remove it",
            );
        }
    }

    fn no_limit(&mut self) {
        let target = self.values.said("objective.stop.target");
        let problem = Problem::new(match target {
            Some(_) => "`objective.stop.target` alone may never be reached: a limit is missing",
            None => "missing `objective.stop`: training would never end",
        });
        let problem = match target.cloned().or_else(|| section_origin(self.document, "objective.stop")) {
            Some(origin) => problem.at(&origin),
            None => problem,
        };
        let example =
            "write for example `stop = { tokens = \"20M\", time = \"30 min\" }` below `[objective]`";
        self.problems.push(problem.hint(example));
    }

    pub(super) fn train(&mut self) {
        if let Some(kind) = self.values.one_of("train.optimizer.kind") {
            self.optimizer(kind);
        }
        let has_fp8 = self.values.get("train.precision").is_none_or(|found| found.can_be(Precision::Fp8));
        if !has_fp8 && self.values.said("train.fp8_recipe").is_some() {
            self.wrong(
                "`train.fp8_recipe` does not apply: it is for the precision \"fp8\"".to_owned(),
                &["train.fp8_recipe", "train.precision"],
                "write `precision = \"fp8\"` below `[train]`, or remove it",
            );
        }
        if let (Some(ParsedValue::Steps(warmup)), Some(steps)) =
            (self.values.get("train.warmup"), self.values.whole("objective.stop.steps"))
            && *warmup >= steps
        {
            let message =
                format!("the warm-up of {warmup} steps does not end within the {steps} steps of training");
            self.wrong(message, &["train.warmup", "objective.stop.steps"], "about 5% of the steps is usual");
        }
    }

    /// Reports constants that an optimizer of this kind does not have.
    fn optimizer(&mut self, kind: OptimizerKind) {
        let unused: &[&str] = match kind {
            OptimizerKind::Sgd => &["train.optimizer.beta2", "train.optimizer.epsilon"],
            OptimizerKind::Lion => &["train.optimizer.epsilon"],
            OptimizerKind::Adamw | OptimizerKind::Lamb => &[],
        };
        for key in unused.iter().filter(|key| self.values.said(key).is_some()) {
            let message = format!("`{key}` does not apply to the optimizer \"{kind}\"");
            self.wrong(message, &[key, "train.optimizer.kind"], "remove it");
        }
    }
}

/// Returns a hint for a metric name that a script may report but that dtrain records under another name.
fn not_a_series(name: &str) -> Option<&'static str> {
    match name {
        "valid_loss" => Some("write `metric = \"valid.loss\"`"),
        "valid_accuracy" => Some("write `metric = \"valid.accuracy\"`"),
        "tokens" => Some("write `metric = \"tokens_per_second\"` with `goal = \"max\"`"),
        "seconds" => Some("write `metric = \"step_seconds\"` with `goal = \"min\"`"),
        "step" => Some("write `objective.stop.steps`, or name a metric that the script reports"),
        // Every other name that a script reports is recorded as a series under that name.
        _ => None,
    }
}
