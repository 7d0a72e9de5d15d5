//! The recipe's folder that is sent to the hosts of a trial (`cluster.workdir`).

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::Output;
use crate::render::number::{counted, seconds};
use crate::run_mode::{RunMode, TrialRun};
use crate::trials::history_failure;
use dtrain_planner::Plan;
use dtrain_recipes::{Data, DataFormat, Recipe, Tokenizer, Url, ValidationSource};
use dtrain_runner::launch::relay::{RemoteHost, WorkdirTransfer};
use dtrain_runner::ledger::TrialActivity;
use dtrain_runner::ledger::TrialStatus;
use dtrain_runner::provenance::Provenance;
use dtrain_runner::workdir::{PROVENANCE, WorkdirError, WorkdirFiles, WorkdirSnapshot};
use dtrain_runner::{History, driver, files};
use dtrain_worker::data::matching;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The recipe's folder as the attempts of a trial use it from now on.
pub(crate) struct TrialWorkdir {
    /// Digest of the folder that every host uses.
    pub(crate) digest: String,
    /// The folder on this machine; `None` if it has changed since.
    pub(crate) snapshot: Option<Arc<WorkdirSnapshot>>,
}

/// Checks that the recipe's folder can be sent, with all data that the recipe names by a relative path. Passes if
/// none is sent.
pub(crate) fn check(context: &Context, recipe: &Recipe, folder: &Path) -> Result<(), CommandError> {
    let Some(rules) = recipe.cluster.sent_workdir() else { return Ok(()) };
    let found = WorkdirFiles::find(folder, rules, context.home.path()).map_err(|error| refusal(&error))?;
    let Some(data) = &recipe.data else { return Ok(()) };
    patterns(data).into_iter().try_for_each(|(key, pattern)| check_data(key, pattern, &found))
}

/// Records the digest of the folder that is sent for a plan in the provenance of its trial.
pub(crate) fn note(context: &Context, plan: &Plan, provenance: &mut Provenance) -> Result<(), CommandError> {
    if let Some(snapshot) = take(context, plan)? {
        provenance.environment.insert(PROVENANCE.to_owned(), snapshot.digest().to_owned());
    }
    Ok(())
}

/// Returns the beginning of a digest, for people.
fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

fn take(context: &Context, plan: &Plan) -> Result<Option<WorkdirSnapshot>, CommandError> {
    let Some(rules) = plan.recipe.cluster.sent_workdir() else { return Ok(None) };
    check(context, &plan.recipe, &plan.data_root)?;
    let snapshot = WorkdirSnapshot::take(&plan.data_root, rules, context.home.path());
    snapshot.map(Some).map_err(|error| refusal(&error))
}

impl TrialWorkdir {
    /// Sends the recipe's folder of a trial to `hosts`, each of which gets it once; `None` if none is sent.
    ///
    /// A trial that is started or resumed uses the folder as it is now, and what changed since it was recorded is
    /// recorded too. One that is only watched keeps the folder that was recorded.
    pub(crate) fn send(
        context: &Context,
        history: &mut History,
        task: &TrialRun<'_>,
        hosts: &mut [RemoteHost],
    ) -> Result<Option<Self>, CommandError> {
        if task.plan.recipe.cluster.sent_workdir().is_none() || hosts.is_empty() {
            return Ok(None);
        }
        let folder = context.home.trial(task.trial);
        let trial =
            history.trial(task.trial, &|_| TrialActivity::None).map_err(|error| history_failure(&error))?;
        let recorded = files::read_to_string(&folder.workdir()).ok();
        let recorded = recorded.or_else(|| trial.provenance.environment.get(PROVENANCE).cloned());
        // Nothing new starts if another process supervises the trial, or if it has completed.
        let is_watched = matches!(task.how, RunMode::Attach | RunMode::Stop | RunMode::Supervise)
            || trial.row.status == TrialStatus::Completed
            || driver::controller(&context.home, task.trial).is_some();
        if let (true, Some(digest)) = (is_watched, &recorded) {
            let now = take(context, task.plan).ok().flatten();
            let snapshot = now.filter(|snapshot| snapshot.digest() == digest).map(Arc::new);
            return Ok(Some(Self { digest: digest.clone(), snapshot }));
        }
        let Some(snapshot) = take(context, task.plan)? else { return Ok(None) };
        let digest = snapshot.digest().to_owned();
        if let Some(recorded) = recorded.filter(|recorded| *recorded != digest) {
            let (old, new) = (short(&recorded), short(&digest));
            context.out.say(&format!(
                "{}: the recipe's folder has changed since {}: it goes on with {new} in place of {old}",
                context.out.paint.yellow("note"),
                task.label
            ));
            let text =
                format!("the recipe's folder changed: attempts from now on use {new} in place of {old}");
            history.add_note(task.trial, &text).map_err(|error| history_failure(&error))?;
        }
        files::make_folder(folder.path())
            .and_then(|()| files::write(&folder.workdir(), digest.as_bytes()))
            .map_err(|error| {
            let what = format!("cannot write {}", folder.workdir().display());
            CommandError::new(ExitReason::Infrastructure, what).cause(error.to_string())
        })?;
        let needed = task.plan.recipe.cluster.needed_to_start() as usize;
        send_to_all(context.out, (task.how, needed), &snapshot, hosts)?;
        Ok(Some(Self { digest, snapshot: Some(Arc::new(snapshot)) }))
    }
}

/// Sends the folder to all hosts at the same time. A trial starts if `needed` of them have it. The others get it when
/// they are back.
fn send_to_all(
    out: Output,
    (how, needed): (RunMode, usize),
    snapshot: &WorkdirSnapshot,
    hosts: &mut [RemoteHost],
) -> Result<(), CommandError> {
    let size = format!("{}, {}", counted(snapshot.files(), "file"), snapshot.bytes());
    out.say(&format!("the recipe's folder: {size} (blake3 {})", short(snapshot.digest())));
    let bar = bar(out);
    let send = |host: &mut RemoteHost| {
        let is_begun = AtomicBool::new(false);
        host.put_workdir(snapshot, &|bytes| {
            if !is_begun.swap(true, Ordering::Relaxed) {
                bar.inc_length(snapshot.bytes().0);
            }
            bar.inc(bytes);
        })
    };
    let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
    let sent: Vec<_> = thread::scope(|scope| {
        let sending: Vec<_> = hosts.iter_mut().map(|host| scope.spawn(move || send(host))).collect();
        sending.into_iter().map(|thread| thread.join().expect("sending does not panic")).collect()
    });
    bar.finish_and_clear();
    let mut failed = Vec::new();
    for (name, sent) in names.iter().zip(sent) {
        match sent {
            Ok(WorkdirTransfer::AlreadyThere) => {}
            Ok(WorkdirTransfer::Sent { took }) => {
                let took = seconds(took.as_secs_f64());
                out.say(&format!("{name}: sent the recipe's folder ({size}) in {took}"));
            }
            Err(reason) => failed.push(format!("{name}: {reason}")),
        }
    }
    if how == RunMode::Start && names.len() - failed.len() < needed {
        let failure =
            CommandError::new(ExitReason::Preflight, "the recipe's folder cannot be sent to every host");
        return Err(failed.into_iter().fold(failure, CommandError::cause));
    }
    for reason in failed {
        out.say(&format!("{}: the recipe's folder was not sent: {reason}", out.paint.yellow("warning")));
    }
    Ok(())
}

fn bar(out: Output) -> ProgressBar {
    let bar = if out.draws() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let template = "{spinner} sending the recipe's folder: {bytes} of {total_bytes}, {bytes_per_sec}";
    bar.set_style(ProgressStyle::with_template(template).expect("a template of our own"));
    bar
}

/// Returns the files and patterns that every host reads, with the keys that name them.
fn patterns(data: &Data) -> Vec<(&'static str, &str)> {
    let mut found: Vec<(&'static str, &str)> =
        data.train.iter().map(|one| ("data.train", one.as_str())).collect();
    if let ValidationSource::Files(valid) = &data.valid {
        found.extend(valid.iter().map(|one| ("data.valid", one.as_str())));
    }
    match &data.format {
        DataFormat::Text { tokenizer: Tokenizer::File(path), .. }
        | DataFormat::Tokens { tokenizer: Some(path) } => {
            found.push(("data.tokenizer", path));
        }
        DataFormat::Chat { tokenizer, template, .. } => {
            found.push(("data.tokenizer", tokenizer));
            found.extend(template.iter().map(|one| ("data.template", one.as_str())));
        }
        DataFormat::Idx { labels, valid_labels } => {
            found.extend(labels.iter().map(|one| ("data.labels", one.as_str())));
            found.extend(valid_labels.iter().map(|one| ("data.valid_labels", one.as_str())));
        }
        DataFormat::Text { .. }
        | DataFormat::Tokens { tokenizer: None }
        | DataFormat::Images { .. }
        | DataFormat::Csv(_)
        | DataFormat::Parquet(_) => {}
    }
    found
}

/// Refuses data with a relative path that is not among the sent files: hosts would not find it.
fn check_data(key: &str, pattern: &str, sent: &WorkdirFiles) -> Result<(), CommandError> {
    if Url::is_url(pattern) || Path::new(pattern).is_absolute() {
        return Ok(());
    }
    let files = matching(pattern, &sent.folder);
    // What lies behind a link is sent too, under its own path.
    let is_sent =
        |file: &Path| sent.contains(file) || fs::canonicalize(file).is_ok_and(|real| sent.contains(&real));
    let Some(file) = files.iter().find(|file| !is_sent(file)) else { return Ok(()) };
    let file = file.strip_prefix(&sent.folder).unwrap_or(file).display();
    let what =
        format!("`{key}`: {file} is not among the files of the recipe's folder that are sent to the hosts");
    let failure = CommandError::new(ExitReason::Usage, what);
    Err(failure.hint(
        "name it by an absolute path that every host has, or by a URL; or keep it in the recipe's folder, out of \
         .gitignore and `cluster.workdir.exclude`",
    ))
}

fn refusal(error: &WorkdirError) -> CommandError {
    use WorkdirError as E;
    let usage = || CommandError::of(ExitReason::Usage, error);
    match error {
        E::Home(_) => usage().hint("put the recipe into a folder of its own"),
        E::TooLarge { largest, .. } => largest
            .iter()
            .fold(usage(), |failure, (path, bytes)| failure.cause(format!("{path}: {bytes}")))
            .hint("name what the hosts do not need in `cluster.workdir.exclude`, or raise `cluster.workdir.limit`"),
        E::TooMany { folders, .. } => folders
            .iter()
            .fold(usage(), |failure, (path, files)| failure.cause(format!("{path}: {}", counted(*files, "file"))))
            .hint("name what the hosts do not need in `cluster.workdir.exclude`, or raise `cluster.workdir.files`"),
        E::Unsendable { .. } => usage().hint("name it in `cluster.workdir.exclude`"),
        E::Git(folder) => CommandError::of(ExitReason::Preflight, error)
            .hint(format!("`git -C {} status` shows its error", folder.display())),
        E::Unreadable { .. } => CommandError::of(ExitReason::Preflight, error)
            .hint("make it readable, or name it in `cluster.workdir.exclude`"),
    }
}
