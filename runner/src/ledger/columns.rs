//! Columns of the list of trials: their names in conditions, and their SQL.

/// Names in conditions that are compared with words.
pub(super) const WORDS: [&str; 4] = ["recipe", "study", "status", "tag"];

/// Names in conditions that are columns of the list of trials and compared with numbers.
pub(super) const COLUMNS: [&str; 6] = ["batch", "learning_rate", "best", "loss", "step", "tokens_per_second"];

/// Returns the SQL of the column that a condition calls `key`; `None` if there is none.
pub(super) fn column(key: &str) -> Option<&'static str> {
    Some(match key {
        "batch" => "trial.batch",
        "learning_rate" => "trial.learning_rate",
        "best" => BEST,
        "loss" => "loss.last",
        "step" => "coalesce(loss.last_step, result.last_step)",
        "tokens_per_second" => SPEED,
        _ => return None,
    })
}

/// SQL for the best value of a trial's objective so far.
pub(super) const BEST: &str = "CASE trial.goal WHEN 'max' THEN result.max ELSE result.min END";

/// SQL for the value of the metric `key.name` that a condition compares: of the objective the best value, of
/// other metrics the newest.
pub(super) const FIGURE: &str = "CASE WHEN key.name <> trial.objective THEN summary.last
    WHEN trial.goal = 'max' THEN summary.max ELSE summary.min END";

/// SQL for the throughput of a trial in tokens per second.
pub(super) const SPEED: &str =
    "coalesce(trial.measured_tokens_per_second, speed.sum / nullif(speed.finite, 0))";

/// Returns the SQL of the columns of a [`TrialRow`](super::TrialRow), in the order that
/// [`row`](super::list::row) reads them.
pub(super) fn columns() -> String {
    format!(
        "trial.uid, trial.label, trial.recipe, trial.study, trial.state, trial.layout, trial.batch,
         trial.learning_rate, trial.objective, {BEST} AS best, loss.last, coalesce(loss.last_step, result.last_step, 0),
         {SPEED} AS tokens_per_second,
         coalesce(trial.measured_step_seconds, step.sum / nullif(step.finite, 0)),
         trial.predicted_step_seconds, trial.created_ms, trial.started_ms, trial.ended_ms,
         trial.git_revision, trial.git_dirty, trial.goal,
         CASE WHEN (SELECT 1 FROM imported_trial LIMIT 1) THEN (SELECT host FROM imported_trial WHERE imported_trial.trial = trial.id) END
             AS imported_from"
    )
}

/// SQL of the tables that [`columns`] reads; each figure is taken from the lowest rank that reports it.
pub(super) const TABLES: &str = "trial
    LEFT JOIN summary AS loss ON loss.trial = trial.id
         AND loss.rank = (SELECT min(rank) FROM summary WHERE trial = loss.trial AND key = loss.key)
         AND loss.key = (SELECT id FROM key WHERE name = 'loss')
    LEFT JOIN summary AS result ON result.trial = trial.id
         AND result.rank = (SELECT min(rank) FROM summary WHERE trial = result.trial AND key = result.key)
         AND result.key = (SELECT id FROM key WHERE name = trial.objective)
    LEFT JOIN summary AS speed ON speed.trial = trial.id
         AND speed.rank = (SELECT min(rank) FROM summary WHERE trial = speed.trial AND key = speed.key)
         AND speed.key = (SELECT id FROM key WHERE name = 'tokens_per_second')
    LEFT JOIN summary AS step ON step.trial = trial.id
         AND step.rank = (SELECT min(rank) FROM summary WHERE trial = step.trial AND key = step.key)
         AND step.key = (SELECT id FROM key WHERE name = 'step_seconds')";
