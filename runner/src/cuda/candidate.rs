//! Candidates for the CUDA components of a host: every NVRTC, NCCL and set of headers, each once.

use super::component::{InstallOrigin, Release, ToolkitComponent};
use super::host_environment::HostEnvironment;
use super::required_headers::{HEADERS, RequiredHeader};
use super::search::{self, InstallLocation, libraries};
use std::path::{Path, PathBuf};

/// File names by which NCCL is loaded, in search order.
pub(super) const NCCL: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Header of CUDA's C++ library, included only by kernels with asynchronous copies.
pub(super) const BARRIER: &str = "cuda/barrier";

/// Folders of CUDA headers that are used together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderFolders {
    /// First of the folders, with the release and the origin of all headers.
    pub part: ToolkitComponent,
    /// Folders for the compiler's include path.
    pub includes: Vec<PathBuf>,
    /// Required headers that none of the folders has.
    pub missing: Vec<&'static RequiredHeader>,
    /// Folder that holds `cuda/barrier`; of another installation if none of these folders has it.
    pub cccl: Option<PathBuf>,
}

/// NVRTC or NCCL library that a worker could use.
#[derive(Debug)]
pub(super) struct LibraryCandidate {
    pub(super) part: ToolkitComponent,
    /// Path of the library with all symbolic links resolved.
    pub(super) real: PathBuf,
    /// True if the dynamic loader finds the library by a name that dtrain asks for, or an environment
    /// variable names its folder.
    pub(super) goes_first: bool,
    /// Oldest CUDA release that the driver must support; a release of one number stands for all that begin
    /// with it.
    pub(super) needs: Option<Release>,
}

impl LibraryCandidate {
    /// Returns `true` if a driver that supports the CUDA release `driver` can run the library, or if either
    /// release is unknown.
    pub(super) fn fits(&self, driver: Option<&Release>) -> bool {
        !matches!((&self.needs, driver), (Some(needs), Some(driver)) if needs > driver)
    }
}

/// Set of CUDA headers that a worker could use.
pub(super) struct HeaderCandidate {
    pub(super) headers: HeaderFolders,
    pub(super) goes_first: bool,
}

/// Returns `true` if two releases have the same major number, or either is unknown.
pub(super) fn are_alike(one: Option<&Release>, other: Option<&Release>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one.major() == other.major())
}

/// Lists every NVRTC on the host once: first those that the loader finds, then those of the install
/// locations.
pub(super) fn nvrtcs(place: &HostEnvironment, sources: &[InstallLocation]) -> Vec<LibraryCandidate> {
    let asked = super::nvrtc_names();
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let opened = place.library(&asked).and_then(|path| path.canonicalize().ok());
    let folders = place.loader_folders().into_iter();
    let cached = place.loader_cache().into_iter().filter(|path| search::is_nvrtc(path));
    let known = folders.flat_map(|folder| libraries(&folder, "libnvrtc.so")).chain(cached);
    let known = place.library(&asked).into_iter().chain(known);
    let mut all = Vec::<LibraryCandidate>::new();
    let of_sources = sources.iter().flat_map(|source| {
        let paths = source.libraries.iter().flat_map(|folder| libraries(folder, "libnvrtc.so"));
        paths.map(|path| (path, source.origin.clone()))
    });
    for (path, from) in known.map(|path| (path, InstallOrigin::Loader)).chain(of_sources) {
        let Ok(real) = path.canonicalize() else { continue };
        let is_named = matches!(from, InstallOrigin::Variable(..));
        if let Some(same) = all.iter_mut().find(|one| one.real == real) {
            // Its install location says more than `Loader`.
            if same.part.from == InstallOrigin::Loader {
                same.part.from = from;
            }
            same.goes_first |= is_named;
            continue;
        }
        let release = nvrtc_release(&real);
        let goes_first = is_named || opened.as_ref() == Some(&real);
        all.push(LibraryCandidate {
            needs: release.clone(),
            part: ToolkitComponent { path, release, from },
            real,
            goes_first,
        });
    }
    all
}

/// Returns the CUDA release of an NVRTC: from its own file name if that is complete, otherwise from the
/// libraries that it loads from its folder. `libnvrtc.so.11.2` names every later release of CUDA 11.
fn nvrtc_release(real: &Path) -> Option<Release> {
    let numbers = |path: &Path| Some(path.file_name()?.to_str()?.split_once(".so.")?.1.to_owned());
    let own = numbers(real);
    if let Some(own) = own.as_ref().filter(|own| own.split('.').count() > 2) {
        return Release::of(own, 2);
    }
    let own = own.and_then(|own| Release::of(&own, 2));
    let beside = libraries(real.parent()?, "libnvrtc-builtins.so.").into_iter();
    let beside = beside.filter_map(|path| Release::of(&numbers(&path)?, 2));
    beside.filter(|release| are_alike(own.as_ref(), Some(release))).max().or(own)
}

/// Lists every NCCL on the host once: first those that the loader finds, then those of the install locations.
pub(super) fn nccls(place: &HostEnvironment, sources: &[InstallLocation]) -> Vec<LibraryCandidate> {
    let mut all = Vec::<LibraryCandidate>::new();
    let of_sources = sources.iter().flat_map(|source| {
        let paths = source.nccl.iter().flat_map(|folder| NCCL.map(|name| folder.join(name)));
        paths.map(|path| (path, source.origin.clone()))
    });
    for (path, from) in
        place.library(&NCCL).into_iter().map(|path| (path, InstallOrigin::Loader)).chain(of_sources)
    {
        let Ok(real) = path.canonicalize() else { continue };
        if let Some(same) = all.iter_mut().find(|one| one.real == real) {
            if same.part.from == InstallOrigin::Loader {
                same.part.from = from;
            }
            continue;
        }
        let (release, needs) = nccl_release(&real).unzip();
        let part = ToolkitComponent { path, release, from };
        all.push(LibraryCandidate {
            goes_first: part.from == InstallOrigin::Loader,
            part,
            real,
            needs: needs.flatten(),
        });
    }
    all
}

/// Returns the release of NCCL and the CUDA release that it was built for, from the metadata of its wheel or
/// from the file itself.
fn nccl_release(real: &Path) -> Option<(Release, Option<Release>)> {
    let name = real.file_name()?.to_str()?;
    if let Some(release) = name.strip_prefix("libnccl.so.").and_then(|text| Release::of(text, 3))
        && release > Release::of("2", 1)?
    {
        return Some((release, None));
    }
    // nvidia/nccl/lib, beside nvidia_nccl_cu13-2.27.3.dist-info.
    let site = real.ancestors().nth(4)?;
    HostEnvironment::names(site, "nvidia_nccl_cu").iter().find_map(|name| {
        let (cuda, version) =
            name.strip_prefix("nvidia_nccl_cu")?.strip_suffix(".dist-info")?.split_once('-')?;
        Some((Release::of(version, 3)?, Release::of(cuda, 1)))
    })
}

/// Lists the sets of headers of all install locations that have any.
pub(super) fn sets(sources: &[InstallLocation]) -> Vec<HeaderCandidate> {
    let mut all = Vec::<HeaderCandidate>::new();
    for source in sources {
        let missing =
            HEADERS.iter().filter(|header| source.folder_with(header.name).is_none()).collect::<Vec<_>>();
        let release = source.release();
        let is_new = |set: &HeaderCandidate| {
            let real = |folders: &[PathBuf]| {
                folders.iter().map(|folder| folder.canonicalize().ok()).collect::<Vec<_>>()
            };
            real(&set.headers.includes) != real(&source.includes)
        };
        let Some(path) = source.includes.first().cloned() else { continue };
        if (missing.len() == HEADERS.len() && release.is_none()) || !all.iter().all(is_new) {
            continue;
        }
        let cccl = source
            .folder_with(BARRIER)
            .or_else(|| source.folder_with(&format!("cccl/{BARRIER}")).map(|include| include.join("cccl")));
        let part = ToolkitComponent { path, release, from: source.origin.clone() };
        let headers = HeaderFolders { part, includes: source.includes.clone(), missing, cccl };
        all.push(HeaderCandidate {
            headers,
            goes_first: matches!(source.origin, InstallOrigin::Variable(..)),
        });
    }
    all
}
