//! Whether a device computes what the host computes, and how fast: for people who have a GPU and want to know, or to tell.
//!
//! A part that fails is noted, and the next one is tried. The device works asynchronously: every time is taken with nothing
//! left to do before and after.

mod parity;
mod speed;
mod training;

use crate::device;
use crate::entry::guarded;
use burn::tensor::{Device, FloatDType};
use dtrain_protocol::device_check::{Fault, Tuning};
use dtrain_protocol::{DeviceFindings, DeviceKind, DeviceNews, DeviceRequest, Failure};
use dtrain_recipes::Precision;
use std::time::Instant;

/// The versions that `Cargo.lock` names.
const BURN: &str = "0.22.1";
pub(crate) const CUBECL: &str = "0.11.3";

/// The loss is multiplied by it where products are in f16, as a training would do.
const LOSS_SCALE: f32 = 4096.0;

/// Seconds that one measured deed may take: larger ones are not tried.
const LONGEST: f64 = 0.4;

/// Tells of the device that `request` names. An `Err` means that it is not there.
pub(crate) fn examine(request: &DeviceRequest, tell: &mut dyn FnMut(DeviceNews)) -> Result<(), Failure> {
    let placement = &request.placement;
    let device = device::open(placement).map_err(|error| Failure::Other(error.to_string()))?;
    let card = device::card(&device);
    let found = DeviceFindings {
        device: placement.device,
        index: placement.index,
        devices: u32::try_from(device::all(placement.device).len()).unwrap_or(0).max(1),
        name: card.name.unwrap_or_else(|| device::words(placement)),
        target: card.target,
        driver: card.pci_address.and_then(|address| device::nvidia("driver_version", &address)),
        memory_bytes: card.memory_bytes,
        burn: BURN.to_owned(),
        cubecl: CUBECL.to_owned(),
        tuning: None,
        precisions: precisions(&device),
        parity: Vec::new(),
        training: Vec::new(),
        products: Vec::new(),
        attention: Vec::new(),
        copies: Vec::new(),
        links: Vec::new(),
        faults: Vec::new(),
    };
    let mut check = Check { device, found, tell };
    check.told();
    check.all();
    Ok(())
}

/// The arithmetics of matrix products of a device. The host's are slower than f32, and are for comparison only.
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

/// A device while it is examined.
struct Check<'a> {
    device: Device,
    found: DeviceFindings,
    tell: &'a mut dyn FnMut(DeviceNews),
}

impl Check<'_> {
    fn all(&mut self) {
        let (device, kind, memory) = (self.device.clone(), self.found.device, self.found.memory_bytes);
        let precisions = self.found.precisions.clone();
        // Gradients of the first family in f32 come first: where those are wrong, nothing else counts.
        for precision in precisions.clone() {
            for family in parity::FAMILIES {
                let part = format!("comparing {family} in {} with the host", precision.word());
                let found = self.part(&part, || parity::compare(family, precision, kind, &device));
                self.found.parity.extend(found);
                self.told();
            }
        }
        let size = self.part("choosing a decoder", || training::size(&device, memory)).unwrap_or(0);
        for precision in precisions.clone() {
            let part = format!("training in {}", precision.word());
            let found = self.part(&part, || training::measure(size, precision, &device));
            self.found.training.extend(found);
            self.told();
        }
        for precision in precisions.clone() {
            let part = format!("matrix products in {}", precision.word());
            let found = self.part(&part, || speed::products(precision, &device, memory));
            self.found.products.extend(found.into_iter().flatten());
            self.told();
        }
        for precision in precisions {
            let part = format!("attention in {}", precision.word());
            let found = self.part(&part, || speed::attention(precision, &device, memory));
            self.found.attention.extend(found.into_iter().flatten());
            self.told();
        }
        if kind != DeviceKind::Cpu {
            let found = self.part("copies between host and device", || speed::copies(&device));
            self.found.copies.extend(found.into_iter().flatten());
            let index = self.found.index;
            let found = self.part("copies between devices", || speed::links(kind, index, &device));
            self.found.links.extend(found.into_iter().flatten());
        }
        self.told();
    }

    /// One part of the work; `None` where it failed, which is noted.
    fn part<T>(&mut self, part: &str, work: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
        (self.tell)(DeviceNews::Doing(part.to_owned()));
        match guarded(work) {
            Ok(found) => Some(found),
            Err(failure) => {
                let fault = Fault { part: part.to_owned(), reason: failure.to_string() };
                self.found.faults.push(fault);
                None
            }
        }
    }

    /// Tells what was found so far: nothing of it is lost when the next part takes the process down.
    fn told(&mut self) {
        self.found.tuning = tuning(&self.device);
        (self.tell)(DeviceNews::Found(Box::new(self.found.clone())));
    }
}

/// How kernels of matrix products are chosen.
#[cfg(feature = "device")]
fn tuning(device: &Device) -> Option<Tuning> {
    if device::is_host(device) { None } else { crate::ops::device::product::report(device) }
}

#[cfg(not(feature = "device"))]
fn tuning(_: &Device) -> Option<Tuning> {
    None
}

/// Waits until the device has nothing left to do.
fn sync(device: &Device) -> Result<(), Failure> {
    device.sync().map_err(|error| Failure::Other(format!("the device failed: {error}")))
}

/// Seconds of `work` with all that it asks of the device.
fn timed(device: &Device, work: impl FnOnce()) -> Result<f64, Failure> {
    sync(device)?;
    let began = Instant::now();
    work();
    sync(device)?;
    Ok(began.elapsed().as_secs_f64())
}

/// What JSON can say: [`f64::MAX`] for what is not finite.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { f64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_are_those_that_are_built() {
        let lock = include_str!("../../../Cargo.lock");
        for (name, version) in [("burn", BURN), ("cubecl", CUBECL)] {
            assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"")), "{name}");
        }
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
            parity: Vec::new(),
            training: Vec::new(),
            products: Vec::new(),
            attention: Vec::new(),
            copies: Vec::new(),
            links: Vec::new(),
            faults: Vec::new(),
        };
        let mut tell = |one| news.push(one);
        let mut check = Check { device, found, tell: &mut tell };
        assert_eq!(check.part::<()>("one", || panic!("no such kernel")), None);
        assert_eq!(check.part("two", || Ok(2)), Some(2));
        assert!(!check.found.agrees());
        assert!(check.found.faults[0].reason.contains("no such kernel"), "{:?}", check.found.faults);
        assert_eq!(news, [DeviceNews::Doing("one".into()), DeviceNews::Doing("two".into())]);
    }
}
