//! Where the answers are in the text of a conversation whose template does not mark them.

use super::ChatError;
use super::conversation::Conversation;
use super::message::{given, message, with_content};
use super::template::ChatTemplate;
use minijinja::value::Value;
use std::ops::Range;

/// What a template writes around every answer.
#[derive(Debug)]
struct TurnFrame {
    /// Text that `add_generation_prompt` adds: the beginning of an answer.
    prompt: String,
    /// Text that ends an answer, whatever follows it: the end-of-turn token, and the line break if the
    /// template writes one behind it.
    end: String,
    /// The last special token of `end`, with what follows it there.
    end_token: String,
}

/// Finds answers in texts that a template without marks renders.
///
/// An answer is the text that a model would write after the prompt that it is given, through the end of its
/// turn. It is found with the first of these rules that applies:
///
/// 1. **By prefixes.** Let *P* be the messages before the answer, rendered with `add_generation_prompt`, and
///    *F* the messages up to and with the answer, rendered without. If the whole conversation begins with
///    both, then the answer is what *F* has more than *P*.
/// 2. **By a marker.** Some templates write a message in another way when more messages follow: Qwen3 leaves
///    out earlier reasoning, Mistral puts the system prompt before the last question. Then a word that
///    occurs nowhere else takes the place of the answer's content, and the conversation is rendered again.
///    The text before the marker, up to the last *beginning of an answer* in it, must also be the beginning
///    of the whole conversation. There the answer begins. It ends where *F* ends, if the whole conversation
///    begins with *F*. Otherwise, if the message calls no tools and the text behind the marker is also the
///    end of the whole conversation, it ends there, and with the *end of a turn* if that follows. Otherwise
///    it ends with the first *end of a turn* after its beginning.
/// 3. **By a marker in place of the exchange**, for templates that do not write the content of a message
///    that calls tools. The message with the marker takes the place of the answer and of all that follow it
///    up to the next question. The answer ends as above.
///
/// The *beginning of an answer* is what `add_generation_prompt` adds to a question. The *end of a turn* is
/// what follows the answer at the end of a conversation and also if a question comes next: the end-of-turn
/// token, and the line break that some templates write behind it, which counts too. Where it does not
/// occur, its last special token is looked for. Both are found by rendering short conversations of one
/// question and one answer.
#[derive(Debug)]
pub(super) struct AnswerFinder<'a> {
    template: &'a ChatTemplate,
    frame: TurnFrame,
}

impl<'a> AnswerFinder<'a> {
    /// Creates a finder of answers; `special` are the texts of the tokenizer's added tokens.
    pub(super) fn new(template: &'a ChatTemplate, special: &[String]) -> Self {
        Self { template, frame: TurnFrame::of(template, special) }
    }

    /// Returns the byte range in `whole`, the rendered conversation, of each answer to be learned, in order.
    pub(super) fn find(
        &self,
        conversation: &Conversation,
        whole: &str,
    ) -> Result<Vec<Range<usize>>, ChatError> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for at in conversation.answers() {
            let range = self.find_one(conversation, whole, at);
            // Answers are in order; one before another was mistaken for it.
            match range.filter(|range| ranges.last().is_none_or(|last| last.end <= range.start)) {
                Some(range) => ranges.push(range),
                None => return Err(ChatError::NoAnswer { message: at + 1 }),
            }
        }
        Ok(ranges)
    }

    /// Returns the byte range of the answer in message `at`.
    fn find_one(&self, conversation: &Conversation, whole: &str, at: usize) -> Option<Range<usize>> {
        let length_of = |messages: &[Value], prompts| {
            let text = self.template.render(conversation, messages, prompts).ok()?.text;
            whole.starts_with(&*text).then_some(text.len())
        };
        let messages = &conversation.messages;
        let end = length_of(&messages[..=at], false);
        // A conversation without messages is not rendered by transformers either.
        let begin = if at > 0 { length_of(&messages[..at], true) } else { None };
        match (begin, end) {
            (Some(begin), Some(end)) if begin < end || (begin == end && is_empty(&messages[at])) => {
                Some(begin..end)
            }
            _ => self
                .by_marker(conversation, whole, at, end)
                .or_else(|| self.by_exchange(conversation, whole, at, end)),
        }
    }

    fn by_marker(
        &self,
        conversation: &Conversation,
        whole: &str,
        at: usize,
        end: Option<usize>,
    ) -> Option<Range<usize>> {
        let marker = unused_word(whole);
        let mut messages = conversation.messages.clone();
        messages[at] = with_content(&messages[at], &*marker);
        let marked = self.template.render(conversation, &messages, false).ok()?.text;
        let (before, behind) = split_at_only(&marked, &marker)?;
        let begin = self.begin(before, whole)?;
        if let Some(end) = end.filter(|end| *end >= begin) {
            return Some(begin..end);
        }
        let calls_tools = given(&messages[at], "tool_calls").is_some();
        match whole.strip_suffix(behind).map(str::len).filter(|end| *end >= begin && !calls_tools) {
            Some(end) if behind.starts_with(&self.frame.end) => Some(begin..end + self.frame.end.len()),
            Some(end) => Some(begin..end),
            None => self.end(whole, begin).map(|end| begin..end),
        }
    }

    fn by_exchange(
        &self,
        conversation: &Conversation,
        whole: &str,
        at: usize,
        end: Option<usize>,
    ) -> Option<Range<usize>> {
        let marker = unused_word(whole);
        let messages = &conversation.messages;
        let is_question =
            |message: &Value| message.get_attr("role").is_ok_and(|role| role.as_str() == Some("user"));
        let next = messages[at..].iter().position(is_question).map_or(messages.len(), |next| at + next);
        let mut changed = messages[..at].to_vec();
        changed.push(message("assistant", &*marker));
        changed.extend_from_slice(&messages[next..]);
        let marked = self.template.render(conversation, &changed, false).ok()?.text;
        let begin = self.begin(split_at_only(&marked, &marker)?.0, whole)?;
        Some(begin..end.filter(|end| *end >= begin).or_else(|| self.end(whole, begin))?)
    }

    /// Returns where the answer behind `before` begins in `whole`; `None` if `whole` begins otherwise.
    fn begin(&self, before: &str, whole: &str) -> Option<usize> {
        let TurnFrame { prompt, end, .. } = &self.frame;
        // What a template writes between the beginning and the content belongs to the answer. An earlier
        // turn's beginning is not meant.
        let begin = before
            .rfind(&**prompt)
            .map(|at| at + prompt.len())
            .filter(|at| !prompt.is_empty() && (end.is_empty() || !before[*at..].contains(&**end)));
        let begin = begin.unwrap_or(before.len());
        whole.starts_with(&before[..begin]).then_some(begin)
    }

    /// Returns the end of the turn that is going on at `begin`.
    fn end(&self, whole: &str, begin: usize) -> Option<usize> {
        let TurnFrame { end, end_token, .. } = &self.frame;
        // A turn that calls tools may end in its own way before the end-of-turn token.
        [end, end_token]
            .into_iter()
            .filter(|end| !end.is_empty())
            .find_map(|end| whole[begin..].find(&**end).map(|at| begin + at + end.len()))
    }
}

impl TurnFrame {
    /// Renders short conversations to see what a template writes around answers. What cannot be rendered is
    /// empty.
    fn of(template: &ChatTemplate, special: &[String]) -> Self {
        let (question, answer) = ("dtrainquestion", "dtrainanswer");
        let (user, assistant) = (message("user", question), message("assistant", answer));
        let empty = Conversation {
            messages: Vec::new(),
            tools: None,
            documents: None,
            variables: Vec::new(),
            prompt: 0,
        };
        let render = |messages: &[&Value], prompts| {
            let messages: Vec<Value> = messages.iter().map(|message| (*message).clone()).collect();
            template.render(&empty, &messages, prompts).map(|chat| chat.text).unwrap_or_default()
        };
        let (plain, prompted) = (render(&[&user], false), render(&[&user], true));
        let prompt = prompted[common(&plain, &prompted, special)..].to_owned();
        let (last, asked) = (render(&[&user, &assistant], false), render(&[&user, &assistant, &user], false));
        let (last, asked) = (behind(&last, answer), behind(&asked, answer));
        let end = &last[..common(last, asked, special)];
        let last_token = special.iter().filter_map(|token| end.rfind(&**token)).max();
        let end_token = last_token.map_or("", |at| &end[at..]).to_owned();
        Self { prompt, end: end.to_owned(), end_token }
    }
}

/// Returns `true` for a message with nothing to write.
fn is_empty(message: &Value) -> bool {
    let content = message.get_attr("content").unwrap_or_default();
    content.as_str().is_some_and(|text| text.trim().is_empty()) && given(message, "tool_calls").is_none()
}

fn behind<'t>(text: &'t str, word: &str) -> &'t str {
    text.split_once(word).map_or("", |(_, behind)| behind)
}

/// Returns the length of what both texts begin with, without part of a special token.
fn common(left: &str, right: &str, special: &[String]) -> usize {
    let bytes = left.bytes().zip(right.bytes());
    let mut length = bytes.take_while(|(left, right)| left == right).count();
    length = (0..=length).rev().find(|at| left.is_char_boundary(*at)).unwrap_or(0);
    let is_cut = |at: usize| {
        [left, right].into_iter().any(|text| {
            special.iter().any(|token| {
                (1..token.len().min(at + 1))
                    .any(|part| text.is_char_boundary(at - part) && text[at - part..].starts_with(&**token))
            })
        })
    };
    while length > 0 && (!left.is_char_boundary(length) || is_cut(length)) {
        length -= 1;
    }
    length
}

/// Returns the texts before and behind `word`, if it occurs once.
fn split_at_only<'t>(text: &'t str, word: &str) -> Option<(&'t str, &'t str)> {
    text.split_once(word).filter(|(_, behind)| !behind.contains(word))
}

/// Returns a word that is not in `text`.
fn unused_word(text: &str) -> String {
    let mut word = "dtrainanswer".to_owned();
    while text.contains(&*word) {
        word.push('x');
    }
    word
}
