//! The host as the search for CUDA sees it: files below a root, environment variables, and the dynamic
//! loader. Tests replace root and variables.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Default folders of the dynamic loader on various distributions.
const DEFAULT_FOLDERS: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// File system root and environment of a machine.
#[derive(Debug)]
pub struct HostEnvironment {
    /// Folder that stands for the root `/`; a temporary one in tests.
    pub root: PathBuf,
    /// Environment variables of the machine.
    pub environment: BTreeMap<OsString, OsString>,
}

impl HostEnvironment {
    /// Returns this machine with the environment of this process.
    pub fn current() -> Self {
        Self { root: "/".into(), environment: std::env::vars_os().collect() }
    }

    /// Returns an absolute path of the machine as a path below `root`.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the value of an environment variable.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Lists the entries of a folder whose names begin with `prefix`, sorted; empty if there is no such
    /// folder.
    pub fn names(folder: &Path, prefix: &str) -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
        names.sort();
        names
    }

    /// Returns the folder that an environment variable names; `None` if it is unset or empty.
    pub fn folder(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    /// Finds the first program named `name` in `PATH`.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let path = self.variable("PATH")?;
        std::env::split_paths(path).map(|folder| folder.join(name)).find(|program| program.exists())
    }

    /// Finds the library that the dynamic loader would open for the first of `names` that it can find.
    pub fn library(&self, names: &[&str]) -> Option<PathBuf> {
        let (folders, cached) = (self.loader_folders(), self.loader_cache());
        names.iter().find_map(|name| {
            let in_folders = folders.iter().map(|folder| folder.join(name));
            let in_cache = cached.iter().filter(|path| path.file_name() == Some(OsStr::new(name))).cloned();
            in_folders.chain(in_cache).find(|path| path.exists())
        })
    }

    /// Returns the folders of `LD_LIBRARY_PATH`, then the loader's default folders.
    pub fn loader_folders(&self) -> Vec<PathBuf> {
        let named = self.variable("LD_LIBRARY_PATH").into_iter().flat_map(std::env::split_paths);
        let named = named.filter(|path| path.is_absolute());
        named.chain(DEFAULT_FOLDERS.iter().map(|folder| self.at(folder))).collect()
    }

    /// Lists the libraries in the `ldconfig` cache, which come from further folders.
    ///
    /// The cache stores their paths as zero-terminated texts; other texts in it that look like paths are no
    /// files.
    pub fn loader_cache(&self) -> Vec<PathBuf> {
        let cache = fs::read(self.at("/etc/ld.so.cache")).unwrap_or_default();
        let paths = cache.split(|byte| *byte == 0).filter(|text| text.starts_with(b"/"));
        paths.map(|text| self.at(OsStr::from_bytes(text))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;

    #[test]
    fn a_library_is_found_where_the_loader_looks_and_nowhere_else() {
        let (_folder, mut place) = fake::machine(&["/opt/x/libx.so.1", "/usr/lib64/liby.so"]);
        assert_eq!(place.library(&["libx.so", "libx.so.1"]), None, "the loader does not know /opt/x");
        assert_eq!(place.library(&["liby.so"]), Some(place.at("/usr/lib64/liby.so")));
        fake::write(
            &place,
            "/etc/ld.so.cache",
            "ld.so-1.7.0\0\u{1}\0libx.so.1\0/opt/x/libx.so.1\0/gone/libz.so\0",
        );
        assert_eq!(place.library(&["libx.so", "libx.so.1"]), Some(place.at("/opt/x/libx.so.1")));
        assert_eq!(place.library(&["libz.so"]), None, "the cache is older than the disk");
        fake::write(&place, "/etc/ld.so.cache", "");
        fake::set(&mut place, "LD_LIBRARY_PATH", "/opt/x");
        assert_eq!(place.library(&["libx.so", "libx.so.1"]), Some(place.at("/opt/x/libx.so.1")));
    }

    #[test]
    fn a_program_is_looked_for_in_the_search_path() {
        let (_folder, mut place) = fake::machine(&["/opt/bin/nvidia-smi"]);
        assert_eq!(place.program("nvidia-smi"), None);
        fake::set(&mut place, "PATH", "/opt/bin");
        assert_eq!(place.program("nvidia-smi"), Some(place.at("/opt/bin/nvidia-smi")));
    }
}
