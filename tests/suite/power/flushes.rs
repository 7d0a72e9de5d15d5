//! Which flushes a checkpoint waits for, noted inside of the process that writes it. A power cut loses what was not flushed only
//! when it comes at the wrong moment; a flush that is missing is always missing here.

use super::child::{Work, commit_once, compiled};
use dtrain_protocol::{AttemptId, StepId};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The child gets its disk by this variable.
const DISK: &str = "FLUSHES_DISK";

/// The step of the only checkpoint.
const STEP: StepId = StepId(8);

/// What was flushed, as it was at the call.
#[derive(Debug)]
enum Flush {
    File { path: PathBuf, bytes: u64 },
    Folder { path: PathBuf, names: BTreeSet<String> },
}

impl Flush {
    /// From a line of `tests/data/flushes.c`.
    fn parse(line: &str) -> Self {
        let mut fields = line.split('\t');
        let mut next = || fields.next().unwrap_or_else(|| panic!("too few fields in {line:?}"));
        let (kind, path) = (next(), PathBuf::from(next()));
        match kind {
            "file" => Self::File { path, bytes: next().parse().expect("a number of bytes") },
            "folder" => Self::Folder { path, names: fields.map(str::to_owned).collect() },
            kind => panic!("unknown kind {kind:?}"),
        }
    }

    /// Whether it is of a file at `wanted` with all of its bytes.
    fn is_of_file(&self, wanted: &Path, length: u64) -> bool {
        matches!(self, Self::File { path, bytes } if path == wanted && *bytes == length)
    }

    /// The names in the folder `wanted`, where it is of that one.
    fn names_in(&self, wanted: &Path) -> Option<&BTreeSet<String>> {
        match self {
            Self::Folder { path, names } if path == wanted => Some(names),
            Self::Folder { .. } | Self::File { .. } => None,
        }
    }
}

/// Not a test of its own: the child whose flushes are noted.
#[test]
#[ignore = "not a test: the child of the one that notes its flushes"]
fn commits_one_checkpoint() {
    let Ok(disk) = std::env::var(DISK) else { return };
    let work = Work { disk: disk.into(), attempt: 1, has_rows: false };
    commit_once(&work, STEP).expect("a checkpoint");
}

#[test]
fn a_checkpoint_is_flushed_before_it_is_announced() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().canonicalize().expect("it was just made");
    let library =
        compiled(&disk, "flushes").unwrap_or_else(|reason| panic!("a C compiler is needed: {reason}"));
    let notes = disk.join("notes");
    let output = Command::new(std::env::current_exe().expect("a test knows where it is"))
        .args(["--exact", "power::flushes::commits_one_checkpoint", "--ignored", "--nocapture"])
        .env(DISK, &disk)
        .env("FLUSHES", &notes)
        .env("LD_PRELOAD", &library)
        .output()
        .expect("it is this program");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let notes = fs::read_to_string(&notes).expect("the child flushes something");
    let flushes: Vec<_> = notes.lines().map(Flush::parse).collect();

    let trial = Work { disk, attempt: 1, has_rows: false }.trial();
    let committed = trial.checkpoint(STEP, AttemptId(1));
    let partial = trial.partial_checkpoint(STEP, AttemptId(1));
    let files: BTreeMap<String, u64> = fs::read_dir(&committed)
        .expect("the child committed it")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("ASCII");
            (name, entry.metadata().expect("it is there").len())
        })
        .collect();
    let ranks: BTreeSet<&String> = files.keys().filter(|name| name.starts_with("rank-")).collect();
    assert_eq!((files.len(), ranks.len()), (4, 2), "two ranks, the manifest and COMMIT: {files:?}");

    // Every file in its full length, that of a rank before it has its name.
    for (name, length) in &files {
        let path =
            if ranks.contains(name) { partial.join(format!(".{name}.new")) } else { partial.join(name) };
        assert!(
            flushes.iter().any(|flush| flush.is_of_file(&path, *length)),
            "{} was not flushed with its {length} bytes:\n{notes}",
            path.display()
        );
    }
    // The names of the ranks' files before the manifest lists them.
    for name in &ranks {
        let is_before_the_manifest =
            |names: &BTreeSet<String>| names.contains(*name) && !names.contains("manifest.json");
        assert!(
            flushes.iter().any(|flush| flush.names_in(&partial).is_some_and(is_before_the_manifest)),
            "the name {name} was not flushed before the manifest was written:\n{notes}"
        );
    }
    // All names in the folder while it is partial, and then its own.
    let is_whole = |names: &BTreeSet<String>| files.keys().all(|name| names.contains(name));
    let whole = flushes.iter().position(|flush| flush.names_in(&partial).is_some_and(is_whole));
    let whole =
        whole.unwrap_or_else(|| panic!("the names in {} were not flushed:\n{notes}", partial.display()));
    let name = committed.file_name().expect("a name").to_string_lossy().into_owned();
    let is_final =
        |flush: &Flush| flush.names_in(&trial.checkpoints()).is_some_and(|names| names.contains(&name));
    assert!(flushes[whole..].iter().any(is_final), "the final name {name} was not flushed:\n{notes}");
}
