//! The controller of a trial in the background: a process of its own that supervises the trial to its end.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::run_mode::TrialRun;
use crate::signals;
use dtrain_protocol::TrialId;
use dtrain_runner::driver;
use dtrain_runner::files;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time that a new controller has to take over a trial. It connects to all hosts first.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two checks whether a new controller has taken over.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Name of the command that controls a trial in the background.
const SUPERVISE: &str = "supervise";

/// Options of the allocator for a process that waits most of the time: memory that it frees goes back to the system at once.
/// See <https://microsoft.github.io/mimalloc/environment.html>.
const ALLOCATOR_OPTIONS: [(&str, &str); 2] =
    [("MIMALLOC_PURGE_DELAY", "0"), ("MIMALLOC_ARENA_EAGER_COMMIT", "0")];

/// Removes the options that only a controller in the background has from the environment of the processes that it starts.
/// To be called before this process has a second thread.
pub(crate) fn forget_allocator_options() {
    for (name, _) in ALLOCATOR_OPTIONS {
        #[expect(unsafe_code, reason = "no other thread can read the environment meanwhile")]
        // SAFETY: the caller has no other thread.
        unsafe {
            std::env::remove_var(name);
        }
    }
}

/// Returns `true` if `process` is a controller in the background, not a command in a terminal.
pub(crate) fn is_supervisor(process: u32) -> bool {
    let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).any(|word| word == SUPERVISE.as_bytes())
}

/// Starts a controller in the background for a trial without one, and waits until it has taken over.
pub(crate) fn start(context: &Context, trial: &TrialId, label: &str) -> Result<(), CommandError> {
    let log = context.home.trial(trial).controller_log();
    let failed = |cause: String| {
        CommandError::new(
            ExitReason::Infrastructure,
            format!("no process supervises {label} in the background"),
        )
        .cause(cause)
        .hint(format!("it trains on; `dtrain attach {label}` supervises it from here"))
    };
    let mut child = spawn(context, trial).map_err(|error| failed(error.to_string()))?;
    let until = Instant::now() + TAKEOVER_TIMEOUT;
    while driver::controller(&context.home, trial) != Some(child.id()) {
        match child.try_wait() {
            // The trial ended meanwhile.
            Ok(Some(status)) if status.success() => break,
            Ok(Some(status)) => return Err(failed(format!("it ended with {status}; see {}", log.display()))),
            // It goes on trying.
            Ok(None) | Err(_) if Instant::now() >= until => break,
            Ok(None) | Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
    Ok(())
}

/// Lets a controller in the background take over the trial if the terminal of this one is closed.
pub(crate) fn take_over_when_the_terminal_closes(context: &Context, task: &TrialRun<'_>) {
    // The controller of a Slurm job is the job itself.
    if task.plan.recipe.cluster.slurm.is_some() {
        return;
    }
    let (context, trial) = (context.clone(), task.trial.clone());
    // If that fails, the trial goes on without a controller.
    signals::on_hangup(move || drop(spawn(&context, &trial)));
}

/// Starts `dtrain supervise`, which writes to a log in the folder of the trial.
fn spawn(context: &Context, trial: &TrialId) -> std::io::Result<Child> {
    let program = std::env::current_exe()?;
    let log: File = files::append(&context.home.trial(trial).controller_log())?;
    let mut command = in_own_scope(&program, trial);
    command
        .arg("--state")
        .arg(context.home.path())
        .args([SUPERVISE, &trial.0])
        .envs(ALLOCATOR_OPTIONS)
        .current_dir(context.home.path())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

/// Returns a command that starts `program`. If the user's services outlive the user's sessions, it starts in a scope
/// of its own there, which the end of this session does not touch.
fn in_own_scope(program: &Path, trial: &TrialId) -> Command {
    if !lingers() {
        return Command::new(program);
    }
    let mut command = Command::new("systemd-run");
    command
        .args(["--user", "--scope", "--quiet", "--collect"])
        .arg(format!("--unit=dtrain-{}-{}", trial.0, std::process::id()))
        .arg("--")
        .arg(program);
    command
}

/// Returns `true` if the user's service manager runs, and stays when the user logs out (`loginctl enable-linger`).
fn lingers() -> bool {
    let runs = std::env::var_os("XDG_RUNTIME_DIR")
        .is_some_and(|folder| Path::new(&folder).join("systemd/private").exists());
    let user = std::env::var("USER").unwrap_or_default();
    runs && !user.is_empty() && Path::new("/var/lib/systemd/linger").join(user).exists()
}
