//! Stored configuration of a study, and conversion of trial verdicts to outcomes.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use crate::recipe_diff::differences;
use crate::render::number::counted;
use crate::trials::history_failure;
use dtrain_planner::tune::{
    RecipeSearchSpace, Study, StudyEvent, TrialFailure, TrialOutcome, TrialValue, limited_to_samples,
    limited_to_steps,
};
use dtrain_recipes::{Recipe, Tune};
use dtrain_runner::Verdict;
use dtrain_runner::ledger::{History, TrialDetails};
use dtrain_runner::machine::Blame;
use serde::{Deserialize, Serialize};

/// Maximum number of listed differences between a study's recipe and that of the command.
const DIFFERENCES: usize = 8;

/// Version of the stored format; studies in other versions are refused.
const FORMAT: u32 = 3;

/// Configuration of a study, written once when it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StudyConfig {
    format: u32,
    /// Recipe as the user gave it.
    recipe: Recipe,
    /// Recipe with the layout that all trials share.
    pub(super) base_recipe: Recipe,
    pub(super) study: Study,
    pub(super) search_space: RecipeSearchSpace,
    /// Number of optimizer steps per trial at the planned batch size; `None` if a command decides.
    pub(super) steps: Option<u64>,
    /// Number of samples per trial, if trials differ in batch size and shall see equally many; otherwise
    /// `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) samples: Option<u64>,
    /// Number of trials taken over from other studies.
    pub(super) prior_trials: u64,
}

impl StudyConfig {
    pub(super) fn new(
        recipe: &Recipe,
        base_recipe: Recipe,
        study: Study,
        search_space: RecipeSearchSpace,
        steps: Option<u64>,
    ) -> Self {
        Self {
            format: FORMAT,
            recipe: without_resumable_keys(recipe),
            base_recipe,
            study,
            search_space,
            steps,
            samples: None,
            prior_trials: 0,
        }
    }

    /// Sets the number of the study's own trials, which may change when it is resumed.
    pub(super) fn with_trials(mut self, trials: u64) -> Self {
        self.study.trials = Some(trials + self.prior_trials);
        self
    }

    /// Returns the number of the study's own trials that have ended.
    pub(super) fn done(&self, log: &[StudyEvent]) -> u64 {
        let over = log.iter().filter(|event| matches!(event, StudyEvent::Ended { .. })).count() as u64;
        over.saturating_sub(self.prior_trials)
    }

    /// Returns the recipe of a trial with the given values in the search space.
    pub(super) fn trial(&self, values: &[TrialValue]) -> Recipe {
        let recipe = self.search_space.recipe_with(&self.base_recipe, values);
        match (self.samples, self.steps) {
            (Some(samples), _) => limited_to_samples(&recipe, samples),
            (None, Some(steps)) => limited_to_steps(&recipe, steps),
            (None, None) => recipe,
        }
    }

    /// Returns the progress after `step` steps of batch size `batch`, in units common to all trials: samples
    /// or steps.
    pub(super) fn progress(&self, step: u64, batch: u64) -> u64 {
        if self.samples.is_some() { step.saturating_mul(batch) } else { step }
    }

    /// Formats the progress `at`: a number of samples, or `step N`.
    pub(super) fn progress_text(&self, at: u64) -> String {
        if self.samples.is_some() { counted(at, "sample") } else { format!("step {at}") }
    }

    /// Formats the length of a trial: ` after 100 steps`; empty if a command decides.
    pub(super) fn length(&self) -> String {
        let length = self.samples.map(|samples| counted(samples, "sample"));
        let length = length.or_else(|| self.steps.map(|steps| counted(steps, "step")));
        length.map_or(String::new(), |length| format!(" after {length}"))
    }

    /// Takes over the length of trials from another study.
    pub(super) fn of_length(mut self, other: &Self) -> Self {
        (self.steps, self.samples) = (other.steps, other.samples);
        self
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a study has string keys only")
    }

    /// Parses a stored study. `Err` if another version wrote it, or if its recipe or its trials' length
    /// differ.
    pub(super) fn read(
        json: serde_json::Value,
        name: &str,
        recipe: &Recipe,
        steps: Option<u64>,
    ) -> Result<Self, CommandError> {
        let cannot = |why: String| {
            CommandError::new(ExitReason::Usage, format!("the study {name} cannot be resumed")).cause(why)
        };
        let kept = Self::parse(json).map_err(cannot)?;
        if kept.recipe != without_resumable_keys(recipe) {
            let failure = cannot("it was started with another recipe or other settings".to_owned());
            let differences = differences("", &kept.recipe, &without_resumable_keys(recipe));
            let failure = differences.into_iter().take(DIFFERENCES).fold(failure, CommandError::cause);
            return Err(failure.hint(format!(
                "use the original recipe and settings; `--from {name}` and a new name for --study begin a study that learns from it"
            )));
        }
        if let Some(steps) = steps.filter(|steps| Some(*steps) != kept.steps) {
            let known = kept.steps.map_or("those of the command".to_owned(), |steps| steps.to_string());
            return Err(cannot(format!("its trials have {known} steps, not {steps}"))
                .hint("omit --steps to resume, or omit --study to start a new study"));
        }
        Ok(kept)
    }

    fn parse(json: serde_json::Value) -> Result<Self, String> {
        let format = json["format"].as_u64().unwrap_or(0);
        if format != u64::from(FORMAT) {
            return Err(format!("it has format {format}; this version reads {FORMAT}"));
        }
        serde_json::from_value(json).map_err(|error| error.to_string())
    }

    /// Reads a study of the history by its name.
    pub(super) fn named(history: &History, name: &str) -> Result<Self, CommandError> {
        let json = history.study(name).map_err(|error| history_failure(&error))?;
        let json =
            json.ok_or_else(|| CommandError::new(ExitReason::Usage, format!("there is no study {name}")))?;
        Self::parse(json).map_err(|why| {
            CommandError::new(ExitReason::Usage, format!("the study {name} cannot be read")).cause(why)
        })
    }
}

/// Resets the keys that may change when a study is resumed: number of trials, time limit, slots, and
/// confirming seeds.
fn without_resumable_keys(recipe: &Recipe) -> Recipe {
    let mut recipe = recipe.clone();
    let Tune { trials, time, confirm, .. } = Tune::default();
    (recipe.tune.trials, recipe.tune.time, recipe.tune.confirm) = (trials, time, confirm);
    recipe.cluster.slots = 1;
    recipe
}

/// Reads all events of a study from the history.
pub(super) fn log(history: &History, name: &str) -> Result<Vec<StudyEvent>, CommandError> {
    let events = history.study_events(name).map_err(|error| history_failure(&error))?;
    events.into_iter().map(serde_json::from_value).collect::<Result<_, _>>().map_err(|error| {
        CommandError::new(
            ExitReason::Infrastructure,
            format!("the events of the study {name} cannot be read"),
        )
        .cause(error.to_string())
    })
}

/// Converts a trial's verdict to its outcome in the study; `None` if the trial can be resumed.
pub(super) fn outcome_of_verdict(verdict: &Verdict, trial: &TrialDetails) -> Option<TrialOutcome> {
    let failed = |why| Some(TrialOutcome::Failed { reason: why });
    match verdict {
        Verdict::Completed(_) => Some(
            value(trial)
                .map_or(TrialOutcome::Failed { reason: TrialFailure::Unmeasured }, TrialOutcome::done),
        ),
        Verdict::Pruned => value(trial).map(|value| TrialOutcome::Pruned { value }),
        Verdict::OutOfMemory => failed(TrialFailure::OutOfMemory),
        Verdict::Diverged => failed(TrialFailure::Diverged),
        Verdict::Failed(failure) if Blame::of(failure) == Blame::Machines => failed(TrialFailure::Lost),
        Verdict::Failed(_) => failed(TrialFailure::Crashed),
        Verdict::Stopped => None,
    }
}

/// Returns the trial's cost: the newest value of the objective, negated if higher is better.
fn value(trial: &TrialDetails) -> Option<f64> {
    let figure = trial.figure(&trial.row.objective)?;
    Some(trial.row.goal.cost(figure.last.unwrap_or(f64::NAN)))
}

/// Returns the title of a search dimension: the last word of its key.
pub(super) fn dimension_title(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
