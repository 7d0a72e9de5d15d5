//! Facts about the data of a recipe that can be found without tokenizing it.

use super::corpus::CorpusReader;
use super::decontaminate::without_validation_files;
use super::files::{self, DataFile, ResolvedFile};
use super::parquet_file::ParquetFile;
use super::table::{self, TableFacts, TabularFormat};
use super::{Batch, DataError, DataSet, SampleSource};
use dtrain_recipes::{Data, DataFormat, ValidationSource};
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Number of characters kept from the beginning of a sample document.
const SAMPLE_CHARACTERS: usize = 400;

/// Number of samples that are read at a time.
const ROWS: u64 = 1024;

/// Name and length of a data file of a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Path relative to the folder of the recipe if the file is below it, otherwise the full path; or a
    /// URL.
    pub name: String,
    /// Length of the stored file in bytes.
    pub bytes: u64,
}

/// Number of documents, bytes and duplicates in a text corpus, with the beginnings of some documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorpusFacts {
    /// Number of documents: text files, JSON records or rows.
    pub documents: u64,
    /// Length of the decompressed text, in bytes.
    pub bytes: u64,
    /// Number of documents that equal an earlier one, byte by byte.
    pub duplicates: u64,
    /// Number of validation documents that equal a training document; `None` without validation files.
    pub shared: Option<u64>,
    /// Beginnings of the first documents of the corpus.
    pub samples: Vec<String>,
}

/// Returns the files that a recipe reads: the training files, then the validation files. Paths start from
/// `root`; URLs must have been downloaded.
pub fn files(data: &Data, root: &Path) -> Result<Vec<FileFacts>, DataError> {
    // Opened one after the other: there may be many images.
    let facts =
        |found: &ResolvedFile| found.open().map(|file| FileFacts { name: file.name, bytes: file.bytes });
    let data = without_validation_files(data, root)?;
    let mut found = files::resolve_patterns(&data.train, root)?;
    if let ValidationSource::Files(patterns) = &data.valid {
        found.extend(files::resolve_patterns(patterns, root)?);
    }
    found.iter().map(facts).collect()
}

/// Opens the training files, and the validation files if the recipe names some.
fn open_files(data: &Data, root: &Path) -> Result<[Vec<Arc<DataFile>>; 2], DataError> {
    let valid = match &data.valid {
        ValidationSource::Fraction(_) => Vec::new(),
        ValidationSource::Files(patterns) => files::find(patterns, root)?,
    };
    Ok([files::find(&data.train, root)?, valid])
}

/// Returns the decompressed size of a file in bytes if it is at most `most`, otherwise any larger number,
/// as reading stops there. A Parquet file counts at least eight bytes for each value.
pub fn unpacked_bytes(path: &Path, most: u64) -> Result<u64, DataError> {
    let file = Arc::new(DataFile::open(path, Path::new(""))?);
    if file.read_up_to(0, 4)? == b"PAR1" {
        return Ok(ParquetFile::open(&file)?.unpacked_bytes());
    }
    if !file.is_compressed() {
        return Ok(file.bytes);
    }
    let mut contents = file.reader()?.take(most.saturating_add(1));
    std::io::copy(&mut contents, &mut std::io::sink()).map_err(|error| file.unreadable(error))
}

/// Reads a whole text corpus once and returns facts about it, with the beginnings of `samples` documents;
/// `None` if the data is not text.
pub fn corpus(data: &Data, root: &Path, samples: usize) -> Result<Option<CorpusFacts>, DataError> {
    let DataFormat::Text { documents, .. } = &data.format else { return Ok(None) };
    let (mut facts, mut seen) = (CorpusFacts::default(), HashSet::new());
    let (mut hasher, mut sample) = (blake3::Hasher::new(), Vec::new());
    let [train, valid] = open_files(&*without_validation_files(data, root)?, root)?;
    facts.shared = (!valid.is_empty()).then_some(0);
    let mut of_train = HashSet::new();
    let corpus = CorpusReader { documents };
    let train = corpus.pieces(&train).map(|piece| (piece, true));
    for (piece, is_train) in train.chain(corpus.pieces(&valid).map(|piece| (piece, false))) {
        let piece = piece?;
        facts.bytes += piece.bytes.len() as u64;
        hasher.update(&piece.bytes);
        if facts.samples.len() < samples && sample.is_empty() {
            sample.clone_from(&piece.bytes);
        }
        if !piece.is_last {
            continue;
        }
        facts.documents += 1;
        // Eight bytes of the hash: among 100 million documents, one in 3,000 corpora has two that share
        // them by chance.
        let hash = hasher.finalize().as_bytes()[..8].try_into().map(u64::from_le_bytes).expect("eight bytes");
        facts.duplicates += u64::from(!seen.insert(hash));
        match &mut facts.shared {
            Some(_) if is_train => {
                of_train.insert(hash);
            }
            Some(shared) => *shared += u64::from(of_train.contains(&hash)),
            None => {}
        }
        hasher.reset();
        if facts.samples.len() < samples {
            let text = String::from_utf8_lossy(&sample);
            facts.samples.push(text.chars().take(SAMPLE_CHARACTERS).collect());
            sample.clear();
        }
    }
    Ok(Some(facts))
}

/// Reads all rows of the training table once and returns facts about its columns; `None` if the data is
/// not a table.
pub fn table_facts(data: &Data, root: &Path) -> Result<Option<TableFacts>, DataError> {
    let facts = |format, columns| table::facts(&data.train, (format, columns), root).map(Some);
    match &data.format {
        DataFormat::Csv(columns) => facts(TabularFormat::Csv, columns),
        DataFormat::Parquet(columns) => facts(TabularFormat::Parquet, columns),
        DataFormat::Text { .. }
        | DataFormat::Chat { .. }
        | DataFormat::Tokens { .. }
        | DataFormat::Idx { .. }
        | DataFormat::Images { .. } => Ok(None),
    }
}

/// Iterates over all samples of a source, in batches.
pub(super) fn batches(source: &dyn SampleSource) -> impl Iterator<Item = Result<Batch, DataError>> + '_ {
    (0..source.len()).step_by(ROWS as usize).map(|begin| {
        let indices: Vec<u64> = (begin..source.len().min(begin + ROWS)).collect();
        source.read(&indices)
    })
}

impl DataSet {
    /// Returns the number of samples of each class, training and validation together; `None` for tokens.
    pub fn classes(&self) -> Result<Option<Vec<u64>>, DataError> {
        let mut counts = Vec::new();
        for source in [&self.train, &self.valid] {
            for batch in batches(&**source) {
                let Batch::Rows { classes, .. } = batch? else { return Ok(None) };
                for class in classes {
                    let class = class as usize;
                    counts.resize(counts.len().max(class + 1), 0);
                    counts[class] += 1;
                }
            }
        }
        Ok(Some(counts))
    }
}
