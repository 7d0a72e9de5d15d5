//! Attention to what a mask leaves, on the host and as the plain composition, with its gradient.

use super::*;
use crate::ops::tests::{HOST, check, values};
use crate::ops::{AttentionHeads, attention};

/// Documents of different lengths in each of `b` sequences of `length` tokens.
pub(crate) fn documents(b: usize, length: usize) -> DocumentStarts {
    let starts = (0..b).flat_map(|sample| {
        (0..length).map(move |position| (position - position % (2 + 5 * (sample + 1))) as u32)
    });
    DocumentStarts { starts: starts.collect(), length }
}

#[test]
fn attention_sees_its_window_and_its_document_only() {
    let heads = AttentionHeads { query: 4, key: 2, width: 6 };
    for t in [1, 5, 63, 64, 65, 200] {
        for (window, has_documents) in
            [(Some(1), false), (Some(7), false), (Some(70), false), (None, true), (Some(4), true)]
        {
            let mask = AttentionMask { window, documents: has_documents.then(|| documents(2, t)) };
            check(&[(1, &[2, t, 48])], |a, l| attention(a, l[0].clone(), heads, &mask));
        }
    }
}

#[test]
fn each_document_of_a_packed_sequence_is_computed_as_if_it_were_alone() {
    let heads = AttentionHeads { query: 2, key: 1, width: 4 };
    let (t, cut) = (90, 37);
    let starts = (0..t).map(|position| if position < cut { 0 } else { cut as u32 }).collect();
    let mask = AttentionMask { window: None, documents: Some(DocumentStarts { starts, length: t }) };
    let packed = Tensor::<3>::from_data(TensorData::new(values(3, t * 16), [1, t, 16]), &Device::flex());
    let whole = attention(HOST, packed.clone(), heads, &mask);
    for (begin, end) in [(0, cut), (cut, t)] {
        let alone = packed.clone().narrow(1, begin, end - begin);
        let alone = attention(HOST, alone, heads, &AttentionMask::default());
        let part = whole.clone().narrow(1, begin, end - begin);
        let apart = (alone - part).abs().max().into_scalar::<f32>();
        assert!(apart < 1e-6, "{apart}");
    }
}
