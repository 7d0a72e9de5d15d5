//! Reference implementation: every operation as a composition of tensor operations, used if there is
//! nothing faster, and as the standard in tests.

use super::deferred_weight_grad::WeightLayout;
use super::loss::largest_of_all;
use super::{AttentionHeads, AttentionMask, DeferredLossFigures, Rotary, VocabRange, collective};
use crate::data::IGNORED;
use crate::mesh::Peers;
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor, TensorData, activation};
use dtrain_recipes::Precision;

/// Returns the matrix product `lhs · rhs` in precision `precision`; the result is f32.
fn matmul<const D: usize>(precision: Precision, lhs: Tensor<D>, rhs: Tensor<D>) -> Tensor<D> {
    let half = match precision {
        Precision::F32 => return lhs.matmul(rhs),
        Precision::Bf16 => FloatDType::BF16,
        Precision::F16 => FloatDType::F16,
        Precision::Fp8 => unreachable!("it is refused before anything starts"),
    };
    lhs.cast(half).matmul(rhs.cast(half)).cast(FloatDType::F32)
}

pub(crate) fn project(
    precision: Precision,
    x: Tensor<3>,
    weights: Vec<Tensor<2>>,
    biases: Vec<Tensor<1>>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    let [b, t, _] = x.dims();
    let rows: Tensor<2> = x.flatten(0, 1);
    let mut biases = biases.into_iter();
    let columns = weights.into_iter().map(|weight| {
        let y = matmul(precision, rows.clone(), weight);
        match biases.next() {
            Some(bias) => y + bias.unsqueeze(),
            None => y,
        }
    });
    let columns: Vec<_> = columns.collect();
    let y = if columns.len() == 1 { columns.into_iter().next() } else { Some(Tensor::cat(columns, 1)) };
    let y = y.expect("a projection has a weight");
    let out = y.dims()[1];
    let y = y.reshape([b, t, out]);
    match residual {
        Some(residual) => residual + y,
        None => y,
    }
}

/// Returns the gradients of the weights of a projection from its input and the gradient of its output,
/// flat, in the layout of the weights.
pub(super) fn weight_gradients(
    precision: Precision,
    x: Tensor<3>,
    d: Tensor<3>,
    sides: &[WeightLayout],
) -> Vec<Tensor<1>> {
    let (x, d): (Tensor<2>, Tensor<2>) = (x.flatten(0, 1), d.flatten(0, 1));
    let mut before = 0;
    let gradients = sides.iter().map(|side| {
        let part = d.clone().narrow(1, before, side.columns);
        before += side.columns;
        let gradient = matmul(precision, x.clone().transpose(), part);
        if side.is_transposed { gradient.transpose().flatten(0, 1) } else { gradient.flatten(0, 1) }
    });
    gradients.collect()
}

pub(crate) fn rotary(packed: Tensor<3>, heads: AttentionHeads, table: &Rotary) -> Tensor<3> {
    let [b, t, all] = packed.dims();
    let (turned, half) = (heads.query + heads.key, heads.width / 2);
    let device = packed.device();
    let [cos, sin] = table.whole(half, &device).map(|angles| {
        let angles: Tensor<4> = angles.narrow(0, 0, t).reshape([1, t, 1, half]);
        if packed.is_autodiff() { angles.autodiff() } else { angles }
    });
    let x = packed.clone().narrow(2, 0, turned * heads.width).reshape([b, t, turned, heads.width]);
    let (low, high) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
    let turned_low = low.clone() * cos.clone() - high.clone() * sin.clone();
    let turned_high = high * cos + low * sin;
    let turned_heads = Tensor::cat(vec![turned_low, turned_high], 3).reshape([b, t, turned * heads.width]);
    let rest = all - turned * heads.width;
    Tensor::cat(vec![turned_heads, packed.narrow(2, turned * heads.width, rest)], 2)
}

pub(crate) fn attention(
    precision: Precision,
    packed: Tensor<3>,
    heads: AttentionHeads,
    mask: &AttentionMask,
) -> Tensor<3> {
    let [b, t, _] = packed.dims();
    let AttentionHeads { query, key, width } = heads;
    let part = |from: usize, count: usize| {
        let columns = packed.clone().narrow(2, from * width, count * width);
        columns.reshape([b, t, count, width]).swap_dims(1, 2)
    };
    // Every key head serves `query / key` query heads.
    let repeated = |x: Tensor<4>| {
        if query == key {
            return x;
        }
        let x: Tensor<5> = x.unsqueeze_dim(2);
        x.repeat_dim(2, query / key).reshape([b, query, t, width])
    };
    let (q, k, v) = (part(0, query), repeated(part(query, key)), repeated(part(query + key, key)));
    let scores = matmul(precision, q, k.transpose()) * (width as f32).powf(-0.5);
    let hidden: Tensor<4, Bool> = if mask.is_causal(t) {
        causal_mask(t, &packed.device()).unsqueeze()
    } else {
        mask.hidden([b, t], &packed.device()).unsqueeze_dim(1)
    };
    let scores = scores.mask_fill(hidden.expand([b, query, t, t]), f32::NEG_INFINITY);
    let mixed = matmul(precision, activation::softmax(scores, 3), v);
    mixed.swap_dims(1, 2).reshape([b, t, query * width])
}

/// Returns the mask of the keys that come after each query. `[t, t]`
///
/// A range of numbers would be made on the host and copied to the device, so ones are summed there.
fn causal_mask(t: usize, device: &Device) -> Tensor<2, Bool> {
    let queries = Tensor::<2>::ones([t, 1], &device.clone().inner()).cumsum(0);
    let keys = queries.clone().transpose();
    keys.expand([t, t]).greater(queries.expand([t, t]))
}

pub(crate) fn layer_norm(x: Tensor<3>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f32) -> Tensor<3> {
    let centred = x.clone() - x.mean_dim(2);
    let variance = (centred.clone() * centred.clone()).mean_dim(2);
    centred / (variance + epsilon).sqrt() * weight.unsqueeze() + bias.unsqueeze()
}

pub(crate) fn rms_norm(x: Tensor<3>, weight: Tensor<1>, epsilon: f32) -> Tensor<3> {
    let square = (x.clone() * x.clone()).mean_dim(2);
    x / (square + epsilon).sqrt() * weight.unsqueeze()
}

pub(crate) fn gelu_tanh(x: Tensor<3>) -> Tensor<3> {
    let inner = (x.clone() * x.clone() * super::CUBIC + 1.0) * x.clone() * super::SLOPE;
    x * activation::sigmoid(inner)
}

pub(crate) fn swiglu(packed: Tensor<3>) -> Tensor<3> {
    let width = packed.dims()[2] / 2;
    let (gate, up) = (packed.clone().narrow(2, 0, width), packed.narrow(2, width, width));
    activation::sigmoid(gate.clone()) * gate * up
}

pub(crate) fn geglu(packed: Tensor<3>) -> Tensor<3> {
    let width = packed.dims()[2] / 2;
    gelu_tanh(packed.clone().narrow(2, 0, width)) * packed.narrow(2, width, width)
}

pub(crate) fn embed(
    table: Tensor<2>,
    share: VocabRange,
    tokens: &[u32],
    [samples, length]: [usize; 2],
) -> Tensor<3> {
    let [rows, width] = table.dims();
    if rows == share.of {
        // A device would read out of bounds.
        tokens.iter().for_each(|id| assert!((*id as usize) < rows, "{id} is not one of {rows}"));
        let tokens = indices(tokens, &table);
        return table.select(0, tokens).reshape([samples, length, width]);
    }
    let (own, held) = local_rows(share, tokens, rows, &table);
    table.select(0, own).reshape([samples, length, width]) * held.reshape([samples, length, 1])
}

pub(crate) fn add_positions(x: Tensor<3>, table: Tensor<2>, places: &[usize]) -> Tensor<3> {
    let [b, t, width] = x.dims();
    let first = places.first().copied().unwrap_or(0);
    let rows = if places.iter().copied().eq(first..first + places.len()) {
        table.narrow(0, first, places.len())
    } else {
        #[expect(clippy::cast_possible_truncation, reason = "positions of a context, a u32")]
        let places: Vec<_> = places.iter().map(|place| *place as u32).collect();
        table.clone().select(0, indices(&places, &table))
    };
    if places.len() == b * t { x + rows.reshape([b, t, width]) } else { x + rows.unsqueeze() }
}

pub(crate) fn cross_entropy(
    logits: Tensor<2>,
    targets: &[u32],
    z_loss: f32,
) -> (Tensor<1>, DeferredLossFigures) {
    if targets.contains(&IGNORED) {
        return counted_cross_entropy(logits, targets, z_loss);
    }
    let count = targets.len();
    let wanted = indices(targets, &logits);
    let hits = logits.clone().inner().argmax(1).reshape([count]).equal(wanted.clone().inner()).int().sum();
    let wanted = wanted.reshape([count, 1]);
    let picked = activation::log_softmax(logits.clone(), 1).gather(1, wanted.clone());
    let loss = picked.clone().mean().neg();
    let figures = DeferredLossFigures::on_device(loss.clone().inner(), hits, count as u64);
    (with_z_loss(loss, z_loss, || logits.gather(1, wanted) - picked), figures)
}

/// Returns the rows of `logits` whose targets count, and these targets.
fn counted_rows(logits: Tensor<2>, targets: &[u32]) -> (Tensor<2>, Vec<u32>) {
    let counted = (0u32..).zip(targets).filter(|(_, target)| **target != IGNORED);
    let (rows, targets): (Vec<u32>, Vec<u32>) = counted.map(|(row, target)| (row, *target)).unzip();
    let rows = indices(&rows, &logits);
    (logits.select(0, rows), targets)
}

/// Computes [`cross_entropy`] of the predictions whose targets count.
fn counted_cross_entropy(
    logits: Tensor<2>,
    targets: &[u32],
    z_loss: f32,
) -> (Tensor<1>, DeferredLossFigures) {
    let nothing = logits.clone().sum() * 0.0;
    let (rows, targets) = counted_rows(logits, targets);
    if targets.is_empty() {
        return (nothing, DeferredLossFigures::default());
    }
    cross_entropy(rows, &targets, z_loss)
}

pub(crate) fn cross_entropy_of_part(
    logits: Tensor<2>,
    targets: &[u32],
    share: VocabRange,
    peers: &Peers,
    z_loss: f32,
) -> (Tensor<1>, DeferredLossFigures) {
    if targets.contains(&IGNORED) {
        let nothing = logits.clone().sum() * 0.0;
        let (rows, targets) = counted_rows(logits, targets);
        // All ranks have the same targets, so that all return here.
        if targets.is_empty() {
            return (nothing, DeferredLossFigures::default());
        }
        return cross_entropy_of_part(rows, &targets, share, peers, z_loss);
    }
    let [count, classes] = logits.dims();
    let own: Vec<f32> = logits.clone().inner().max_dim(1).into_data().try_to_vec().expect("scores are f32");
    let largest = largest_of_all(&own, peers);
    let largest = Tensor::<2>::from_data(TensorData::new(largest, [count, 1]), &logits.device());
    let (own, held) = local_rows(share, targets, classes, &logits);
    let wanted = logits.clone().gather(1, own.reshape([count, 1])) * held.reshape([count, 1]);
    let sums = (logits - largest.clone()).exp().sum_dim(1);
    let told = Tensor::cat(vec![sums, wanted], 1).unsqueeze();
    let told: Tensor<2> = collective::sum_from(told, None, None, peers).squeeze_dim(0);
    let (sums, wanted) = (told.clone().narrow(1, 0, 1), told.narrow(1, 1, 1));
    let hits = wanted.clone().inner().greater_equal(largest.clone().inner()).int().sum();
    let log_z = sums.log() + largest;
    let loss = (log_z.clone() - wanted).mean();
    let figures = DeferredLossFigures::on_device(loss.clone().inner(), hits, count as u64);
    (with_z_loss(loss, z_loss, || log_z), figures)
}

/// Returns `loss` plus `z_loss` times the mean square of `log_z`.
fn with_z_loss(loss: Tensor<1>, z_loss: f32, log_z: impl FnOnce() -> Tensor<2>) -> Tensor<1> {
    if z_loss == 0.0 {
        return loss;
    }
    let log_z = log_z();
    loss + (log_z.clone() * log_z).mean() * z_loss
}

pub(crate) fn inject(output: Tensor<3>, upstream: Tensor<3>) -> Tensor<1> {
    (output * upstream.autodiff()).sum()
}

/// Returns the index of each of `ids` among this rank's `rows` rows, and 1 for those that it holds, 0 for all
/// others.
fn local_rows(share: VocabRange, ids: &[u32], rows: usize, near: &Tensor<2>) -> (Tensor<1, Int>, Tensor<1>) {
    let own: Vec<_> = ids.iter().map(|id| share.own(*id, rows)).collect();
    #[expect(clippy::cast_possible_truncation, reason = "below the number of rows, a u32")]
    let places: Vec<_> = own.iter().map(|own| own.unwrap_or(0) as u32).collect();
    let held: Vec<f32> = own.iter().map(|own| if own.is_some() { 1.0 } else { 0.0 }).collect();
    let held = TensorData::new(held, [ids.len()]);
    (indices(&places, near), Tensor::from_data(held, &near.device()))
}

/// Copies `ids` to the device of `near`, as indices.
fn indices(ids: &[u32], near: &Tensor<2>) -> Tensor<1, Int> {
    let ids: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
    let count = ids.len();
    Tensor::from_data(TensorData::new(ids, [count]), &near.device())
}
