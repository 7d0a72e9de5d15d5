//! Device check: compares a device's results with those of the host and measures its speed, for the user
//! of `dtrain doctor`.
//!
//! A part that fails is recorded, and the next one is tried. The device works asynchronously: it is
//! synchronized before and after every timing.

mod parity;
mod speed;
mod steps;
mod training;

use crate::device::{self, BURN, CUBECL};
use crate::panic_failure::guarded;
use burn::tensor::{Device, FloatDType};
use dtrain_protocol::device_check::{DeviceTest, KernelTuning, MeasurementError, NcclCall, StepsRequest};
use dtrain_protocol::{DeviceFindings, DeviceKind, DeviceRequest, DeviceResponse, Failure};
use dtrain_recipes::Precision;
use std::time::Instant;

/// Loss scale for training in f16.
const LOSS_SCALE: f32 = 4096.0;

/// Limit on the seconds of one measured operation; larger operations are skipped.
const LONGEST: f64 = 0.4;

/// Examines the device that `request` names and sends the findings to `tell`. `Err` if the device does not
/// exist.
pub(crate) fn examine(request: &DeviceRequest, tell: &mut dyn FnMut(DeviceResponse)) -> Result<(), Failure> {
    let placement = &request.placement;
    let device = device::open(placement).map_err(|error| Failure::Other(error.to_string()))?;
    let card = device::card(&device);
    let found = DeviceFindings {
        device: placement.device,
        index: placement.index,
        devices: u32::try_from(device::devices_of_kind(placement.device).len()).unwrap_or(0).max(1),
        name: card.name.unwrap_or_else(|| device::describe(placement)),
        target: card.target,
        driver: card.pci_address.and_then(|address| device::nvidia("driver_version", &address)),
        memory_bytes: card.memory_bytes,
        burn: BURN.to_owned(),
        cubecl: CUBECL.to_owned(),
        tuning: None,
        precisions: precisions(&device),
        parts: request.parts.clone(),
        parity: Vec::new(),
        training: Vec::new(),
        products: Vec::new(),
        attention: Vec::new(),
        copies: Vec::new(),
        links: Vec::new(),
        steps: None,
        nccl: Vec::new(),
        faults: Vec::new(),
    };
    let mut check = DeviceUnderTest { device, found, tell };
    check.report_progress();
    for part in DeviceTest::USUAL.into_iter().chain([DeviceTest::Steps, DeviceTest::Nccl]) {
        if request.parts.contains(&part) {
            check.each(part, &request.steps);
            check.report_progress();
        }
    }
    Ok(())
}

/// Returns the precisions in which a device supports matrix products. On the host, those other than f32
/// are slow and only for comparison.
fn precisions(device: &Device) -> Vec<Precision> {
    let has = |precision: &Precision| dtype(*precision).is_some_and(|dtype| device.supports_dtype(dtype));
    [Precision::F32, Precision::Bf16, Precision::F16].into_iter().filter(has).collect()
}

fn dtype(precision: Precision) -> Option<FloatDType> {
    match precision {
        Precision::F32 => Some(FloatDType::F32),
        Precision::Bf16 => Some(FloatDType::BF16),
        Precision::F16 => Some(FloatDType::F16),
        Precision::Fp8 => None,
    }
}

/// A device under examination, with the findings so far.
struct DeviceUnderTest<'a> {
    device: Device,
    found: DeviceFindings,
    tell: &'a mut dyn FnMut(DeviceResponse),
}

impl DeviceUnderTest<'_> {
    /// Runs the test `part`, for each precision or model family that it covers.
    fn each(&mut self, part: DeviceTest, steps: &StepsRequest) {
        let (device, kind, memory) = (self.device.clone(), self.found.device, self.found.memory_bytes);
        let index = self.found.index;
        match part {
            DeviceTest::Parity => self.parity(&device, kind),
            DeviceTest::Training => self.training(&device, memory),
            DeviceTest::Products => {
                for precision in self.found.precisions.clone() {
                    let part = format!("matrix products in {}", precision.name());
                    let found = self.part(&part, || speed::products(precision, &device, memory));
                    self.found.products.extend(found.into_iter().flatten());
                    self.report_progress();
                }
            }
            DeviceTest::Attention => {
                for precision in self.found.precisions.clone() {
                    let part = format!("attention in {}", precision.name());
                    let found = self.part(&part, || speed::attention(precision, &device, memory));
                    self.found.attention.extend(found.into_iter().flatten());
                    self.report_progress();
                }
            }
            // The host has nothing to copy to.
            DeviceTest::Copies | DeviceTest::Links if kind == DeviceKind::Cpu => {}
            DeviceTest::Copies => {
                let found = self.part("copies between host and device", || speed::copies(&device));
                self.found.copies.extend(found.into_iter().flatten());
            }
            DeviceTest::Links => {
                let found = self.part("copies between devices", || speed::links(kind, index, &device));
                self.found.links.extend(found.into_iter().flatten());
            }
            DeviceTest::Steps => self.steps(steps, &device, kind),
            DeviceTest::Nccl => {
                let found = self.part("NCCL with one rank", || nccl(kind, index, &device));
                self.found.nccl.extend(found.into_iter().flatten());
            }
        }
    }

    /// Compares a short training on the device with the same one on the host, for each precision and
    /// family. The first family in f32 comes first: if its gradients are wrong, no other result counts.
    fn parity(&mut self, device: &Device, kind: DeviceKind) {
        for precision in self.found.precisions.clone() {
            for family in parity::FAMILIES {
                let part = format!("comparing {family} in {} with the host", precision.name());
                let found = self.part(&part, || parity::compare(family, precision, kind, device));
                self.found.parity.extend(found);
                self.report_progress();
            }
        }
    }

    fn training(&mut self, device: &Device, memory: u64) {
        let size = self.part("choosing a decoder", || training::size(device, memory)).unwrap_or(0);
        for precision in self.found.precisions.clone() {
            let part = format!("training in {}", precision.name());
            let found = self.part(&part, || training::measure(size, precision, device));
            self.found.training.extend(found);
            self.report_progress();
        }
    }

    /// Runs the requested training steps, and reports each as soon as it is done.
    fn steps(&mut self, request: &StepsRequest, device: &Device, kind: DeviceKind) {
        let precisions = &self.found.precisions;
        let usual = if precisions.contains(&Precision::Bf16) { Precision::Bf16 } else { Precision::F32 };
        let precision = request.precision.unwrap_or(usual);
        let Self { found, tell, .. } = self;
        let part = format!("steps in {}", precision.name());
        tell(DeviceResponse::Doing(part.clone()));
        let index = found.index;
        let done = guarded(|| {
            let profiled = request.is_profiled.then_some((kind, index));
            steps::run_steps(request, precision, device, profiled, &mut |series| {
                found.steps = Some(series.clone());
                tell(DeviceResponse::Found(Box::new(found.clone())));
            })
        });
        if let Err(failure) = done {
            found.faults.push(MeasurementError { part, reason: failure.to_string() });
        }
    }

    /// Runs `work`, one part of the check; if it fails, records that and returns `None`.
    fn part<T>(&mut self, part: &str, work: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
        (self.tell)(DeviceResponse::Doing(part.to_owned()));
        match guarded(work) {
            Ok(found) => Some(found),
            Err(failure) => {
                let fault = MeasurementError { part: part.to_owned(), reason: failure.to_string() };
                self.found.faults.push(fault);
                None
            }
        }
    }

    /// Reports all findings so far, so that they survive a crash of the next part.
    fn report_progress(&mut self) {
        self.found.tuning = tuning(&self.device);
        (self.tell)(DeviceResponse::Found(Box::new(self.found.clone())));
    }
}

/// Returns the state of kernel autotuning for matrix products on a device; `None` if it tunes none.
#[cfg(feature = "device")]
fn tuning(device: &Device) -> Option<KernelTuning> {
    if device::is_host(device) { None } else { crate::ops::device::matmul::report(device) }
}

#[cfg(not(feature = "device"))]
fn tuning(_: &Device) -> Option<KernelTuning> {
    None
}

/// Waits until the device has finished all queued work.
fn sync(device: &Device) -> Result<(), Failure> {
    device.sync().map_err(|error| Failure::Other(format!("the device failed: {error}")))
}

/// Returns the seconds that `work` takes, with everything that it queues on the device.
fn timed(device: &Device, work: impl FnOnce()) -> Result<f64, Failure> {
    sync(device)?;
    let began = Instant::now();
    work();
    sync(device)?;
    Ok(began.elapsed().as_secs_f64())
}

/// Returns a value that JSON can represent: `value`, or [`f64::MAX`] if it is not finite.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { f64::MAX }
}

/// Checks every call of NCCL that dtrain makes, with one rank.
fn nccl(kind: DeviceKind, index: u32, device: &Device) -> Result<Vec<NcclCall>, Failure> {
    if kind != DeviceKind::Cuda {
        return Err(Failure::Other("NCCL is for CUDA devices".to_owned()));
    }
    #[cfg(feature = "cuda")]
    return crate::comm::nccl::self_check::calls(index, device)
        .map_err(|error| Failure::Other(error.to_string()));
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (index, device);
        Err(Failure::Other("this program was built without the backend cuda".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the reports of an examination of the host.
    fn news(parts: &[DeviceTest], steps: StepsRequest) -> Vec<DeviceResponse> {
        let placement = dtrain_protocol::Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads: 1 };
        let mut news = Vec::new();
        let request = DeviceRequest { placement, parts: parts.to_vec(), steps };
        examine(&request, &mut |one| news.push(one)).unwrap();
        news
    }

    fn two_steps() -> StepsRequest {
        let model = dtrain_protocol::device_check::StepsModel::Tiny;
        StepsRequest { model, precision: None, batch: None, count: 2, is_profiled: true }
    }

    #[test]
    fn only_what_is_asked_for_is_done_and_a_step_is_told_when_it_is_taken() {
        let news = news(&[DeviceTest::Steps], two_steps());
        let doing: Vec<_> = news.iter().filter(|one| matches!(one, DeviceResponse::Doing(_))).collect();
        assert_eq!(doing, [&DeviceResponse::Doing("steps in bf16".into())]);
        let found: Vec<_> = news
            .iter()
            .filter_map(|one| match one {
                DeviceResponse::Found(found) => Some(found),
                _ => None,
            })
            .collect();
        let steps = |found: &DeviceFindings| found.steps.as_ref().map_or(0, |steps| steps.series.len());
        let counts: Vec<_> = found.iter().map(|found| steps(found)).collect();
        assert_eq!(counts, [0, 1, 2, 2], "{news:?}");
        let last = found.last().unwrap();
        assert!(last.agrees() && last.parity.is_empty(), "no comparison was requested: {last:?}");
    }

    #[test]
    fn a_part_that_the_device_lacks_is_a_fault() {
        let news = news(&[DeviceTest::Nccl, DeviceTest::Links], two_steps());
        let Some(DeviceResponse::Found(found)) = news.last() else { panic!("{news:?}") };
        assert_eq!(found.faults.len(), 1, "{found:?}");
        assert!(found.faults[0].reason.contains("NCCL is for CUDA devices") && !found.agrees());
    }

    #[test]
    fn a_part_that_fails_is_noted_and_the_next_one_is_tried() {
        let placement = dtrain_protocol::Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads: 1 };
        let device = device::open(&placement).unwrap();
        let mut news = Vec::new();
        let found = DeviceFindings {
            device: DeviceKind::Cpu,
            index: 0,
            devices: 0,
            name: String::new(),
            target: None,
            driver: None,
            memory_bytes: 0,
            burn: String::new(),
            cubecl: String::new(),
            tuning: None,
            precisions: Vec::new(),
            parts: DeviceTest::USUAL.to_vec(),
            parity: Vec::new(),
            training: Vec::new(),
            products: Vec::new(),
            attention: Vec::new(),
            copies: Vec::new(),
            links: Vec::new(),
            steps: None,
            nccl: Vec::new(),
            faults: Vec::new(),
        };
        let mut tell = |one| news.push(one);
        let mut check = DeviceUnderTest { device, found, tell: &mut tell };
        assert_eq!(check.part::<()>("one", || panic!("no such kernel")), None);
        assert_eq!(check.part("two", || Ok(2)), Some(2));
        assert!(!check.found.agrees());
        assert!(check.found.faults[0].reason.contains("no such kernel"), "{:?}", check.found.faults);
        assert_eq!(news, [DeviceResponse::Doing("one".into()), DeviceResponse::Doing("two".into())]);
    }
}
