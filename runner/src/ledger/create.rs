//! Records a new trial before anything is launched.

use super::interned::{digest, insert_text, key_id};
use super::{BoxError, History, now_ms, stored};
use crate::fact::LedgerError;
use crate::provenance::Provenance;
use dtrain_planner::{Plan, RankedCandidate};
use dtrain_protocol::{InputManifest, StepId, TrialId};
use dtrain_recipes::{Goal, Model, Recipe, placeholder};
use rusqlite::{Transaction, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Properties of a trial before it is launched.
#[derive(Clone, Debug)]
pub struct NewTrial {
    /// Recipe of the user.
    pub recipe: Recipe,
    /// Whole plan, as JSON.
    pub plan: Value,
    /// Candidate to train, as JSON.
    pub candidate: Value,
    /// Layout and approximations of the candidate, as text.
    pub layout: String,
    /// Batch size: samples per optimizer step.
    pub batch: u64,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Performance that the planner expects.
    pub predicted: ExpectedPerformance,
    /// Digest of the host whose rates the planner used: [`super::host_digest`].
    pub host_digest: String,
    /// Key of the step times that the trial measures: [`dtrain_planner::observation_key`].
    pub model_digest: String,
    /// Name of the study that the trial belongs to; `None` outside of studies.
    pub study: Option<String>,
    /// Checkpoint of another trial that the trial begins with; `None` if it starts anew.
    pub parent: Option<Parent>,
    /// Origins of parameters, by path such as `train.batch`; parameters not listed came from the recipe.
    pub sources: BTreeMap<String, ValueSource>,
    /// Code, program and environment that produced the trial.
    pub provenance: Provenance,
}

/// Performance that the planner expects of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpectedPerformance {
    /// Predicted seconds per optimizer step.
    pub step_seconds: Option<f64>,
    /// Predicted tokens (samples, for a model without sequences) per second over all ranks.
    pub tokens_per_second: Option<f64>,
    /// Predicted peak memory in bytes of the rank that uses the most.
    pub memory_bytes: Option<u64>,
}

/// Checkpoint of another trial that a new trial begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parent {
    /// Id of the trial that wrote the checkpoint.
    pub trial: TrialId,
    /// Label of the trial that wrote the checkpoint.
    pub label: String,
    /// Training steps completed in the checkpoint.
    pub step: StepId,
    /// Folder of the checkpoint.
    pub folder: PathBuf,
    /// True if training begins at step 0 with the weights only, and does not continue the other trial's run.
    pub weights_only: bool,
    /// Settings that differ from the other trial's, as the user gave them; changed data; and adjustments of
    /// the learning rate.
    pub changes: Vec<String>,
    /// Data that the user accepted, if it differs from the data of the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<InputManifest>,
}

/// Origin of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueSource {
    /// The value was set in the recipe of the user.
    Recipe,
    /// The value was set by a flag or an environment variable.
    Setting,
    /// The value is the default, as it was not set anywhere.
    Default,
    /// The value was chosen by the planner.
    Planner,
    /// The value was chosen by a search.
    Search,
}

/// One value of a recipe or a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialParameter {
    /// Path of the parameter, such as `train.optimizer.beta1` or `plan.micro_batch`.
    pub path: String,
    /// Value of the parameter: a number, string, boolean, `null`, or an empty list.
    pub value: Value,
    /// Origin of the value.
    pub source: ValueSource,
}

/// Id and label given to a new trial when it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialName {
    /// Globally unique id of the trial.
    pub id: TrialId,
    /// Label of the trial, `<recipe>-<n>`: unique in this history and never reused.
    pub label: String,
}

impl NewTrial {
    /// Returns a new trial that trains the candidate `choice` of `plan`; the caller fills in `study`,
    /// `parent` and `sources`.
    pub fn of(plan: &Plan, choice: &RankedCandidate, provenance: Provenance) -> Self {
        let json = |value: Result<Value, serde_json::Error>| value.expect("plans have string keys only");
        Self {
            recipe: plan.recipe.clone(),
            plan: json(serde_json::to_value(plan)),
            candidate: json(serde_json::to_value(&choice.candidate)),
            layout: choice.candidate.arrangement.describe(),
            batch: plan.batch.value,
            learning_rate: choice.candidate.learning_rate,
            predicted: choice.estimate.as_ref().map_or_else(ExpectedPerformance::default, |estimate| {
                ExpectedPerformance {
                    step_seconds: Some(estimate.step.0),
                    tokens_per_second: Some(estimate.tokens_per_second),
                    memory_bytes: Some(estimate.memory_peak.0),
                }
            }),
            host_digest: super::host_digest(&plan.host),
            model_digest: dtrain_planner::observation_key(&plan.recipe),
            study: None,
            parent: None,
            sources: BTreeMap::new(),
            provenance,
        }
    }
}

impl ValueSource {
    /// Returns the word by which the origin is stored.
    pub fn word(self) -> &'static str {
        match self {
            Self::Recipe => "recipe",
            Self::Setting => "setting",
            Self::Default => "default",
            Self::Planner => "planner",
            Self::Search => "search",
        }
    }

    /// Parses the word by which an origin is stored; `None` if it is unknown.
    pub(super) fn parse(word: &str) -> Option<Self> {
        [Self::Recipe, Self::Setting, Self::Default, Self::Planner, Self::Search]
            .into_iter()
            .find(|source| source.word() == word)
    }
}

impl History {
    /// Records a trial durably, before anything is launched.
    pub fn create_trial(&mut self, new: &NewTrial) -> Result<TrialName, LedgerError> {
        self.write("write a trial to", |transaction| create(transaction, new))
    }
}

fn create(transaction: &Transaction<'_>, new: &NewTrial) -> Result<TrialName, BoxError> {
    let recipe = serde_json::to_value(&new.recipe)?;
    let created = TrialName {
        id: TrialId(ulid::Ulid::generate().to_string()),
        label: format!("{}-{}", new.recipe.name, next_number(transaction, &new.recipe.name)?),
    };
    let made = &new.provenance;
    let environment = serde_json::to_string(&made.environment)?;
    let goal = match new.recipe.objective.goal() {
        Goal::Min => "min",
        Goal::Max => "max",
    };
    transaction.execute(
        "INSERT INTO trial(uid, label, recipe, study, state, objective, layout, batch, learning_rate, config_hash,
             host_digest, model_digest, predicted_step_seconds, predicted_tokens_per_second,
             predicted_memory_bytes, created_ms, git_revision, git_dirty, patch_hash, environment_hash, program, goal)
         VALUES (?1, ?2, ?3, ?4, 'created', ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)",
        params![
            created.id.0,
            created.label,
            new.recipe.name,
            new.study,
            new.recipe.objective.metric.name(),
            new.layout,
            stored(new.batch),
            new.learning_rate,
            digest(&format!("{recipe}\n{}", new.candidate)),
            new.host_digest,
            new.model_digest,
            new.predicted.step_seconds,
            new.predicted.tokens_per_second,
            new.predicted.memory_bytes.map(stored),
            now_ms(),
            made.git.as_ref().map(|git| &git.revision),
            made.git.as_ref().is_some_and(|git| git.is_dirty()),
            made.git.as_ref().and_then(|git| git.patch.as_ref()).map(|patch| insert_text(transaction, "patch", "text", patch)).transpose()?,
            insert_text(transaction, "environment", "json", &environment)?,
            made.program,
            goal,
        ],
    )?;
    let trial = transaction.last_insert_rowid();
    // The patch and the environment are stored once for all trials that share them.
    let mut lean = made.clone();
    lean.environment.clear();
    if let Some(git) = &mut lean.git {
        git.patch = None;
    }
    let documents = [
        ("recipe", &recipe),
        ("plan", &new.plan),
        ("candidate", &new.candidate),
        ("provenance", &serde_json::to_value(&lean)?),
    ];
    for (kind, json) in documents {
        transaction.execute(
            "INSERT INTO document(trial, kind, json) VALUES (?1, ?2, ?3)",
            params![trial, kind, json.to_string()],
        )?;
    }
    if let Some(parent) = &new.parent {
        transaction.execute(
            "INSERT INTO document(trial, kind, json) VALUES (?1, 'parent', ?2)",
            params![trial, serde_json::to_string(parent)?],
        )?;
    }
    // A searched parameter is recorded with its value; its range stays in the document.
    let mut settings = recipe.clone();
    settings.as_object_mut().and_then(|sections| sections.remove("ranges"));
    let mut values = flatten("", &settings, ValueSource::Recipe);
    values.extend(flatten("plan", &new.candidate, ValueSource::Planner));
    values.retain(|param| affects_training(&new.recipe.model, &param.path));
    for param in values {
        let source = source_of(&new.sources, &param);
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO param(trial, key, value, number, source) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                trial,
                key_id(transaction, &param.path)?,
                param.value.to_string(),
                param.value.as_f64(),
                source.word()
            ])?;
    }
    Ok(created)
}

/// Returns the origin of a parameter's value, or of the list that it is in. Empty values do not come from the
/// recipe.
fn source_of(sources: &BTreeMap<String, ValueSource>, param: &TrialParameter) -> ValueSource {
    let parents = std::iter::successors(Some(param.path.as_str()), |path| Some(path.rsplit_once('.')?.0));
    let is_empty = match &param.value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    let unsaid =
        if is_empty && param.source == ValueSource::Recipe { ValueSource::Default } else { param.source };
    parents.into_iter().find_map(|path| sources.get(path).copied()).unwrap_or(unsaid)
}

/// Returns `true` if a value can affect the training of a model. Of the settings for dtrain's own models, a
/// command gets only those that its placeholders name.
fn affects_training(model: &Model, path: &str) -> bool {
    let Model::Command(command) = model else { return true };
    let mut named = command.argv.iter().chain(command.env.values()).flat_map(|text| placeholder::paths(text));
    match path.split('.').next() {
        Some("train" | "sync" | "checkpoint") => named.any(|named| {
            path.strip_prefix(named).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        }),
        Some("plan") => path.starts_with("plan.layout.") || matches!(path, "plan.threads" | "plan.device"),
        _ => true,
    }
}

/// Returns the next number for a trial of `recipe`; numbers of deleted trials are not reused.
fn next_number(transaction: &Transaction<'_>, recipe: &str) -> Result<i64, BoxError> {
    let next = transaction.query_row(
        "INSERT INTO recipe(name, last_number) VALUES (?1, 1)
         ON CONFLICT(name) DO UPDATE SET last_number = last_number + 1 RETURNING last_number",
        [recipe],
        |row| row.get(0),
    )?;
    Ok(next)
}

/// Flattens a JSON value to its leaves with their paths: `{"a": {"b": [1]}}` is `a.b.0 = 1`.
pub fn flatten(prefix: &str, value: &Value, source: ValueSource) -> Vec<TrialParameter> {
    let below = |name: &str, inner: &Value| {
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        flatten(&path, inner, source)
    };
    match value {
        // A choice that the user pinned is shown as the value itself.
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("pinned") => {
            flatten(prefix, &fields["pinned"], source)
        }
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().flat_map(|(name, inner)| below(name, inner)).collect()
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().flat_map(|(index, inner)| below(&index.to_string(), inner)).collect()
        }
        leaf => vec![TrialParameter { path: prefix.to_owned(), value: leaf.clone(), source }],
    }
}
