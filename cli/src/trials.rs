//! Trials as the user names them.

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::job;
use dtrain_protocol::TrialId;
use dtrain_runner::LedgerError;
use dtrain_runner::ledger::{History, LookupError, Trial};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long the history may keep a command waiting without a word.
const PATIENCE: Duration = Duration::from_secs(2);

/// The history, for reading. `Err` tells a user without one how to begin.
pub(crate) fn read_history(context: &Context) -> Result<History, Failure> {
    let path = context.home.history();
    if !path.exists() {
        return Err(Failure::new(Exit::Usage, format!("there is no history at {}", path.display()))
            .hint("`dtrain run RECIPE` trains a model and creates one"));
    }
    History::open_read_only(&path).map_err(|error| ledger(&error))
}

/// The history, for writing; made where there is none.
pub(crate) fn open_history(context: &Context) -> Result<History, Failure> {
    let path = context.home.history();
    waiting(context, || History::open(&path)).map_err(|error| ledger(&error))
}

/// Does what needs the history, and says so where another program keeps it from going on.
pub(crate) fn waiting<T>(context: &Context, work: impl FnOnce() -> T) -> T {
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

/// The trial that the user typed.
pub(crate) fn find(history: &History, name: &str) -> Result<TrialId, Failure> {
    history.find(name).map_err(|error| match error {
        LookupError::Ledger(error) => ledger(&error),
        LookupError::Unknown { .. } | LookupError::Ambiguous { .. } => Failure::of(Exit::Usage, &error),
    })
}

/// Everything about a trial.
pub(crate) fn trial(context: &Context, history: &History, name: &str) -> Result<Trial, Failure> {
    let id = find(history, name)?;
    history.trial(&id, &|id| is_alive(context, id)).map_err(|error| ledger(&error))
}

/// `Err` for a trial of another machine, which cannot be controlled or resumed here.
pub(crate) fn refuse_imported(trial: &Trial) -> Result<(), Failure> {
    let Some(host) = &trial.row.imported_from else { return Ok(()) };
    let label = &trial.row.label;
    let what = format!("{label} was imported: it was trained on {host}, and its checkpoints are not here");
    Err(Failure::new(Exit::Usage, what)
        .hint(format!("`dtrain resume` continues it there; `dtrain show {label} --all` has its settings")))
}

/// Whether an agent or a controller is at work on a trial.
pub(crate) fn is_alive(context: &Context, trial: &TrialId) -> bool {
    job::is_alive(&context.home, trial)
        .unwrap_or_else(|| dtrain_runner::driver::is_running(&context.home, trial))
}

/// A failure of the history.
pub(crate) fn ledger(error: &LedgerError) -> Failure {
    Failure::of(Exit::Infrastructure, error).hint("`dtrain doctor` checks the state folder")
}
