//! Finds contradictions among the keys of a model.

use super::Rules;
use crate::check::parsed::ParsedValue;
use crate::data::DataKind;
use crate::keys::MOST_PARAMETERS;
use crate::line_template::LineTemplate;
use crate::model::Model;
use crate::number_format::thousands;

impl Rules<'_> {
    /// Checks the number of parameters: sizes that are each in range can together exceed the limit.
    pub(super) fn parameters(&mut self, model: &Model) {
        let parameters = model.parameters();
        if parameters <= MOST_PARAMETERS {
            return;
        }
        let trillions = |parameters: u64| thousands(parameters / 1_000_000_000_000);
        let message = format!(
            "a model of {} T parameters is too large: at most {} T",
            trillions(parameters),
            trillions(MOST_PARAMETERS)
        );
        let keys = [
            "layers",
            "hidden",
            "head_width",
            "ffn",
            "experts",
            "shared_ffn",
            "dense_ffn",
            "mtp_layers",
            "vocab",
            "inputs",
            "stages",
            "blocks",
            "classes",
        ];
        let keys = keys.map(|key| format!("model.{key}"));
        let keys = keys.each_ref().map(String::as_str);
        self.wrong(message, &keys, "the largest models that were trained have a few T; is a digit too many?");
    }

    /// Checks that the progress templates of a command are valid.
    pub(super) fn command(&mut self) {
        let key = "model.progress";
        let Some(ParsedValue::Texts(templates)) = self.values.get(key) else { return };
        let wrong: Vec<String> = templates
            .iter()
            .filter_map(|text| {
                Some(format!(
                    "`{text}` is not a valid template: \
                                            {}",
                    LineTemplate::parse(text).err()?
                ))
            })
            .collect();
        for message in wrong {
            self.wrong(message, &[key], "write for example `progress = [\"step {step} * loss {loss}\"]`");
        }
    }

    /// Checks the inputs of a custom network: tokens or rows, not both.
    pub(super) fn own(&mut self) {
        let keys = ["model.context", "model.vocab", "model.inputs", "model.classes"];
        if keys.iter().any(|key| self.values.is_wrong(key)) {
            return;
        }
        // A vocabulary size may come from the tokenizer.
        let is_said = |key: &str| self.values.said(key).is_some();
        match keys.map(is_said) {
            [true, _, false, false] => self.vocabulary(),
            [false, false, true, true] => {}
            [true, ..] | [_, true, true, _] | [_, true, _, true] => self.wrong(
                "a network reads tokens (`context`, `vocab`) or rows (`inputs`, `classes`), not both".to_owned(),
                &keys,
                "remove one of them",
            ),
            [false, ..] => self.wrong(
                "missing what the network reads: `model.context`, or `model.inputs` and `model.classes`".to_owned(),
                &["model.vocab", "model.inputs", "model.classes", "model.network"],
                "write for example `context = 256` (tokens), or `inputs = 16` and `classes = 3` (rows), below `[model]`",
            ),
        }
    }

    pub(super) fn vocabulary(&mut self) {
        let vocab = self.values.whole("model.vocab");
        match (self.values.get("data.tokenizer"), vocab) {
            (Some(ParsedValue::Bytes), Some(vocab))
                if vocab != 256 && self.values.one_of("data.format").is_some_and(DataKind::is_text) =>
            {
                self.wrong(
                    format!("`model.vocab` = {vocab}, but text read as bytes has a vocabulary of 256"),
                    &["model.vocab", "data.tokenizer"],
                    &format!(
                        "remove `model.vocab`, or train a tokenizer: `data.tokenizer = {{ bpe = {} }}`",
                        vocab.max(257)
                    ),
                );
            }
            (Some(ParsedValue::Bpe(bpe)), Some(vocab)) if vocab < u64::from(*bpe) => self.wrong(
                format!("`model.vocab` = {vocab} is smaller than the tokenizer's vocabulary of {bpe}"),
                &["model.vocab", "data.tokenizer"],
                "remove `model.vocab`; it then follows the tokenizer",
            ),
            (Some(ParsedValue::Files(_)), None) if self.values.said("model.vocab").is_none() => self.wrong(
                "missing `model.vocab`: the vocabulary size of the tokenizer's file, or a larger one".to_owned(),
                &["data.tokenizer"],
                "write for example `vocab = 50257` below `[model]` (GPT-2); the data is then checked against it",
            ),
            (_, None)
                if self.values.one_of("data.format") == Some(DataKind::Tokens)
                    && self.values.said("model.vocab").is_none() =>
            {
                self.wrong(
                    "missing `model.vocab`: token shards do not record the size of their \
                    vocabulary"
                        .to_owned(),
                    &["data.train"],
                    "write for example `vocab = 50257` below `[model]` (GPT-2)",
                );
            }
            _ => {}
        }
    }

    pub(super) fn cnn(&mut self) {
        let Some(ParsedValue::Wholes(stages)) = self.values.get("model.stages") else { return };
        let halvings = u32::try_from(stages.len() - 1).unwrap_or(u32::MAX);
        for side in ["model.height", "model.width"] {
            let Some(pixels) = self.values.whole(side) else { continue };
            if pixels.checked_shr(halvings).unwrap_or(0) == 0 {
                let message = format!("`{side}` = {pixels} cannot be halved {halvings} times");
                self.wrong(
                    message,
                    &["model.stages", side],
                    "remove stages: each after the first halves the image",
                );
            }
        }
    }
}
