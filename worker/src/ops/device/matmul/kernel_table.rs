//! Table of chosen kernels, in a file beside the compiled ones, so that the next process need not choose
//! again.
//!
//! A kernel may crash the process. So before its first run its name is written to a file that this process
//! keeps locked; a process that finds such a file without a lock knows which kernel crashed.

use crate::files;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Version of the table's format. It changes with the candidates or their names: older choices are dropped.
const FORMAT: &str = "dtrain.products/1";

/// Prefix of the names of files that each name a kernel in its first run.
const RUNNING: &str = "running-";

/// Number of products whose computation a kernel must crash before it is skipped for all others. A process
/// killed during a trial looks like a crash, so one is not enough.
const CRASHES: usize = 3;

/// The chosen and the crashed kernels for one kind of device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KernelTable {
    format: String,
    /// Version of CubeCL that compiled the kernels.
    cubecl: String,
    /// Chosen kernels, by the name of the product.
    pub(super) products: BTreeMap<String, ChosenKernel>,
    /// Products whose computation crashed the process, by the name of the kernel.
    crashes: BTreeMap<String, BTreeSet<String>>,
}

/// The kernel chosen for one product, and the trials that led to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ChosenKernel {
    /// Name of the chosen kernel.
    pub(super) kernel: String,
    /// True if all candidates were tried; false if the time was over.
    pub(super) is_complete: bool,
    /// Time limit of the trials, in seconds. If the limit is larger later, the other candidates are tried as
    /// well.
    pub(super) limit_seconds: f64,
    /// Kernels that were tried, in order.
    pub(super) tried: Vec<KernelTrial>,
}

/// The result of trying one kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KernelTrial {
    pub(super) kernel: String,
    /// Seconds of the first launch, which compiles the kernel, until the device was idle.
    pub(super) first_seconds: f64,
    /// Seconds of the fastest later launch; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) seconds: Option<f64>,
    /// Reason for skipping the kernel; `None` if it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl KernelTable {
    fn new(cubecl: &str) -> Self {
        Self { format: FORMAT.to_owned(), cubecl: cubecl.to_owned(), ..Self::default() }
    }

    /// Returns `true` if `kernel` is skipped for `product`, because it crashed a process.
    pub(super) fn is_left_out(&self, kernel: &str, product: &str) -> bool {
        let crashed = self.crashes.get(kernel);
        crashed.is_some_and(|products| products.contains(product) || products.len() >= CRASHES)
    }

    /// Adds the entries of another table that this table lacks.
    fn merge(&mut self, other: Self) {
        for (product, choice) in other.products {
            let own = self.products.entry(product).or_default();
            if own.tried.len() < choice.tried.len() {
                *own = choice;
            }
        }
        for (kernel, products) in other.crashes {
            self.crashes.entry(kernel).or_default().extend(products);
        }
    }
}

/// The file of a kernel table, and the file that names a kernel during its first run.
#[derive(Debug)]
pub(super) struct KernelTableFile {
    path: PathBuf,
    cubecl: String,
    running: Option<File>,
}

impl KernelTableFile {
    /// Opens the table of the devices called `device` in `folder`, and returns its content. An unreadable
    /// table counts as empty.
    pub(super) fn open(folder: &Path, device: &str, cubecl: &str) -> (Self, KernelTable) {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = device.chars().map(plain).collect();
        let path = folder.join(format!("products-{name}.json"));
        let kept = Self { path, cubecl: cubecl.to_owned(), running: None };
        let mut table = kept.read();
        for (kernel, product) in kept.crashed() {
            table.crashes.entry(kernel).or_default().insert(product);
        }
        (kept, table)
    }

    fn read(&self) -> KernelTable {
        let text = fs::read(&self.path).unwrap_or_default();
        let table: Option<KernelTable> = serde_json::from_slice(&text).ok();
        let is_current = |table: &KernelTable| table.format == FORMAT && table.cubecl == self.cubecl;
        table.filter(is_current).unwrap_or_else(|| KernelTable::new(&self.cubecl))
    }

    /// Writes the table, merged with the entries that other processes wrote meanwhile.
    pub(super) fn write(&self, table: &KernelTable) -> io::Result<()> {
        files::make_folder(self.path.parent().unwrap_or(Path::new(".")))?;
        let lock = files::lock_file(&self.path.with_extension("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let mut all = table.clone();
        all.merge(self.read());
        let new = self.path.with_extension(format!("new-{}", std::process::id()));
        let text = serde_json::to_vec_pretty(&all)?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &self.path)).inspect_err(|_| {
            drop(fs::remove_file(&new));
        })
    }

    /// Records that `kernel` is about to run for the first time, for `product`; empty names clear the
    /// record.
    pub(super) fn note(&mut self, kernel: &str, product: &str) {
        // Without the record a crash has no known cause, but training is possible.
        drop(self.try_note(kernel, product));
    }

    fn try_note(&mut self, kernel: &str, product: &str) -> io::Result<()> {
        if self.running.is_none() {
            let folder = self.path.parent().unwrap_or(Path::new("."));
            files::make_folder(folder)?;
            let name = format!("{RUNNING}{}-{}", std::process::id(), self.stem());
            let file = File::create(folder.join(name))?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            self.running = Some(file);
        }
        let Some(mut file) = self.running.as_ref() else { return Ok(()) };
        file.set_len(0)?;
        io::Seek::rewind(&mut file)?;
        if !kernel.is_empty() {
            file.write_all(format!("{kernel}\n{product}\n").as_bytes())?;
        }
        Ok(())
    }

    fn stem(&self) -> &str {
        self.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("products")
    }

    /// Returns the kernels that were running when a process crashed, each with its product. Their files are
    /// removed once the table is written.
    fn crashed(&self) -> Vec<(String, String)> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_of_table = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(RUNNING) && name.ends_with(self.stem())
        };
        let ended = entries.filter(is_of_table).filter_map(|path| {
            // Opened for writing: on a network file system only such a file can be locked.
            let file = files::lock_file(&path).ok()?;
            flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
            let text = fs::read_to_string(&path).ok()?;
            let mut lines = text.lines().map(str::to_owned);
            let found = lines.next().zip(lines.next());
            if found.is_none() {
                drop(fs::remove_file(&path));
            }
            Some((path, found?))
        });
        let ended: Vec<_> = ended.collect();
        if !ended.is_empty() {
            let mut table = self.read();
            for (_, (kernel, product)) in &ended {
                table.crashes.entry(kernel.clone()).or_default().insert(product.clone());
            }
            if self.write(&table).is_ok() {
                ended.iter().for_each(|(path, _)| drop(fs::remove_file(path)));
            }
        }
        ended.into_iter().map(|(_, found)| found).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(kernel: &str) -> ChosenKernel {
        let tried =
            vec![KernelTrial { kernel: kernel.to_owned(), first_seconds: 0.5, ..KernelTrial::default() }];
        ChosenKernel { kernel: kernel.to_owned(), is_complete: true, limit_seconds: 6.0, tried }
    }

    #[test]
    fn a_table_is_found_again_and_two_processes_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (first, mut table) = KernelTableFile::open(folder.path(), "NVIDIA H100", "0.11");
        let (second, mut other) = KernelTableFile::open(folder.path(), "NVIDIA H100", "0.11");
        table.products.insert("a".into(), choice("unit"));
        other.products.insert("b".into(), choice("naive"));
        first.write(&table).unwrap();
        second.write(&other).unwrap();
        let (_, both) = KernelTableFile::open(folder.path(), "NVIDIA H100", "0.11");
        assert_eq!(both.products.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(both.products["a"], choice("unit"));
        assert!(
            KernelTableFile::open(folder.path(), "NVIDIA A100", "0.11").1.products.is_empty(),
            "another device"
        );
        assert!(
            KernelTableFile::open(folder.path(), "NVIDIA H100", "0.12").1.products.is_empty(),
            "other kernels"
        );
        fs::write(folder.path().join("products-nvidia-h100.json"), "{").unwrap();
        assert!(
            KernelTableFile::open(folder.path(), "NVIDIA H100", "0.11").1.products.is_empty(),
            "a damaged file"
        );
    }

    #[test]
    fn a_kernel_that_takes_the_process_down_is_left_out_by_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let (mut first, _) = KernelTableFile::open(folder.path(), "gpu", "0.11");
        first.note("ordered", "a");
        let (_, meanwhile) = KernelTableFile::open(folder.path(), "gpu", "0.11");
        assert!(!meanwhile.is_left_out("ordered", "a"), "the process lives");
        drop(first);
        let (mut second, table) = KernelTableFile::open(folder.path(), "gpu", "0.11");
        assert!(table.is_left_out("ordered", "a") && !table.is_left_out("ordered", "b"));
        second.note("ordered", "b");
        drop(second);
        let (mut third, table) = KernelTableFile::open(folder.path(), "gpu", "0.11");
        assert!(table.is_left_out("ordered", "b") && !table.is_left_out("ordered", "c"));
        third.note("ordered", "c");
        drop(third);
        let (mut third, table) = KernelTableFile::open(folder.path(), "gpu", "0.11");
        assert!(table.is_left_out("ordered", "d"), "three times are enough");
        // A kernel that ended well leaves no record.
        third.note("unit", "a");
        third.note("", "");
        drop(third);
        let (_, table) = KernelTableFile::open(folder.path(), "gpu", "0.11");
        assert!(!table.is_left_out("unit", "a"));
        let names = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name());
        assert_eq!(
            names.collect::<BTreeSet<_>>(),
            ["products-gpu.json", "products-gpu.lock"].map(Into::into).into()
        );
    }
}
