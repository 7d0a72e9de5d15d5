//! Conversations as training data: from a JSON record to tokens, and to which of them count in the loss.
//!
//! A record becomes a [`ChatRecord`] in `conversation`, its text is rendered with the [`ChatTemplate`] of the
//! tokenizer, `answers` finds the answers in that text, and [`ChatEncoder`] turns it into tokens and a mask.
//! The result is the one of `apply_chat_template` of transformers.

mod answers;
mod conversation;
mod encode;
mod marks;
mod message;
mod methods;
mod prepare;
mod python;
mod template;
#[cfg(test)]
mod tests;
mod windows;

pub(super) use prepare::ChatSettings;
pub use prepare::holds_conversations;

use conversation::ChatRecord;
use encode::{ChatEncoder, MaskedTokens};
use template::ChatTemplate;

/// The reason why a record does not become tokens. The caller adds the file and the place of the record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChatError {
    /// The record is not a conversation.
    #[error("`{field}` is {found}, expected {wanted}")]
    Record {
        /// The field, such as `messages[2].role`.
        field: String,
        /// The expected content.
        wanted: String,
        /// The content found.
        found: String,
    },
    /// There is no chat template.
    #[error(
        "the tokenizer has no chat template: expected `chat_template` in tokenizer_config.json, or a file \
         chat_template.jinja beside it; set `data.template` to a template in a file"
    )]
    NoTemplate,
    /// A file that comes with the tokenizer is not as expected.
    #[error("tokenizer_config.json: {0}")]
    Config(String),
    /// The template has a mistake, cannot be rendered, or refuses the conversation in its own words.
    #[error("the chat template{}: {detail}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Template {
        /// Line of the template, from 1; `None` if it is not known.
        line: Option<usize>,
        /// The message of the template, or a description of the mistake.
        detail: String,
    },
    /// The tokens of an answer cannot be told from the others.
    #[error(
        "the answer in message {message} cannot be found in what the chat template makes of the conversation; \
         put `{{% generation %}}` and `{{% endgeneration %}}` around answers in the template, or set \
         `data.loss_on = \"all\"`"
    )]
    NoAnswer {
        /// Number of the message, from 1.
        message: usize,
    },
    /// The tokenizer has no tokens for the text.
    #[error("tokenizing: {0}")]
    Tokenizer(String),
}
