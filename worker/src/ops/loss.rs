//! Cross-entropy on the host: softmax and loss in one pass, which replaces the scores by the gradient.

use super::custom_autograd::{BackwardFn, dense, input, record, shape, slice, vector};
use super::{DeferredLossFigures, LossFigures, VocabRange, chunks, kernels};
use crate::data::IGNORED;
use crate::mesh::Peers;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

pub(crate) fn cross_entropy(
    logits: Tensor<2>,
    targets: &[u32],
    z_loss: f32,
) -> (Tensor<1>, DeferredLossFigures) {
    let mut figures = LossFigures::default();
    let loss = record(vec![input(logits)], |values| {
        let [logits] = <[_; 1]>::try_from(values).expect("the loss has one input");
        let mut logits = dense(logits);
        let [count, classes] = shape(&logits);
        assert_eq!(targets.len(), count, "there is a target for each prediction");
        let rows = chunks::rows(classes);
        let parts = logits.storage_mut::<f32>().chunks_mut(rows * classes).zip(targets.chunks(rows));
        let partial = chunks::map(parts, |(logits, targets)| {
            let (mut loss, mut squares, mut hits, mut counted) = (0.0, 0.0, 0, 0);
            for (row, target) in logits.chunks_mut(classes).zip(targets) {
                if *target == IGNORED {
                    row.fill(0.0);
                    continue;
                }
                counted += 1;
                assert!((*target as usize) < classes, "target {target} is not one of {classes} classes");
                let (own, log_z, hit) = kernels::cross_entropy_row(row, *target as usize, z_loss);
                loss += f64::from(own);
                squares += f64::from(log_z).powi(2);
                hits += u64::from(hit);
            }
            (loss, squares, hits, counted)
        });
        let mut squares_sum = 0.0;
        for (loss, squares, hits, counted) in partial {
            figures.count += counted;
            figures.loss_sum += loss;
            squares_sum += squares;
            figures.hits += hits;
        }
        finish(&figures, f64::from(z_loss) * squares_sum, logits)
    });
    (loss, figures.into())
}

/// Computes the cross-entropy of scores whose classes are cut among `peers`. The ranks exchange three
/// numbers for each prediction: the largest score, the sum of exponentials and the score of the target.
///
/// Counted in `planner/src/step/traffic/model_parallel.rs`, `products`.
pub(crate) fn cross_entropy_of_part(
    logits: Tensor<2>,
    targets: &[u32],
    share: VocabRange,
    peers: &Peers,
    z_loss: f32,
) -> (Tensor<1>, DeferredLossFigures) {
    let mut figures = LossFigures::default();
    let loss = record(vec![input(logits)], |values| {
        let [logits] = <[_; 1]>::try_from(values).expect("the loss has one input");
        let mut logits = dense(logits);
        let [count, classes] = shape(&logits);
        assert_eq!(targets.len(), count, "there is a target for each prediction");
        let rows = chunks::rows(classes);
        let own = chunks::map(slice(&logits).chunks(rows * classes), |logits| {
            logits.chunks(classes).map(kernels::largest).collect::<Vec<_>>()
        });
        let largest = largest_of_all(&own.concat(), peers);
        let mut told = vec![[0.0; 2]; count];
        let parts = logits.storage_mut::<f32>().chunks_mut(rows * classes);
        let parts = parts.zip(told.chunks_mut(rows)).zip(largest.chunks(rows).zip(targets.chunks(rows)));
        chunks::each(parts, |((logits, told), (largest, targets))| {
            let rows = logits.chunks_mut(classes).zip(told).zip(largest.iter().zip(targets));
            for ((row, [sum, wanted]), (largest, target)) in rows {
                let own = Some(*target).filter(|target| *target != IGNORED);
                let own = own.and_then(|target| share.own(target, classes));
                *wanted = own.map_or(0.0, |own| row[own]);
                *sum = kernels::exp_row(row, *largest);
            }
        });
        peers.all_reduce(told.as_flattened_mut());
        let parts = logits.storage_mut::<f32>().chunks_mut(rows * classes);
        let parts = parts.zip(told.chunks(rows)).zip(largest.chunks(rows).zip(targets.chunks(rows)));
        chunks::each(parts, |((logits, told), (largest, targets))| {
            let rows = logits.chunks_mut(classes).zip(told).zip(largest.iter().zip(targets));
            for ((row, [sum, _]), (largest, target)) in rows {
                if *target == IGNORED {
                    row.fill(0.0);
                    continue;
                }
                let log_z = sum.ln() + largest;
                kernels::scale(row, (1.0 + 2.0 * z_loss * log_z) / sum);
                if let Some(own) = share.own(*target, classes) {
                    row[own] -= 1.0;
                }
            }
        });
        let mut squares_sum = 0.0;
        let all = told.iter().zip(&largest).zip(targets).filter(|(_, target)| **target != IGNORED);
        for (([sum, wanted], largest), _) in all {
            figures.count += 1;
            let log_z = sum.ln() + largest;
            figures.loss_sum += f64::from(log_z - wanted);
            squares_sum += f64::from(log_z).powi(2);
            figures.hits += u64::from(wanted >= largest);
        }
        finish(&figures, f64::from(z_loss) * squares_sum, logits)
    });
    (loss, figures.into())
}

/// Returns the largest score of each prediction over all `peers`.
pub(super) fn largest_of_all(own: &[f32], peers: &Peers) -> Vec<f32> {
    let count = own.len();
    let mut all = vec![0.0; count * peers.size() as usize];
    all[count * peers.rank() as usize..][..count].copy_from_slice(own);
    peers.all_gather(&mut all);
    let mut largest = own.to_vec();
    for theirs in all.chunks(count.max(1)) {
        largest.iter_mut().zip(theirs).for_each(|(largest, score)| *largest = largest.max(*score));
    }
    largest
}

/// Returns the mean of the cross-entropies and of the z-losses, whose sum is `z_losses`, and its backward,
/// which scales the gradient that replaced the scores.
fn finish(figures: &LossFigures, z_losses: f64, mut differences: FlexTensor) -> (FlexTensor, BackwardFn) {
    // Of no target that counts, the mean is 0, and so is every gradient.
    let count = figures.count.max(1);
    let mean = ((figures.loss_sum + z_losses) / count as f64) as f32;
    let gradient = move |d: FlexTensor, _: [bool; 8]| {
        let factor = slice(&d)[0] / count as f32;
        let parts = differences.storage_mut::<f32>().chunks_mut(chunks::rows(1));
        chunks::each(parts, |part| kernels::scale(part, factor));
        vec![Some(differences)]
    };
    (vector(vec![mean], [1]), Box::new(gradient))
}
