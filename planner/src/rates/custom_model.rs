//! Work estimates for a custom model, of which only the shapes of parameters and outputs are known. A probe
//! replaces the estimated seconds; memory stays an estimate.

use crate::rates::forward_work::ForwardWork;
use dtrain_recipes::{CustomModel, InputSignature, PartOutline};

/// Returns the number of values per sample in an output of shape `output`.
fn elements(output: [u64; 2]) -> u64 {
    output[0].saturating_mul(output[1])
}

/// Returns, for each matrix of a part, the number of its applications per sample and its shape. A matrix
/// applies to every row of the output, a convolution kernel to every position of an output channel; a token
/// table is only looked up.
fn products(part: &PartOutline, reads: Option<InputSignature>) -> impl Iterator<Item = (u64, [u64; 2])> + '_ {
    let is_table = move |[rows, columns]: [u64; 2]| match reads {
        Some(InputSignature::Tokens { vocab, .. }) => rows == u64::from(vocab) || columns == u64::from(vocab),
        Some(InputSignature::Rows { .. }) | None => false,
    };
    let kernels = part.parameters.iter().filter(|shape| shape.len() > 1).map(|shape| shape.len() > 2);
    let all = kernels.zip(part.matrices()).filter(move |(_, sides)| !is_table(*sides));
    all.map(|(is_kernel, sides)| {
        let rows = if is_kernel { elements(part.output) / sides[0].max(1) } else { part.output[0] };
        (rows.max(1), sides)
    })
}

/// Returns the FLOPs per sample of a forward pass through a part of the network.
pub(crate) fn flops(part: &PartOutline, reads: Option<InputSignature>) -> u64 {
    products(part, reads).map(|(rows, [a, b])| 2 * rows * a * b).fold(0, u64::saturating_add)
}

/// Returns the bytes per sample that a part of the network saves for its backward: inputs and outputs of
/// every product, and about twice the output each for norms and activations.
pub(crate) fn kept_bytes(part: &PartOutline, reads: Option<InputSignature>) -> u64 {
    let products = products(part, reads).map(|(rows, [a, b])| rows * (a + b)).fold(0, u64::saturating_add);
    4 * products.saturating_add(4 * elements(part.output))
}

/// Returns the work of the network's forward pass for one sample; blocks are averaged.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) fn forward_work(own: &CustomModel) -> ForwardWork {
    let outline = &own.outline;
    let blocks = (outline.blocks.len() as f64).max(1.0);
    let sum =
        |of: &dyn Fn(&PartOutline) -> u64| outline.blocks.iter().map(|block| of(block) as f64).sum::<f64>();
    let outer = |first: u64, head: u64| first as f64 + head as f64;
    let (first, head) = (&outline.first, &outline.head);
    ForwardWork {
        block_flops: sum(&|block| flops(block, None)) / blocks,
        block_weights: sum(&PartOutline::values) / blocks,
        block_values: sum(&|block| kept_bytes(block, None) / 4) / blocks,
        outer_flops: outer(flops(first, Some(own.reads)), flops(head, None)),
        outer_weights: outer(0, head.values()),
        outer_values: outer(kept_bytes(first, Some(own.reads)) / 4, kept_bytes(head, None) / 4),
    }
}

/// Returns `true` if the head of the network takes no fewer FLOPs than the part before the blocks.
pub(crate) fn head_is_larger(own: &CustomModel) -> bool {
    flops(&own.outline.head, None) >= flops(&own.outline.first, Some(own.reads))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn a_network_costs_two_operations_a_weight_and_row() {
        let own = fixtures::own();
        let work = forward_work(&own);
        // Blocks of 64 × 128 and 128 × 64 on 16 rows, a head of 64 × 100; the table of 100 tokens is looked
        // up.
        assert!((work.block_flops - f64::from(2 * 16 * 2 * 64 * 128)).abs() < 1.0, "{work:?}");
        assert!((work.outer_flops - f64::from(2 * 16 * 64 * 100)).abs() < 1.0, "{work:?}");
        assert!(head_is_larger(&own));
        let kernel = PartOutline { parameters: vec![vec![8, 4, 3]], output: [8, 50] };
        assert_eq!(flops(&kernel, None), 2 * 50 * 8 * 4 * 3, "a kernel passes every place");
    }

    #[test]
    fn what_is_kept_grows_with_rows_and_widths() {
        let part = PartOutline { parameters: vec![vec![64, 128], vec![128]], output: [16, 64] };
        assert_eq!(kept_bytes(&part, None), 4 * (16 * (64 + 128) + 4 * 16 * 64));
    }
}
