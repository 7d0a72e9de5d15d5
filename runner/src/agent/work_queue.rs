//! The work queue of a host: checkpoint and port tasks, done in order by one thread.

use super::checkpoint_parts::{self, CheckpointParts};
use super::follower::HostTask;
use super::foreign::{free_ports, rendezvous_port};
use super::messages::{FetchRefusal, FetchSummary, HostMessage};
use super::peers::fetch_file::fetch_file;
use super::peers::heartbeat::LoopCounters;
use super::peers::listener::{self, PeerListener};
use super::{log_line, spool_mirror};
use crate::checkpoints::{self, commit, retention};
use crate::control_protocol::{LaunchError, PeerAddress};
use crate::files;
use crate::home::TrialFolder;
use dtrain_protocol::checkpoint::{folder_name, parse_folder_name};
use dtrain_protocol::{Assignment, AttemptId, FileEntry, Manifest};
use dtrain_recipes::Framework;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// The context in which the tasks of a host run.
pub(super) struct WorkContext {
    pub(super) attempt: AttemptId,
    pub(super) trial: TrialFolder,
    /// The listener for other agents; `None` if the host is the only one.
    pub(super) listener: Option<Arc<PeerListener>>,
    /// Index of the host.
    pub(super) host: u32,
    /// Address of the host for other hosts.
    pub(super) bind: String,
    /// Framework of foreign ranks; `None` for dtrain's own.
    pub(super) framework: Option<Framework>,
    /// The assignments of the host's ranks.
    pub(super) assignments: Vec<Assignment>,
    /// Set to the folder that the ranks resume from, if it is not the checkpoint itself.
    pub(super) fetched: Arc<OnceLock<PathBuf>>,
    pub(super) loop_counters: Arc<LoopCounters>,
}

/// The worker thread and its queue.
pub(super) struct WorkQueue {
    queue: Option<Sender<HostTask>>,
    ended: Receiver<()>,
}

impl WorkQueue {
    /// Starts the worker thread; `done` gets each message for the leader.
    pub(super) fn start(context: WorkContext, done: impl Fn(HostMessage) + Send + 'static) -> Self {
        let (queue, todo) = channel::<HostTask>();
        let (end, ended) = channel();
        thread::spawn(move || {
            for work in todo {
                if let Some(message) = context.carry_out(work) {
                    done(message);
                }
                context.loop_counters.work();
            }
            drop(end);
        });
        Self { queue: Some(queue), ended }
    }

    /// Queues a task for the worker thread.
    pub(super) fn add(&self, work: HostTask) {
        if let Some(queue) = &self.queue {
            drop(queue.send(work));
        }
    }

    /// Waits until all tasks are done, but no longer than `patience`.
    pub(super) fn finish(&mut self, patience: Duration) {
        self.queue = None;
        let _ = self.ended.recv_timeout(patience);
    }
}

impl WorkContext {
    fn carry_out(&self, work: HostTask) -> Option<HostMessage> {
        Some(match work {
            HostTask::List { folder } => {
                let (manifest, files) = list(&self.trial, &folder);
                HostMessage::Listed { manifest, files }
            }
            HostTask::Fetch { folder, files, manifest } => {
                let fetched = self.fetch(&folder, &files, Some(&manifest));
                HostMessage::Fetched { outcome: fetched.map_err(log_refusal) }
            }
            HostTask::FetchParts { folder, files, manifest, keep } => {
                let fetched = self.fetch_parts(&folder, &files, &manifest, &keep);
                HostMessage::Fetched { outcome: fetched.map_err(log_refusal) }
            }
            HostTask::ReservePorts { ranks, is_meeting } => {
                let meeting = if is_meeting {
                    rendezvous_port(&self.bind, self.framework.unwrap_or_default()).map(|port| vec![port])
                } else {
                    Ok(Vec::new())
                };
                let addresses = meeting.and_then(|mut all| {
                    all.extend(free_ports(&self.bind, ranks)?);
                    Ok(all)
                });
                let addresses = addresses.map_err(|error| format!("a free port of {}: {error}", self.bind));
                HostMessage::Reserved { addresses }
            }
            HostTask::Prepare { step, manifest, copies } => {
                let partial = self.trial.partial_checkpoint(step, self.attempt);
                let outcome = self
                    .fetch(&folder_name(step, self.attempt), &copies, None)
                    .map_err(|error| error.to_string())
                    .and_then(|_| commit::prepare(&partial, &manifest));
                HostMessage::Prepared { step, outcome }
            }
            HostTask::SealMirror => {
                HostMessage::MirrorSealed { outcome: spool_mirror::seal(&self.trial.mirror(self.attempt)) }
            }
            HostTask::Commit { step } => {
                let outcome = commit::finish(&self.trial, step, self.attempt);
                HostMessage::Committed { step, outcome }
            }
            HostTask::Retain { keep, resumed } => {
                let checkpoints = self.trial.checkpoints();
                if let Err(error) =
                    retention::apply_retention(&checkpoints, keep, self.attempt, resumed.as_deref())
                {
                    log_line(&format!("an old checkpoint cannot be removed: {error}"));
                }
                // All ranks have saved, so none of them still reads the old checkpoint.
                if let Err(error) = checkpoint_parts::remove_fetched(&self.trial, None) {
                    log_line(&format!("what was fetched of an old checkpoint cannot be removed: {error}"));
                }
                return None;
            }
            HostTask::Discard { step } => {
                if let Err(error) = commit::discard(&self.trial, step, self.attempt) {
                    log_line(&format!("cannot remove the partial checkpoint of step {step}: {error}"));
                }
                return None;
            }
        })
    }

    /// Fetches the missing files of the checkpoint `name` whole; commits it here if there is a `manifest`.
    ///
    /// `Err` tells if the checkpoint is damaged or only unavailable here now.
    fn fetch(
        &self,
        name: &str,
        files: &[(FileEntry, Vec<PeerAddress>)],
        manifest: Option<&str>,
    ) -> Result<FetchSummary, LaunchError> {
        let since = Instant::now();
        let mut fetched = FetchSummary::default();
        let mut hosts = BTreeSet::new();
        let folder = listener::checkpoint_path(&self.trial, name)
            .ok_or_else(|| format!("{name} is not a checkpoint"))?;
        files::make_folder(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for (file, from) in files {
            let listener = self.listener.as_deref().ok_or("this host is alone")?;
            if let Some(host) =
                fetch_file(listener, self.host, &self.trial, name, file, from, &self.loop_counters)?
            {
                fetched.bytes += file.bytes;
                hosts.insert(host);
            }
        }
        fetched.needed = fetched.bytes;
        fetched.hosts = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        fetched.milliseconds = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        match (manifest, parse_folder_name(name)) {
            (Some(manifest), Some((step, attempt))) if folder != self.trial.checkpoint(step, attempt) => {
                commit::prepare(&folder, manifest)?;
                commit::finish(&self.trial, step, attempt)?;
            }
            _ => {}
        }
        Ok(fetched)
    }

    /// Fetches the parts of the checkpoint `name` that this host's ranks read, and the files in `keep` whole.
    fn fetch_parts(
        &self,
        name: &str,
        files: &[(FileEntry, Vec<PeerAddress>)],
        text: &str,
        keep: &[String],
    ) -> Result<FetchSummary, LaunchError> {
        let kept: Vec<_> = files.iter().filter(|(file, _)| keep.contains(&file.name)).cloned().collect();
        // A checkpoint that is only prepared here, and committed on other hosts, is committed here too.
        let is_here = listener::checkpoint_path(&self.trial, name).is_some_and(|folder| folder.is_dir());
        let whole = if is_here || !kept.is_empty() {
            self.fetch(name, &kept, Some(text))?
        } else {
            FetchSummary::default()
        };
        let manifest: Manifest = serde_json::from_str(text)
            .map_err(|error| LaunchError::Checkpoint(format!("{name}: {error}")))?;
        let (folder, parts) = CheckpointParts {
            trial: &self.trial,
            name,
            text,
            manifest: &manifest,
            holders: files,
            assignments: &self.assignments,
            listener: self.listener.as_deref().ok_or("this host is alone")?,
            own: self.host,
            loop_counters: &self.loop_counters,
        }
        .fetch()?;
        // The leader asks only once.
        drop(self.fetched.set(folder));
        let milliseconds = whole.milliseconds + parts.milliseconds;
        let all = FetchSummary { milliseconds, ..whole.and(&parts) };
        if all.bytes > 0 {
            log_line(&format!("{name}: {all}"));
        }
        Ok(all)
    }
}

/// Logs a failed fetch, and returns the answer for the leader.
fn log_refusal(error: LaunchError) -> FetchRefusal {
    log_line(&error.to_string());
    error.into()
}

/// Lists the checkpoint `name` here: its manifest, if intact, and its complete files.
fn list(trial: &TrialFolder, name: &str) -> (Option<Arc<str>>, Vec<String>) {
    let Some(folder) = listener::checkpoint_path(trial, name) else { return (None, Vec::new()) };
    let Ok((text, manifest)) = checkpoints::read_local_manifest(&folder) else { return (None, Vec::new()) };
    let is_whole = |file: &&FileEntry| {
        fs::metadata(folder.join(&file.name)).is_ok_and(|found| found.len() == file.bytes)
    };
    (Some(text.into()), manifest.files.iter().filter(is_whole).map(|file| file.name.clone()).collect())
}
