//! Checkpoints in one store or several, whole or damaged.

use super::*;
use crate::home::TrialFolder;
use dtrain_protocol::checkpoint::header::{self, TensorInfo};
use dtrain_protocol::checkpoint::{CHUNK_BYTES, FORMAT, merge};
use dtrain_protocol::{
    AttemptId, FileEntry, Layout, SavedFile, StepId, StoredSlice, Tensor, TensorKind, TrialId,
};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

const STEP: StepId = StepId(7);
const ATTEMPT: AttemptId = AttemptId(2);
const NAME: &str = "step-000000007.a2";

/// Elements of a tensor that fills about three quarters of a chunk.
const WIDE: u64 = CHUNK_BYTES / 4 * 3 / 4;

/// Writes the file of a rank with two wide tensors and a narrow one, all named after it.
fn write(partial: &Path, rank: u64) -> SavedFile {
    let file = format!("rank-{rank:05}.safetensors");
    let (mut entries, mut tensors, mut data, mut at) = (BTreeMap::new(), Vec::new(), Vec::new(), 0u64);
    for (letter, elements) in [("a", WIDE), ("b", WIDE), ("c", 5)] {
        let name = format!("{letter}{rank}");
        data.extend((0..elements).flat_map(|element| (element as f32 + rank as f32).to_le_bytes()));
        let data_offsets = (at, at + 4 * elements);
        at = data_offsets.1;
        entries.insert(name.clone(), TensorInfo { dtype: "F32".into(), shape: vec![elements], data_offsets });
        let piece =
            StoredSlice { file: file.clone(), key: name.clone(), sides: Vec::new(), begin: 0, end: elements };
        tensors.push(Tensor {
            name,
            kind: TensorKind::Parameter,
            shape: vec![elements],
            pieces: vec![piece],
        });
    }
    let bytes = [header::encode(&entries), data].concat();
    fs::write(partial.join(&file), &bytes).expect("room on disk");
    let chunks = bytes.chunks(CHUNK_BYTES as usize).map(|chunk| blake3::hash(chunk).to_hex().to_string());
    SavedFile { file: FileEntry { name: file, bytes: bytes.len() as u64, chunks: chunks.collect() }, tensors }
}

/// Returns a trial's folder with a committed checkpoint of two ranks.
fn trial(root: &Path) -> TrialFolder {
    let trial = TrialFolder::at(root);
    trial.create().expect("room on disk");
    let partial = trial.partial_checkpoint(STEP, ATTEMPT);
    fs::create_dir(&partial).expect("room on disk");
    let (tensors, files) = merge((0..2).map(|rank| write(&partial, rank))).expect("every element once");
    let manifest = Manifest {
        format: FORMAT,
        trial: TrialId("t".into()),
        attempt: ATTEMPT,
        step: STEP,
        layout: Layout::SINGLE,
        program: "test".into(),
        cursor: 40,
        seed: Some(1),
        tensors,
        files,
    };
    commit::prepare(&partial, &serde_json::to_string(&manifest).expect("JSON")).expect("room on disk");
    commit::finish(&trial, STEP, ATTEMPT).expect("room on disk");
    trial
}

/// Copies a trial's folder.
fn copy(from: &TrialFolder, root: &Path) -> TrialFolder {
    let trial = TrialFolder::at(root);
    trial.create().expect("room on disk");
    let to = trial.checkpoint(STEP, ATTEMPT);
    fs::create_dir(&to).expect("room on disk");
    for entry in fs::read_dir(from.checkpoint(STEP, ATTEMPT)).expect("a checkpoint").flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).expect("room on disk");
    }
    trial
}

fn flip(trial: &TrialFolder, file: &str, byte: u64) {
    let path = trial.checkpoint(STEP, ATTEMPT).join(file);
    let file = fs::File::options().read(true).write(true).open(path).expect("it is there");
    let mut found = [0];
    file.read_exact_at(&mut found, byte).expect("it is as long");
    file.write_all_at(&[found[0] ^ 4], byte).expect("room on disk");
}

fn holders(trials: &[&TrialFolder]) -> Vec<Box<dyn CheckpointStore>> {
    trials
        .iter()
        .map(|trial| Box::new(LocalStore::new((*trial).clone())) as Box<dyn CheckpointStore>)
        .collect()
}

fn look(trials: &[&TrialFolder]) -> VerificationReport {
    let mut holders = holders(trials);
    let inventory = Inventory::collect(&mut holders).expect("they answer");
    verify_all_copies(&mut holders, &inventory, NAME, &mut |_, _| {}).expect("it is committed")
}

fn get(trials: &[&TrialFolder], to: &Path) -> Result<(), String> {
    let mut holders = holders(trials);
    let inventory = Inventory::collect(&mut holders).expect("they answer");
    pull(&mut holders, &inventory, NAME, to, &mut |_, _| {})
}

fn states(trials: &[&TrialFolder], refused: &BTreeMap<String, String>) -> Vec<(String, State)> {
    let mut holders = holders(trials);
    let inventory = Inventory::collect(&mut holders).expect("they answer");
    inventory.list(&mut holders, refused).into_iter().map(|one| (one.name, one.state)).collect()
}

#[test]
fn a_flipped_bit_names_its_chunk_and_the_tensors_in_it() {
    let root = tempfile::tempdir().expect("a folder");
    let trial = trial(root.path());
    let file = "rank-00001.safetensors";
    assert_eq!(look(&[&trial]).damaged, []);
    // The header, then a, followed by b in the last quarter of the first chunk; then the rest of b, and c.
    for (byte, begin, tensors) in [
        (5000, 0, &["a1", "b1"][..]),
        (CHUNK_BYTES - 1, 0, &["a1", "b1"]),
        (CHUNK_BYTES, CHUNK_BYTES, &["b1", "c1"]),
        // With a damaged header the places of all tensors are unknown.
        (20, 0, &["a1", "b1", "c1"]),
    ] {
        flip(&trial, file, byte);
        let found = look(&[&trial]);
        let damage = &found.damaged[0].damage;
        assert_eq!((damage.file.as_str(), damage.begin), (file, begin), "byte {byte}");
        assert_eq!(damage.tensors, tensors, "byte {byte}");
        assert_eq!((found.damaged.len(), found.lost), (1, vec![file.to_owned()]), "byte {byte}");
        flip(&trial, file, byte);
    }
    let said = DamagedItem { holder: None, damage: look_at_flip(&trial, file) }.damage.to_string();
    assert!(
        said.starts_with("tensors b1, c1 in rank-00001.safetensors at byte 4194304: the content"),
        "{said}"
    );
}

fn look_at_flip(trial: &TrialFolder, file: &str) -> dtrain_protocol::checkpoint::CorruptRange {
    flip(trial, file, CHUNK_BYTES + 1);
    look(&[trial]).damaged.remove(0).damage
}

#[test]
fn reading_all_of_a_checkpoint_finds_what_its_lengths_do_not_show() {
    let root = tempfile::tempdir().expect("a folder");
    let trial = trial(root.path());
    let folder = trial.checkpoint(STEP, ATTEMPT);
    let mut told = Vec::new();
    let manifest =
        verify_checksums(&folder, &mut |done, total| told.push((done, total))).expect("it is intact");
    let total = manifest.files.iter().map(|file| file.bytes).sum();
    assert_eq!(told.last(), Some(&(total, total)));
    flip(&trial, "rank-00001.safetensors", CHUNK_BYTES + 9);
    verify(&folder).expect("every file has its length");
    let error = verify_checksums(&folder, &mut |_, _| ()).expect_err("a bit flipped");
    assert!(error.starts_with("rank-00001.safetensors at byte 4194304: the content has changed"), "{error}");
}

#[test]
fn what_one_lost_another_has() {
    let (first, second) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let one = trial(first.path());
    let two = copy(&one, second.path());
    flip(&one, "rank-00000.safetensors", 9000);
    fs::remove_file(one.checkpoint(STEP, ATTEMPT).join("rank-00001.safetensors")).expect("it is there");
    flip(&two, "rank-00000.safetensors", CHUNK_BYTES + 9000);
    assert_eq!(states(&[&one], &BTreeMap::new()), [(NAME.to_owned(), State::Damaged)], "a file is missing");
    assert_eq!(states(&[&one, &two], &BTreeMap::new()), [(NAME.to_owned(), State::Committed)]);
    let found = look(&[&one, &two]);
    assert_eq!((found.damaged.len(), found.lost), (2, vec!["rank-00000.safetensors".to_owned()]));

    // No copy of the file is intact, but every chunk of it is in some store.
    let to = first.path().join("kept");
    get(&[&one, &two], &to).expect("every chunk is somewhere");
    verify(&to).expect("it is a checkpoint");
    let pulled = TrialFolder::at(first.path().join("pulled"));
    pulled.create().expect("room on disk");
    fs::rename(&to, pulled.checkpoint(STEP, ATTEMPT)).expect("the same disk");
    assert_eq!(look(&[&pulled]).damaged, []);
    assert!(!first.path().join("kept.partial").exists());

    flip(&two, "rank-00000.safetensors", 9000);
    let error = get(&[&one, &two], &to).expect_err("the first chunk is nowhere");
    assert!(error.contains("in rank-00000.safetensors at byte 0") && error.contains("a0"), "{error}");
    assert!(!to.exists(), "what is not whole has no name");
}

#[test]
fn a_copy_that_was_cut_off_is_gone_on_with_and_mended() {
    let root = tempfile::tempdir().expect("a folder");
    let trial = trial(root.path());
    let (to, partial) = (root.path().join("kept"), root.path().join("kept.partial"));
    fs::create_dir(&partial).expect("room on disk");
    let intact = fs::read(trial.checkpoint(STEP, ATTEMPT).join("rank-00000.safetensors")).expect("a file");
    // An intact first chunk, half of a second one, and a file with a flipped bit and excess bytes.
    fs::write(partial.join("rank-00000.safetensors"), &intact[..CHUNK_BYTES as usize + 99]).expect("room");
    let mut other = fs::read(trial.checkpoint(STEP, ATTEMPT).join("rank-00001.safetensors")).expect("a file");
    other[77] ^= 1;
    other.extend([0; 50]);
    fs::write(partial.join("rank-00001.safetensors"), other).expect("room on disk");
    // A copied chunk is not read again: the first one is damaged in its store.
    flip(&trial, "rank-00000.safetensors", 5000);
    get(&[&trial], &to).expect("the rest is there");
    assert_eq!(fs::read(to.join("rank-00000.safetensors")).expect("a file"), intact);
    verify(&to).expect("it is a checkpoint");
    let error = get(&[&trial], &to).expect_err("the folder is there");
    assert!(error.contains("exists already"), "{error}");
}

#[test]
fn every_checkpoint_is_listed_with_its_state() {
    let root = tempfile::tempdir().expect("a folder");
    let trial = trial(root.path());
    let partial = trial.partial_checkpoint(StepId(9), ATTEMPT);
    fs::create_dir(&partial).expect("room on disk");
    fs::create_dir(trial.checkpoints().join("not-one")).expect("room on disk");
    let all =
        |refused: &BTreeMap<_, _>| states(&[&trial], refused).into_iter().map(|(_, s)| s).collect::<Vec<_>>();
    assert_eq!(all(&BTreeMap::new()), [State::Committed, State::Partial]);
    assert_eq!(
        all(&BTreeMap::from([(NAME.to_owned(), "torn".to_owned())])),
        [State::Refused, State::Partial]
    );
    let mut holders = holders(&[&trial]);
    let inventory = Inventory::collect(&mut holders).expect("they answer");
    for name in ["step-000000009.a2", "step-000000001.a1"] {
        let error =
            verify_all_copies(&mut holders, &inventory, name, &mut |_, _| {}).expect_err("not committed");
        assert!(error.contains("was not committed"), "{error}");
    }
}

#[test]
fn only_files_of_checkpoints_are_read() {
    let root = tempfile::tempdir().expect("a folder");
    let trial = trial(root.path());
    fs::write(root.path().join("agent.json"), "secret").expect("room on disk");
    std::os::unix::fs::symlink("../../agent.json", trial.checkpoint(STEP, ATTEMPT).join("link"))
        .expect("room");
    let mut here = LocalStore::new(trial);
    assert!(here.read(NAME, "COMMIT", 0).is_ok());
    for (folder, file) in
        [("..", "agent.json"), (NAME, "../../agent.json"), (NAME, "link"), (NAME, ""), ("", "x")]
    {
        assert!(
            here.read(folder, file, 0).is_err() && here.hashes(folder, file, 0, 1).is_err(),
            "{folder} {file}"
        );
    }
}
