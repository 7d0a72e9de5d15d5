//! Export to an MLflow tracking store: a SQLite file that `mlflow ui --backend-store-uri sqlite:///FILE`
//! opens.
//!
//! MLflow 3 refuses folders (`mlruns`) unless a variable allows them. A new file has the tables of an old
//! revision of MLflow's schema, which any version of MLflow upgrades when it opens the file. Trials can also
//! be added to a file that MLflow made, of any version.

use super::atomic_output::{partial, write_error};
use super::names::names;
use super::runs::{ProgressCounter, RunSeries, TrackedRun};
use super::{ExportError, TrialSelection, WriteProgress, WrittenRun, as_u64};
use crate::durable::sync_folder;
use crate::ledger::{MetricSample, TrialOutline, TrialStatus};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Revision of MLflow's schema that [`TABLES`] has: the one before the table of latest values, which MLflow
/// then fills itself.
const REVISION: &str = "7ac759974ad8";

/// SQL of the tables that MLflow's migrations up to [`REVISION`] make, but with the status `KILLED`, which a
/// later revision allows.
const TABLES: &str = "
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
CREATE TABLE experiments (
    experiment_id INTEGER NOT NULL, name VARCHAR(256) NOT NULL, artifact_location VARCHAR(256),
    lifecycle_stage VARCHAR(32), CONSTRAINT experiment_pk PRIMARY KEY (experiment_id),
    CONSTRAINT experiments_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), UNIQUE (name));
CREATE TABLE experiment_tags (
    key VARCHAR(250) NOT NULL, value VARCHAR(5000), experiment_id INTEGER NOT NULL,
    CONSTRAINT experiment_tag_pk PRIMARY KEY (key, experiment_id),
    FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id));
CREATE TABLE runs (
    run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), source_type VARCHAR(20), source_name VARCHAR(500),
    entry_point_name VARCHAR(50), user_id VARCHAR(256), status VARCHAR(20), start_time BIGINT, end_time BIGINT,
    source_version VARCHAR(50), lifecycle_stage VARCHAR(20), artifact_uri VARCHAR(200), experiment_id INTEGER,
    CONSTRAINT run_pk PRIMARY KEY (run_uuid),
    CONSTRAINT source_type CHECK (source_type IN ('NOTEBOOK', 'JOB', 'LOCAL', 'UNKNOWN', 'PROJECT')),
    CONSTRAINT status CHECK (status IN ('SCHEDULED', 'FAILED', 'FINISHED', 'RUNNING', 'KILLED')),
    CONSTRAINT runs_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')),
    FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id));
CREATE TABLE params (
    key VARCHAR(250) NOT NULL, value VARCHAR(250) NOT NULL, run_uuid VARCHAR(32) NOT NULL,
    CONSTRAINT param_pk PRIMARY KEY (key, run_uuid), FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid));
CREATE TABLE metrics (
    key VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL, run_uuid VARCHAR(32) NOT NULL,
    step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL,
    CONSTRAINT metric_pk PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan),
    FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid));
CREATE TABLE tags (
    key VARCHAR(250) NOT NULL, value VARCHAR(5000), run_uuid VARCHAR(32) NOT NULL,
    CONSTRAINT tag_pk PRIMARY KEY (key, run_uuid), FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid));
";

/// Exports trials to the MLflow database `to`, atomically: a new file, or an existing one with the trials
/// added.
pub(super) fn database(
    request: &TrialSelection<'_>,
    to: &Path,
    watch: &mut dyn FnMut(WriteProgress),
) -> Result<Vec<WrittenRun>, ExportError> {
    if to.exists() {
        return fill(request, to, to, watch);
    }
    let folder = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(write_error(folder))?;
    let new = partial(to);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(write_error(&new)(error)),
        Ok(()) | Err(_) => {}
    }
    let mut create = || {
        Connection::open(&new)
            .and_then(|database| {
                database.execute_batch(TABLES)?;
                database.execute("INSERT INTO alembic_version(version_num) VALUES (?1)", [REVISION])
            })
            .map_err(|source| ExportError::Database { path: new.clone(), source })?;
        let written = fill(request, &new, to, watch)?;
        fs::rename(&new, to).and_then(|()| sync_folder(folder)).map_err(write_error(to))?;
        Ok(written)
    };
    let written = create();
    if written.is_err() {
        drop(fs::remove_file(&new));
    }
    written
}

/// Adds the trials to the database file `path`, which is `to` or will be renamed to it.
fn fill(
    request: &TrialSelection<'_>,
    path: &Path,
    to: &Path,
    watch: &mut dyn FnMut(WriteProgress),
) -> Result<Vec<WrittenRun>, ExportError> {
    let failed = |source| ExportError::Database { path: path.to_path_buf(), source };
    let mut counter = ProgressCounter::of(request, watch)?;
    let mut database = Connection::open(path).map_err(failed)?;
    database.busy_timeout(Duration::from_secs(60)).map_err(failed)?;
    for table in ["alembic_version", "experiments", "runs", "metrics", "params", "tags"] {
        if columns(&database, table).map_err(failed)?.is_empty() {
            return Err(ExportError::NoStore { path: path.to_path_buf(), table });
        }
    }
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let mut written = Vec::new();
    for row in &request.trials {
        let trial = request.history.outline(row)?;
        let experiment = experiment(&transaction, &trial, to).map_err(failed)?;
        for run in request.runs(&trial)? {
            let (id, name) = (id(&run), run.name());
            if is_there(&transaction, &id).map_err(failed)? {
                if !request.force {
                    return Err(ExportError::Exists(format!("the run {name} in {}", to.display())));
                }
                delete(&transaction, &id).map_err(failed)?;
            }
            add(&transaction, &run, &id, (experiment, to)).map_err(failed)?;
            counter.add(run.series.len(), run.points());
            written.push(WrittenRun {
                trial: row.id.clone(),
                name,
                place: id,
                series: as_u64(run.series.len()),
                points: as_u64(run.points()),
            });
        }
    }
    transaction.commit().map_err(failed)?;
    Ok(written)
}

/// Returns the column names of a table; empty if there is no such table.
fn columns(database: &Connection, table: &str) -> rusqlite::Result<BTreeSet<String>> {
    let mut select = database.prepare("SELECT name FROM pragma_table_info(?1)")?;
    let names = select.query_map([table], |row| row.get(0))?;
    names.collect()
}

/// Returns the id of a run: 32 hexadecimal digits that are always the same for one trial, or for one attempt
/// if each is a run.
fn id(run: &TrackedRun<'_>) -> String {
    let attempt = run.attempt.map_or(String::new(), |attempt| attempt.to_string());
    let mut id = blake3::hash(format!("{} {attempt}", run.trial.row.id).as_bytes()).to_hex().to_string();
    id.truncate(32);
    id
}

/// Returns the id of the experiment of a trial, named after its study or else its recipe; creates the
/// experiment if needed.
fn experiment(transaction: &Transaction<'_>, trial: &TrialOutline, to: &Path) -> rusqlite::Result<i64> {
    let name = trial.row.study.as_ref().unwrap_or(&trial.row.recipe);
    let find = "SELECT experiment_id FROM experiments WHERE name = ?1";
    if let Some(id) = transaction.query_row(find, [name], |row| row.get(0)).optional()? {
        return Ok(id);
    }
    // MLflow's own default experiment is 0, and MLflow makes it unless one of its name exists.
    transaction.execute(
        "INSERT INTO experiments(experiment_id, name, artifact_location, lifecycle_stage)
         VALUES (0, 'Default', ?1, 'active') ON CONFLICT DO NOTHING",
        [artifacts(to, 0)],
    )?;
    let id = "SELECT max(experiment_id) + 1 FROM experiments";
    let id: i64 = transaction.query_row(id, [], |row| row.get(0))?;
    transaction.execute(
        "INSERT INTO experiments(experiment_id, name, artifact_location, lifecycle_stage)
         VALUES (?1, ?2, ?3, 'active')",
        params![id, name, artifacts(to, id)],
    )?;
    if columns(transaction, "experiments")?.contains("creation_time") {
        transaction.execute(
            "UPDATE experiments SET creation_time = ?1, last_update_time = ?1 WHERE experiment_id = ?2",
            params![trial.row.created_ms.cast_signed(), id],
        )?;
    }
    Ok(id)
}

/// Returns the location for the artifacts of an experiment; an export writes none.
fn artifacts(to: &Path, experiment: i64) -> String {
    let folder = std::path::absolute(to).unwrap_or_else(|_| to.to_path_buf());
    folder.with_file_name("mlruns").join(experiment.to_string()).display().to_string()
}

fn is_there(transaction: &Transaction<'_>, run: &str) -> rusqlite::Result<bool> {
    let query = "SELECT EXISTS(SELECT 1 FROM runs WHERE run_uuid = ?1)";
    transaction.query_row(query, [run], |row| row.get(0))
}

fn delete(transaction: &Transaction<'_>, run: &str) -> rusqlite::Result<()> {
    for table in ["metrics", "latest_metrics", "params", "tags", "runs"] {
        if !columns(transaction, table)?.is_empty() {
            transaction.execute(&format!("DELETE FROM {table} WHERE run_uuid = ?1"), [run])?;
        }
    }
    Ok(())
}

fn add(
    transaction: &Transaction<'_>,
    run: &TrackedRun<'_>,
    id: &str,
    (experiment, to): (i64, &Path),
) -> rusqlite::Result<()> {
    let (trial, (begun, ended)) = (run.trial, run.time());
    transaction.execute(
        "INSERT INTO runs(run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time,
             end_time, source_version, lifecycle_stage, artifact_uri, experiment_id)
         VALUES (?1, ?2, 'LOCAL', 'dtrain', '', '', ?3, ?4, ?5, ?6, 'active', ?7, ?8)",
        params![
            id,
            run.name(),
            status(trial.row.status),
            begun.cast_signed(),
            ended.map(u64::cast_signed),
            trial.row.git_revision.as_deref().unwrap_or_default(),
            format!("{}/{id}/artifacts", artifacts(to, experiment)),
            experiment,
        ],
    )?;
    let mut insert =
        transaction.prepare_cached("INSERT INTO params(key, value, run_uuid) VALUES (?1, ?2, ?3)")?;
    for param in &trial.params {
        let text = param.value.as_str().map_or_else(|| param.value.to_string(), str::to_owned);
        insert.execute(params![param.path, text, id])?;
    }
    let mut insert = transaction
        .prepare_cached("INSERT OR REPLACE INTO tags(key, value, run_uuid) VALUES (?1, ?2, ?3)")?;
    for (name, value) in tags(run) {
        insert.execute(params![name, value, id])?;
    }
    metrics(transaction, run, id)
}

/// Returns the tags of a run: dtrain's, the user's, and those that MLflow shows in special places.
fn tags(run: &TrackedRun<'_>) -> Vec<(String, String)> {
    let trial = run.trial;
    let notes: Vec<&str> = trial.notes.iter().map(|note| note.text.as_str()).collect();
    let mut tags: Vec<(String, String)> =
        trial.tags.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let own = [
        ("mlflow.runName", run.name()),
        ("mlflow.note.content", notes.join("\n\n")),
        ("mlflow.source.git.commit", trial.row.git_revision.clone().unwrap_or_default()),
        ("dtrain.trial", trial.row.id.0.clone()),
        ("dtrain.status", trial.row.status.to_string()),
    ];
    tags.extend(
        own.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.into(), value)),
    );
    tags
}

/// Returns MLflow's word for the status of a trial. A trial that the user or a search ended early is
/// `KILLED`.
fn status(status: TrialStatus) -> &'static str {
    match status {
        TrialStatus::Created => "SCHEDULED",
        TrialStatus::Running | TrialStatus::Waiting | TrialStatus::Unattended => "RUNNING",
        TrialStatus::Completed => "FINISHED",
        TrialStatus::Pruned | TrialStatus::Stopped => "KILLED",
        TrialStatus::Lost | TrialStatus::OutOfMemory | TrialStatus::Diverged | TrialStatus::Failed => {
            "FAILED"
        }
    }
}

/// Writes all points of a run, and the latest of each series if the database has a table for them.
fn metrics(transaction: &Transaction<'_>, run: &TrackedRun<'_>, id: &str) -> rusqlite::Result<()> {
    let is_allowed = |c: char| c.is_alphanumeric() || "_-. :/".contains(c);
    let has_newest = !columns(transaction, "latest_metrics")?.is_empty();
    let mut insert = transaction.prepare_cached(
        "INSERT OR IGNORE INTO metrics(key, value, timestamp, run_uuid, step, is_nan) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for (RunSeries { samples, .. }, name) in run.series.iter().zip(names(&run.series, "/", is_allowed)) {
        let row = |MetricSample { step, at_ms, value }: &MetricSample| {
            // MLflow stores NaN as 0 with a flag.
            let number = if value.is_nan() { 0.0 } else { *value };
            (number, at_ms.cast_signed(), step.cast_signed(), value.is_nan())
        };
        for (value, at_ms, step, is_nan) in samples.iter().map(row) {
            insert.execute(params![name, value, at_ms, id, step, is_nan])?;
        }
        if let (Some((value, at_ms, step, is_nan)), true) = (samples.last().map(row), has_newest) {
            transaction.execute(
                "INSERT INTO latest_metrics(key, value, timestamp, run_uuid, step, is_nan)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![name, value, at_ms, id, step, is_nan],
            )?;
        }
    }
    Ok(())
}
