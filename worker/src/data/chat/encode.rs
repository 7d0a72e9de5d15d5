//! From a record to tokens, and to which of them count in the loss.

use super::ChatError;
use super::answers::AnswerFinder;
use super::conversation::{ChatRecord, Conversation};
use super::template::ChatTemplate;
use dtrain_recipes::LossOn;
use std::ops::Range;
use tokenizers::Tokenizer;

/// The tokens of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MaskedTokens {
    /// The tokens.
    pub(crate) ids: Vec<u32>,
    /// For each token, whether it counts in the loss as the target of the one before it.
    pub(crate) counted: Vec<bool>,
}

/// An encoder of records: template, tokenizer, and what counts.
#[derive(Debug)]
pub(crate) struct ChatEncoder<'a> {
    template: &'a ChatTemplate,
    tokenizer: &'a Tokenizer,
    answers: AnswerFinder<'a>,
    loss_on: LossOn,
}

impl<'a> ChatEncoder<'a> {
    /// Creates an encoder; it can be shared by threads.
    pub(crate) fn new(template: &'a ChatTemplate, tokenizer: &'a Tokenizer, loss_on: LossOn) -> Self {
        let special: Vec<String> =
            tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
        Self { template, tokenizer, answers: AnswerFinder::new(template, &special), loss_on }
    }

    /// Returns the tokens of a record. A conversation has those of its rendered text, without any that the
    /// tokenizer adds by itself. A text with a continuation has those of both, with the special tokens that
    /// the tokenizer adds, and the end-of-text token behind them. `Err` if the template refuses the
    /// conversation, or an answer cannot be found.
    pub(crate) fn encode(&self, record: &ChatRecord) -> Result<MaskedTokens, ChatError> {
        match record {
            ChatRecord::Conversation(conversation) => {
                let (text, answers) = self.render(conversation)?;
                self.masked(&text, &answers, false)
            }
            ChatRecord::Text { prompt, completion } => {
                let end =
                    self.template.end_of_text().filter(|end| !completion.ends_with(end)).unwrap_or_default();
                let text = format!("{prompt}{completion}{end}");
                self.masked(&text, std::slice::from_ref(&(prompt.len()..text.len())), true)
            }
        }
    }

    /// Returns the text of a conversation, and the byte ranges of its answers in order; none if all tokens
    /// count.
    pub(super) fn render(
        &self,
        conversation: &Conversation,
    ) -> Result<(String, Vec<Range<usize>>), ChatError> {
        let chat = self.template.render(conversation, &conversation.messages, false)?;
        let answers = match (self.loss_on, chat.marked) {
            (LossOn::All, _) => Vec::new(),
            (LossOn::Answers, Some(marked)) if conversation.prompt == 0 => marked,
            (LossOn::Answers, Some(marked)) => {
                // Marks do not say which message they belong to: those of the prompt come first.
                let found = self.answers.find(conversation, &chat.text)?;
                let begin = found.first().map_or(0, |first| first.start);
                marked.into_iter().filter(|range| range.end > begin).collect()
            }
            (LossOn::Answers, None) => self.answers.find(conversation, &chat.text)?,
        };
        Ok((chat.text, answers))
    }

    fn masked(
        &self,
        text: &str,
        answers: &[Range<usize>],
        adds_special: bool,
    ) -> Result<MaskedTokens, ChatError> {
        let encoding = self.tokenizer.encode(text, adds_special);
        let encoding = encoding.map_err(|error| ChatError::Tokenizer(error.to_string()))?;
        let counted = match self.loss_on {
            LossOn::All => vec![true; encoding.len()],
            LossOn::Answers => overlapping(encoding.get_offsets(), answers),
        };
        Ok(MaskedTokens { ids: encoding.get_ids().to_vec(), counted })
    }
}

/// Returns for each token, given as its byte range, whether it overlaps one of `ranges`, which are in order:
/// `return_assistant_tokens_mask` of transformers.
fn overlapping(tokens: &[(usize, usize)], ranges: &[Range<usize>]) -> Vec<bool> {
    let mut ranges = ranges.iter().peekable();
    let is_counted = |(begin, end): &(usize, usize)| {
        while ranges.next_if(|range| *begin >= range.end).is_some() {}
        ranges.peek().is_some_and(|range| *end > range.start)
    };
    tokens.iter().map(is_counted).collect()
}
