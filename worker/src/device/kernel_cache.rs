//! Cache of compiled kernels and of autotuning results, kept between processes.
//!
//! GPU kernels are compiled when they are first launched, which takes half a minute for a model. CubeCL
//! stores them in a database in this folder, which `worker/turso` opens. The stored kernels are valid for
//! the program that made them only.

use crate::device::{KERNEL_CACHE, TUNING_SECONDS, is_software};
use burn::tensor::Device;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig, cache::CacheConfig};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Default time for choosing kernels, in seconds.
const DEFAULT_SECONDS: f64 = 60.0;

/// Prefix of the names of kernel databases.
const NAME: &str = "kernels";

/// Time after which the database of a build that is no longer used is removed.
const UNUSED: Duration = Duration::from_secs(30 * 86_400);

/// Returns the folder of the kernel cache; `None` if the cache is disabled.
///
/// The folder is that of [`KERNEL_CACHE`], by default one of this host in `$XDG_CACHE_HOME/dtrain/kernels` or
/// `~/.cache/dtrain/kernels`: a home may be shared by hosts whose GPUs differ.
pub(crate) fn folder() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(KERNEL_CACHE).filter(|named| !named.is_empty()) {
        return (named != "off").then(|| PathBuf::from(named)).filter(|path| path.is_absolute());
    }
    // Tests of this crate leave nothing behind.
    if cfg!(test) {
        return None;
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    Some(crate::files::cache_folder()?.join(NAME).join(host.chars().map(plain).collect::<String>()))
}

/// The time that a process may spend on choosing kernels for the matrix products of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TuningBudget {
    /// Time for all products of the process.
    pub(crate) whole: Duration,
    /// Most time for one product.
    pub(crate) each: Duration,
}

impl TuningBudget {
    /// Number by which the whole time is divided to give the default time for one product.
    const SHARE: f64 = 10.0;

    /// Returns the tuning budget of `device`: [`TUNING_SECONDS`] if it is set, otherwise no time for a
    /// software device.
    pub(crate) fn of(device: &Device) -> Self {
        let named = std::env::var(TUNING_SECONDS).ok().and_then(|text| Self::parse(&text));
        named.unwrap_or_else(|| Self::seconds(if is_software(device) { 0.0 } else { DEFAULT_SECONDS }, None))
    }

    /// Parses a tuning budget: `60` is a minute for all products; `60/20` is a minute, of which one product
    /// may take 20 seconds.
    fn parse(text: &str) -> Option<Self> {
        let seconds = |text: &str| {
            let seconds = text.trim().parse::<f64>().ok()?;
            (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
        };
        match text.split_once('/') {
            Some((whole, each)) => Some(Self::seconds(seconds(whole)?, Some(seconds(each)?))),
            None => Some(Self::seconds(seconds(text)?, None)),
        }
    }

    fn seconds(whole: f64, each: Option<f64>) -> Self {
        // At most a day: longer times have no use.
        let duration = |seconds: f64| Duration::from_secs_f64(seconds.min(86_400.0));
        Self { whole: duration(whole), each: duration(each.unwrap_or(whole / Self::SHARE)) }
    }
}

/// Makes CubeCL store compiled kernels in [`folder`]. Called before the first device is opened; later calls
/// change nothing.
///
/// The files `cubecl.toml` and `burn.toml` of the current folder are not read: they could make the program
/// write anywhere.
///
/// Each GPU of a host has a database of its own, by `index`: its ranks start at the same time, and CubeCL
/// deletes a kernel for a moment when it stores it under another name, and panics if it does not find a
/// stored kernel.
pub(crate) fn configure(index: usize) {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let mut config = CubeClRuntimeConfig::default().override_from_env();
        // Without the identity of a build, it could load the kernels of another one.
        let name =
            buildid::build_id().map(|id| format!("{NAME}-{}-{index}", &blake3::hash(id).to_hex()[..16]));
        let place = folder().zip(name).filter(|(folder, name)| is_writable(folder, name));
        config.compilation.cache = place.is_some();
        if let Some((folder, name)) = place {
            remove_unused(&folder, &name);
            config.environment.name = name;
            config.environment.path = CacheConfig::Directory(folder);
        }
        CubeClRuntimeConfig::try_set(config);
    });
}

/// Returns the path of the database called `name`.
fn database(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.{}", cubecl::environment::EXTENSION))
}

/// Returns `true` if a database in the folder, which is created, can be written: CubeCL relies on reading
/// back its entries.
fn is_writable(folder: &Path, name: &str) -> bool {
    let opened = || {
        crate::files::make_folder(folder)?;
        crate::files::open_as(OpenOptions::new().append(true).create(true), &database(folder, name))
    };
    opened().is_ok()
}

/// Removes the databases of other builds in `folder` that were not written for a long time.
fn remove_unused(folder: &Path, own: &str) {
    let own = database(folder, own);
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_database = name.starts_with(NAME) && path.extension() == own.extension() && path != own;
        let age =
            fs::metadata(&path).and_then(|found| found.modified()).ok().and_then(|time| time.elapsed().ok());
        if is_database && age.is_some_and(|age| age > UNUSED) {
            drop(fs::remove_file(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_for_choosing_kernels_is_one_number_or_two() {
        let limit = |text| {
            TuningBudget::parse(text).map(|limit| [limit.whole, limit.each].map(|time| time.as_secs_f64()))
        };
        assert_eq!(limit("60"), Some([60.0, 6.0]));
        assert_eq!(limit(" 400/390 "), Some([400.0, 390.0]));
        assert_eq!(limit("0"), Some([0.0, 0.0]));
        assert_eq!(limit("1e99"), Some([86_400.0, 86_400.0]));
        for text in ["", "-1", "much", "60/", "60/x", "inf"] {
            assert_eq!(limit(text), None, "{text}");
        }
    }
}
