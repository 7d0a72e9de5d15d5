//! Sampling of the next token of a generated text, with temperature, top-k and top-p.

use dtrain_protocol::SampleRequest;

/// Sets the logits of numbers that are not tokens of the tokenizer to minus infinity: they would have no
/// text.
pub(super) fn forbid_unknown(logits: &mut [f32], is_token: &[bool]) {
    for (logit, _) in logits.iter_mut().zip(is_token).filter(|(_, is_token)| !**is_token) {
        *logit = f32::NEG_INFINITY;
    }
}

/// Converts the upper 53 of 64 random bits to a number in [0, 1).
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
pub(super) fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Samples a token from the distribution of `logits`, sharpened by `1 / temperature` and cut by the
/// request's top-k and top-p; with temperature 0 returns the most likely token. `dice` in [0, 1) is the
/// position in the cumulative distribution.
#[expect(clippy::cast_possible_truncation, reason = "an index below the vocabulary, a u32")]
pub(super) fn sample_token(logits: &[f32], request: &SampleRequest, dice: f64) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    if request.temperature <= 0.0 {
        return order[0] as u32;
    }
    order.truncate(request.top_k.map_or(usize::MAX, |k| k.max(1) as usize));
    let largest = f64::from(logits[order[0]]);
    let weight = |index: &usize| ((f64::from(logits[*index]) - largest) / request.temperature).exp();
    let mut weights: Vec<_> = order.iter().map(weight).collect();
    if let Some(share) = request.top_p {
        let mut left = share * weights.iter().sum::<f64>();
        let kept = weights.iter().take_while(|weight| {
            let is_kept = left > 0.0;
            left -= **weight;
            is_kept
        });
        let kept = kept.count();
        weights.truncate(kept.max(1));
    }
    let mut left = dice * weights.iter().sum::<f64>();
    let chosen = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    order[chosen.unwrap_or(weights.len() - 1)] as u32
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use dtrain_protocol::shuffle::splitmix64;
    use dtrain_recipes::{Mlp, MlpActivation, Model};

    pub(in crate::generate) fn request(
        temperature: f64,
        top_k: Option<u32>,
        top_p: Option<f64>,
    ) -> SampleRequest {
        let mlp = Mlp { inputs: 1, hidden: vec![1], classes: 2, activation: MlpActivation::Relu };
        SampleRequest {
            model: Model::Mlp(mlp),
            data: crate::session::assignment_of_tests(0, 1, std::path::Path::new("/"))
                .data
                .expect("it has some"),
            data_root: "/".into(),
            checkpoint: "/".into(),
            prompt: String::new(),
            tokens: 1,
            temperature,
            top_k,
            top_p,
            stop: Vec::new(),
            seed: 0,
            threads: 1,
        }
    }

    #[test]
    fn temperature_zero_takes_the_likeliest_and_top_k_and_top_p_cut_the_tail() {
        let logits = [0.0, 3.0, 1.0, 2.0];
        let choose = |temperature, top_k, top_p, dice| {
            sample_token(&logits, &request(temperature, top_k, top_p), dice)
        };
        assert_eq!(choose(0.0, None, None, 0.99), 1);
        assert_eq!(choose(1.0, Some(1), None, 0.99), 1);
        assert_eq!(choose(1.0, Some(2), None, 0.999), 3);
        assert_eq!(choose(1.0, None, None, 0.999), 0);
        // The probabilities are 0.644, 0.237, 0.087 and 0.032.
        for (share, last) in [(0.6, 1), (0.65, 3), (0.88, 3), (0.89, 2), (1.0, 0)] {
            assert_eq!(choose(1.0, None, Some(share), 0.999), last, "{share}");
        }
    }

    #[test]
    fn tokens_come_as_often_as_the_model_says() {
        let logits = [0.0, f32::ln(3.0)];
        let request = request(1.0, None, None);
        let ones =
            (0..4000).filter(|i| sample_token(&logits, &request, unit(splitmix64(5, *i))) == 1).count();
        assert!((2880..3120).contains(&ones), "three in four, found {ones} of 4000");
    }
}
