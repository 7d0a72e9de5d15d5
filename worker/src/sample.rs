//! Writes text with a trained decoder.
//!
//! Every token costs a forward pass over at most `context` tokens: nothing is kept between tokens.

use crate::data::{self, TextTokenizer};
use crate::{session, trained};
use dtrain_protocol::inputs::TOKENIZER;
use dtrain_protocol::order::mix;
use dtrain_protocol::{Failure, SampleRequest};
use dtrain_recipes::{DataFormat, Model, Tokenizer};

/// Continues the prompt of `request`; hands over the text piece by piece.
pub fn write(request: &SampleRequest, more: &mut dyn FnMut(String)) -> Result<(), Failure> {
    let Model::Decoder(decoder) = &request.model else {
        return Err(Failure::Other("only a decoder generates text; this model is of another kind".into()));
    };
    let (reader, stage) = trained::open(&request.model, &request.checkpoint, request.threads)?;
    let tokenizer = match reader.file(TOKENIZER).map_err(trained::corrupt(&request.checkpoint))? {
        Some(json) => TextTokenizer::parse(&json).map_err(|error| Failure::Data(error.to_string()))?,
        None => tokenizer(request)?,
    };

    // A model continues something: without a prompt, a new line.
    let prompt = if request.prompt.is_empty() { "\n" } else { &request.prompt };
    let wrong = |error: data::DataError| Failure::Data(error.to_string());
    let mut tokens = tokenizer.encode(prompt).map_err(wrong)?;
    let begin = tokens.len();
    let mut told = 0;
    for index in 0..request.tokens {
        let window = &tokens[tokens.len().saturating_sub(decoder.context as usize)..];
        let logits = stage.logits_last(window);
        let dice = unit(mix(request.seed, u64::from(index)));
        tokens.push(choose(&logits, request.temperature, request.top_k, dice));
        let text = tokenizer.decode(&tokens[begin..]).map_err(wrong)?;
        let is_last = index + 1 == request.tokens;
        let stable = if is_last { text.as_str() } else { text.trim_end_matches(char::REPLACEMENT_CHARACTER) };
        // Bytes of a character may come in several tokens: what may still change is held back.
        if let Some(new) = stable.get(told..).filter(|new| !new.is_empty()) {
            more(new.to_owned());
            told = stable.len();
        }
    }
    Ok(())
}

/// The tokenizer where the checkpoint has none: bytes are the tokens, the data names none, or an older program wrote the checkpoint.
fn tokenizer(request: &SampleRequest) -> Result<TextTokenizer, Failure> {
    if let DataFormat::Text { tokenizer: Tokenizer::Bytes, .. } = &request.data.format {
        return Ok(TextTokenizer::Bytes);
    }
    let checkpoints = request.checkpoint.parent().unwrap_or(&request.checkpoint);
    let cache = session::cache(checkpoints);
    let data = data::open(&request.data, &request.data_root, &request.model, &cache)
        .map_err(|error| Failure::Data(error.to_string()))?;
    let without = "this model was trained on token shards; without their tokenizer no text can be written: name it with \
         `data.tokenizer`";
    data.tokenizer.ok_or_else(|| Failure::Data(without.into()))
}

/// A number in [0, 1) from 53 of the bits.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The token at position `dice` (in [0, 1)) of the distribution of `logits`, sharpened by `1 / temperature` and cut
/// to the `top_k` likeliest; with temperature 0 the likeliest.
#[expect(clippy::cast_possible_truncation, reason = "an index below the vocabulary, a u32")]
fn choose(logits: &[f32], temperature: f64, top_k: Option<u32>, dice: f64) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    if temperature <= 0.0 {
        return order[0] as u32;
    }
    order.truncate(top_k.map_or(usize::MAX, |k| k.max(1) as usize));
    let largest = f64::from(logits[order[0]]);
    let weights: Vec<_> =
        order.iter().map(|index| ((f64::from(logits[*index]) - largest) / temperature).exp()).collect();
    let mut left = dice * weights.iter().sum::<f64>();
    let last = order.len() - 1;
    let chosen = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    order[chosen.unwrap_or(last)] as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperature_zero_takes_the_likeliest_and_top_k_cuts_the_tail() {
        let logits = [0.0, 3.0, 1.0, 2.0];
        assert_eq!(choose(&logits, 0.0, None, 0.99), 1);
        assert_eq!(choose(&logits, 1.0, Some(1), 0.99), 1);
        assert_eq!(choose(&logits, 1.0, Some(2), 0.999), 3);
        assert_eq!(choose(&logits, 1.0, None, 0.999), 0);
    }

    #[test]
    fn tokens_come_as_often_as_the_model_says() {
        let logits = [0.0, f32::ln(3.0)];
        let ones = (0..4000).filter(|i| choose(&logits, 1.0, None, unit(mix(5, *i))) == 1).count();
        assert!((2880..3120).contains(&ones), "three in four, found {ones} of 4000");
    }
}
