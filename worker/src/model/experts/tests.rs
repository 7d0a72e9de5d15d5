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

#[test]
fn the_likeliest_experts_are_chosen_and_of_equal_ones_the_first() {
    let probabilities = [0.1, 0.4, 0.2, 0.3, 0.25, 0.25, 0.25, 0.25, 0.1, 0.2, 0.5, 0.2];
    assert_eq!(top_k_experts(&probabilities, &TWO_OF_FOUR), [1, 3, 0, 1, 2, 1]);
}

#[test]
fn gates_sum_to_one_unless_there_is_one() {
    let probabilities = tensor(&[0.1, 0.4, 0.2, 0.3, 0.25, 0.25, 0.25, 0.25], [2, 4]);
    let both = flat(gate_weights(&probabilities, &[1, 3, 0, 1], &TWO_OF_FOUR));
    assert!(both.iter().zip([4.0 / 7.0, 3.0 / 7.0, 0.5, 0.5]).all(|(f, w)| (f - w).abs() < 1e-6), "{both:?}");
    assert_eq!(flat(gate_weights(&probabilities, &[1, 0], &Experts::new(4, 1))), [0.4, 0.25]);
}

#[test]
fn an_expert_takes_the_first_tokens_of_each_sequence() {
    // Two sequences of four tokens; an even share is two choices of each expert.
    let chosen = [0, 1, 0, 2, 0, 1, 0, 1, 3, 0, 3, 1, 3, 2, 2, 3];
    let at = |capacity| {
        let kept = within_capacity(&chosen, &Experts { capacity, ..TWO_OF_FOUR }, 4);
        kept.iter().map(|kept| kept.map_or(9, |expert| expert)).collect::<Vec<_>>()
    };
    assert_eq!(at(None), chosen);
    assert_eq!(at(Some(2.0)), chosen);
    assert_eq!(at(Some(1.0)), [0, 1, 0, 2, 9, 1, 9, 9, 3, 0, 3, 1, 9, 2, 2, 9]);
    // Rounded up, and never nothing.
    assert_eq!(at(Some(1.3)), [0, 1, 0, 2, 0, 1, 9, 1, 3, 0, 3, 1, 3, 2, 2, 9]);
    assert_eq!(at(Some(0.1)), [0, 1, 9, 2, 9, 9, 9, 9, 3, 0, 9, 1, 9, 2, 9, 9]);
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
