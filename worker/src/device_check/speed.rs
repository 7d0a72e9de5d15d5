//! Speed of a device: matrix products, attention and copies.

use super::{LONGEST, dtype, sync, timed};
use crate::device;
use crate::median::median;
use crate::ops::{self, Arithmetic, AttentionHeads, Implementation};
use burn::tensor::{Device, Tensor, TensorData};
use dtrain_protocol::device_check::{AttentionSpeed, CopySpeed, LinkSpeed, ProductSpeed};
use dtrain_protocol::{DeviceKind, Failure};
use dtrain_recipes::Precision;

/// Dimensions of the square matrices that are multiplied.
const SIDES: [u32; 6] = [256, 512, 1024, 2048, 4096, 8192];

/// Lengths of the sequences for which attention is measured.
const LENGTHS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// Number of attention heads, and the width of each.
const HEADS: (u32, u32) = (8, 64);

/// Sizes in bytes of the copies between host and device.
const COPIES: [u64; 3] = [1 << 20, 8 << 20, 64 << 20];

/// Size in bytes of a copy between two devices.
const LINK: u64 = 64 << 20;

/// Number of bytes that may be used if the size of the device's memory is unknown.
const MODEST: u64 = 1 << 30;

/// Seconds of a round of repetitions, and number of rounds.
const ROUND: (f64, usize) = (0.1, 3);

/// Limit on the number of repetitions in a round: as many as a device may queue.
const REPEATS: f64 = 200.0;

/// Returns the seconds that one call of `work` takes when many follow each other: the median of several
/// rounds.
fn repeated(device: &Device, work: &mut dyn FnMut()) -> Result<f64, Failure> {
    // Warm-up: compiles, and fills caches.
    timed(device, &mut *work)?;
    let one = timed(device, &mut *work)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a few")]
    let repeats = (ROUND.0 / one).clamp(1.0, REPEATS) as usize;
    let round = |_| timed(device, || (0..repeats).for_each(|_| work()));
    let rounds = (0..ROUND.1).map(round).collect::<Result<Vec<_>, _>>()?;
    Ok(median(&rounds) / repeats as f64)
}

/// Measures the speed of products of square matrices, as far as time and memory allow.
pub(super) fn products(
    precision: Precision,
    device: &Device,
    memory_bytes: u64,
) -> Result<Vec<ProductSpeed>, Failure> {
    let mut found: Vec<ProductSpeed> = Vec::new();
    for size in SIDES {
        let side = f64::from(size);
        let too_long = found.last().is_some_and(|last| last.seconds * 8.0 > LONGEST);
        if too_long || 6.0 * 4.0 * side * side > room(memory_bytes) {
            break;
        }
        let dtype = dtype(precision).ok_or_else(|| Failure::Other("there is no such matrix".into()))?;
        let [lhs, rhs] = [1, 2].map(|seed| matrix(size, seed, device).cast(dtype));
        let seconds = repeated(device, &mut || drop(ops::matmul(lhs.clone(), rhs.clone())))?;
        let gflops = 2.0 * side.powi(3) / seconds / 1e9;
        found.push(ProductSpeed { size, precision, seconds, gflops });
    }
    Ok(found)
}

/// Measures the speed of attention over sequences of growing length, as far as time and memory allow.
pub(super) fn attention(
    precision: Precision,
    device: &Device,
    memory_bytes: u64,
) -> Result<Vec<AttentionSpeed>, Failure> {
    let by = Implementation::of(device, precision);
    let arithmetic = Arithmetic { by, precision, forgets_scores: false };
    let (heads, width) = HEADS;
    let shape = AttentionHeads { query: heads as usize, key: heads as usize, width: width as usize };
    let mut found: Vec<AttentionSpeed> = Vec::new();
    for length in LENGTHS {
        let squares = f64::from(heads) * f64::from(length).powi(2);
        let too_long = found.last().is_some_and(|last| last.both_seconds * 4.0 > LONGEST);
        if too_long || 10.0 * 4.0 * squares > room(memory_bytes) {
            break;
        }
        let columns = 3 * (heads * width) as usize;
        let packed = pattern(length as usize * columns, 3, device).reshape([1, length as usize, columns]);
        let forward_seconds = repeated(device, &mut || {
            drop(ops::attention(arithmetic, packed.clone(), shape, &ops::AttentionMask::default()));
        })?;
        let both_seconds = repeated(device, &mut || {
            let leaf = packed.clone().autodiff().require_grad();
            let out = ops::attention(arithmetic, leaf.clone(), shape, &ops::AttentionMask::default()).sum();
            drop(leaf.grad(&out.backward()));
        })?;
        // Two products forward and four backward, each of two operations for each score and column of a head.
        let gflops = 12.0 * squares * f64::from(width) / both_seconds / 1e9;
        found.push(AttentionSpeed {
            length,
            heads,
            head_width: width,
            precision,
            forward_seconds,
            both_seconds,
            gflops,
        });
    }
    Ok(found)
}

/// Measures the speed of copies to the device and back, as far as time allows.
pub(super) fn copies(device: &Device) -> Result<Vec<CopySpeed>, Failure> {
    let mut found: Vec<CopySpeed> = Vec::new();
    let mut before = 0.0;
    for bytes in COPIES {
        if before * 16.0 > LONGEST {
            break;
        }
        let (mut there, mut back) = (Vec::new(), Vec::new());
        // The first copies allocate pages and buffers that later ones reuse.
        for _ in 0..6 {
            let data = values(bytes);
            let wanted = last_value(&data);
            let (mut tensor, mut read) = (None, None);
            there.push(timed(device, || tensor = Some(Tensor::<1>::from_data(data, device)))?);
            let tensor = tensor.ok_or_else(|| Failure::Other("nothing was copied".into()))?;
            // A value is read, because nothing else shows that the bytes have arrived.
            back.push(timed(device, || read = last_value(&tensor.into_data()))?);
            if read != wanted {
                return Err(Failure::Other(format!("{wanted:?} was copied there, and {read:?} came back")));
            }
        }
        let [there, back] = [&there[1..], &back[1..]].map(median);
        before = there.max(back);
        let speed = |seconds: f64| bytes as f64 / seconds / 1e9;
        found.push(CopySpeed { bytes, to_device: speed(there), to_host: speed(back) });
    }
    Ok(found)
}

fn last_value(data: &TensorData) -> Option<f32> {
    data.as_slice::<f32>().ok()?.last().copied()
}

/// Measures the speed of copies through host memory, from this device to each other device of its kind.
pub(super) fn links(kind: DeviceKind, index: u32, device: &Device) -> Result<Vec<LinkSpeed>, Failure> {
    let others = (0u32..).zip(device::devices_of_kind(kind)).filter(|(other, _)| *other != index);
    let links = others.map(|(to, other)| {
        let tensor = Tensor::<1>::from_data(values(LINK), device);
        let copy = || {
            sync(device)?;
            timed(&other, || drop(Tensor::<1>::from_data(tensor.clone().into_data(), &other)))
        };
        let seconds = (0..4).map(|_| copy()).collect::<Result<Vec<_>, _>>()?;
        Ok(LinkSpeed { to, bytes: LINK, speed: LINK as f64 / median(&seconds[1..]) / 1e9 })
    });
    links.collect()
}

/// Returns the number of bytes that a measurement may use on a device with `memory_bytes` (0 if unknown).
fn room(memory_bytes: u64) -> f64 {
    if memory_bytes == 0 { MODEST as f64 } else { memory_bytes as f64 / 2.0 }
}

/// Creates f32 values that take `bytes` bytes.
fn values(bytes: u64) -> TensorData {
    let count = usize::try_from(bytes / 4).unwrap_or(0);
    TensorData::new((0..count).map(|at| at as f32).collect::<Vec<_>>(), [count])
}

/// Creates values between -1 and 1 without a pattern that a device could exploit.
fn pattern(count: usize, seed: u64, device: &Device) -> Tensor<1> {
    let value = |at| (dtrain_protocol::shuffle::splitmix64(seed, at) % 2000) as f32 / 1000.0 - 1.0;
    let values: Vec<f32> = (0..count as u64).map(value).collect();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

/// Creates a square matrix `[size, size]` on the device, as the product of two vectors.
fn matrix(size: u32, seed: u64, device: &Device) -> Tensor<2> {
    let size = size as usize;
    pattern(size, seed, device).reshape([size, 1]) * pattern(size, seed + 7, device).reshape([1, size])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_measured_until_it_takes_too_long() {
        let host = Device::flex();
        let products = products(Precision::F32, &host, 0).unwrap();
        assert!(products.len() >= 2 && products.iter().all(|one| one.gflops > 0.0), "{products:?}");
        let attention = attention(Precision::F32, &host, 0).unwrap();
        assert!(!attention.is_empty());
        assert!(attention.iter().all(|one| one.both_seconds > one.forward_seconds), "{attention:?}");
        assert!(links(DeviceKind::Cpu, 0, &host).unwrap().is_empty());
    }

    #[test]
    fn nothing_larger_than_the_memory_is_tried() {
        let found = products(Precision::F32, &Device::flex(), 20 << 20).unwrap();
        assert_eq!(found.iter().map(|one| one.size).collect::<Vec<_>>(), [256, 512]);
    }
}
