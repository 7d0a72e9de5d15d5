//! Decontamination: leaves validation files out of the training files, whatever their format.

use super::DataError;
use super::files::{self, ResolvedFile};
use dtrain_recipes::{Data, DataFormat, ValidationSource};
use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Number of bytes at either end by which files of equal length are first compared.
const END_BYTES: u64 = 64 << 10;

/// Returns `data` without the training files that are also validation files. If no training file would be
/// left, the recipe means it that way, and `data` is returned unchanged.
pub(super) fn without_validation_files<'d>(data: &'d Data, root: &Path) -> Result<Cow<'d, Data>, DataError> {
    let DistinctFiles { train, shared } = DistinctFiles::of(data, root)?;
    if shared.is_empty() || shared.len() == train.len() {
        return Ok(Cow::Borrowed(data));
    }
    let mut apart = data.clone();
    let kept = (0..).zip(&train).filter(|(number, _)| !shared.contains(number));
    apart.train = kept.map(|(_, found)| found.pattern()).collect::<Result<_, _>>()?;
    if let DataFormat::Idx { labels, .. } = &mut apart.format {
        let of_all = files::resolve_patterns(labels, root)?;
        // A mismatch is reported when the files are opened.
        if of_all.len() == train.len() {
            let kept = (0..).zip(&of_all).filter(|(number, _)| !shared.contains(number));
            *labels = kept.map(|(_, found)| found.pattern()).collect::<Result<_, _>>()?;
        }
    }
    Ok(Cow::Owned(apart))
}

/// The training files of a recipe, and the indices of those with the same content as a validation file.
pub(super) struct DistinctFiles {
    pub(super) train: Vec<ResolvedFile>,
    pub(super) shared: HashSet<usize>,
}

impl DistinctFiles {
    pub(super) fn of(data: &Data, root: &Path) -> Result<Self, DataError> {
        let ValidationSource::Files(patterns) = &data.valid else {
            return Ok(Self { train: Vec::new(), shared: HashSet::new() });
        };
        let (train, valid) =
            (files::resolve_patterns(&data.train, root)?, files::resolve_patterns(patterns, root)?);
        let shared = shared(&train, &valid)?;
        Ok(Self { train, shared })
    }
}

fn shared(train: &[ResolvedFile], valid: &[ResolvedFile]) -> Result<HashSet<usize>, DataError> {
    let valid = valid.iter().map(PossibleDuplicate::of).collect::<Result<Vec<_>, _>>()?;
    let places: HashSet<_> = valid.iter().map(|file| file.place).collect();
    let lengths: HashSet<u64> = valid.iter().map(|file| file.bytes).collect();
    let train = train.iter().map(PossibleDuplicate::of).collect::<Result<Vec<_>, _>>()?;
    let mut shared = HashSet::new();
    let mut alike = Vec::new();
    for (number, file) in (0..).zip(&train) {
        if places.contains(&file.place) {
            shared.insert(number);
        } else if file.is_data && lengths.contains(&file.bytes) {
            alike.push(number);
        }
    }
    // Images and shards often have equal lengths; most of them differ at an end.
    let lengths: HashSet<u64> = alike.iter().map(|number| train[*number].bytes).collect();
    let valid = valid.iter().filter(|file| file.is_data && lengths.contains(&file.bytes));
    let mut ends: HashMap<blake3::Hash, Vec<&PossibleDuplicate<'_>>> = HashMap::new();
    for file in valid {
        ends.entry(file.ends()?).or_default().push(file);
    }
    let mut wholes: HashMap<&Path, blake3::Hash> = HashMap::new();
    for number in alike {
        let file = &train[number];
        for &other in ends.get(&file.ends()?).into_iter().flatten() {
            for file in [file, other] {
                if let Entry::Vacant(entry) = wholes.entry(&file.found.path) {
                    entry.insert(file.whole()?);
                }
            }
            if wholes[&*file.found.path] == wholes[&*other.found.path] {
                shared.insert(number);
            }
        }
    }
    Ok(shared)
}

/// A file that may be a duplicate of another file, with what is needed to compare them.
struct PossibleDuplicate<'f> {
    found: &'f ResolvedFile,
    /// Device and inode number of the file.
    place: (u64, u64),
    bytes: u64,
    /// True for a regular file that is not empty; others are refused when they are opened.
    is_data: bool,
}

impl<'f> PossibleDuplicate<'f> {
    fn of(found: &'f ResolvedFile) -> Result<Self, DataError> {
        let about = found.path.metadata();
        let about = about.map_err(|source| DataError::Io { file: found.name.clone(), source })?;
        let is_data = about.is_file() && about.len() > 0;
        Ok(Self { found, place: (about.dev(), about.ino()), bytes: about.len(), is_data })
    }

    fn ends(&self) -> Result<blake3::Hash, DataError> {
        let file = self.found.open()?;
        let mut hasher = blake3::Hasher::new();
        for begin in [0, self.bytes.saturating_sub(END_BYTES)] {
            hasher.update(&file.read_up_to(begin, END_BYTES)?);
        }
        Ok(hasher.update(&self.bytes.to_le_bytes()).finalize())
    }

    /// Hashes the file; only evenly spread blocks of it if it is long.
    fn whole(&self) -> Result<blake3::Hash, DataError> {
        files::hash(&self.found.open()?)
    }
}
