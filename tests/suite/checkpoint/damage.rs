//! A thousand ways to damage a checkpoint: each is found, and named.

use super::{examined, read};
use crate::layouts::{Case, checkpoint};
use dtrain_protocol::checkpoint::header;
use dtrain_protocol::shuffle::splitmix64;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

/// Damages, one for each seed.
const SEEDS: u64 = 1000;

/// What is done to a checkpoint.
#[derive(Debug)]
enum Damage {
    Flip { file: String, byte: usize, bit: u32 },
    Cut { file: String, bytes: usize },
    Append { file: String, bytes: usize },
    Swap { one: String, other: String },
    Remove { file: String },
}

/// The intact files of a checkpoint, by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Numbers by chance that are the same for the same seed.
struct Dice {
    seed: u64,
    thrown: u64,
}

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.thrown += 1;
        usize::try_from(splitmix64(self.seed, self.thrown) % bound as u64).expect("below a usize")
    }

    fn file(&mut self, files: &Files) -> String {
        files.keys().nth(self.below(files.len())).expect("it is below their number").clone()
    }
}

impl Damage {
    fn of(seed: u64, files: &Files) -> Self {
        let mut dice = Dice { seed, thrown: 0 };
        let file = dice.file(files);
        let bytes = files[&file].len();
        match dice.below(20) {
            0..13 => Self::Flip { file, byte: dice.below(bytes), bit: splitmix64(seed, 99) as u32 % 8 },
            13..16 => Self::Cut { file, bytes: dice.below(bytes) },
            16..18 => Self::Append { file, bytes: 1 + dice.below(9000) },
            18 => {
                let ranks: Vec<_> = files.keys().filter(|name| name.starts_with("rank")).collect();
                let one = dice.below(ranks.len());
                let other = (one + 1 + dice.below(ranks.len() - 1)) % ranks.len();
                Self::Swap { one: ranks[one].clone(), other: ranks[other].clone() }
            }
            _ => Self::Remove { file },
        }
    }

    /// The files that are not as they were.
    fn files(&self) -> Vec<&str> {
        match self {
            Self::Flip { file, .. }
            | Self::Cut { file, .. }
            | Self::Append { file, .. }
            | Self::Remove { file } => {
                vec![file]
            }
            Self::Swap { one, other } => vec![one, other],
        }
    }

    fn apply(&self, folder: &Path, files: &Files) {
        let write = |file: &str, bytes: &[u8]| fs::write(folder.join(file), bytes).expect("room on disk");
        match self {
            Self::Flip { file, byte, bit } => {
                let mut bytes = files[file].clone();
                bytes[*byte] ^= 1 << bit;
                write(file, &bytes);
            }
            Self::Cut { file, bytes } => write(file, &files[file][..*bytes]),
            Self::Append { file, bytes } => write(file, &[&files[file][..], &vec![b' '; *bytes]].concat()),
            Self::Swap { one, other } => {
                write(one, &files[other]);
                write(other, &files[one]);
            }
            Self::Remove { file } => fs::remove_file(folder.join(file)).expect("it is there"),
        }
    }

    /// The tensors whose bytes are not as they were, with the file they lie in.
    fn tensors(&self, files: &Files) -> Vec<(String, String)> {
        let (file, from, to) = match self {
            Self::Flip { file, byte, .. } => (file, *byte, byte + 1),
            Self::Cut { file, bytes } => (file, *bytes, usize::MAX),
            Self::Remove { file } => (file, 0, usize::MAX),
            Self::Append { .. } | Self::Swap { .. } => return Vec::new(),
        };
        let there = places(file, &files[file]).into_iter();
        let there = there.filter(|(_, begin, end)| *begin < to && from < *end);
        there.map(|(tensor, ..)| (tensor, file.clone())).collect()
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The tensors in a file of a rank with the bytes of each; none in another file.
fn places(file: &str, bytes: &[u8]) -> Vec<(String, usize, usize)> {
    if !file.starts_with("rank") {
        return Vec::new();
    }
    let length = header::length(bytes, bytes.len() as u64).expect("it is intact") as usize;
    let places = header::decode(&bytes[8..8 + length], bytes.len() as u64).expect("it is intact");
    let tensor = |key: &str| key.split('[').next().expect("before a range stands the name").to_owned();
    places.into_iter().map(|(key, at)| (tensor(&key), at.start as usize, at.end as usize)).collect()
}

/// The files of an intact checkpoint.
fn files(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).expect("a checkpoint");
    entries
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a plain name").to_owned();
            (name, fs::read(path).expect("a file"))
        })
        .collect()
}

/// Does `damage` to the checkpoint, expects that it is found and named, and makes the checkpoint whole again.
fn strike(folder: &Path, files: &Files, damage: &Damage) {
    damage.apply(folder, files);
    let found = examined(folder).unwrap_or_else(|error| panic!("{damage}: {error}"));
    let refused = read(folder).map_err(|error| error.to_string());
    assert!(!found.lost.is_empty() && !found.damaged.is_empty(), "{damage} was not found");
    let words: Vec<String> = found.damaged.iter().map(|found| found.damage.to_string()).collect();
    for file in damage.files() {
        assert!(words.iter().any(|words| words.contains(file)), "{damage}: {file} is not named: {words:?}");
    }
    for (tensor, file) in damage.tensors(files) {
        let names = |found: &&dtrain_runner::checkpoints::DamagedItem| {
            found.damage.file == file && found.damage.tensors.contains(&tensor)
        };
        assert!(
            found.damaged.iter().any(|found| names(&found)),
            "{damage}: {tensor} is not named: {words:?}"
        );
    }
    let refused = refused.expect_err("a rank does not read it");
    assert!(damage.files().iter().any(|file| refused.contains(file)), "{damage}: a rank says {refused}");
    for file in damage.files() {
        fs::write(folder.join(file), &files[file]).expect("room on disk");
    }
}

#[test]
fn a_thousand_damages_are_refused_with_file_and_tensor() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = checkpoint(&Case::new("gpt", &[("data", "2"), ("tensor", "2")]), 1, root.path());
    let files = files(&folder);
    assert_eq!(
        files.len(),
        7,
        "four ranks, the table of contents, the inputs and COMMIT: {:?}",
        files.keys()
    );
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for seed in 0..SEEDS {
        let damage = Damage::of(seed, &files);
        strike(&folder, &files, &damage);
        let words = format!("{damage:?}");
        *kinds.entry(words.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    assert_eq!(kinds.len(), 5, "each kind of damage was done: {kinds:?}");
    let whole = examined(&folder).expect("it is committed");
    assert!(whole.lost.is_empty() && whole.damaged.is_empty(), "it is whole again: {whole:?}");
    read(&folder).expect("a rank reads it");
    println!("{SEEDS} damages, all refused with file and tensor: {kinds:?}");
}
