//! Documents packed into one sequence train as each in a sequence of its own.

use super::*;
use crate::data::{IGNORED, PackedDocuments};
use dtrain_recipes::SlidingWindow;

/// A document: its tokens, and the target of each, some of which do not count.
type Document = (Vec<u32>, Vec<u32>);

/// Creates documents of these lengths, in which each third target does not count.
fn documents(lengths: &[usize], vocab: u32) -> Vec<Document> {
    let mut numbers =
        (0u64..).map(|i| (dtrain_protocol::shuffle::splitmix64(8, i) % u64::from(vocab)) as u32);
    let mut one = |length: usize| {
        let tokens: Vec<u32> = numbers.by_ref().take(length + 1).collect();
        let target = |at: usize| if at.is_multiple_of(3) { IGNORED } else { tokens[at + 1] };
        (tokens[..length].to_vec(), (0..length).map(target).collect())
    };
    lengths.iter().map(|length| one(*length)).collect()
}

/// Sequences of `length` tokens, each with the documents of these indices; the rest of a sequence is padding.
fn sequences(documents: &[Document], windows: &[Vec<usize>], length: usize) -> crate::data::Batch {
    let (mut inputs, mut targets, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    for (sample, window) in windows.iter().enumerate() {
        let (begin, end) = (sample * length, (sample + 1) * length);
        for (tokens, wanted) in window.iter().map(|index| &documents[*index]) {
            starts.resize(inputs.len() + tokens.len(), (inputs.len() - begin) as u32);
            inputs.extend(tokens);
            targets.extend(wanted);
        }
        starts.extend((inputs.len()..end).map(|place| (place - begin) as u32));
        inputs.resize(end, 0);
        targets.resize(end, IGNORED);
    }
    let packed = PackedDocuments { starts: starts.into(), length, step_targets: 0 };
    crate::data::Batch::Tokens { inputs, targets, samples: windows.len(), length, packed: Some(packed) }
}

/// Decoders whose tokens depend on those of their own sequence only in attention. A capacity of experts, or the
/// balance of their load, would make them depend on all tokens of a batch.
fn decoders() -> Vec<Decoder> {
    let window = Some(SlidingWindow { tokens: 3, every: Some(2), rotary_base: None });
    let experts = Experts { capacity: None, balance: 0.0, ..Experts::new(4, 2) };
    let mixture = Decoder { ffn: 10, experts: Some(experts), ..llama() };
    vec![gpt(), llama(), wide(), adapted(), Decoder { window, ..llama() }, mixture]
}

#[test]
fn packed_documents_have_the_gradients_of_each_alone() {
    for decoder in decoders() {
        let length = decoder.context as usize;
        // 9 tokens each: two that fill a sequence, three with padding behind them, and one of a whole sequence.
        let documents = documents(&[5, 4, 3, 2, 2, 9], decoder.vocab);
        let alone: Vec<_> = (0..documents.len()).map(|index| vec![index]).collect();
        let alone = sequences(&documents, &alone, length);
        let packed = sequences(&documents, &[vec![0, 1], vec![2, 3, 4], vec![5]], length);
        let model = Model::Decoder(decoder);
        let learn = |batch| learn(&mut whole(&model), &ModelInput::of(batch));
        let ((wanted_loss, wanted), (loss, gradient)) = (learn(&alone), learn(&packed));
        assert!(wanted.iter().any(|value| value.abs() > 1e-3), "{model:?}: the gradients are zero");
        assert!((loss - wanted_loss).abs() < 1e-5, "{model:?}: a loss of {loss}, not {wanted_loss}");
        close(&gradient, &wanted, 1e-5);
        // Without the documents' borders the gradients are others.
        let crate::data::Batch::Tokens { inputs, targets, samples, length, .. } = &packed else {
            unreachable!()
        };
        let starts = vec![0; inputs.len()].into();
        let one = Some(PackedDocuments { starts, length: *length, step_targets: 0 });
        let (inputs, targets, samples, length) = (inputs.clone(), targets.clone(), *samples, *length);
        let (_, other) = learn(&crate::data::Batch::Tokens { inputs, targets, samples, length, packed: one });
        let apart =
            other.iter().zip(&wanted).map(|(other, wanted)| (other - wanted).abs()).fold(0.0, f32::max);
        assert!(apart > 1e-4, "{model:?}: attention does not see the borders");
    }
}
