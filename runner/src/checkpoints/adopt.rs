//! Adopts a checkpoint: makes a checkpoint of one trial the first checkpoint of another.

use super::{commit, read_local_manifest};
use crate::durable;
use crate::files;
use crate::home::TrialFolder;
use dtrain_protocol::checkpoint::{FORMAT, merge};
use dtrain_protocol::input_manifest::{INPUTS, TOKENIZER};
use dtrain_protocol::{
    AttemptId, FileEntry, InputManifest, Layout, Manifest, ResumePoint, SavedFile, StepId, TensorKind,
    TrialId,
};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// Attempt number under which an adopted checkpoint is stored; the attempts of the trial itself come after
/// it.
pub const ADOPTED: AttemptId = AttemptId(0);

/// Parts of a checkpoint that another trial takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// The whole training state; training continues after the checkpoint's step.
    State {
        /// Data to continue training with, if it differs from the data of the checkpoint.
        inputs: Option<InputManifest>,
    },
    /// Weights and tokenizer only; training begins at step 0.
    Weights,
}

/// Makes the committed checkpoint in the folder `from` the first checkpoint of `trial`, whose folder is `to`.
///
/// Files are hard-linked, and copied only if `to` is on another file system. A second call changes nothing
/// unless the adopted files are damaged; then they are adopted again.
///
/// `Err` names the file that cannot be read or written.
pub fn adopt(from: &Path, trial: &TrialId, to: &TrialFolder, what: &Adoption) -> Result<ResumePoint, String> {
    let (_, mut manifest) = read_local_manifest(from)?;
    manifest.trial = trial.clone();
    manifest.attempt = ADOPTED;
    let mut written = None;
    match what {
        Adoption::State { inputs: None } => {}
        Adoption::State { inputs: Some(inputs) } => {
            let json = serde_json::to_vec(inputs).expect("inputs have string keys only");
            manifest.files.retain(|file| file.name != INPUTS);
            manifest.files.push(FileEntry {
                name: INPUTS.to_owned(),
                bytes: json.len() as u64,
                chunks: vec![blake3::hash(&json).to_hex().to_string()],
            });
            written = Some(json);
        }
        Adoption::Weights => keep_weights(&mut manifest),
    }
    let step = manifest.step;
    let point = ResumePoint { folder: to.checkpoint(step, ADOPTED), step };
    if super::verify_checksums(&point.folder, &mut |_, _| ()).is_ok() {
        return Ok(point);
    }
    let partial = to.partial_checkpoint(step, ADOPTED);
    let link = || -> io::Result<()> {
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        files::make_folder(&partial)?;
        for file in &manifest.files {
            let path = partial.join(&file.name);
            match &written {
                Some(json) if file.name == INPUTS => durable::write(&path, json)?,
                _ => link_or_copy(&from.join(&file.name), &path)?,
            }
        }
        // A damaged earlier adoption is removed.
        if point.folder.exists() { fs::remove_dir_all(&point.folder) } else { Ok(()) }
    };
    link().map_err(|error| format!("{}: {error}", partial.display()))?;
    let text = serde_json::to_string(&manifest).expect("a manifest has string keys only");
    commit::prepare(&partial, &text)?;
    commit::finish(to, step, ADOPTED)?;
    Ok(point)
}

/// Writes initial weights as the first checkpoint of `trial`, at step 0, in its folder `to`; `write` fills
/// the folder. Does nothing if an intact one exists.
///
/// `Err` names the file that cannot be written, or the tensor that is missing or occurs twice.
pub fn begin_with(
    trial: &TrialId,
    to: &TrialFolder,
    write: impl FnOnce(&Path) -> Result<Vec<SavedFile>, String>,
) -> Result<ResumePoint, String> {
    let step = StepId(0);
    let point = ResumePoint { folder: to.checkpoint(step, ADOPTED), step };
    if super::verify(&point.folder).is_ok() {
        return Ok(point);
    }
    commit::discard(to, step, ADOPTED).map_err(|error| format!("{}: {error}", to.path().display()))?;
    let partial = to.partial_checkpoint(step, ADOPTED);
    let (tensors, files) = merge(write(&partial)?).map_err(|uncovered| uncovered.to_string())?;
    let manifest = Manifest {
        format: FORMAT,
        trial: trial.clone(),
        attempt: ADOPTED,
        step,
        layout: Layout::SINGLE,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        cursor: 0,
        seed: None,
        tensors,
        files,
    };
    let text = serde_json::to_string(&manifest).expect("a manifest has string keys only");
    commit::prepare(&partial, &text)?;
    commit::finish(to, step, ADOPTED)?;
    Ok(point)
}

/// Drops everything but the weights from a manifest, and sets its step to 0.
fn keep_weights(manifest: &mut Manifest) {
    (manifest.step, manifest.cursor, manifest.seed) = (StepId(0), 0, None);
    manifest.tensors.retain(|tensor| tensor.kind == TensorKind::Parameter);
    let pieces = manifest.tensors.iter().flat_map(|tensor| &tensor.pieces);
    let used: BTreeSet<String> = pieces.map(|piece| piece.file.clone()).collect();
    manifest.files.retain(|file| file.name == TOKENIZER || used.contains(&file.name));
}

/// Hard-links the file `from` to the path `to`, or copies it if that is not possible.
pub(super) fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    files::copy(from, to)?;
    fs::File::open(to)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{StoredSlice, Tensor};

    const FILE: &str = "rank-00000.safetensors";

    /// Returns a committed checkpoint of step 20 with one weight and its optimizer moment.
    fn committed(root: &Path) -> std::path::PathBuf {
        let folder = root.join("step-000000020.a3");
        fs::create_dir_all(&folder).expect("a folder");
        let entry = |name: &str, content: &[u8]| {
            fs::write(folder.join(name), content).expect("written");
            let chunks = vec![blake3::hash(content).to_hex().to_string()];
            FileEntry { name: name.to_owned(), bytes: content.len() as u64, chunks }
        };
        let files = vec![entry(FILE, b"weights"), entry(INPUTS, b"{}"), entry(TOKENIZER, b"[]")];
        let tensor = |kind| Tensor {
            name: "w".into(),
            kind,
            shape: vec![2],
            pieces: vec![StoredSlice {
                file: FILE.into(),
                key: "w".into(),
                sides: Vec::new(),
                begin: 0,
                end: 2,
            }],
        };
        let manifest = Manifest {
            format: dtrain_protocol::checkpoint::FORMAT,
            trial: TrialId("parent".into()),
            attempt: AttemptId(3),
            step: StepId(20),
            layout: Layout::SINGLE,
            program: "test".into(),
            cursor: 160,
            seed: Some(7),
            tensors: vec![tensor(TensorKind::Parameter), tensor(TensorKind::FirstMoment)],
            files,
        };
        commit::prepare(&folder, &serde_json::to_string(&manifest).expect("json")).expect("prepared");
        folder
    }

    fn adopted(what: &Adoption) -> (Manifest, ResumePoint, tempfile::TempDir) {
        let root = tempfile::tempdir().expect("a folder");
        let from = committed(root.path());
        let to = TrialFolder::at(root.path().join("child"));
        let child = TrialId("child".into());
        let point = adopt(&from, &child, &to, what).expect("adopted");
        assert_eq!(adopt(&from, &child, &to, what).as_ref(), Ok(&point), "the second time");
        let manifest = super::super::verify(&point.folder).expect("it is whole");
        assert_eq!((&manifest.trial, manifest.attempt), (&child, ADOPTED));
        (manifest, point, root)
    }

    #[test]
    fn a_state_is_taken_over_whole() {
        let (manifest, point, root) = adopted(&Adoption::State { inputs: None });
        assert_eq!((point.step, manifest.cursor, manifest.tensors.len()), (StepId(20), 160, 2));
        assert_eq!(manifest.files.len(), 3);
        // The parent may be removed: its files stay as long as the child links to them.
        fs::remove_dir_all(root.path().join("step-000000020.a3")).expect("removed");
        assert!(super::super::verify(&point.folder).is_ok());
    }

    #[test]
    fn a_damaged_state_is_taken_over_again() {
        let (_, point, root) = adopted(&Adoption::State { inputs: None });
        let path = point.folder.join(FILE);
        // The link is replaced; the parent's file is unchanged.
        fs::remove_file(&path).expect("it is there");
        fs::write(&path, b"weighed").expect("written");
        let (from, to) = (root.path().join("step-000000020.a3"), TrialFolder::at(root.path().join("child")));
        let what = Adoption::State { inputs: None };
        adopt(&from, &TrialId("child".into()), &to, &what).expect("the parent is intact");
        assert_eq!(fs::read(&path).expect("a file"), b"weights");
    }

    #[test]
    fn other_data_takes_the_place_of_that_of_the_checkpoint() {
        let inputs = InputManifest { train_samples: 5, ..InputManifest::default() };
        let (manifest, point, _root) = adopted(&Adoption::State { inputs: Some(inputs.clone()) });
        let json = fs::read(point.folder.join(INPUTS)).expect("it is there");
        assert_eq!(serde_json::from_slice::<InputManifest>(&json).expect("json"), inputs);
        assert_eq!(manifest.files.iter().filter(|file| file.name == INPUTS).count(), 1);
    }

    #[test]
    fn weights_alone_begin_at_step_0_without_the_data() {
        let (manifest, point, _root) = adopted(&Adoption::Weights);
        assert_eq!((point.step, manifest.cursor, manifest.seed), (StepId(0), 0, None));
        assert!(manifest.tensors.iter().all(|tensor| tensor.kind == TensorKind::Parameter));
        let files: Vec<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(files, [FILE, TOKENIZER]);
    }
}
