//! Autotuning: finds the fastest kernel for each matrix product on a device.

use super::candidates::{CANDIDATES, DEFAULTS, MatmulKernel, named};
use super::gemm_shape::GemmShape;
use super::kernel_table::{ChosenKernel, KernelTable, KernelTableFile, KernelTrial};
use super::spoil;
use crate::device::kernel_cache::{self, TuningBudget};
use crate::device::{CUBECL, TUNING_SECONDS};
use crate::ops::device::{CubeValues, values};
use crate::out_of_memory::out_of_memory_line;
use burn::backend::Cube;
use burn::tensor::{Device, FloatDType, Tensor};
use cubecl::future::block_on;
use cubek::matmul::definition::MatmulElems;
use cubek::matmul::launch::launch_ref;
use cubek::std::InputBinding;
use dtrain_protocol::device_check;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of timed launches of a candidate.
const LAUNCHES: usize = 3;

/// Ratio to the fastest time from which a candidate is not launched again.
const HOPELESS: f64 = 2.0;

/// Number of rows at the end of a result that are compared with those of the first candidate.
const ROWS: usize = 128;

/// Tolerated relative difference of two results: bf16 has 8 bits, TF32 and f16 have 11.
const APART: f64 = 2e-2;

/// Number of products for which a candidate must fail before it is skipped for all.
const FAILURES: usize = 2;

#[derive(Default)]
pub(super) struct KernelTuner {
    limit: TuningBudget,
    spent: Duration,
    table: KernelTable,
    kept: Option<KernelTableFile>,
    folder: Option<PathBuf>,
    chosen: HashMap<GemmShape, MatmulKernel>,
    /// Number of products for which this process chose a kernel.
    tuned: u32,
    /// Number of products that use the kernel of a similar product, because the time for tuning was over.
    untuned: u32,
    failures: HashMap<&'static str, usize>,
}

impl KernelTuner {
    pub(super) fn of(device: &Device) -> Self {
        let limit = TuningBudget::of(device);
        let folder = kernel_cache::folder().filter(|_| limit.whole > Duration::ZERO);
        let identity = device.identity();
        let name = identity.map_or_else(String::new, |one| format!("{} {}", one.name, one.fingerprint));
        let opened = folder.as_deref().map(|folder| Self::with_table(folder, &name));
        Self { limit, folder, ..opened.unwrap_or_default() }
    }

    /// Creates a tuner with the choices of earlier processes for devices of this name.
    fn with_table(folder: &Path, device: &str) -> Self {
        let (kept, table) = KernelTableFile::open(folder, device, CUBECL);
        Self { table, kept: Some(kept), ..Self::default() }
    }

    pub(super) fn matmul<const D: usize>(&mut self, lhs: CubeValues, rhs: CubeValues) -> CubeValues {
        let problem = GemmShape::of(&lhs, &rhs);
        if problem.is_empty() {
            let [lhs, rhs] = [lhs, rhs].map(Tensor::<D>::from_primitive::<Cube>);
            return values(lhs.matmul(rhs));
        }
        if let Some(candidate) = self.chosen.get(&problem) {
            let out = room(&lhs, &rhs);
            if launch(*candidate, &problem, &lhs, &rhs, &out).is_ok() {
                return out;
            }
        }
        let known = self.table.products.get(&problem.to_string()).cloned();
        let known = known.filter(|choice| named(&choice.kernel).is_some());
        let has_time = self.spent < self.limit.whole;
        let (chosen, is_final) = match known {
            Some(choice) if !has_time || !self.can_go_on(&choice) => (named(&choice.kernel), true),
            known if has_time => self.tune::<D>(&problem, &lhs, &rhs, known),
            _ => (self.similar(&problem), true),
        };
        let defaults = DEFAULTS.iter().filter_map(|name| named(name));
        let (candidate, out) = first_that_runs(chosen.into_iter().chain(defaults), &problem, &lhs, &rhs);
        if is_final {
            self.chosen.insert(problem, candidate);
        }
        out
    }

    pub(super) fn report(&self) -> Option<device_check::KernelTuning> {
        (self.limit.whole > Duration::ZERO).then(|| device_check::KernelTuning {
            limit_seconds: self.limit.whole.as_secs_f64(),
            seconds: self.spent.as_secs_f64(),
            tuned: self.tuned,
            known: self.known(),
            untuned: self.untuned,
            folder: self.folder.as_ref().map(|folder| folder.display().to_string()),
        })
    }

    /// Returns the number of products whose kernel was chosen by an earlier process.
    fn known(&self) -> u32 {
        let chosen = u32::try_from(self.chosen.len()).unwrap_or(u32::MAX);
        chosen.saturating_sub(self.tuned + self.untuned)
    }

    /// Returns `true` if candidates for `choice` were skipped for lack of time, and there is more time now.
    fn can_go_on(&self, choice: &ChosenKernel) -> bool {
        !choice.is_complete && self.limit.each.as_secs_f64() > 1.01 * choice.limit_seconds
    }

    /// Returns the kernel chosen for the product most similar to `problem`, if any was chosen.
    fn similar(&mut self, problem: &GemmShape) -> Option<MatmulKernel> {
        if self.limit.whole == Duration::ZERO {
            return None;
        }
        self.untuned += 1;
        if self.untuned == 1 {
            self.say(&format!(
                "the {:.0} s for choosing kernels are over: other products take the kernel of a similar one; {} sets the time",
                self.limit.whole.as_secs_f64(),
                TUNING_SECONDS
            ));
        }
        let near = self.chosen.iter().filter_map(|(other, kernel)| Some((problem.distance(other)?, *kernel)));
        near.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, kernel)| kernel)
    }

    /// Tries the remaining candidates for a product until time is over. Returns the fastest, if any works,
    /// and `true` if the choice is final: it is not for values that are not finite, with which no result can
    /// be compared.
    fn tune<const D: usize>(
        &mut self,
        problem: &GemmShape,
        lhs: &CubeValues,
        rhs: &CubeValues,
        known: Option<ChosenKernel>,
    ) -> (Option<MatmulKernel>, bool) {
        if self.tuned == 0 {
            let place =
                self.folder.as_ref().map(|folder| format!(", and keeps them in {}", folder.display()));
            self.say(&format!(
                "chooses kernels for matrix products for at most {:.0} s{}",
                self.limit.whole.as_secs_f64(),
                place.unwrap_or_default()
            ));
        }
        self.tuned += 1;
        let (began, name) = (Instant::now(), problem.to_string());
        let limit = self.limit.each.min(self.limit.whole.saturating_sub(self.spent));
        let limit_seconds = self.limit.each.as_secs_f64();
        let mut choice = ChosenKernel { is_complete: true, limit_seconds, ..ChosenKernel::default() };
        let (mut best, mut wanted, mut is_final) = (None::<(MatmulKernel, f64)>, None, true);
        let before: Vec<KernelTrial> = known.into_iter().flat_map(|choice| choice.tried).collect();
        for candidate in CANDIDATES {
            if let Some(tried) = before.iter().find(|tried| tried.kernel == candidate.name)
                && (tried.error.is_some() || wanted.is_some())
            {
                if let Some(seconds) = tried.seconds
                    && best.is_none_or(|(_, fastest)| seconds < fastest)
                {
                    best = Some((candidate, seconds));
                }
                choice.tried.push(tried.clone());
                continue;
            }
            let is_hopeless = self.failures.get(candidate.name).is_some_and(|times| *times >= FAILURES);
            if is_hopeless
                || self.table.is_left_out(candidate.name, &name)
                || !candidate.is_possible(&lhs.client, problem)
            {
                continue;
            }
            if best.is_some() && began.elapsed() >= limit {
                choice.is_complete = false;
                break;
            }
            if let Some(kept) = &mut self.kept {
                kept.note(candidate.name, &name);
            }
            let (first, is_first) = (Instant::now(), wanted.is_none());
            let mut tried = KernelTrial { kernel: candidate.name.to_owned(), ..KernelTrial::default() };
            match try_candidate::<D>(
                candidate,
                problem,
                lhs,
                rhs,
                best.map(|(_, seconds)| seconds),
                &mut wanted,
            ) {
                Ok(times) => {
                    (tried.first_seconds, tried.seconds) = (times.first, Some(times.fastest));
                    if best.is_none_or(|(_, seconds)| times.fastest < seconds) {
                        best = Some((candidate, times.fastest));
                    }
                }
                // There is no memory for a second result: that says nothing about the kernel.
                Err(error) if out_of_memory_line(&error).is_some() => {
                    choice.is_complete = false;
                    break;
                }
                Err(error) => {
                    tried.first_seconds = first.elapsed().as_secs_f64();
                    tried.error = Some(error);
                    *self.failures.entry(candidate.name).or_default() += 1;
                }
            }
            choice.tried.push(tried);
            if is_first && wanted.as_ref().is_some_and(|wanted| !is_finite(wanted)) {
                is_final = false;
                break;
            }
        }
        if let Some(kept) = &mut self.kept {
            kept.note("", "");
        }
        self.spent += began.elapsed();
        let Some((candidate, _)) = best else { return (None, is_final) };
        if !is_final {
            return (Some(candidate), false);
        }
        candidate.name.clone_into(&mut choice.kernel);
        self.table.products.insert(name, choice);
        if let Some(kept) = &self.kept
            && let Err(error) = kept.write(&self.table)
        {
            self.say(&format!("what was chosen is not kept: {error}"));
            self.kept = None;
        }
        (Some(candidate), true)
    }

    /// Writes `words` as a line to the log of this rank.
    fn say(&self, words: &str) {
        drop(writeln!(std::io::stderr(), "dtrain {words}"));
    }
}

/// The seconds of a candidate's first launch, and of its fastest later launch.
struct KernelTimes {
    first: f64,
    fastest: f64,
}

/// Launches and times a candidate. `wanted` is the end of the first candidate's result.
fn try_candidate<const D: usize>(
    candidate: MatmulKernel,
    problem: &GemmShape,
    lhs: &CubeValues,
    rhs: &CubeValues,
    best: Option<f64>,
    wanted: &mut Option<Tensor<1>>,
) -> Result<KernelTimes, String> {
    let began = Instant::now();
    let client = &lhs.client;
    let out = room(lhs, rhs);
    // Reused memory may hold the expected result of another kernel.
    spoil(&out);
    launch(candidate, problem, lhs, rhs, &out)?;
    // A kernel that does not compile is detected by its missing result.
    if let Err(error) = block_on(client.sync_buffers([&out.handle])) {
        // A failed device computes nothing any more: the process must end with the cause.
        assert!(
            block_on(client.sync()).is_ok(),
            "the device failed while the kernel {} was tried for {problem}; the next attempt does without it: {error}",
            candidate.name
        );
        return Err(first_line(&error.to_string()));
    }
    let first = began.elapsed().as_secs_f64();
    let found = end::<D>(&out);
    match wanted {
        None => *wanted = Some(found * 1.0),
        Some(wanted) => {
            let apart = apart(found, wanted.clone());
            if apart > APART {
                return Err(format!(
                    "its result differs from that of the first kernel by {apart:.1e} of the norm"
                ));
            }
        }
    }
    let mut fastest = f64::INFINITY;
    for _ in 0..LAUNCHES {
        let seconds = timed(candidate, problem, lhs, rhs, &out)?;
        fastest = fastest.min(seconds);
        if best.is_some_and(|best| seconds > HOPELESS * best) {
            break;
        }
    }
    Ok(KernelTimes { first, fastest })
}

/// Returns the seconds that one launch takes on the device.
fn timed(
    candidate: MatmulKernel,
    problem: &GemmShape,
    lhs: &CubeValues,
    rhs: &CubeValues,
    out: &CubeValues,
) -> Result<f64, String> {
    let work = || launch(candidate, problem, lhs, rhs, out);
    let (launched, duration) = lhs.client.profile(work, candidate.name).map_err(|error| error.to_string())?;
    launched?;
    let ticks = block_on(duration.resolve()).ok_or("the device measured no time")?;
    Ok(ticks.duration().as_secs_f64())
}

/// Returns the first of some kernels that the device accepts, and the product that it computed.
fn first_that_runs(
    candidates: impl Iterator<Item = MatmulKernel>,
    problem: &GemmShape,
    lhs: &CubeValues,
    rhs: &CubeValues,
) -> (MatmulKernel, CubeValues) {
    let out = room(lhs, rhs);
    let mut refusals = Vec::new();
    for candidate in candidates {
        match launch(candidate, problem, lhs, rhs, &out) {
            Ok(()) => return (candidate, out),
            Err(error) => refusals.push(format!("{}: {error}", candidate.name)),
        }
    }
    panic!("no kernel computes {problem}: {}", refusals.join("; "))
}

/// Queues a kernel. `Err` if the device cannot run it; a failed compilation shows only when `out` is read.
fn launch(
    candidate: MatmulKernel,
    problem: &GemmShape,
    lhs: &CubeValues,
    rhs: &CubeValues,
    out: &CubeValues,
) -> Result<(), String> {
    let elements = problem.elements();
    let [left, right] = [(lhs, elements.lhs), (rhs, elements.rhs)]
        .map(|(side, element)| InputBinding::new(side.clone().binding(), element));
    let mut types = MatmulElems::from_globals(&elements);
    let strategy = candidate.strategy().into();
    launch_ref(&strategy, &out.client, left, right, out.clone().binding(), &mut types)
        .map_err(|error| first_line(&format!("{error:?}")))
}

/// Allocates memory for the product of two factors; its rows may be padded.
fn room(lhs: &CubeValues, rhs: &CubeValues) -> CubeValues {
    burn_cubecl::kernel::matmul::init_matmul_output(lhs, rhs, lhs.dtype)
}

/// Returns the last rows of the last matrix of `out`, in f32.
fn end<const D: usize>(out: &CubeValues) -> Tensor<1> {
    let out: Tensor<D> = Tensor::from_primitive::<Cube>(out.clone());
    let sides = out.dims();
    let mut part = out;
    for (dimension, side) in sides.into_iter().enumerate().take(D - 1) {
        let length = if dimension == D - 2 { side.min(ROWS) } else { 1 };
        part = part.narrow(dimension, side - length, length);
    }
    part.cast(FloatDType::F32).flatten::<1>(0, D - 1)
}

/// Returns `true` if all `values` are finite, and the sum of their squares too.
fn is_finite(values: &Tensor<1>) -> bool {
    let squares = (values.clone() * values.clone()).sum();
    squares.into_scalar::<f32>().is_finite()
}

/// Returns the norm of `found - wanted` relative to that of `wanted`; 0 if the latter is not finite.
fn apart(found: Tensor<1>, wanted: Tensor<1>) -> f64 {
    let squares = |values: Tensor<1>| (values.clone() * values).sum();
    let both = Tensor::cat(vec![squares(found - wanted.clone()), squares(wanted)], 0);
    let both: Vec<f32> = both.into_data().try_to_vec().unwrap_or_default();
    let [difference, norm] = <[f32; 2]>::try_from(both).unwrap_or_default().map(f64::from);
    if !norm.is_finite() {
        return 0.0;
    }
    let relative = (difference / norm.max(f64::MIN_POSITIVE)).sqrt();
    if difference == 0.0 {
        0.0
    } else if relative.is_nan() {
        f64::INFINITY
    } else {
        relative
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}

#[cfg(test)]
mod tests;
