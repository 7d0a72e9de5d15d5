//! Environment variables and symbolic links by which a worker process finds the selected CUDA components.

use super::candidate::{HeaderFolders, NCCL};
use super::host_environment::HostEnvironment;
use super::search::libraries;
use super::selection::Toolkit;
use crate::files;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Counter that keeps the temporary folders of this process apart.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Symbolic links by their paths in the link folder, each with its target.
type SymlinkMap = BTreeMap<PathBuf, PathBuf>;

impl Toolkit {
    /// Returns the environment variables by which a worker finds the selected components. Empty if it finds
    /// all of them anyway, or none was found.
    ///
    /// Links are made in `$XDG_CACHE_HOME/dtrain/cuda`, by default `~/.cache/dtrain/cuda`; `Err` if that
    /// fails.
    pub fn environment(&self, place: &HostEnvironment) -> io::Result<Vec<(&'static str, OsString)>> {
        let mut links = self.libraries(place);
        let has_libraries = !links.is_empty();
        let headers = self.headers.taken.as_ref().filter(|headers| !is_found_by_default(headers, place));
        let root = headers.and_then(HeaderFolders::root);
        if let Some(headers) = headers.filter(|_| root.is_none()) {
            merge(Path::new("include"), &headers.includes, &mut links);
            if let Some(cccl) = headers.cccl.as_ref().filter(|cccl| !headers.holds(cccl)) {
                links.retain(|name, _| !name.starts_with("include/cccl"));
                links.insert("include/cccl".into(), cccl.clone());
            }
        }
        let folder = if links.is_empty() { None } else { Some(ensure_link_folder(&links, place)?) };
        let mut variables = Vec::new();
        if headers.is_some()
            && let Some(root) = root.or_else(|| folder.clone())
        {
            variables.push(("CUDA_PATH", root.into_os_string()));
        }
        if let Some(folder) = folder.filter(|_| has_libraries) {
            let mut path = folder.join("lib").into_os_string();
            if path.as_bytes().contains(&b':') {
                let words = format!("{} has a colon, and LD_LIBRARY_PATH cannot name it", folder.display());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
            }
            if let Some(others) = place.variable("LD_LIBRARY_PATH").filter(|others| !others.is_empty()) {
                path.push(":");
                path.push(others);
            }
            variables.push(("LD_LIBRARY_PATH", path));
        }
        Ok(variables)
    }

    /// Returns links to the selected libraries that the loader does not find by their expected names.
    fn libraries(&self, place: &HostEnvironment) -> SymlinkMap {
        let (lib, mut links) = (Path::new("lib"), SymlinkMap::new());
        let real = |path: &Path| path.canonicalize().ok();
        let asked = super::nvrtc_names();
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        if let Some(nvrtc) = self.nvrtc.taken.as_ref().and_then(|nvrtc| real(&nvrtc.path))
            && place.library(&asked).and_then(|path| real(&path)).as_ref() != Some(&nvrtc)
        {
            // A library loads these from its own folder.
            let beside =
                nvrtc.parent().map(|folder| libraries(folder, "libnvrtc-builtins.")).unwrap_or_default();
            for path in beside {
                if let Some(name) = path.file_name() {
                    links.insert(lib.join(name), path.clone());
                }
            }
            links.insert(lib.join("libnvrtc.so"), nvrtc);
        }
        if let Some(nccl) = self.nccl.taken.as_ref().and_then(|nccl| real(&nccl.path))
            && place.library(&NCCL).and_then(|path| real(&path)).as_ref() != Some(&nccl)
        {
            links.insert(lib.join(NCCL[0]), nccl);
        }
        links
    }
}

impl HeaderFolders {
    /// Returns the parent of the only include folder, if that is named `include` and has all headers;
    /// otherwise `None`.
    fn root(&self) -> Option<PathBuf> {
        let [include] = self.includes.as_slice() else { return None };
        let is_whole = self.cccl.as_ref().is_none_or(|cccl| self.holds(cccl));
        if is_whole && include.file_name() == Some(OsStr::new("include")) {
            include.parent().map(Path::to_path_buf)
        } else {
            None
        }
    }

    /// Returns `true` if `folder` is one of the include folders or `cccl` in one of them, which is searched
    /// as well.
    fn holds(&self, folder: &Path) -> bool {
        self.includes.iter().any(|include| folder == include || folder == include.join("cccl"))
    }
}

/// Returns `true` if a worker finds `headers` by itself: by `CUDA_PATH`, or in the usual folders.
fn is_found_by_default(headers: &HeaderFolders, place: &HostEnvironment) -> bool {
    let usual =
        || ["/usr/local/cuda", "/opt/cuda"].map(|path| place.at(path)).into_iter().find(|path| path.exists());
    let nvcc = || place.at("/usr/bin/nvcc").exists().then(|| place.at("/usr"));
    // An empty value counts here, unlike elsewhere.
    let taken = place.variable("CUDA_PATH").map(PathBuf::from).or_else(usual).or_else(nvcc);
    let real = |path: PathBuf| path.join("include").canonicalize().ok();
    let taken = taken.and_then(real);
    taken.is_some() && taken == headers.root().and_then(real)
}

/// Adds links at the path `at` that merge the entries of all `folders`. Subfolders of equal name are merged;
/// of equal files the first wins.
fn merge(at: &Path, folders: &[PathBuf], links: &mut SymlinkMap) {
    let names: BTreeSet<String> =
        folders.iter().flat_map(|folder| HostEnvironment::names(folder, "")).collect();
    for name in names {
        let found: Vec<PathBuf> =
            folders.iter().map(|folder| folder.join(&name)).filter(|path| path.exists()).collect();
        match found.as_slice() {
            [] => {}
            [first, _, ..] if first.is_dir() => merge(&at.join(name), &found, links),
            [first, ..] => drop(links.insert(at.join(name), first.clone())),
        }
    }
}

/// Returns the folder that holds `links`, and creates it if needed. Its name is a hash of the links.
fn ensure_link_folder(links: &SymlinkMap, place: &HostEnvironment) -> io::Result<PathBuf> {
    let absolute = |name| place.folder(name).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let Some(cache) = cache else {
        let words = "there is no folder for the links: set HOME or XDG_CACHE_HOME to an absolute path";
        return Err(io::Error::new(io::ErrorKind::NotFound, words));
    };
    let all = cache.join("dtrain/cuda");
    let said = |error: io::Error| {
        let words = format!("{}: {error}; XDG_CACHE_HOME names the folder of caches", all.display());
        io::Error::new(error.kind(), words)
    };
    create_link_folder(&all, links).map_err(said)
}

fn create_link_folder(all: &Path, links: &SymlinkMap) -> io::Result<PathBuf> {
    let mut hash = blake3::Hasher::new();
    for part in links.iter().flat_map(|(name, to)| [name, to]) {
        hash.update(part.as_os_str().as_bytes()).update(&[0]);
    }
    let folder = all.join(&hash.finalize().to_hex()[..32]);
    // Code is loaded from there, so it must be the user's own.
    files::check_own(all)?;
    files::check_own(&folder)?;
    if folder.exists() {
        return Ok(folder);
    }
    // Other ranks make it at the same time; the first complete folder that is renamed into place stays.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let partial = all.join(format!(".part-{}-{number}", std::process::id()));
    let result = create_links(&partial, links).and_then(|()| fs::rename(&partial, &folder));
    if result.is_err() {
        drop(fs::remove_dir_all(&partial));
    }
    match result {
        Err(_) if folder.exists() => Ok(folder),
        result => result.map(|()| folder),
    }
}

fn create_links(folder: &Path, links: &SymlinkMap) -> io::Result<()> {
    for (name, to) in links {
        let link = folder.join(name);
        if let Some(above) = link.parent() {
            files::make_folder(above)?;
        }
        symlink(std::path::absolute(to)?, link)?;
    }
    Ok(())
}
