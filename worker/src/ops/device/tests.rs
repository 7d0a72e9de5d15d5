//! Device operations: lengths beyond 32 bits, padded rows like CUDA's, and memory that an operation holds.

use super::*;
use crate::ops::tests::gpu;
use crate::ops::{Implementation, cross_entropy, inject, matmul};
use burn::tensor::TensorData;
use cubecl::server::Handle;
use std::fs;
use std::path::Path;

const DEVICE: Arithmetic =
    Arithmetic { by: Implementation::Device, precision: Precision::F32, forgets_scores: false };

type Place = burn::tensor::Device;

/// Returns values in [-2, 2), a function of `seed`.
fn made(seed: u64, length: usize) -> Vec<f32> {
    let value = |i| (dtrain_protocol::shuffle::splitmix64(seed, i) % 4000) as f32 / 1000.0 - 2.0;
    (0..length as u64).map(value).collect()
}

/// Creates a tensor of these values with `room` NaNs behind each row.
fn spaced<const D: usize>(device: &Place, made: &[f32], shape: [usize; D], room: usize) -> CubeValues {
    let width = shape[D - 1];
    let mut all = Vec::new();
    for row in made.chunks(width) {
        all.extend_from_slice(row);
        all.extend(std::iter::repeat_n(f32::NAN, room));
    }
    let length = all.len();
    let mut tensor = values(Tensor::<1>::from_data(TensorData::new(all, [length]), device));
    let mut strides = [1; D];
    let mut stride = width + room;
    for dimension in (0..D - 1).rev() {
        strides[dimension] = stride;
        stride *= shape[dimension];
    }
    tensor.meta.shape = shape.into();
    tensor.meta.strides = strides.into();
    tensor
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_to_vec().unwrap()
}

/// Returns the largest value, and the largest difference from `wanted`, infinite for values that are not
/// finite.
fn apart(found: &[f32], wanted: &[f32]) -> (f32, f32) {
    assert_eq!(found.len(), wanted.len());
    let difference = |(f, w): (&f32, &f32)| if f.is_finite() { (f - w).abs() } else { f32::INFINITY };
    let largest = wanted.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
    (largest, found.iter().zip(wanted).map(difference).fold(0.0, f32::max))
}

/// Tensors of lengths that exceed the memory: nothing is allocated, and only the lengths count.
#[test]
fn lengths_that_32_bits_do_not_count_are_indexed_with_64() {
    let Some(device) = gpu() else { return };
    let near = values(Tensor::<1>::zeros([4], &device));
    let long = |shape: &[usize], dtype: DType| {
        let count = shape.iter().product::<usize>();
        let handle = Handle::new(
            near.handle.service,
            near.handle.stream,
            u64::try_from(count * dtype.size()).unwrap(),
        );
        let (client, device) = (near.client.clone(), near.device.clone());
        CubeValues::new_contiguous(client, device, shape.to_vec().into(), handle, dtype)
    };
    const MOST: usize = u32::MAX as usize;
    for dtype in [DType::F32, DType::F16] {
        for (length, wanted) in [
            (1, AddressType::U32),
            (MOST, AddressType::U32),
            (MOST + 1, AddressType::U64),
            (2 * (MOST + 1), AddressType::U64),
        ] {
            let tensor = long(&[length], dtype);
            assert_eq!(indices(0, [&tensor]), wanted, "{length} values, {dtype:?}");
            assert_eq!(indices(0, [&near, &tensor, &near]), wanted, "the longest counts");
            assert_eq!(of_each(4, [&near, &tensor]).2, wanted);
            assert_eq!(of_each_row(2, 2, [&tensor, &near]).2, wanted);
        }
    }
    // The last unit of a launch counts as well.
    assert_eq!(indices(MOST + 1, [&near]), AddressType::U32);
    assert_eq!(indices(MOST + 2, [&near]), AddressType::U64);
    // Of a part of a tensor all of its memory counts, in values and not in bytes.
    let mut part = long(&[2, MOST], DType::F16);
    part.handle = part.handle.offset_start(2 * MOST as u64);
    assert_eq!(indices(0, [&part]), AddressType::U64);
    // No length is cut.
    let rows = long(&[33, 1 << 29], DType::F16);
    assert_eq!(buffer(&rows, 1 << 29).len(), 33 << 29);
    assert_eq!(buffer(&rows, (1 << 29) + 64).len(), (33 << 29) + 32 * 64);
    assert_eq!(rows.into_buffer_arg().len(), 33 << 29);
}

/// A new kernel must be listed here as well.
#[test]
fn the_indices_of_every_kernel_are_as_wide_as_its_tensors_need() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops/device");
    let mut kernels = 0;
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    for path in files.filter(|path| path.is_file() && !path.ends_with("tests.rs")) {
        for line in fs::read_to_string(&path).unwrap().lines().filter(|line| line.contains("#[cube(launch")) {
            assert_eq!(line.trim(), "#[cube(launch, address_type = \"dynamic\")]", "{}", path.display());
            kernels += 1;
        }
    }
    assert!(kernels > 20, "only {kernels} kernels were found");
}

#[test]
fn rows_lie_evenly_or_not() {
    for (shape, strides, wanted) in [
        (&[3, 4][..], &[4, 1][..], Some(4)),
        (&[3, 4], &[6, 1], Some(6)),
        (&[2, 3, 4], &[18, 6, 1], Some(6)),
        // Samples that are further apart than their rows.
        (&[2, 3, 4], &[24, 6, 1], None),
        // Dimensions of one element say nothing.
        (&[1, 3, 4], &[7, 6, 1], Some(6)),
        (&[2, 1, 4], &[6, 9, 1], Some(6)),
        (&[3, 1], &[1, 5], Some(1)),
        (&[1, 4], &[9, 1], Some(4)),
        (&[5], &[1], Some(5)),
        // Transposed, and rows that are all the same.
        (&[3, 4], &[1, 3], None),
        (&[3, 4], &[0, 1], None),
    ] {
        assert_eq!(stride_of_rows(shape, strides), wanted, "{shape:?} {strides:?}");
    }
}

/// Checks burn's treatment of padded rows, as far as operations here rely on it. It relies on rows that
/// begin at multiples of 16 bytes, as CUDA's do: with others, its copies of reshaped tensors are wrong.
#[test]
fn burn_reads_rows_with_room_behind_them() {
    let Some(device) = gpu() else { return };
    let [wanted, found] = [0, 8].map(|room| {
        let tensor =
            || Tensor::<3>::from_primitive::<Cube>(spaced(&device, &made(1, 2 * 9 * 24), [2, 9, 24], room));
        let heads = tensor().reshape([2, 9, 4, 6]);
        let swapped = heads.clone().swap_dims(1, 2);
        let grouped = swapped.clone().reshape([4, 18, 6]);
        let other = Tensor::<3>::from_data(TensorData::new(made(2, 4 * 6 * 9), [4, 6, 9]), &device);
        let left = matmul(grouped.clone(), other.clone());
        let right = matmul(other.transpose().reshape([2, 9, 12]).swap_dims(1, 2), tensor());
        [
            ("reshape", flat(heads)),
            ("swap", flat(swapped)),
            ("group", flat(grouped)),
            ("left", flat(left)),
            ("right", flat(right)),
            ("add", flat(tensor() + 1.0)),
            ("sum", flat(tensor().sum_dim(1))),
            ("cast", flat(tensor().cast(FloatDType::F16))),
        ]
    });
    for ((name, found), (_, wanted)) in found.iter().zip(&wanted) {
        let (largest, difference) = apart(found, wanted);
        println!("{name}: {difference} of {largest}");
        assert!(difference < 1e-5 * largest, "{name}: {difference} of {largest}");
    }
}

/// On CUDA rows of odd widths are padded; here the padding is added by hand.
#[test]
fn room_behind_rows_is_neither_read_nor_copied_away() {
    let Some(device) = gpu() else { return };
    let heads = AttentionHeads { query: 4, key: 2, width: 6 };
    let table = Rotary::new(0..9, 6, 10_000, None);
    type Operation<'a> = Box<dyn Fn(Tensor<3>) -> Tensor<3> + 'a>;
    let vector = |seed, length| {
        Tensor::<1>::from_data(TensorData::new(made(seed, length), [length]), &device).autodiff()
    };
    let matrix = |seed, [rows, columns]: [usize; 2]| vector(seed, rows * columns).reshape([rows, columns]);
    let project =
        |x| AcceleratorOps.project(Precision::F32, x, vec![matrix(3, [48, 7])], vec![vector(4, 7)], None);
    let operations: [(&str, Operation<'_>); 7] = [
        ("attention", Box::new(|x| AcceleratorOps.attention(DEVICE, x, heads, &AttentionMask::default()))),
        ("rotary", Box::new(|x| AcceleratorOps.rotary(x, heads, &table))),
        ("layer norm", Box::new(|x| AcceleratorOps.layer_norm(x, vector(5, 48), vector(6, 48), 1e-5))),
        ("rms norm", Box::new(|x| AcceleratorOps.rms_norm(x, vector(5, 48), 1e-5))),
        ("gelu", Box::new(|x| AcceleratorOps.gelu(x))),
        ("swiglu", Box::new(|x| AcceleratorOps.swiglu(x))),
        ("projection", Box::new(project)),
    ];
    for (name, operation) in operations {
        let [wanted, found] = [0, 8].map(|room| {
            let x = spaced(&device, &made(1, 2 * 9 * 48), [2, 9, 48], room);
            let x = Tensor::<3>::from_primitive::<Cube>(x).autodiff().require_grad();
            let y = operation(x.clone());
            let shape = y.dims();
            let upstream = spaced(&device, &made(2, shape.iter().product()), shape, room);
            let upstream = Tensor::<3>::from_primitive::<Cube>(upstream);
            let mut gradients = inject(DEVICE, y.clone(), upstream).backward();
            [flat(y.inner()), flat(x.grad_remove(&mut gradients).unwrap())]
        });
        for (found, wanted) in found.iter().zip(&wanted) {
            let (largest, difference) = apart(found, wanted);
            assert!(largest > 0.0 && difference < 1e-5 * largest, "{name}: {difference} of {largest}");
        }
    }
}

#[test]
fn a_loss_and_a_softmax_change_rows_where_they_are() {
    let Some(device) = gpu() else { return };
    let targets: Vec<u32> = (0..23).map(|i| i * 5 % 13).collect();
    let [wanted, found] = [0, 3].map(|room| {
        let leaf = Tensor::<2>::zeros([23, 13], &device).autodiff().require_grad();
        let logits = spaced(&device, &made(1, 23 * 13), [23, 13], room);
        let logits: Tensor<2> = record(vec![input(leaf.clone())], |_| {
            let gradient = move |d: CubeValues, _: [bool; INPUTS]| {
                assert_eq!(d.meta.strides()[0], 13 + room, "nothing was copied");
                vec![Some(d)]
            };
            (logits, Box::new(gradient))
        });
        let (loss, figures) = cross_entropy(DEVICE, logits, &targets, 0.1);
        let mut gradients = loss.backward();
        let figures = figures.read();
        (figures.hits, vec![figures.loss_sum as f32], flat(leaf.grad_remove(&mut gradients).unwrap()))
    });
    assert_eq!(found.0, wanted.0);
    assert!(apart(&found.1, &wanted.1).1 < 1e-4, "{found:?} for {wanted:?}");
    assert!(apart(&found.2, &wanted.2).1 < 1e-6, "{found:?} for {wanted:?}");

    let scores = [4, 2 * 9, 9];
    let [wanted, found] = [[0, 0], [7, 2]].map(|[room, d_room]| {
        let own = spaced(&device, &made(1, scores.iter().product()), scores, room);
        let d = spaced(&device, &made(2, scores.iter().product()), scores, d_room);
        let own = attention::softmax_of(own);
        assert_eq!(own.meta.strides()[1], 9 + room, "nothing was copied");
        let d = attention::softmax_back_of(own.clone(), d);
        assert_eq!(d.meta.strides()[1], 9 + d_room, "nothing was copied");
        [own, d].map(|side| flat(Tensor::<3>::from_primitive::<Cube>(side)))
    });
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!(apart(found, wanted).1 < 1e-6);
    }
    let sums = wanted[0].chunks(9).map(|row| row.iter().sum::<f32>());
    assert!(sums.into_iter().all(|sum| (sum - 1.0).abs() < 1e-5));
}

/// Beside the heads in 16 bits there is no packed tensor in 32.
#[test]
fn attention_keeps_heads_or_the_packed_tensor_and_never_both() {
    let Some(device) = gpu() else { return };
    let heads = AttentionHeads { query: 4, key: 2, width: 6 };
    for (forgets_scores, is_free) in [(false, true), (true, false)] {
        let leaf = spaced(&device, &made(1, 2 * 9 * 48), [2, 9, 48], 0);
        let leaf = Tensor::<3>::from_primitive::<Cube>(leaf).autodiff().require_grad();
        let packed = leaf.clone() * 1.0;
        let watched = values(packed.clone().inner());
        let y = AcceleratorOps.attention(
            Arithmetic { forgets_scores, ..DEVICE },
            packed,
            heads,
            &AttentionMask::default(),
        );
        assert!(flat(y.clone().inner()).iter().all(|value| value.is_finite()));
        assert_eq!(watched.can_mut(), is_free, "the packed tensor is unshared or not");
        let mut gradients = y.sum().backward();
        assert!(leaf.grad_remove(&mut gradients).is_some());
        assert!(watched.can_mut(), "after backward it is unshared");
    }
}

/// In f16 products of queries and keys above 65504 would be infinite; divided by the root of the width they
/// are not.
#[test]
fn large_queries_and_keys_stay_within_the_range_of_f16() {
    let Some(device) = gpu() else { return };
    let (tokens, width) = (7, 64);
    let heads = AttentionHeads { query: 1, key: 1, width };
    // All keys are equal but for their last value, which no query reads: every token attends to all before
    // it equally.
    let mut packed = made(1, tokens * 3 * width);
    for token in packed.chunks_mut(3 * width) {
        token[..2 * width].fill(45.0);
        token[width - 1] = 0.0;
    }
    for (token, row) in packed.chunks_mut(3 * width).enumerate() {
        row[2 * width - 1] = token as f32 - 3.0;
    }
    let shape = [1, tokens, 3 * width];
    let trace = |arithmetic: Arithmetic, device: &Place| {
        let leaf = Tensor::<3>::from_data(TensorData::new(packed.clone(), shape), device);
        let leaf = leaf.autodiff().require_grad();
        let y = crate::ops::attention(arithmetic, leaf.clone(), heads, &AttentionMask::default());
        let upstream = TensorData::new(made(2, tokens * width), [1, tokens, width]);
        let upstream = Tensor::<3>::from_data(upstream, device).autodiff();
        let mut gradients = (y.clone() * upstream).sum().backward();
        [flat(y.inner()), flat(leaf.grad_remove(&mut gradients).unwrap())]
    };
    let reference = Arithmetic { by: Implementation::Reference, ..DEVICE };
    let wanted = trace(reference, &Place::flex());
    for (precision, limit) in [(Precision::F32, 1e-4), (Precision::F16, 3e-2)] {
        let found = trace(Arithmetic { precision, ..DEVICE }, &device);
        for (found, wanted) in found.iter().zip(&wanted) {
            let (largest, difference) = apart(found, wanted);
            assert!(difference < limit * largest, "{precision:?}: {difference} of {largest}");
        }
        // Of queries only the last value has a gradient, which is small beside the others.
        let of_queries = |traced: &[Vec<f32>; 2]| -> Vec<f32> {
            traced[1].chunks(3 * width).map(|token| token[width - 1]).collect()
        };
        let (largest, difference) = apart(&of_queries(&found), &of_queries(&wanted));
        assert!(largest > 0.1 && difference < 3e-2 * largest, "{precision:?}: {difference} of {largest}");
    }
}
