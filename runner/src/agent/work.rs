//! The work of a host on checkpoints and ports, in a thread of its own and in order.

use super::follower::Work;
use super::foreign::{free_ports, meeting_port};
use super::messages::{Fetched, HostMessage, Refusal};
use super::parts::{self, Parts};
use super::peers::PeerAddress;
use super::peers::door::{self, Door};
use super::peers::fetch::fetch;
use super::peers::link::Pulses;
use super::{mirror, note};
use crate::checkpoints::{self, commit};
use crate::files;
use crate::home::TrialFolder;
use crate::launch::NotLaunched;
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

/// What the work of a host needs.
pub(super) struct Workshop {
    pub(super) attempt: AttemptId,
    pub(super) trial: TrialFolder,
    /// The listener, of a host that is not alone.
    pub(super) door: Option<Arc<Door>>,
    /// Index of the host.
    pub(super) host: u32,
    /// Address of the host for the others.
    pub(super) bind: String,
    /// What foreign ranks are written for.
    pub(super) framework: Option<Framework>,
    /// The ranks of the host.
    pub(super) assignments: Vec<Assignment>,
    /// Set to the folder that the ranks go on from, when that is not the checkpoint itself.
    pub(super) fetched: Arc<OnceLock<PathBuf>>,
    pub(super) pulses: Arc<Pulses>,
}

/// The thread that works.
pub(super) struct Worker {
    queue: Option<Sender<Work>>,
    ended: Receiver<()>,
}

impl Worker {
    /// Works on one thing after the other; `done` gets what to tell the leader.
    pub(super) fn start(workshop: Workshop, done: impl Fn(HostMessage) + Send + 'static) -> Self {
        let (queue, todo) = channel::<Work>();
        let (end, ended) = channel();
        thread::spawn(move || {
            for work in todo {
                if let Some(message) = workshop.carry_out(work) {
                    done(message);
                }
                workshop.pulses.work();
            }
            drop(end);
        });
        Self { queue: Some(queue), ended }
    }

    /// Adds work to what is to be done.
    pub(super) fn add(&self, work: Work) {
        if let Some(queue) = &self.queue {
            drop(queue.send(work));
        }
    }

    /// Waits until all is done, for so long at most.
    pub(super) fn finish(&mut self, patience: Duration) {
        self.queue = None;
        let _ = self.ended.recv_timeout(patience);
    }
}

impl Workshop {
    fn carry_out(&self, work: Work) -> Option<HostMessage> {
        Some(match work {
            Work::List { folder } => {
                let (manifest, files) = list(&self.trial, &folder);
                HostMessage::Listed { manifest, files }
            }
            Work::Fetch { folder, files, manifest } => {
                let fetched = self.fetch(&folder, &files, Some(&manifest));
                HostMessage::Fetched { outcome: fetched.map_err(refusal) }
            }
            Work::FetchParts { folder, files, manifest, keep } => {
                let fetched = self.fetch_parts(&folder, &files, &manifest, &keep);
                HostMessage::Fetched { outcome: fetched.map_err(refusal) }
            }
            Work::ReservePorts { ranks, is_meeting } => {
                let meeting = if is_meeting {
                    meeting_port(&self.bind, self.framework.unwrap_or_default()).map(|port| vec![port])
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
            Work::Prepare { step, manifest, copies } => {
                let partial = self.trial.partial_checkpoint(step, self.attempt);
                let outcome = self
                    .fetch(&folder_name(step, self.attempt), &copies, None)
                    .map_err(|error| error.to_string())
                    .and_then(|_| commit::prepare(&partial, &manifest));
                HostMessage::Prepared { step, outcome }
            }
            Work::SealMirror => {
                HostMessage::MirrorSealed { outcome: mirror::seal(&self.trial.mirror(self.attempt)) }
            }
            Work::Commit { step } => {
                let outcome = commit::finish(&self.trial, step, self.attempt);
                HostMessage::Committed { step, outcome }
            }
            Work::Retain { keep, resumed } => {
                let checkpoints = self.trial.checkpoints();
                if let Err(error) = commit::retain(&checkpoints, keep, self.attempt, resumed.as_deref()) {
                    note(&format!("an old checkpoint cannot be removed: {error}"));
                }
                // All ranks have saved, so that none reads any more what it went on from.
                if let Err(error) = parts::remove(&self.trial, None) {
                    note(&format!("what was fetched of an old checkpoint cannot be removed: {error}"));
                }
                return None;
            }
            Work::Discard { step } => {
                if let Err(error) = commit::discard(&self.trial, step, self.attempt) {
                    note(&format!("cannot remove the partial checkpoint of step {step}: {error}"));
                }
                return None;
            }
        })
    }

    /// Fetches the files of the checkpoint `name` that are not here, whole; with `manifest` it is committed here then.
    ///
    /// `Err` says whether the checkpoint is to blame, or only what keeps it from being had here now.
    fn fetch(
        &self,
        name: &str,
        files: &[(FileEntry, Vec<PeerAddress>)],
        manifest: Option<&str>,
    ) -> Result<Fetched, NotLaunched> {
        let since = Instant::now();
        let mut fetched = Fetched::default();
        let mut hosts = BTreeSet::new();
        let folder =
            door::checkpoint(&self.trial, name).ok_or_else(|| format!("{name} is not a checkpoint"))?;
        files::make_folder(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for (file, from) in files {
            let door = self.door.as_deref().ok_or("this host is alone")?;
            if let Some(host) = fetch(door, self.host, &self.trial, name, file, from, &self.pulses)? {
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

    /// Fetches what the ranks of this host read of the checkpoint `name`, and the files `keep` whole.
    fn fetch_parts(
        &self,
        name: &str,
        files: &[(FileEntry, Vec<PeerAddress>)],
        text: &str,
        keep: &[String],
    ) -> Result<Fetched, NotLaunched> {
        let kept: Vec<_> = files.iter().filter(|(file, _)| keep.contains(&file.name)).cloned().collect();
        // What an attempt prepared here, and others committed, is committed here too.
        let is_here = door::checkpoint(&self.trial, name).is_some_and(|folder| folder.is_dir());
        let whole = if is_here || !kept.is_empty() {
            self.fetch(name, &kept, Some(text))?
        } else {
            Fetched::default()
        };
        let manifest: Manifest = serde_json::from_str(text)
            .map_err(|error| NotLaunched::Checkpoint(format!("{name}: {error}")))?;
        let (folder, parts) = Parts {
            trial: &self.trial,
            name,
            text,
            manifest: &manifest,
            holders: files,
            assignments: &self.assignments,
            door: self.door.as_deref().ok_or("this host is alone")?,
            own: self.host,
            pulses: &self.pulses,
        }
        .fetch()?;
        // The leader asks once.
        drop(self.fetched.set(folder));
        let milliseconds = whole.milliseconds + parts.milliseconds;
        let all = Fetched { milliseconds, ..whole.and(&parts) };
        if all.bytes > 0 {
            note(&format!("{name}: {all}"));
        }
        Ok(all)
    }
}

/// What the leader is told of a fetch that failed.
fn refusal(error: NotLaunched) -> Refusal {
    note(&error.to_string());
    let is_of_checkpoint = matches!(error, NotLaunched::Checkpoint(_));
    Refusal { reason: error.to_string(), is_of_checkpoint }
}

/// What lies here of the checkpoint `name`: its table of contents if that is what was committed, and the files that are whole.
fn list(trial: &TrialFolder, name: &str) -> (Option<Arc<str>>, Vec<String>) {
    let Some(folder) = door::checkpoint(trial, name) else { return (None, Vec::new()) };
    let Ok((text, manifest)) = checkpoints::contents(&folder) else { return (None, Vec::new()) };
    let is_whole = |file: &&FileEntry| {
        fs::metadata(folder.join(&file.name)).is_ok_and(|found| found.len() == file.bytes)
    };
    (Some(text.into()), manifest.files.iter().filter(is_whole).map(|file| file.name.clone()).collect())
}
