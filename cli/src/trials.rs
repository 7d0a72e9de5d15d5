//! Access to the history, and to its trials by the names that users type.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::slurm_job;
use dtrain_planner::{Plan, PlanReadError};
use dtrain_protocol::TrialId;
use dtrain_recipes::Recipe;
use dtrain_runner::LedgerError;
use dtrain_runner::ledger::{
    Filter, History, LookupError, Pagination, Sort, TrialActivity, TrialDetails, TrialRow, TrialStatus,
};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Time that a command waits for a locked history before it prints a message.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens the history for reading. The error for a missing history tells a new user how to begin.
pub(crate) fn read_history(context: &Context) -> Result<History, CommandError> {
    let path = context.home.history();
    match path.try_exists() {
        Ok(true) => History::open_read_only(&path).map_err(|error| history_failure(&error)),
        Ok(false) => {
            Err(CommandError::new(ExitReason::Usage, format!("there is no history at {}", path.display()))
                .hint("`dtrain run RECIPE` trains a model and creates one"))
        }
        Err(error) => {
            let message = format!("cannot look for the history at {}", path.display());
            Err(CommandError::new(ExitReason::Infrastructure, message)
                .cause(error.to_string())
                .hint(OWN_FOLDER))
        }
    }
}

/// Hint for a state folder that cannot be used.
const OWN_FOLDER: &str = "name a state folder of your own with --state FOLDER or DTRAIN_STATE";

/// Opens the history for writing; creates it if it is missing.
pub(crate) fn open_history(context: &Context) -> Result<History, CommandError> {
    let path = context.home.history();
    wait_for_history(context, || History::open(&path)).map_err(|error| history_failure(&error))
}

/// Runs `work` on the history, and prints a message if another program holds its lock for long.
pub(crate) fn wait_for_history<T>(context: &Context, work: impl FnOnce() -> T) -> T {
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let path = context.home.history();
                context.out.say(&format!("waiting for {}: another program has locked it", path.display()));
            }
        });
        let found = work();
        drop(done);
        found
    })
}

/// Finds the id of the trial that the user typed.
pub(crate) fn find(history: &History, name: &str) -> Result<TrialId, CommandError> {
    history.find(name).map_err(|error| match error {
        LookupError::Ledger(error) => history_failure(&error),
        LookupError::Unknown { .. } | LookupError::Ambiguous { .. } | LookupError::Short { .. } => {
            CommandError::of(ExitReason::Usage, &error)
        }
    })
}

/// Reads all details of the trial that the user typed.
pub(crate) fn trial(context: &Context, history: &History, name: &str) -> Result<TrialDetails, CommandError> {
    let id = find(history, name)?;
    history.trial(&id, &|id| activity(context, id)).map_err(|error| history_failure(&error))
}

/// Returns the trials that run, wait or are unattended, the newest first.
pub(crate) fn live(context: &Context, history: &History) -> Result<Vec<TrialRow>, CommandError> {
    let status = vec![TrialStatus::Running, TrialStatus::Waiting, TrialStatus::Unattended];
    let filter = Filter { status, ..Filter::default() };
    history
        .trials(&filter, &Sort::Newest, Pagination::default(), &|id| activity(context, id))
        .map_err(|error| history_failure(&error))
}

/// Returns the label of the running trial; `None` if none is running. `Err` lists them if there are several.
pub(crate) fn only_running(context: &Context, history: &History) -> Result<Option<String>, CommandError> {
    let running = live(context, history)?;
    let mut labels: Vec<String> = running.into_iter().map(|row| row.label).collect();
    if labels.len() > 1 {
        let what = format!("{} trials are running: {}", labels.len(), labels.join(", "));
        return Err(CommandError::new(ExitReason::Usage, what).hint("name one of them"));
    }
    Ok(labels.pop())
}

/// Refuses a trial imported from another machine, which cannot be controlled or resumed here.
pub(crate) fn refuse_imported(trial: &TrialDetails) -> Result<(), CommandError> {
    let Some(host) = &trial.row.imported_from else { return Ok(()) };
    let label = &trial.row.label;
    let what = format!("{label} was imported: it was trained on {host}, and its checkpoints are not here");
    Err(CommandError::new(ExitReason::Usage, what)
        .hint(format!("`dtrain resume` continues it there; `dtrain show {label} --all` has its settings")))
}

/// Returns the plan with which a trial was recorded.
pub(crate) fn plan_of_trial(trial: &TrialDetails) -> Result<Plan, CommandError> {
    Plan::read(&trial.plan).map_err(|error| {
        let label = &trial.row.label;
        let failure = CommandError::new(ExitReason::Infrastructure, format!("the plan of {label} cannot be read"));
        let hint = match error {
            PlanReadError::Newer { .. } => "use the version of dtrain that recorded it".to_owned(),
            PlanReadError::Json(_) | PlanReadError::Empty => format!(
                "it cannot go on without its plan: `dtrain show {label}` shows what is known of it, and `dtrain run RECIPE` \
                 trains anew"
            ),
        };
        failure.cause(error.to_string()).hint(hint)
    })
}

/// Returns the recipe in the plan of a trial.
pub(crate) fn recipe_of_trial(trial: &TrialDetails) -> Result<Recipe, CommandError> {
    serde_json::from_value(trial.recipe.clone()).map_err(|error| {
        CommandError::new(
            ExitReason::Infrastructure,
            format!("the recipe of {} cannot be read", trial.row.label),
        )
        .cause(error.to_string())
    })
}

/// Returns what works on a trial that has not ended. The controller of a Slurm job is in the job.
pub(crate) fn activity(context: &Context, trial: &TrialId) -> TrialActivity {
    match slurm_job::is_alive(&context.home, trial) {
        Some(true) => TrialActivity::Running,
        Some(false) => TrialActivity::None,
        None => dtrain_runner::driver::activity(&context.home, trial),
    }
}

/// Converts an error from the history.
pub(crate) fn history_failure(error: &LedgerError) -> CommandError {
    with_history_advice(CommandError::of(ExitReason::Infrastructure, error), error)
}

/// Adds an error from the history to `failure` as its cause, with advice.
pub(crate) fn with_history_advice(failure: CommandError, error: &LedgerError) -> CommandError {
    let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    if error.is_gone() {
        return failure;
    }
    failure.hint(if error.is_disk_full() {
        "`dtrain gc` and `dtrain rm TRIAL` free some space"
    } else if error.source.downcast_ref().is_some_and(refused) {
        OWN_FOLDER
    } else {
        "`dtrain doctor` checks the state folder"
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::ColorMode;
    use crate::output::Output;

    #[test]
    fn a_history_that_cannot_be_looked_for_is_not_said_to_be_absent() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("a file");
        let words = |state: std::path::PathBuf| {
            let context = Context::new(Output::new(false, true), Some(state)).expect("a context");
            let failure = read_history(&context).expect_err("there is none");
            (failure.exit(), failure.render(ColorMode::plain()))
        };
        let (exit, text) = words(file.join("state"));
        assert_eq!(exit, ExitReason::Infrastructure, "{text}");
        assert!(text.contains("cannot look for the history") && text.contains("DTRAIN_STATE"), "{text}");
        let (exit, text) = words(folder.path().join("state"));
        assert_eq!(exit, ExitReason::Usage, "{text}");
        assert!(text.contains("there is no history at"), "{text}");
    }

    #[test]
    fn a_full_disk_and_a_refusal_have_hints_of_their_own() {
        let hint = |kind: std::io::ErrorKind| {
            let source = std::io::Error::from(kind).into();
            let error = LedgerError { doing: "open", path: "/nowhere/history.db".into(), source };
            history_failure(&error).render(ColorMode::plain())
        };
        assert!(hint(std::io::ErrorKind::PermissionDenied).contains(OWN_FOLDER));
        assert!(hint(std::io::ErrorKind::Other).contains("dtrain doctor"));
    }
}
