//! Parquet writer for rows of a fixed shape, uncompressed, without nulls.
//!
//! The first four columns repeat for thousands of rows, so they are run-length-encoded dictionaries: a few
//! bytes per series. Steps, times and values are plain: 24 bytes per point. The properties of the trials are
//! a JSON list in the metadata under `dtrain.trials`. Format: <https://github.com/apache/parquet-format>,
//! `README.md`, `Encodings.md`, `parquet.thrift`; structures use Thrift's compact protocol.

mod metadata;
mod thrift;

use super::row_writer::RowWriter;
use super::trial_metadata::{brief_metadata, trial_metadata};
use crate::ledger::{MetricSample, TrialOutline};
use dtrain_protocol::{AttemptId, Rank};
use metadata::TrialMetadata;
use std::fs::File;
use std::io::{self, Write};
use thrift::StructBuilder;

/// Magic bytes at the beginning and the end of a file.
const MAGIC: &[u8; 4] = b"PAR1";

/// Number of rows in a row group, which is buffered and written at once.
const GROUP: usize = 1 << 20;

/// Most bytes of trial metadata: Arrow reads at most 100 MB.
const MOST_ABOUT: u64 = 80_000_000;

/// Number of values in one page of a plain column: 1 MiB.
const PAGE: usize = 1 << 17;

// Physical types of columns, and the logical types that say how a physical one is read.
const INT32: i64 = 1;
const INT64: i64 = 2;
const DOUBLE: i64 = 5;
const BYTE_ARRAY: i64 = 6;
const UTF8: i64 = 0;
const UINT_32: i64 = 13;

// Encodings of the values in a page.
const PLAIN: i64 = 0;
const RLE: i64 = 3;
const RLE_DICTIONARY: i64 = 8;

// Types of pages.
const DATA_PAGE: i64 = 0;
const DICTIONARY_PAGE: i64 = 2;

/// Name, physical type and logical type of each column.
const COLUMNS: [(&str, i64, Option<i64>); 7] = [
    ("trial", BYTE_ARRAY, Some(UTF8)),
    ("key", BYTE_ARRAY, Some(UTF8)),
    ("rank", INT32, Some(UINT_32)),
    ("attempt", INT64, None),
    ("step", INT64, None),
    ("at_ms", INT64, None),
    ("value", DOUBLE, None),
];

/// Parquet file that is being written.
pub(super) struct ParquetWriter<W> {
    to: W,
    /// Number of bytes written so far.
    at: usize,
    trials: TrialMetadata,
    /// Label of the trial whose rows follow.
    trial: String,
    rows: usize,
    /// Buffered rows: the dictionary-encoded columns, then the plain ones.
    repeated: [DictionaryColumn; 4],
    plain: [Vec<u8>; 3],
    held: usize,
    groups: Vec<StructBuilder>,
}

/// Column that is written with a dictionary of its distinct values.
#[derive(Default)]
struct DictionaryColumn {
    /// Distinct values in plain encoding.
    values: Vec<Vec<u8>>,
    /// Run-length encoding of the rows: index of a value, and number of consecutive rows that have it.
    runs: Vec<(usize, usize)>,
}

/// Location of one column's pages in the file: offset and size.
struct ColumnChunk {
    begin: usize,
    dictionary: Option<usize>,
    data: usize,
    encodings: Vec<i64>,
}

impl<W: Write> ParquetWriter<W> {
    /// Starts a file without rows; trial metadata is buffered in `scratch`.
    pub(super) fn new(to: W, scratch: File) -> Self {
        Self {
            to,
            at: 0,
            trials: TrialMetadata::new(scratch, MOST_ABOUT),
            trial: String::new(),
            rows: 0,
            repeated: Default::default(),
            plain: Default::default(),
            held: 0,
            groups: Vec::new(),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.at += bytes.len();
        Ok(())
    }

    /// Writes the buffered rows as a row group.
    fn flush(&mut self) -> io::Result<()> {
        let rows = std::mem::take(&mut self.held);
        if rows == 0 {
            return Ok(());
        }
        let mut chunks = Vec::new();
        for column in std::mem::take(&mut self.repeated) {
            chunks.push(self.repeated_chunk(&column, rows)?);
        }
        for bytes in std::mem::take(&mut self.plain) {
            chunks.push(self.plain_chunk(&bytes)?);
        }
        let ends = chunks.iter().skip(1).map(|chunk| chunk.begin).chain([self.at]);
        let sized = chunks.iter().zip(ends);
        let columns: Vec<_> =
            sized.zip(COLUMNS).map(|((chunk, end), column)| chunk.describe(end, column, rows)).collect();
        let bytes = self.at - chunks[0].begin;
        self.groups.push(StructBuilder::new().structs(1, &columns).int64(2, bytes).int64(3, rows));
        self.rows += rows;
        Ok(())
    }

    fn page(&mut self, kind: i64, size: usize, head: (u16, &StructBuilder)) -> io::Result<()> {
        let page = StructBuilder::new().int32(1, kind).size(2, size).size(3, size).inner(head.0, head.1);
        self.put(&page.finish())
    }

    fn repeated_chunk(&mut self, column: &DictionaryColumn, rows: usize) -> io::Result<ColumnChunk> {
        let begin = self.at;
        let dictionary = column.values.concat();
        let head = StructBuilder::new().size(1, column.values.len()).int32(2, PLAIN);
        self.page(DICTIONARY_PAGE, dictionary.len(), (7, &head))?;
        self.put(&dictionary)?;
        let data = self.at;
        let runs = column.encode();
        self.page(DATA_PAGE, runs.len(), (5, &data_head(rows, RLE_DICTIONARY)))?;
        self.put(&runs)?;
        Ok(ColumnChunk { begin, dictionary: Some(begin), data, encodings: vec![PLAIN, RLE, RLE_DICTIONARY] })
    }

    fn plain_chunk(&mut self, bytes: &[u8]) -> io::Result<ColumnChunk> {
        let begin = self.at;
        for page in bytes.chunks(8 * PAGE) {
            self.page(DATA_PAGE, page.len(), (5, &data_head(page.len() / 8, PLAIN)))?;
            self.put(page)?;
        }
        Ok(ColumnChunk { begin, dictionary: None, data: begin, encodings: vec![PLAIN, RLE] })
    }
}

impl<W: Write> RowWriter for ParquetWriter<W> {
    fn begin(&mut self, trial: &TrialOutline) -> io::Result<()> {
        if self.at == 0 {
            self.put(MAGIC)?;
        }
        self.trials.add(&trial_metadata(trial), &brief_metadata(trial))?;
        self.trial.clone_from(&trial.row.id.0);
        Ok(())
    }

    fn rows(&mut self, key: &str, rank: Rank, points: &[(AttemptId, MetricSample)]) -> io::Result<()> {
        for (attempt, sample) in points {
            let [trial, keys, ranks, attempts] = &mut self.repeated;
            trial.add(&text(&self.trial));
            keys.add(&text(key));
            ranks.add(&rank.0.to_le_bytes());
            attempts.add(&attempt.0.to_le_bytes());
            let [steps, times, values] = &mut self.plain;
            steps.extend(sample.step.to_le_bytes());
            times.extend(sample.at_ms.to_le_bytes());
            values.extend(sample.value.to_le_bytes());
            self.held += 1;
            if self.held == GROUP {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.at == 0 {
            self.put(MAGIC)?;
        }
        self.flush()?;
        let root = StructBuilder::new().text(4, "dtrain").size(5, COLUMNS.len());
        let column = |(name, physical, converted): (&str, i64, Option<i64>)| {
            let column = StructBuilder::new().int32(1, physical).int32(3, 0).text(4, name);
            converted.map_or(column.clone(), |converted| column.int32(6, converted))
        };
        let schema: Vec<_> = std::iter::once(root).chain(COLUMNS.map(column)).collect();
        let (begin, length) = (self.at, self.trials.end()?);
        let (before, after) = StructBuilder::new()
            .int32(1, 1)
            .structs(2, &schema)
            .int64(3, self.rows)
            .structs(4, &std::mem::take(&mut self.groups))
            .around_text(5, StructBuilder::new().text(1, "dtrain.trials"), (2, length));
        self.put(&before)?;
        self.trials.copy_to(&mut self.to)?;
        self.at += usize::try_from(length).map_err(io::Error::other)?;
        self.put(&after.text(6, concat!("dtrain version ", env!("CARGO_PKG_VERSION"))).finish())?;
        let length = u32::try_from(self.at - begin).map_err(io::Error::other)?;
        self.put(&length.to_le_bytes())?;
        self.put(MAGIC)?;
        self.to.flush()
    }
}

impl DictionaryColumn {
    fn add(&mut self, value: &[u8]) {
        if let Some((_, count)) = self.runs.last_mut().filter(|(known, _)| self.values[*known] == value) {
            *count += 1;
            return;
        }
        let known = self.values.iter().position(|known| known == value).unwrap_or_else(|| {
            self.values.push(value.to_vec());
            self.values.len() - 1
        });
        self.runs.push((known, 1));
    }

    /// Encodes the rows of the column: the width of an index in bits, then the runs.
    fn encode(&self) -> Vec<u8> {
        let bits = self.values.len().saturating_sub(1).checked_ilog2().map_or(1, |log| log + 1);
        let width = bits.div_ceil(8) as usize;
        let mut bytes = bits.to_le_bytes()[..1].to_vec();
        for (index, count) in &self.runs {
            thrift::varint(&mut bytes, (*count as u64) << 1);
            bytes.extend(&index.to_le_bytes()[..width]);
        }
        bytes
    }
}

impl ColumnChunk {
    /// Builds a Thrift `ColumnChunk`.
    fn describe(
        &self,
        end: usize,
        (name, physical, _): (&str, i64, Option<i64>),
        rows: usize,
    ) -> StructBuilder {
        let size = end - self.begin;
        let data = StructBuilder::new()
            .int32(1, physical)
            .ints(2, &self.encodings)
            .texts(3, &[name])
            .int32(4, 0)
            .int64(5, rows)
            .int64(6, size)
            .int64(7, size)
            .int64(9, self.data);
        let data = match self.dictionary {
            Some(at) => data.int64(11, at),
            None => data,
        };
        StructBuilder::new().int64(2, self.begin).inner(3, &data)
    }
}

/// Builds a `DataPageHeader`. No column has levels, but the format requires their encoding.
fn data_head(values: usize, encoding: i64) -> StructBuilder {
    StructBuilder::new().size(1, values).int32(2, encoding).int32(3, RLE).int32(4, RLE)
}

/// Returns a text in plain encoding.
fn text(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_repeats_itself_is_runs_of_indices() {
        let mut column = DictionaryColumn::default();
        for value in ["a", "a", "b", "a"] {
            column.add(value.as_bytes());
        }
        assert_eq!(column.values, [b"a", b"b"]);
        assert_eq!(column.encode(), [1, 4, 0, 2, 1, 2, 0]);
        let mut wide = DictionaryColumn::default();
        for value in 0..257_u32 {
            wide.add(&value.to_le_bytes());
        }
        let bytes = wide.encode();
        assert_eq!((bytes[0], bytes.len(), &bytes[bytes.len() - 3..]), (9, 1 + 257 * 3, &[2, 0, 1][..]));
        let mut one = DictionaryColumn::default();
        one.add(b"x");
        assert_eq!(one.encode(), [1, 2, 0]);
    }
}
