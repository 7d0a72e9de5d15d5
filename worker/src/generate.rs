//! Text generation with a trained decoder, token by token.

mod sampling;

use crate::data::{self, TextTokenizer};
use crate::stage::Stage;
use crate::{inference, session};
use dtrain_protocol::input_manifest::TOKENIZER;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{Failure, GenerationStats, SampleRequest};
use dtrain_recipes::{DataFormat, Decoder, Model, Tokenizer};
use sampling::{forbid_unknown, sample_token, unit};
use std::time::Instant;

/// Continues the prompt of `request` with generated text; passes the text to `more` piece by piece.
pub fn generate(request: &SampleRequest, more: &mut dyn FnMut(String)) -> Result<GenerationStats, Failure> {
    let Model::Decoder(decoder) = &request.model else {
        return Err(Failure::Other("only a decoder generates text; this model is of another kind".into()));
    };
    let (reader, stage) = inference::open(&request.model, &request.checkpoint, request.threads)?;
    let tokenizer = match reader.file(TOKENIZER).map_err(inference::corrupt(&request.checkpoint))? {
        Some(json) => TextTokenizer::parse(&json).map_err(|error| Failure::Data(error.to_string()))?,
        None => tokenizer(request)?,
    };

    let mut tokens = prompt(&tokenizer, &request.prompt)?;
    let begin = tokens.len();
    let began = Instant::now();
    let mut text = TextStreamer { stop: &request.stop, told: 0 };
    let mut generator = LogitGenerator::new(stage, decoder);
    let is_token: Vec<bool> = (0..decoder.vocab).map(|token| tokenizer.has(token)).collect();
    for index in 0..request.tokens {
        let mut logits = generator.logits(&tokens);
        forbid_unknown(&mut logits, &is_token);
        let dice = unit(splitmix64(request.seed, u64::from(index)));
        tokens.push(sample_token(&logits, request, dice));
        let all = tokenizer.decode(&tokens[begin..]).map_err(data_failure)?;
        let is_last = index + 1 == request.tokens;
        let (new, has_ended) = text.more(&all, is_last);
        if !new.is_empty() {
            more(new.to_owned());
        }
        if has_ended {
            break;
        }
    }
    let tokens = u32::try_from(tokens.len() - begin).expect("no more than were asked for");
    Ok(GenerationStats { tokens, seconds: began.elapsed().as_secs_f64() })
}

fn data_failure(error: data::DataError) -> Failure {
    Failure::Data(error.to_string())
}

/// Returns the tokens that the model is to continue, at least one: those of `text`, or of a new line if
/// `text` is empty. A text of blanks may have no tokens; then the model begins with
/// [`TextTokenizer::first_token`].
///
/// `Err` if the tokenizer knows no part of `text`.
fn prompt(tokenizer: &TextTokenizer, text: &str) -> Result<Vec<u32>, Failure> {
    let tokens = if text.is_empty() {
        // A tokenizer without a token for a new line may fail.
        tokenizer.encode("\n").unwrap_or_default()
    } else {
        tokenizer.encode(text).map_err(data_failure)?
    };
    if !tokens.is_empty() {
        return Ok(tokens);
    }
    let first = tokenizer.first_token().filter(|_| text.trim().is_empty());
    first.map(|token| vec![token]).ok_or_else(|| {
        Failure::Data(format!(
            "the tokenizer of this model has no token for any part of the prompt {text:?}; use words of the training text"
        ))
    })
}

/// A decoder that computes the logits of the next token.
struct LogitGenerator {
    stage: Stage,
    context: usize,
    /// Number of tokens in the KV cache; `None` if every pass computes all tokens.
    kept: Option<usize>,
}

impl LogitGenerator {
    fn new(mut stage: Stage, decoder: &Decoder) -> Self {
        // An expert's capacity depends on all tokens of a pass.
        let has_room = decoder.experts.is_none_or(|experts| experts.capacity.is_none());
        if has_room {
            stage.begin_generation();
        }
        Self { stage, context: decoder.context as usize, kept: has_room.then_some(0) }
    }

    /// Returns the logits of the token that follows `tokens`, of which at most the last `context` are
    /// read. `tokens` must be one token longer than in the call before.
    fn logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        if let Some(kept) = self.kept.filter(|_| tokens.len() <= self.context) {
            self.kept = Some(tokens.len());
            return self.stage.logits_next(&tokens[kept..]);
        }
        // Positions are counted from the first token of the context, which now moves with each token.
        if self.kept.take().is_some() {
            self.stage.end_generation();
        }
        self.stage.logits_last(&tokens[tokens.len().saturating_sub(self.context)..])
    }
}

/// A streamer of a continuation: it passes on text as soon as that can no longer change.
struct TextStreamer<'a> {
    stop: &'a [String],
    /// Number of bytes of the text that were passed on.
    told: usize,
}

impl TextStreamer<'_> {
    /// Returns the new text in `all`, which is the whole continuation so far, and `true` if it has ended.
    /// Text that may still change, or may be the beginning of a stop text, is held back unless `is_last`.
    fn more<'t>(&mut self, all: &'t str, is_last: bool) -> (&'t str, bool) {
        let stopped = self.stop.iter().filter_map(|stop| all.find(stop.as_str())).min();
        let end = match stopped {
            Some(end) => end,
            None if is_last => all.len(),
            None => self.stable(all),
        };
        let new = all.get(self.told..end).unwrap_or("");
        self.told = self.told.max(end);
        (new, is_last || stopped.is_some())
    }

    /// Returns the length in bytes of the text in `all` that can no longer change: a character may come
    /// in several tokens.
    fn stable(&self, all: &str) -> usize {
        let all = all.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let begins =
            |at: &usize| all.is_char_boundary(*at) && self.stop.iter().any(|s| s.starts_with(&all[*at..]));
        let longest = self.stop.iter().map(String::len).max().unwrap_or(0);
        (all.len().saturating_sub(longest)..all.len()).find(begins).unwrap_or(all.len())
    }
}

/// Returns the tokenizer to use if the checkpoint has none: because bytes are the tokens, the data names
/// none, or an older version wrote the checkpoint.
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

#[cfg(test)]
mod tests {
    use super::sampling::tests::request;
    use super::*;

    /// Creates a tokenizer of words, without a token for a new line; numbers 3 and 4 are skipped.
    fn of_words(more: &str) -> TextTokenizer {
        let json = format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"normalizer":null,"post_processor":null,"decoder":null,
            "added_tokens":[],"pre_tokenizer":{{"type":"Whitespace"}},
            "model":{{"type":"WordLevel","unk_token":"[UNK]","vocab":{{"[UNK]":0,",":1,"the":2,"fox":5{more}}}}}}}"#
        );
        TextTokenizer::parse(json.as_bytes()).expect("a tokenizer")
    }

    #[test]
    fn a_prompt_always_has_a_token_to_begin_with() {
        let words = of_words("");
        assert_eq!(prompt(&words, "the fox").expect("it has tokens"), [2, 5]);
        for blank in ["", " ", "\n \t"] {
            assert_eq!(prompt(&words, blank).expect("it begins somewhere"), [2], "the first word");
        }
        for (special, token) in [("<s>", 7), ("</s>", 8)] {
            let tokenizer = of_words(&format!(r#","{special}":{token}"#));
            assert_eq!(prompt(&tokenizer, "").expect("it has one"), [token]);
        }
        assert_eq!(prompt(&TextTokenizer::Bytes, "").expect("a byte"), [10]);
        let silent = r#"{"version":"1.0","truncation":null,"padding":null,"normalizer":null,"post_processor":null,
            "decoder":null,"added_tokens":[],"pre_tokenizer":null,
            "model":{"type":"BPE","vocab":{"a":0},"merges":[]}}"#;
        let silent = TextTokenizer::parse(silent.as_bytes()).expect("a tokenizer");
        assert_eq!(prompt(&silent, "").expect("it has one"), [0]);
        let error = prompt(&silent, "xyz").expect_err("it knows no letter of it").to_string();
        assert!(error.contains("tokenizer") && error.contains("\"xyz\""), "{error}");
    }

    #[test]
    fn numbers_without_a_token_are_never_chosen() {
        let words = of_words("");
        assert_eq!(words.vocabulary(), 6);
        let is_token: Vec<bool> = (0..8).map(|token| words.has(token)).collect();
        let mut logits = [0.0, 0.0, 0.5, 9.0, 9.0, 1.0, 9.0, 9.0];
        forbid_unknown(&mut logits, &is_token);
        assert_eq!(sample_token(&logits, &request(0.0, None, None), 0.0), 5);
        for dice in [0.0, 0.3, 0.6, 0.999] {
            assert!(words.has(sample_token(&logits, &request(1.0, None, None), dice)));
        }
        assert_eq!(
            words.decode(&[2, 3, 5, 900]).expect("it has text"),
            "the fox",
            "what is left out has none"
        );
    }

    #[test]
    fn a_text_ends_before_a_stop_text_and_shows_nothing_of_it() {
        let stop = ["end".to_owned(), "\n\n".to_owned()];
        let mut text = TextStreamer { stop: &stop, told: 0 };
        let steps = ["a", "a e", "a en", "a ent", "a ent\n", "a ent\ne", "a ent\nend of"];
        let found: Vec<_> = steps.iter().map(|all| text.more(all, false)).collect();
        let wanted =
            [("a", false), (" ", false), ("", false), ("ent", false), ("", false), ("\n", false), ("", true)];
        assert_eq!(found, wanted);
        let mut text = TextStreamer { stop: &stop, told: 0 };
        assert_eq!(text.more("it e", true), ("it e", true), "the last token is not held back");
    }
}
