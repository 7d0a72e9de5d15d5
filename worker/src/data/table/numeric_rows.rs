//! Storage for the numbers of a table: in memory, or on disk if they are many.

use crate::data::DataError;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Limit on the count of numbers held in memory, which take 256 MiB.
const IN_MEMORY: usize = 32 << 20;

/// Count of numbers that are written at a time.
const AT_A_TIME: usize = 1 << 17;

/// Rows of numbers, all of the same width.
pub(super) struct NumericRows {
    width: usize,
    rows: u64,
    /// The numbers in memory; for a table on disk, those that are not written yet.
    values: Vec<f64>,
    disk: Option<SpillFile>,
    /// Folder for the temporary file of a large table.
    folder: PathBuf,
    in_memory: usize,
}

struct SpillFile {
    file: File,
    path: PathBuf,
}

impl NumericRows {
    /// Creates a table without rows. Once it is large, it is stored in an unnamed file in `folder`.
    pub(super) fn new(width: usize, folder: &Path) -> Self {
        Self::with_limit(width, folder, IN_MEMORY)
    }

    fn with_limit(width: usize, folder: &Path, in_memory: usize) -> Self {
        Self { width, rows: 0, values: Vec::new(), disk: None, folder: folder.to_owned(), in_memory }
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Appends a row to the table.
    pub(super) fn push(&mut self, row: &[f64]) -> Result<(), DataError> {
        assert_eq!(row.len(), self.width, "rows are of one width");
        self.values.extend_from_slice(row);
        self.rows += 1;
        if self.disk.is_none() && self.values.len() > self.in_memory {
            self.disk = Some(SpillFile::create(&self.folder)?);
        }
        if self.values.len() >= AT_A_TIME { self.write() } else { Ok(()) }
    }

    /// Finishes the table after its last row: writes the rows that are still in memory, if the table is
    /// on disk.
    pub(super) fn complete(mut self) -> Result<Self, DataError> {
        self.write()?;
        Ok(self)
    }

    fn write(&mut self) -> Result<(), DataError> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        for part in self.values.chunks(AT_A_TIME) {
            disk.file.write_all(bytemuck::cast_slice(part)).map_err(|error| disk.failed(error))?;
        }
        self.values = Vec::new();
        Ok(())
    }

    /// Fills `into`, one or more whole rows, with those from row `row` on.
    pub(super) fn read(&self, row: u64, into: &mut [f64]) -> Result<(), DataError> {
        let begin = row * self.width as u64;
        match &self.disk {
            None => {
                let begin = usize::try_from(begin).expect("it lies in memory");
                into.copy_from_slice(&self.values[begin..][..into.len()]);
                Ok(())
            }
            Some(disk) => disk
                .file
                .read_exact_at(bytemuck::cast_slice_mut(into), begin * size_of::<f64>() as u64)
                .map_err(|error| disk.failed(error)),
        }
    }

    /// Calls `of` for every row, with its number; reads `at_a_time` rows at once from disk.
    pub(super) fn each(&self, at_a_time: usize, mut of: impl FnMut(usize, &[f64])) -> Result<(), DataError> {
        let mut part = vec![0.0; at_a_time * self.width];
        for begin in (0..self.rows).step_by(at_a_time) {
            let rows =
                usize::try_from((self.rows - begin).min(at_a_time as u64)).expect("at most `at_a_time`");
            let part = &mut part[..rows * self.width];
            self.read(begin, part)?;
            let first = usize::try_from(begin).expect("rows are counted in memory");
            for (row, values) in part.chunks_exact(self.width).enumerate() {
                of(first + row, values);
            }
        }
        Ok(())
    }
}

impl SpillFile {
    /// Creates a file in `folder` that vanishes with this process.
    fn create(folder: &Path) -> Result<Self, DataError> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("table-{}-{number}", std::process::id()));
        let io = |source| DataError::Io { file: path.display().to_string(), source };
        fs::create_dir_all(folder).map_err(io)?;
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).map_err(io)?;
        fs::remove_file(&path).map_err(io)?;
        Ok(Self { file, path })
    }

    fn failed(&self, source: std::io::Error) -> DataError {
        let file = format!("{}, where a large table is kept while it is used", self.path.display());
        DataError::Io { file, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_on_disk_are_those_in_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut both = [10, 1 << 20].map(|limit| NumericRows::with_limit(3, folder.path(), limit));
        for cells in &mut both {
            for row in 0..100_000 {
                cells.push(&[f64::from(row), f64::NAN, -1.0]).expect("kept");
            }
        }
        let [disk, memory] = both.map(|cells| cells.complete().expect("kept"));
        assert!(disk.disk.is_some() && memory.disk.is_none());
        assert_eq!((disk.rows(), memory.rows()), (100_000, 100_000));
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0, "the file has no name any more");
        for begin in [0, 43_690, 99_998] {
            let rows = [&disk, &memory].map(|cells| {
                let mut rows = [0.0; 6];
                cells.read(begin, &mut rows).expect("read");
                rows.map(f64::to_bits)
            });
            assert_eq!(rows[0], rows[1]);
        }
    }
}
