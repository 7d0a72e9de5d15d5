//! Operations of the host and of a device equal the reference on the host, in values and in all gradients;
//! and so does the reference on a device.

use super::*;
use burn::tensor::{Device, TensorData};
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{DeviceKind, Placement};

const REFERENCE: Arithmetic =
    Arithmetic { by: Implementation::Reference, precision: Precision::F32, forgets_scores: false };
pub(super) const HOST: Arithmetic = Arithmetic { by: Implementation::Host, ..REFERENCE };
#[cfg(feature = "device")]
const DEVICE: Arithmetic = Arithmetic { by: Implementation::Device, ..REFERENCE };

/// Returns values in [-2, 2), a function of `seed`.
pub(super) fn values(seed: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| (splitmix64(seed, i as u64) % 4000) as f32 / 1000.0 - 2.0).collect()
}

/// Creates a leaf with gradient on the host.
fn leaf<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<D> {
    leaf_on(&Device::flex(), seed, shape)
}

/// Creates a leaf with gradient.
fn leaf_on<const D: usize>(device: &Device, seed: u64, shape: [usize; D]) -> Tensor<D> {
    let data = TensorData::new(values(seed, shape.iter().product()), shape);
    Tensor::from_data(data, device).autodiff().require_grad()
}

/// Returns the first GPU of wgpu, or Mesa's software device; without any `None`, recorded as skipped.
pub(crate) fn gpu() -> Option<Device> {
    let placement = Placement { host: 0, device: DeviceKind::Wgpu, index: 0, threads: 1 };
    crate::device::open(&placement).map_err(|reason| dtrain_skip::skip_part("on a device", reason)).ok()
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// Returns value and gradients of an operation of up to three-dimensional leaves, under a gradient that
/// differs in every element.
fn trace(
    leaves: &[(u64, &[usize])],
    device: &Device,
    run: impl Fn(&[Tensor<3>]) -> Tensor<3>,
) -> Vec<Vec<f32>> {
    let leaves: Vec<Tensor<3>> = leaves
        .iter()
        .map(|(seed, shape)| {
            let mut three = [1; 3];
            three[3 - shape.len()..].copy_from_slice(shape);
            leaf_on(device, *seed, three)
        })
        .collect();
    let out = run(&leaves);
    let shape = out.dims();
    let upstream = TensorData::new(values(99, shape.iter().product()), shape);
    let upstream = Tensor::<3>::from_data(upstream, device).autodiff();
    let mut gradients = (out.clone() * upstream).sum().backward();
    let mut traced = vec![flat(out.inner())];
    traced.extend(
        leaves.iter().map(|leaf| flat(leaf.grad_remove(&mut gradients).expect("every leaf is used"))),
    );
    traced
}

pub(super) fn check(leaves: &[(u64, &[usize])], run: impl Fn(Arithmetic, &[Tensor<3>]) -> Tensor<3>) {
    let wanted = trace(leaves, &Device::flex(), |leaves| run(REFERENCE, leaves));
    compare(&wanted, &trace(leaves, &Device::flex(), |leaves| run(HOST, leaves)), 1e-5);
    if let Some(gpu) = gpu() {
        // burn approximates the error function on devices: the gradient of its GELU differs by 8e-4.
        compare(&wanted, &trace(leaves, &gpu, |leaves| run(REFERENCE, leaves)), 1e-3);
        #[cfg(feature = "device")]
        compare(&wanted, &trace(leaves, &gpu, |leaves| run(DEVICE, leaves)), 1e-5);
    }
}

/// Asserts that every difference is below `limit` of the largest value.
fn compare(wanted: &[Vec<f32>], found: &[Vec<f32>], limit: f32) {
    for (which, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let largest = wanted.iter().fold(1e-3, |a: f32, b| a.max(b.abs()));
        assert!(wanted.iter().any(|w| *w != 0.0), "{which}: nothing to compare");
        for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
            assert!((f - w).abs() < limit * largest, "{which} (0 is the value), element {i}: {f} for {w}");
        }
    }
}

fn matrix(tensor: &Tensor<3>) -> Tensor<2> {
    tensor.clone().squeeze_dim(0)
}

fn vector(tensor: &Tensor<3>) -> Tensor<1> {
    tensor.clone().flatten(0, 2)
}

#[test]
fn a_projection_is_matrix_products_side_by_side() {
    let leaves: [(u64, &[usize]); 8] = [
        (1, &[2, 5, 7]),
        (2, &[7, 3]),
        (3, &[7, 4]),
        (4, &[7, 1]),
        (5, &[3]),
        (6, &[4]),
        (7, &[1]),
        (8, &[2, 5, 8]),
    ];
    let weights = |l: &[Tensor<3>]| l[1..4].iter().map(matrix).collect::<Vec<_>>();
    let biases = |l: &[Tensor<3>]| l[4..7].iter().map(vector).collect::<Vec<_>>();
    check(&leaves, |a, l| project(a, l[0].clone(), weights(l), biases(l), Some(l[7].clone())));
    check(&leaves[..7], |a, l| project(a, l[0].clone(), weights(l), biases(l), None));
    check(&leaves[..4], |a, l| project(a, l[0].clone(), weights(l), vec![], None));
    check(&leaves[..2], |a, l| project(a, l[0].clone(), vec![matrix(&l[1])], vec![], None));
}

#[test]
fn a_projection_reads_a_transposed_weight_in_place() {
    let leaves: [(u64, &[usize]); 2] = [(1, &[3, 5, 7]), (2, &[11, 7])];
    check(&leaves, |a, l| project(a, l[0].clone(), vec![matrix(&l[1]).transpose()], vec![], None));
}

#[test]
fn attention_sees_no_later_token_and_shares_its_keys() {
    for (query, key, width, t) in
        [(3, 3, 4, 5), (4, 2, 2, 9), (6, 1, 3, 7), (2, 1, 8, 150), (1, 1, 6, 64), (2, 2, 4, 1)]
    {
        let heads = AttentionHeads { query, key, width };
        check(&[(1, &[2, t, (query + 2 * key) * width])], |a, l| {
            attention(a, l[0].clone(), heads, &AttentionMask::default())
        });
    }
}

#[test]
fn attention_computed_again_has_the_same_gradient() {
    let again = Arithmetic { forgets_scores: true, ..REFERENCE };
    for (query, key, width, t) in [(3, 3, 4, 5), (4, 2, 2, 9)] {
        let (heads, leaves) = (AttentionHeads { query, key, width }, [2, t, (query + 2 * key) * width]);
        let trace = |a| {
            trace(&[(1, &leaves)], &Device::flex(), |l| {
                attention(a, l[0].clone(), heads, &AttentionMask::default())
            })
        };
        let (found, wanted) = (trace(again), trace(REFERENCE));
        // Without autodiff the softmax is another, with other bits.
        assert!(found[0].iter().zip(&wanted[0]).all(|(f, w)| (f - w).abs() < 1e-6));
        assert_eq!(found[1], wanted[1]);
    }
}

/// The device's approximations to full precision: with scores computed again, and with products in f16.
#[cfg(feature = "device")]
#[test]
fn a_device_forgets_scores_and_computes_in_half_precision() {
    let Some(gpu) = gpu() else { return };
    let leaves: [(u64, &[usize]); 5] = [(1, &[2, 5, 7]), (2, &[7, 3]), (3, &[7, 4]), (4, &[3]), (5, &[4])];
    let linear = |a, l: &[Tensor<3>]| {
        project(
            a,
            l[0].clone(),
            l[1..3].iter().map(matrix).collect::<Vec<_>>(),
            l[3..].iter().map(vector).collect(),
            None,
        )
    };
    let heads = AttentionHeads { query: 4, key: 2, width: 6 };
    let mix = |a, l: &[Tensor<3>]| attention(a, l[0].clone(), heads, &AttentionMask::default());
    let packed: [(u64, &[usize]); 1] = [(1, &[2, 37, 48])];
    let half = Arithmetic { precision: Precision::F16, ..DEVICE };
    let again = Arithmetic { forgets_scores: true, ..DEVICE };
    let host = Device::flex();
    compare(
        &trace(&leaves, &host, |l| linear(REFERENCE, l)),
        &trace(&leaves, &gpu, |l| linear(half, l)),
        1e-2,
    );
    let wanted = trace(&packed, &host, |l| mix(REFERENCE, l));
    compare(&wanted, &trace(&packed, &gpu, |l| mix(half, l)), 1e-2);
    compare(&wanted, &trace(&packed, &gpu, |l| mix(again, l)), 1e-5);
}

/// Weight gradients computed at once, and deferred: `(gradient of the input, gradients of weights)`.
#[test]
fn gradients_of_weights_that_are_left_are_the_same_to_the_last_bit() {
    let shapes: [(u64, [usize; 2]); 3] = [(2, [7, 3]), (3, [7, 4]), (4, [6, 7])];
    for arithmetic in [REFERENCE, HOST, Arithmetic { precision: Precision::Bf16, ..REFERENCE }] {
        let x = leaf(1, [2, 5, 7]);
        let run = |later: Option<&DeferredWeightGrads>| {
            let leaves = shapes.map(|(seed, shape)| leaf::<2>(seed, shape));
            let factor = |place: usize| LinearWeight::new(leaves[place].clone(), place, later.cloned());
            // The last one is transposed, like a tied embedding.
            let factors = vec![factor(0), factor(1), factor(2).transpose()];
            let y = project(arithmetic, x.clone(), factors, vec![], Some(leaf(9, [2, 5, 13])));
            let upstream = leaf(99, y.dims()).inner();
            let mut found = inject(arithmetic, y, upstream).backward();
            let input = flat(x.grad_remove(&mut found).expect("the input is used"));
            let now: Vec<_> = leaves.iter().map(|leaf| leaf.grad_remove(&mut found).map(flat)).collect();
            (input, now)
        };
        let (wanted_input, wanted) = run(None);
        let later = DeferredWeightGrads::default();
        let (input, now) = run(Some(&later));
        assert_eq!(input, wanted_input);
        assert!(now.iter().all(Option::is_none), "they are left");
        let found: Vec<_> = later.compute().into_iter().map(|(place, d)| (place, Some(flat(d)))).collect();
        assert_eq!(found, wanted.into_iter().enumerate().collect::<Vec<_>>(), "{arithmetic:?}");
        assert!(later.compute().is_empty(), "they are computed once");
    }
}

#[test]
fn rotary_turns_pairs_by_position() {
    let heads = AttentionHeads { query: 4, key: 2, width: 6 };
    // A table of its own for each device: a stage has one.
    let table = || Rotary::new(0..12, 6, 10_000, None);
    // The product keeps the input alive, so that an in-place rotation would be noticed.
    check(&[(1, &[2, 9, 48])], |a, l| rotary(a, l[0].clone(), heads, &table()) * l[0].clone());
    let x = leaf(1, [1, 2, 48]).inner();
    let turned = flat(rotary(HOST, x.clone(), heads, &table()));
    let x = flat(x);
    assert_eq!(turned[..48], x[..48], "the first position does not turn");
    let (sin, cos) = 1f32.sin_cos();
    assert!((turned[48] - (x[48] * cos - x[51] * sin)).abs() < 1e-6);
    assert_eq!(turned[84..], x[84..], "values do not turn");
    let of = |base| Rotary::new(1..2, 4, base, None).cos[1];
    assert!((of(10_000) - 0.01f32.cos()).abs() < 1e-6, "the second pair turns by 1 / sqrt(base)");
    assert!((of(100) - 0.1f32.cos()).abs() < 1e-6);
}

#[test]
fn norms_normalise_rows() {
    for (rows, width) in [(60, 1), (60, 7), (2, 33), (60, 300)] {
        let leaves: [(u64, &[usize]); 3] = [(1, &[3, rows, width]), (2, &[width]), (3, &[width])];
        if width > 1 {
            check(&leaves, |a, l| layer_norm(a, l[0].clone(), vector(&l[1]), vector(&l[2]), 1e-5));
        }
        check(&leaves[..2], |a, l| rms_norm(a, l[0].clone(), vector(&l[1]), 1e-5));
    }
}

#[test]
fn activations_are_the_exact_ones() {
    check(&[(1, &[3, 7, 11])], |a, l| gelu(a, l[0].clone()));
    check(&[(1, &[3, 7, 11])], |a, l| gelu_tanh(a, l[0].clone()));
    check(&[(1, &[3, 7, 22])], |a, l| swiglu(a, l[0].clone()));
    check(&[(1, &[3, 7, 22])], |a, l| geglu(a, l[0].clone()));
    check(&[(1, &[3, 70, 122])], |a, l| swiglu(a, l[0].clone()));
}

#[test]
fn embedding_adds_up_the_gradients_of_repeated_tokens() {
    let tokens = [3, 0, 3, 3, 4, 1, 1, 0];
    let whole = VocabRange { begin: 0, of: 5 };
    check(&[(1, &[5, 7])], |a, l| embed(a, matrix(&l[0]), whole, &tokens, [2, 4]));
    // Rows 2 to 4 of 7: other ranks hold the rows of some tokens.
    let part = VocabRange { begin: 2, of: 7 };
    check(&[(1, &[3, 7])], |a, l| embed(a, matrix(&l[0]), part, &tokens, [4, 2]));
    // More than the units of one cube.
    let tokens: Vec<_> = (0..90).map(|i| i * i % 37).collect();
    let share = VocabRange { begin: 0, of: 37 };
    check(&[(1, &[37, 33])], |a, l| embed(a, matrix(&l[0]), share, &tokens, [3, 30]));
}

#[test]
fn positions_are_added_where_they_are_said_to_be() {
    let leaves: [(u64, &[usize]); 2] = [(1, &[2, 4, 7]), (2, &[6, 7])];
    // The product keeps the input alive, so that an in-place addition would be noticed.
    for places in [[5, 0, 1, 3], [0, 1, 2, 3], [2, 3, 4, 5]] {
        check(&leaves, |a, l| add_positions(a, l[0].clone(), matrix(&l[1]), &places) * l[0].clone());
    }
}

#[test]
fn cross_entropy_scales_by_what_comes_from_above() {
    let targets: Vec<u32> = (0..23).map(|i| i * 5 % 13).collect();
    let loss = |a: Arithmetic, l: &Tensor<3>| cross_entropy(a, matrix(l) * 3.0, &targets, 0.0);
    check(&[(1, &[23, 13])], |a, l| loss(a, &l[0]).0.reshape([1, 1, 1]));
    let logits = leaf(1, [1, 23, 13]).inner();
    let wanted = loss(REFERENCE, &logits).1.read();
    assert!(wanted.hits > 0);
    let same = |found: LossFigures| {
        assert_eq!((found.hits, found.count), (wanted.hits, wanted.count));
        assert!((found.loss_sum - wanted.loss_sum).abs() < 1e-4 * wanted.loss_sum);
    };
    same(loss(HOST, &logits).1.read());
    #[cfg(feature = "device")]
    if let Some(gpu) = gpu() {
        let logits = leaf_on(&gpu, 1, [1, 23, 13]).inner();
        same(loss(DEVICE, &logits).1.read());
    }
}

/// Returns mean cross-entropy and mean square of log(Z) of rows of `classes` scores, by the formulas.
fn entropy_and_square(scores: &[f64], classes: usize, targets: &[u32]) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for (row, target) in scores.chunks(classes).zip(targets) {
        let log_z = row.iter().map(|score| score.exp()).sum::<f64>().ln();
        sums[0] += log_z - row[*target as usize];
        sums[1] += log_z * log_z;
    }
    sums.map(|sum| sum / targets.len() as f64)
}

#[test]
fn a_z_loss_is_in_the_loss_and_its_gradient_and_not_in_the_figures() {
    const Z_LOSS: f32 = 0.3;
    let (rows, classes) = (23, 13);
    let targets: Vec<u32> = (0..23).map(|i| i * 5 % 13).collect();
    check(&[(1, &[rows, classes])], |a, l| {
        cross_entropy(a, matrix(&l[0]) * 3.0, &targets, Z_LOSS).0.reshape([1, 1, 1])
    });
    let scores: Vec<_> = values(1, rows * classes).into_iter().map(f64::from).collect();
    let formula = |scores: &[f64]| {
        let [entropy, square] = entropy_and_square(scores, classes, &targets);
        entropy + f64::from(Z_LOSS) * square
    };
    let [wanted_entropy, _] = entropy_and_square(&scores, classes, &targets);
    let agrees = |arithmetic, device: &Device| {
        let logits = leaf_on(device, 1, [rows, classes]);
        let (loss, figures) = cross_entropy(arithmetic, logits.clone(), &targets, Z_LOSS);
        let mut gradients = loss.backward();
        let found = f64::from(loss.into_scalar::<f32>());
        assert!((found - formula(&scores)).abs() < 1e-5 * found, "{found}");
        let figures = figures.read();
        let entropy = figures.loss_sum / figures.count as f64;
        assert!((entropy - wanted_entropy).abs() < 1e-5 * entropy, "{entropy} for {wanted_entropy}");
        let gradient = flat(logits.grad_remove(&mut gradients).unwrap());
        for (place, found) in gradient.into_iter().enumerate() {
            let at = |shift| {
                let mut moved = scores.clone();
                moved[place] += shift;
                formula(&moved)
            };
            let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((f64::from(found) - difference).abs() < 1e-6, "{place}: {found} for {difference}");
        }
    };
    agrees(REFERENCE, &Device::flex());
    agrees(HOST, &Device::flex());
    #[cfg(feature = "device")]
    if let Some(gpu) = gpu() {
        agrees(DEVICE, &gpu);
    }
}

#[test]
fn scores_that_a_loss_was_computed_of_are_still_there() {
    let keeps = |arithmetic, device: &Device| {
        let logits = leaf_on(device, 1, [5, 300]);
        let (loss, _) = cross_entropy(arithmetic, logits.clone(), &[0, 299, 7, 8, 9], 0.1);
        let mut gradients = loss.backward();
        assert!(logits.grad_remove(&mut gradients).is_some());
        assert_eq!(flat(logits.inner()), values(1, 1500));
    };
    keeps(HOST, &Device::flex());
    #[cfg(feature = "device")]
    if let Some(gpu) = gpu() {
        keeps(DEVICE, &gpu);
    }
}

#[test]
fn an_injected_gradient_arrives_as_it_is() {
    let arrives = |arithmetic, device: &Device| {
        let (output, upstream) = (leaf_on(device, 1, [2, 3, 4]), leaf_on(device, 2, [2, 3, 4]).inner());
        let mut gradients = inject(arithmetic, output.clone(), upstream.clone()).backward();
        assert_eq!(flat(output.grad_remove(&mut gradients).unwrap()), flat(upstream));
    };
    arrives(REFERENCE, &Device::flex());
    arrives(HOST, &Device::flex());
    #[cfg(feature = "device")]
    if let Some(gpu) = gpu() {
        arrives(DEVICE, &gpu);
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    let heads = AttentionHeads { query: 4, key: 2, width: 16 };
    let once = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let leaves: [(u64, &[usize]); 4] = [(1, &[4, 130, 96]), (2, &[96, 128]), (3, &[128]), (4, &[64])];
            trace(&leaves, &Device::flex(), |l| {
                let packed = project(HOST, l[0].clone(), vec![matrix(&l[1])], vec![vector(&l[2])], None);
                rms_norm(HOST, attention(HOST, packed, heads, &AttentionMask::default()), vector(&l[3]), 1e-5)
            })
        })
    };
    assert_eq!(once(1), once(2));
    assert_eq!(once(1), once(3));
}
