//! Selection of the CUDA components on a host, with reasons for those not selected.
//!
//! An older driver refuses kernels of a newer NVRTC, and headers must match the release of NVRTC. So among
//! complete pairs that the driver supports, those named by the user or found by the loader come first, then
//! the newest.

use super::candidate::{HeaderCandidate, HeaderFolders, LibraryCandidate, are_alike, nccls, nvrtcs, sets};
use super::component::{InstallOrigin, Release, ToolkitComponent};
use super::host_environment::HostEnvironment;
use super::required_headers::RequiredHeader;
use super::search::{InstallLocation, install_locations};
use serde::Serialize;
use std::cmp::Reverse;
use std::path::PathBuf;

/// CUDA component that was found but not selected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RejectedComponent {
    /// Path, release and origin of the component.
    #[serde(flatten)]
    pub part: ToolkitComponent,
    /// Reason why the component was not selected.
    pub reason: String,
}

/// Selected component, with the others that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection<T> {
    /// Selected component; `None` if there is none.
    pub taken: Option<T>,
    /// Other components that were found, each with the reason against it.
    pub passed_over: Vec<RejectedComponent>,
}

/// CUDA components that a worker on this host uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolkit {
    /// Newest CUDA release that the driver supports; `None` if unknown.
    pub driver: Option<Release>,
    /// NVRTC, the kernel compiler.
    pub nvrtc: Selection<ToolkitComponent>,
    /// Headers that kernels include.
    pub headers: Selection<HeaderFolders>,
    /// NCCL, for communication between GPUs.
    pub nccl: Selection<ToolkitComponent>,
}

impl Toolkit {
    /// Returns `true` if a driver for the CUDA release `driver` refuses the kernels of NVRTC because NVRTC is
    /// newer.
    pub fn is_refused_by(&self, driver: Option<&Release>) -> bool {
        let nvrtc = self.nvrtc.taken.as_ref().and_then(|part| part.release.as_ref());
        nvrtc.zip(driver).is_some_and(|(nvrtc, driver)| nvrtc > driver)
    }

    /// Selects components for the machine `place`, whose driver supports the CUDA release `driver` and older
    /// ones.
    pub fn with_driver(place: &HostEnvironment, driver: Option<Release>) -> Self {
        let sources = install_locations(place);
        Self::of(&sources, &nvrtcs(place, &sources), &nccls(place, &sources), driver)
    }

    fn of(
        sources: &[InstallLocation],
        nvrtcs: &[LibraryCandidate],
        nccls: &[LibraryCandidate],
        driver: Option<Release>,
    ) -> Self {
        let sets = sets(sources);
        let (nvrtc, set) = pair(nvrtcs, &sets, driver.as_ref());
        let headers = set.map(|set| HeaderFolders { cccl: cccl(&sets, set), ..set.headers.clone() });
        let nccl = best_nccl(nccls, driver.as_ref());
        let others = |all: &[LibraryCandidate],
                      taken: Option<&LibraryCandidate>,
                      reason: &dyn Fn(&LibraryCandidate) -> String| Selection {
            taken: taken.map(|taken| taken.part.clone()),
            passed_over: all
                .iter()
                .filter(|one| taken.is_none_or(|taken| one.real != taken.real))
                .map(|one| RejectedComponent { part: one.part.clone(), reason: reason(one) })
                .collect(),
        };
        let of_nvrtc = |one: &LibraryCandidate| {
            driver_rejection(one, driver.as_ref())
                .or_else(|| set.filter(|set| set.headers.missing.is_empty()).and(incomplete(one, &sets)))
                .unwrap_or_else(|| nvrtc.map_or_else(String::new, |taken| lower_ranked_reason(one, taken)))
        };
        let of_nccl = |one: &LibraryCandidate| {
            driver_rejection(one, driver.as_ref())
                .unwrap_or_else(|| nccl.map_or_else(String::new, |taken| lower_ranked_reason(one, taken)))
        };
        let is_other =
            |one: &&HeaderCandidate| set.is_none_or(|set| set.headers.includes != one.headers.includes);
        let passed_over = sets.iter().filter(is_other).map(|one| RejectedComponent {
            part: one.headers.part.clone(),
            reason: of_headers(one, set, nvrtc),
        });
        let passed_over = passed_over.collect();
        Self {
            nvrtc: others(nvrtcs, nvrtc, &of_nvrtc),
            headers: Selection { taken: headers, passed_over },
            nccl: others(nccls, nccl, &of_nccl),
            driver,
        }
    }
}

/// Selects the best pair of NVRTC and headers that belong together.
fn pair<'a>(
    nvrtcs: &'a [LibraryCandidate],
    sets: &'a [HeaderCandidate],
    driver: Option<&Release>,
) -> (Option<&'a LibraryCandidate>, Option<&'a HeaderCandidate>) {
    let first: Vec<_> = if nvrtcs.is_empty() { vec![None] } else { nvrtcs.iter().map(Some).collect() };
    let second: Vec<_> = if sets.is_empty() { vec![None] } else { sets.iter().map(Some).collect() };
    let pairs =
        first.iter().enumerate().flat_map(|one| second.iter().enumerate().map(move |other| (one, other)));
    let best = pairs.max_by_key(|((at, nvrtc), (position, set))| {
        let release = nvrtc.and_then(|nvrtc| nvrtc.part.release.as_ref());
        let of_headers = set.and_then(|set| set.headers.part.release.as_ref());
        (
            nvrtc.is_some_and(|nvrtc| nvrtc.fits(driver)),
            set.is_some_and(|set| set.headers.missing.is_empty()),
            are_alike(release, of_headers),
            nvrtc.is_some_and(|nvrtc| nvrtc.goes_first),
            release == of_headers,
            set.is_some_and(|set| set.goes_first),
            release,
            set.is_some_and(|set| set.headers.cccl.is_some()),
            // Ties go to the one found first.
            (Reverse(*at), Reverse(*position)),
        )
    });
    best.map_or((None, None), |((_, nvrtc), (_, set))| (*nvrtc, *set))
}

/// Selects the NCCL that the loader finds, or else the newest. One that the driver refuses is never selected,
/// as it would end a training that can do without NCCL.
fn best_nccl<'a>(nccls: &'a [LibraryCandidate], driver: Option<&Release>) -> Option<&'a LibraryCandidate> {
    let ranked = nccls.iter().enumerate().filter(|(_, one)| one.fits(driver));
    let best = ranked.max_by_key(|(at, one)| (one.goes_first, one.part.release.as_ref(), Reverse(*at)));
    best.map(|(_, one)| one)
}

/// Returns the folder with CUDA's C++ library for a set of headers: its own, or that of another set of the
/// same release.
fn cccl(sets: &[HeaderCandidate], set: &HeaderCandidate) -> Option<PathBuf> {
    let release = set.headers.part.release.as_ref();
    let fits = |other: &&HeaderCandidate| are_alike(release, other.headers.part.release.as_ref());
    set.headers.cccl.clone().or_else(|| sets.iter().filter(fits).find_map(|other| other.headers.cccl.clone()))
}

/// Returns the reason why the driver refuses a library; `None` if it accepts it.
fn driver_rejection(one: &LibraryCandidate, driver: Option<&Release>) -> Option<String> {
    let driver = driver.filter(|_| !one.fits(driver))?;
    Some(match &one.part.release {
        release if *release == one.needs => format!("newer than the driver's CUDA {driver}"),
        _ => format!("for CUDA {}, newer than the driver's {driver}", one.needs.as_ref()?),
    })
}

/// Returns the reason why an NVRTC cannot be used with any headers: which of them are missing. `None` if the
/// headers of its release are complete.
fn incomplete(one: &LibraryCandidate, sets: &[HeaderCandidate]) -> Option<String> {
    let release = one.part.release.as_ref();
    let fitting = |set: &&HeaderCandidate| are_alike(release, set.headers.part.release.as_ref());
    if sets.iter().filter(fitting).any(|set| set.headers.missing.is_empty()) {
        return None;
    }
    let own = sets.iter().find(|set| set.headers.part.from == one.part.from);
    let Some(set) = own.or_else(|| sets.iter().find(fitting)) else {
        return Some("there are no headers of its release".into());
    };
    Some(format!("its headers lack {}", names(&set.headers.missing)))
}

/// Joins the names of headers with commas.
pub(super) fn names(headers: &[&RequiredHeader]) -> String {
    headers.iter().map(|header| header.name).collect::<Vec<_>>().join(", ")
}

/// Returns the reason why another suitable library was selected in place of `one`.
fn lower_ranked_reason(one: &LibraryCandidate, taken: &LibraryCandidate) -> String {
    match (&one.part.release, &taken.part.release) {
        _ if taken.goes_first && !one.goes_first => match &taken.part.from {
            InstallOrigin::Variable(name, _) => format!("{name} goes first"),
            _ => "what the loader finds goes first".into(),
        },
        (Some(one), Some(taken)) if one < taken => format!("older than {taken}"),
        _ => "another one was found first".into(),
    }
}

fn of_headers(
    one: &HeaderCandidate,
    taken: Option<&HeaderCandidate>,
    nvrtc: Option<&LibraryCandidate>,
) -> String {
    let release = one.headers.part.release.as_ref();
    let of_nvrtc = nvrtc.and_then(|nvrtc| nvrtc.part.release.as_ref());
    match of_nvrtc {
        _ if !one.headers.missing.is_empty() => format!("lacks {}", names(&one.headers.missing)),
        Some(of_nvrtc) if release.is_some_and(|release| release != of_nvrtc) => {
            format!("of another release than NVRTC, which is of {of_nvrtc}")
        }
        _ if taken.is_some_and(|taken| taken.goes_first && !one.goes_first) => {
            "what a variable names goes first".into()
        }
        _ => "another folder was found first".into(),
    }
}
