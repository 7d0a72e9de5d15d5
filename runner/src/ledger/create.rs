//! Recording a new trial before anything is launched.

use super::{BoxError, History, now_ms, stored};
use crate::fact::LedgerError;
use crate::provenance::Provenance;
use dtrain_planner::{Plan, RankedCandidate};
use dtrain_protocol::{InputManifest, StepId, TrialId};
use dtrain_recipes::{Goal, Model, Recipe, placeholder};
use rusqlite::{OptionalExtension, Transaction, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What is known of a trial before it is launched.
#[derive(Clone, Debug)]
pub struct NewTrial {
    /// What the user asked for.
    pub recipe: Recipe,
    /// The whole plan.
    pub plan: Value,
    /// The candidate that will be trained.
    pub candidate: Value,
    /// How it cuts the work, and what is approximate, in words.
    pub layout: String,
    /// Samples of one optimizer step.
    pub batch: u64,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// What the planner expects.
    pub predicted: ExpectedPerformance,
    /// Digest of the host whose rates were used: [`super::host_digest`].
    pub host_digest: String,
    /// Digest of the model whose rates were used: `Rates::model_digest`.
    pub model_digest: String,
    /// The study it belongs to.
    pub study: Option<String>,
    /// The trial whose checkpoint it begins with.
    pub parent: Option<Parent>,
    /// Where parameters came from, by path such as `train.batch`; those not named came from the recipe.
    pub sources: BTreeMap<String, ValueSource>,
    /// What produced it.
    pub provenance: Provenance,
}

/// What the planner expects of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpectedPerformance {
    /// Seconds of one optimizer step.
    pub step_seconds: Option<f64>,
    /// Tokens (samples, for a model without sequences) per second over all ranks.
    pub tokens_per_second: Option<f64>,
    /// Peak bytes of the rank that needs most.
    pub memory_bytes: Option<u64>,
}

/// The checkpoint of another trial that a trial begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parent {
    /// The other trial.
    pub trial: TrialId,
    /// What it is called.
    pub label: String,
    /// Steps completed in the checkpoint.
    pub step: StepId,
    /// The folder of the checkpoint.
    pub folder: PathBuf,
    /// Whether training begins at step 0 with its weights, and does not continue.
    pub weights_only: bool,
    /// Settings that differ from those of the other trial, as the user gave them, the data where that differs, and what follows for
    /// the learning rate.
    pub changes: Vec<String>,
    /// The data that was accepted although it differs from that of the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<InputManifest>,
}

/// Where the value of a parameter came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueSource {
    /// The user's recipe.
    Recipe,
    /// A flag or an environment variable.
    Setting,
    /// Nobody: it is the default.
    Default,
    /// The planner.
    Planner,
    /// A search.
    Search,
}

/// One value of a recipe or a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialParameter {
    /// Where it stands, such as `train.optimizer.beta1` or `plan.micro_batch`.
    pub path: String,
    /// A number, a text, a truth value, `null`, or an empty list.
    pub value: Value,
    /// Where it came from.
    pub source: ValueSource,
}

/// The name of a new trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialName {
    /// Its id, unique everywhere.
    pub id: TrialId,
    /// `<recipe>-<n>`, unique in this history; never given twice.
    pub label: String,
}

impl NewTrial {
    /// A trial of one of a plan's choices; `sources` and `search` are the caller's to fill.
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
            model_digest: dtrain_planner::model_digest(&plan.recipe.model),
            study: None,
            parent: None,
            sources: BTreeMap::new(),
            provenance,
        }
    }
}

impl ValueSource {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Recipe => "recipe",
            Self::Setting => "setting",
            Self::Default => "default",
            Self::Planner => "planner",
            Self::Search => "search",
        }
    }

    /// The source behind a stored word.
    pub(super) fn parse(word: &str) -> Option<Self> {
        [Self::Recipe, Self::Setting, Self::Default, Self::Planner, Self::Search]
            .into_iter()
            .find(|source| source.word() == word)
    }
}

impl History {
    /// Records a trial; it is durable, and nothing was launched yet.
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
    // The patch and the environment are kept once for all trials that share them.
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
    // A param is recorded with its value; its range stays in the document.
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

/// Who said a value: who said it or the list that it is in. A recipe says nothing that is empty.
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

/// Whether a value can have any effect on the training of a model. Of what concerns dtrain's own models, a command gets only
/// what its placeholders name.
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

/// The next number of a recipe; numbers of deleted trials are not given again.
fn next_number(transaction: &Transaction<'_>, recipe: &str) -> Result<i64, BoxError> {
    let next = transaction.query_row(
        "INSERT INTO recipe(name, last_number) VALUES (?1, 1)
         ON CONFLICT(name) DO UPDATE SET last_number = last_number + 1 RETURNING last_number",
        [recipe],
        |row| row.get(0),
    )?;
    Ok(next)
}

/// Keeps a text under its hash, once; returns the hash.
pub(super) fn insert_text(
    transaction: &Transaction<'_>,
    table: &str,
    column: &str,
    text: &str,
) -> Result<String, BoxError> {
    let hash = digest(text);
    transaction
        .execute(&format!("INSERT OR IGNORE INTO {table}(hash, {column}) VALUES (?1, ?2)"), [&hash, text])?;
    Ok(hash)
}

/// The first 32 hex digits of a text's blake3.
pub(super) fn digest(text: &str) -> String {
    let mut hex = blake3::hash(text.as_bytes()).to_hex().to_string();
    hex.truncate(32);
    hex
}

/// The number of a key's name; made when it is new.
pub(super) fn key_id(database: &rusqlite::Connection, name: &str) -> Result<i64, BoxError> {
    let known = database
        .prepare_cached("SELECT id FROM key WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    if let Some(id) = known {
        return Ok(id);
    }
    database.prepare_cached("INSERT INTO key(name) VALUES (?1)")?.execute([name])?;
    Ok(database.last_insert_rowid())
}

/// The leaves of a JSON value with their paths: `{"a": {"b": [1]}}` is `a.b.0 = 1`.
pub fn flatten(prefix: &str, value: &Value, source: ValueSource) -> Vec<TrialParameter> {
    let below = |name: &str, inner: &Value| {
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        flatten(&path, inner, source)
    };
    match value {
        // A choice that the user made reads as the value itself.
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
