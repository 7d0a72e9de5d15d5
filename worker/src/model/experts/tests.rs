use super::*;
use crate::mesh::ModelParallelGroups;
use burn::tensor::{Device, TensorData};

const TWO_OF_FOUR: Experts = Experts { balance: 0.5, ..Experts::new(4, 2) };

fn tensor<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex())
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// The loss and its gradient, by the formula.
#[test]
fn imbalance_is_counted_in_each_sequence() {
    let values: Vec<f32> = (0..24).map(|i| (i * 7 % 11) as f32 / 20.0).collect();
    let probabilities = tensor(&values, [6, 4]).autodiff().require_grad();
    let chosen = top_k_experts(&values, &TWO_OF_FOUR);
    let loss =
        load_balancing_loss(&probabilities, &chosen, &TWO_OF_FOUR, &ModelParallelGroups::none(), [2, 3])
            .unwrap();
    let share = |sample: usize, expert: usize| {
        chosen[sample * 6..][..6].iter().filter(|chosen| **chosen == expert).count() as f64 / 6.0
    };
    let mean = |sample: usize, expert: usize| {
        (0..3).map(|token| f64::from(values[(sample * 3 + token) * 4 + expert])).sum::<f64>() / 3.0
    };
    let both = (0..2).flat_map(|sample| (0..4).map(move |expert| (sample, expert)));
    let expected = both.map(|(s, e)| share(s, e) * mean(s, e)).sum::<f64>() * 0.5 * 4.0 / 2.0;
    let found = loss.clone().backward();
    assert!((f64::from(loss.into_scalar::<f32>()) - expected).abs() < 1e-6);
    for (at, d) in flat(probabilities.grad(&found).unwrap()).iter().enumerate() {
        let expected = share(at / 12, at % 4) * 0.5 * 4.0 / 2.0 / 3.0;
        assert!((f64::from(*d) - expected).abs() < 1e-6, "{at}: {d} for {expected}");
    }
}

#[test]
fn imbalance_is_smallest_where_all_experts_have_as_many_tokens() {
    let even = tensor(&[0.25; 16], [4, 4]).autodiff().require_grad();
    let told = |chosen: &[usize]| {
        let loss =
            load_balancing_loss(&even, chosen, &TWO_OF_FOUR, &ModelParallelGroups::none(), [1, 4]).unwrap();
        loss.into_scalar::<f32>()
    };
    assert!((told(&[0, 1, 2, 3, 0, 1, 2, 3]) - 0.5).abs() < 1e-6);
    let none = Experts { balance: 0.0, ..TWO_OF_FOUR };
    assert!(load_balancing_loss(&even, &[0; 8], &none, &ModelParallelGroups::none(), [1, 4]).is_none());
    assert!(
        load_balancing_loss(&even.inner(), &[0; 8], &TWO_OF_FOUR, &ModelParallelGroups::none(), [1, 4])
            .is_none()
    );
}
