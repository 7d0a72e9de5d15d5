//! Data sheets of accelerators, one row of `data/gpus.csv` for each variant that is sold.

use super::{AcceleratorKind, GpuGeneration, LinkClass, generations};
use serde::Deserialize;
use std::sync::LazyLock;

/// Data sheet of an accelerator; `data/gpus.csv` gives the unit of each figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand at the head of the table")]
pub struct GpuSpec {
    pub name: String,
    pub also: String,
    pub generation: String,
    pub dense_16: f64,
    pub measured_16: Option<f64>,
    pub dense_8: f64,
    pub dense_32: f64,
    pub memory_gbs: f64,
    pub multiprocessors: f64,
    pub sold_gb: u32,
    pub also_gb: String,
    pub driver_mib: u32,
    pub watts: Option<f64>,
    pub link_class: LinkClass,
    pub link_gbs: f64,
    pub pcie_gbs: f64,
    pub network_gbits: f64,
    pub unverified: String,
}

/// Address at which figures of a part were read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSource {
    /// Name of the part, as in `data/gpus.csv`.
    pub name: String,
    /// Columns that the source gives, separated by blanks.
    pub columns: String,
    /// Address of the source.
    pub source: String,
}

/// Figures of a part that a source must give, or that `unverified` must name.
pub const SOURCED: [&str; 7] =
    ["dense_16", "dense_8", "dense_32", "memory_gbs", "multiprocessors", "driver_mib", "link_gbs"];

static GPUS: LazyLock<Vec<GpuSpec>> = LazyLock::new(|| rows(include_str!("data/gpus.csv")));

static SOURCES: LazyLock<Vec<GpuSource>> = LazyLock::new(|| rows(include_str!("data/gpu_sources.csv")));

static UNKNOWN: LazyLock<GpuSpec> = LazyLock::new(|| GpuSpec {
    name: "unknown GPU".into(),
    also: String::new(),
    generation: "unknown".into(),
    dense_16: 200.0,
    measured_16: None,
    dense_8: 0.0,
    dense_32: 100.0,
    memory_gbs: 1000.0,
    multiprocessors: 108.0,
    sold_gb: 24,
    also_gb: String::new(),
    driver_mib: 24 * 1024,
    watts: None,
    link_class: LinkClass::PeerPcie,
    link_gbs: 0.0,
    pcie_gbs: 31.5,
    network_gbits: 100.0,
    unverified: SOURCED.join(" "),
});

/// Reads a table of the crate: CSV with blanks around its cells and comments that begin with `#`.
pub(super) fn rows<T: serde::de::DeserializeOwned>(table: &str) -> Vec<T> {
    let mut reader =
        csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(table.as_bytes());
    reader.deserialize().map(|row| row.expect("a test reads the file")).collect()
}

/// Returns the data sheets of all accelerators in the table.
pub fn gpus() -> &'static [GpuSpec] {
    &GPUS
}

/// Returns the sources of the figures in the table.
pub fn gpu_sources() -> &'static [GpuSource] {
    &SOURCES
}

/// Returns the data sheet that stands in for accelerators that the table lacks.
pub fn unknown() -> &'static GpuSpec {
    &UNKNOWN
}

impl GpuSpec {
    /// Returns the bytes of memory of one device, as its driver reports them.
    pub fn memory_bytes(&self) -> f64 {
        f64::from(self.driver_mib) * 1024.0 * 1024.0
    }

    /// Returns `true` if the accelerator is called by the size `gb`: that of its own memory, or of another
    /// memory beside it.
    pub fn is_sold_with(&self, gb: u32) -> bool {
        self.sold_gb == gb || self.also_gb.split(' ').any(|size| size.parse() == Ok(gb))
    }

    /// Returns the share of its usual clock at which the accelerator runs under a limit of `watts`: power
    /// grows with about the square of the clock. 1 if the usual power is unknown.
    pub fn clock_at(&self, watts: f64) -> f64 {
        self.watts.map_or(1.0, |usual| (watts / usual).sqrt().min(1.0))
    }

    /// Returns the properties of the generation of the accelerator.
    pub fn generation(&self) -> &'static GpuGeneration {
        generations()
            .get(&self.generation)
            .expect("every part has a generation of the table, as a test shows")
    }

    /// Returns the kind of the accelerator.
    pub fn kind(&self) -> AcceleratorKind {
        self.generation().kind
    }

    /// Returns the peak 16-bit FLOP/s of the data sheet, without sparsity.
    pub fn peak(&self) -> f64 {
        self.dense_16 * 1e12
    }

    /// Returns `true` if `column` of the table was not read in a source.
    pub fn is_unverified(&self, column: &str) -> bool {
        self.unverified.split(' ').any(|name| name == column)
    }

    /// Returns the address at which the rate of the products was read, or a sentence without one.
    pub fn source(&self) -> &'static str {
        let of_products =
            self.sources().find(|source| source.columns.split(' ').any(|name| name == "dense_16"));
        match of_products.or_else(|| self.sources().next()) {
            Some(source) => &source.source,
            None => "figures of the recipe or of a mid-range part",
        }
    }

    /// Returns the addresses at which figures of the part were read.
    pub fn sources(&self) -> impl Iterator<Item = &'static GpuSource> {
        gpu_sources().iter().filter(|source| source.name == self.name)
    }
}
