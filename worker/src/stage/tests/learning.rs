//! Several training steps, and their result.

use super::*;
use crate::optimizer::StageOptimizer;
use dtrain_recipes::Optimizer as Rule;

const ADAMW: Rule = Rule { beta2: 0.99, weight_decay: 0.01, ..Rule::ADAMW };

#[test]
fn training_is_the_same_to_the_last_bit_on_any_number_of_threads() {
    for model in models() {
        let train = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut stage = whole(&model);
                let batch = Batch::new(&model, 4);
                let mut optimizer = StageOptimizer::new(&ADAMW, stage.parameters());
                let losses: Vec<f64> = (1..=5)
                    .map(|t| {
                        let (loss, _) = learn(&mut stage, &batch.samples());
                        let scale = 1.0 / stage.gradients().norm_squared().sqrt().max(1.0);
                        optimizer.step(&mut stage, 1e-2, scale as f32, t);
                        loss
                    })
                    .collect();
                let values: Vec<_> = (0..stage.parameters().len()).map(|i| stage.values(i)).collect();
                (losses, values)
            })
        };
        assert_eq!(train(1), train(2));
    }
}

#[test]
fn every_model_learns_a_batch_by_heart() {
    // Adapters of random weights have too little room.
    for model in models().into_iter().filter(|model| !model.has_frozen_weights()) {
        let mut stage = whole(&model);
        let batch = Batch::new(&model, 4);
        let mut optimizer = StageOptimizer::new(&ADAMW, stage.parameters());
        let before = stage.evaluate(&batch.samples()).loss_sum;
        for t in 1..=150 {
            learn(&mut stage, &batch.samples());
            optimizer.step(&mut stage, 1e-2, 1.0, t);
        }
        let LossFigures { loss_sum: after, hits, count } = stage.evaluate(&batch.samples());
        assert!(after < 0.1 * before, "{after} after {before} for {model:?}");
        assert!(hits as f64 > 0.9 * count as f64, "{hits} of {count}");
    }
}

#[test]
fn the_last_logits_are_those_of_the_whole_sequence() {
    for decoder in [gpt(), llama()] {
        let vocab = decoder.vocab as usize;
        let model = Model::Decoder(decoder);
        let mut stage = whole(&model);
        let batch = Batch::new(&model, 1);
        let logits = stage.logits_last(&batch.tokens[..6]);
        assert_eq!(logits.len(), vocab);
        // The loss of one more sample whose only prediction is the last one says the same.
        let mut loss = |length: usize| {
            let targets = vec![3; length];
            let inputs = &batch.tokens[..length];
            stage
                .evaluate(&ModelInput::Tokens { inputs, targets: &targets, samples: 1, length, packed: None })
                .loss_sum
        };
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let wanted = sum.ln() - f64::from(logits[3]);
        assert!((loss(6) - loss(5) - wanted).abs() < 1e-4, "{} for {wanted}", loss(6) - loss(5));
    }
}

#[test]
fn kept_keys_and_values_give_the_logits_of_the_whole_sequence() {
    for decoder in [gpt(), llama(), wide(), Decoder { experts: Some(Experts::new(4, 2)), ..llama() }] {
        let model = Model::Decoder(decoder);
        let mut stage = whole(&model);
        let batch = Batch::new(&model, 1);
        let tokens = &batch.tokens[..9];
        let wanted: Vec<_> = (4..=9).map(|length| stage.logits_last(&tokens[..length])).collect();
        // Twice: nothing is left of the first text.
        for _ in 0..2 {
            stage.begin_generation();
            let mut found = vec![stage.logits_next(&tokens[..4])];
            found.extend(tokens[4..].iter().map(|token| stage.logits_next(&[*token])));
            for (wanted, found) in wanted.iter().zip(&found) {
                close(found, wanted, 1e-4);
            }
        }
        stage.end_generation();
        assert_eq!(stage.logits_last(tokens), wanted[5]);
    }
}
