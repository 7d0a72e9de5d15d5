//! Ranks that run a foreign program: their environment, and the reports of their progress.
//!
//! A foreign program gets no frame. Its figures come as JSON lines such as `{"step": 10, "loss": 2.31}`
//! through the file descriptor in `DTRAIN_EVENTS_FD`, or from its output if the recipe has templates for it.
//! Its output goes to its log; a failure includes the last lines.
//!
//! `environment` sets the variables of each framework's own launcher. `rendezvous` finds free ports; every
//! host does so for its own ranks. The program saves its own checkpoints, so it decides where an attempt
//! resumes.

mod engine;
mod environment;
mod horovod_store;
mod json_lines;
mod rank_output;
mod rendezvous;
mod step_counters;
mod step_tracker;

pub(super) use rank_output::spawn_readers;
pub(super) use rendezvous::{Rendezvous, free_ports, rendezvous_port};

use super::spawn_context::SpawnContext;
use crate::files;
use crate::process::bind_to_this_thread;
use dtrain_protocol::Assignment;
use dtrain_recipes::placeholder::fill_run_dir;
use dtrain_recipes::{ForeignCommand, Model};
use environment::RankEnv;
use rank_output::{OutputTemplates, RankOutput};
use rustix::fd::{AsRawFd, OwnedFd};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Returns the foreign program that a rank runs, that of the recipe or of a training engine; `None` for
/// dtrain's own worker.
pub(super) fn program<'a>(
    assignment: &'a Assignment,
    context: &SpawnContext<'_>,
) -> io::Result<Option<Cow<'a, ForeignCommand>>> {
    match (&assignment.model, &assignment.engine) {
        (Model::Command(command), _) => Ok(Some(Cow::Borrowed(command))),
        (_, Some(engine)) => engine::program(assignment, engine, context).map(|own| Some(Cow::Owned(own))),
        (_, None) => Ok(None),
    }
}

/// Starts the foreign program of one rank. The calling thread must outlive it.
pub(super) fn start(
    foreign: &ForeignCommand,
    assignment: &Assignment,
    context: &SpawnContext<'_>,
    (log, path): (File, PathBuf),
) -> io::Result<(Child, RankOutput)> {
    let wrong = |words: String| io::Error::new(io::ErrorKind::InvalidInput, words);
    let (program, arguments) =
        foreign.argv.split_first().ok_or_else(|| wrong("the command has no program".into()))?;
    if !assignment.data_root.is_dir() {
        let folder = assignment.data_root.display();
        return Err(wrong(format!("there is no {folder} here: the command runs in the recipe's folder")));
    }
    let progress = OutputTemplates::of(foreign).map_err(wrong)?;
    let (events, writer) = io::pipe()?;
    let writer = Arc::new(OwnedFd::from(writer));
    let folder = run_folder(context);
    files::make_folder(&folder)?;
    let shown = folder.to_str().ok_or_else(|| wrong(format!("{} is not UTF-8", folder.display())))?;
    let fill = |text: &String| fill_run_dir(text, shown);
    let mut command = Command::new(program);
    command
        .args(arguments.iter().map(fill))
        .current_dir(&assignment.data_root)
        .stdin(Stdio::null())
        .process_group(0);
    let complaint = log.try_clone()?;
    let output = if progress.reads_output() {
        let (output, printed) = io::pipe()?;
        command.stdout(Stdio::from(printed.try_clone()?)).stderr(Stdio::from(printed));
        Some(output)
    } else {
        command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        None
    };
    let rank_env = RankEnv {
        rank: assignment.rank.0,
        world: assignment.arrangement.layout.world(),
        local_rank: assignment.rank.0 - context.first.0,
        local_world: context.ranks,
        host: assignment.placement.host,
        threads: assignment.placement.threads,
        trial: &assignment.trial.0,
        attempt: assignment.attempt,
        rendezvous: context.rendezvous,
        interface: rendezvous::interface_of(context.bind),
    };
    environment::apply(&mut command, foreign.framework, &rank_env);
    // The recipe's settings override the defaults for most programs.
    command.envs(foreign.env.iter().map(|(name, text)| (name, fill(text))));
    command.env("DTRAIN_RUN_DIR", &folder).env("DTRAIN_EVENTS_FD", writer.as_raw_fd().to_string());
    bind_to_this_thread(&mut command, vec![writer]);
    let missing = |code, reason: &str| placeholder_process(complaint, code, &format!("{program}: {reason}"));
    let started = match command.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing(127, "not found"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => missing(126, "not executable"),
        started => started,
    };
    // The command holds the write end of the pipes, which only the program may keep.
    drop(command);
    started
        .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))
        .map(|child| (child, RankOutput { events, output, log: path, progress }))
}

/// Returns the folder of this host that the program of a trial keeps through restarts, `{run.dir}`.
fn run_folder(context: &SpawnContext<'_>) -> PathBuf {
    context.folder.path().join("command")
}

/// Starts a process in place of a program that cannot be started: it logs the error and exits with `code`,
/// like a shell.
fn placeholder_process(mut log: File, code: u8, words: &str) -> io::Result<Child> {
    // Written here, because the log is read as soon as the pipes are closed.
    writeln!(log, "{words}")?;
    let mut command = Command::new("sh");
    command.args(["-c", "exit \"$1\"", "sh", &code.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(log)).process_group(0);
    bind_to_this_thread(&mut command, Vec::new());
    command.spawn()
}
