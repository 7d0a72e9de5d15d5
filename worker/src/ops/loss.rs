//! Softmax and cross-entropy in one pass, which leaves the gradient behind.

use super::tape::{dense, input, record, shape, slice, vector};
use super::{LossFigures, chunks, kernels};
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

pub(crate) fn cross_entropy(logits: Tensor<2>, targets: &[u32]) -> (Tensor<1>, LossFigures) {
    let mut figures = LossFigures::default();
    let loss = record(vec![input(logits)], |values| {
        let [logits] = <[_; 1]>::try_from(values).expect("the loss has one input");
        let mut logits = dense(logits);
        let [count, classes] = shape(&logits);
        assert_eq!(targets.len(), count, "there is a target for each prediction");
        let rows = chunks::rows(classes);
        let parts = logits.storage_mut::<f32>().chunks_mut(rows * classes).zip(targets.chunks(rows));
        let partial = chunks::map(parts, |(logits, targets)| {
            let (mut loss, mut hits) = (0.0, 0);
            for (row, target) in logits.chunks_mut(classes).zip(targets) {
                assert!((*target as usize) < classes, "target {target} is not one of {classes} classes");
                let (own, hit) = kernels::cross_entropy_row(row, *target as usize);
                loss += f64::from(own);
                hits += u64::from(hit);
            }
            (loss, hits)
        });
        figures.count = count as u64;
        for (loss, hits) in partial {
            figures.loss_sum += loss;
            figures.hits += hits;
        }
        let mean = (figures.loss_sum / count as f64) as f32;
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let factor = slice(&d)[0] / count as f32;
            let chunk = chunks::rows(1);
            chunks::each(logits.storage_mut::<f32>().chunks_mut(chunk), |part| kernels::scale(part, factor));
            vec![Some(logits)]
        };
        (vector(vec![mean], [1]), Box::new(gradient))
    });
    (loss, figures)
}
