//! Which of the parts of CUDA on a host is taken, and why the others are not.
//!
//! An older driver refuses the kernels of a newer NVRTC, and headers fit the NVRTC of their own release. So among pairs of both that the
//! driver takes and that are complete, those go first that the user named or that the loader finds; among the others, the newest.

use super::candidate::{Candidate, Header, Headers, Set, are_alike, nccls, nvrtcs, sets};
use super::part::{Origin, Part, Release};
use super::place::Place;
use super::search::{Source, sources};
use serde::Serialize;
use std::cmp::Reverse;
use std::path::PathBuf;

/// A part that was found and not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassedOver {
    /// What it is.
    #[serde(flatten)]
    pub part: Part,
    /// Why it was not taken.
    pub reason: String,
}

/// What was taken, and what was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<T> {
    /// `None` where nothing was found.
    pub taken: Option<T>,
    /// The others that were found.
    pub passed_over: Vec<PassedOver>,
}

/// The parts of CUDA that a worker on this host uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolkit {
    /// The newest release of CUDA whose kernels the driver takes; `None` where it was not asked or does not tell.
    pub driver: Option<Release>,
    /// The compiler of kernels.
    pub nvrtc: Choice<Part>,
    /// What kernels include.
    pub headers: Choice<Headers>,
    /// What GPUs reach each other with.
    pub nccl: Choice<Part>,
}

impl Toolkit {
    /// Whether a driver of this release refuses what NVRTC compiles, because NVRTC is newer.
    pub fn is_refused_by(&self, driver: Option<&Release>) -> bool {
        let nvrtc = self.nvrtc.taken.as_ref().and_then(|part| part.release.as_ref());
        nvrtc.zip(driver).is_some_and(|(nvrtc, driver)| nvrtc > driver)
    }

    /// What a worker on this machine uses, whose driver takes kernels of this release and older.
    pub fn with_driver(place: &Place, driver: Option<Release>) -> Self {
        let sources = sources(place);
        Self::of(&sources, &nvrtcs(place, &sources), &nccls(place, &sources), driver)
    }

    fn of(sources: &[Source], nvrtcs: &[Candidate], nccls: &[Candidate], driver: Option<Release>) -> Self {
        let sets = sets(sources);
        let (nvrtc, set) = pair(nvrtcs, &sets, driver.as_ref());
        let headers = set.map(|set| Headers { cccl: cccl(&sets, set), ..set.headers.clone() });
        let nccl = best_nccl(nccls, driver.as_ref());
        let others =
            |all: &[Candidate], taken: Option<&Candidate>, reason: &dyn Fn(&Candidate) -> String| Choice {
                taken: taken.map(|taken| taken.part.clone()),
                passed_over: all
                    .iter()
                    .filter(|one| taken.is_none_or(|taken| one.real != taken.real))
                    .map(|one| PassedOver { part: one.part.clone(), reason: reason(one) })
                    .collect(),
            };
        let of_nvrtc = |one: &Candidate| {
            refused(one, driver.as_ref())
                .or_else(|| set.filter(|set| set.headers.missing.is_empty()).and(incomplete(one, &sets)))
                .unwrap_or_else(|| nvrtc.map_or_else(String::new, |taken| later(one, taken)))
        };
        let of_nccl = |one: &Candidate| {
            refused(one, driver.as_ref())
                .unwrap_or_else(|| nccl.map_or_else(String::new, |taken| later(one, taken)))
        };
        let is_other = |one: &&Set| set.is_none_or(|set| set.headers.includes != one.headers.includes);
        let passed_over = sets
            .iter()
            .filter(is_other)
            .map(|one| PassedOver { part: one.headers.part.clone(), reason: of_headers(one, set, nvrtc) });
        let passed_over = passed_over.collect();
        Self {
            nvrtc: others(nvrtcs, nvrtc, &of_nvrtc),
            headers: Choice { taken: headers, passed_over },
            nccl: others(nccls, nccl, &of_nccl),
            driver,
        }
    }
}

/// NVRTC and headers that go best together.
fn pair<'a>(
    nvrtcs: &'a [Candidate],
    sets: &'a [Set],
    driver: Option<&Release>,
) -> (Option<&'a Candidate>, Option<&'a Set>) {
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
            // The one that was found first.
            (Reverse(*at), Reverse(*position)),
        )
    });
    best.map_or((None, None), |((_, nvrtc), (_, set))| (*nvrtc, *set))
}

/// What the loader finds, or else the newest. One that the driver refuses would end a training that can do without.
fn best_nccl<'a>(nccls: &'a [Candidate], driver: Option<&Release>) -> Option<&'a Candidate> {
    let ranked = nccls.iter().enumerate().filter(|(_, one)| one.fits(driver));
    let best = ranked.max_by_key(|(at, one)| (one.goes_first, one.part.release.as_ref(), Reverse(*at)));
    best.map(|(_, one)| one)
}

/// Where headers take CUDA's C++ library from: themselves, or others of the same release.
fn cccl(sets: &[Set], set: &Set) -> Option<PathBuf> {
    let release = set.headers.part.release.as_ref();
    let fits = |other: &&Set| are_alike(release, other.headers.part.release.as_ref());
    set.headers.cccl.clone().or_else(|| sets.iter().filter(fits).find_map(|other| other.headers.cccl.clone()))
}

/// Why the driver refuses it.
fn refused(one: &Candidate, driver: Option<&Release>) -> Option<String> {
    let driver = driver.filter(|_| !one.fits(driver))?;
    Some(match &one.part.release {
        release if *release == one.needs => format!("newer than the driver's CUDA {driver}"),
        _ => format!("for CUDA {}, newer than the driver's {driver}", one.needs.as_ref()?),
    })
}

/// Which headers an NVRTC lacks: those of its own folder where that has any, otherwise those of its release.
fn incomplete(one: &Candidate, sets: &[Set]) -> Option<String> {
    let release = one.part.release.as_ref();
    let fitting = |set: &&Set| are_alike(release, set.headers.part.release.as_ref());
    if sets.iter().filter(fitting).any(|set| set.headers.missing.is_empty()) {
        return None;
    }
    let own = sets.iter().find(|set| set.headers.part.from == one.part.from);
    let Some(set) = own.or_else(|| sets.iter().find(fitting)) else {
        return Some("there are no headers of its release".into());
    };
    Some(format!("its headers lack {}", names(&set.headers.missing)))
}

/// The names of headers, with commas.
pub(super) fn names(headers: &[&Header]) -> String {
    headers.iter().map(|header| header.name).collect::<Vec<_>>().join(", ")
}

/// Why another one that would do was taken.
fn later(one: &Candidate, taken: &Candidate) -> String {
    match (&one.part.release, &taken.part.release) {
        _ if taken.goes_first && !one.goes_first => match &taken.part.from {
            Origin::Variable(name, _) => format!("{name} goes first"),
            _ => "what the loader finds goes first".into(),
        },
        (Some(one), Some(taken)) if one < taken => format!("older than {taken}"),
        _ => "another one was found first".into(),
    }
}

fn of_headers(one: &Set, taken: Option<&Set>, nvrtc: Option<&Candidate>) -> String {
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
