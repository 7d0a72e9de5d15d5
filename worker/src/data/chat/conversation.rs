//! Records of conversations, in the forms in which data sets have them.

use super::ChatError;
use super::message::{given, has, kind, list, message, normalized, optional_text, text, wrong};
use super::python::pairs;
use minijinja::value::{Value, ValueKind};

/// Roles of messages. `developer` is a newer name of `system`; `function` and `ipython` are older ones of
/// `tool`.
const ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "ipython"];

/// Roles in the form of `ShareGPT`, and what they are called here.
const SPEAKERS: [(&str, &str); 8] = [
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("assistant", "assistant"),
    ("system", "system"),
    ("tool", "tool"),
    ("observation", "tool"),
    ("function_call", "assistant"),
];

/// Number of fields that an error lists.
const NAMED_FIELDS: usize = 12;

/// A record of a data set of conversations.
#[derive(Clone, Debug)]
pub(crate) enum ChatRecord {
    /// Messages, to be rendered with a chat template.
    Conversation(Conversation),
    /// A text and its continuation, which are taken as they are.
    Text {
        /// The text that is given.
        prompt: String,
        /// The text that is learned.
        completion: String,
    },
}

/// Messages, and what else a chat template is given.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    /// The messages: objects with `role`, `content` and what else the record has.
    pub(super) messages: Vec<Value>,
    /// Descriptions of tools.
    pub(super) tools: Option<Value>,
    /// Documents to answer from.
    pub(super) documents: Option<Value>,
    /// Other variables of the template.
    pub(super) variables: Vec<(String, Value)>,
    /// Number of messages before the first that is learned; 0 unless the record has a prompt of its own.
    pub(super) prompt: usize,
}

impl Conversation {
    /// Iterates over the numbers, from 0, of the messages that are answers to be learned.
    pub(super) fn answers(&self) -> impl Iterator<Item = usize> {
        let messages = self.messages.iter().enumerate().skip(self.prompt);
        messages.filter(|(_, message)| is_answer(message)).map(|(at, _)| at)
    }

    /// Returns `true` if the conversation has the character `c` anywhere.
    pub(super) fn has(&self, c: char) -> bool {
        let variables = self.variables.iter().map(|(_, value)| value);
        self.messages
            .iter()
            .chain(&self.tools)
            .chain(&self.documents)
            .chain(variables)
            .any(|value| has(value, c))
    }
}

/// Returns `true` for a message of the model.
fn is_answer(message: &Value) -> bool {
    message.get_attr("role").is_ok_and(|role| role.as_str() == Some("assistant"))
}

impl ChatRecord {
    /// Parses a record, a JSON object. Its fields determine its form: `messages`, `conversations`, `prompt`
    /// with `completion`, or `instruction` with `output`.
    pub(crate) fn parse(record: &Value) -> Result<Self, ChatError> {
        if record.kind() != ValueKind::Map {
            return Err(wrong("the record", "a JSON object with a conversation", kind(record)));
        }
        let (messages, prompt) = if let Some(messages) = given(record, "messages") {
            (messages_in(&messages, "messages")?, 0)
        } else if let Some(turns) = given(record, "conversations") {
            (turns_in(record, &turns)?, 0)
        } else if let Some(prompt) = given(record, "prompt") {
            let completion = record.get_attr("completion").unwrap_or_default();
            if prompt.kind() == ValueKind::String {
                let (prompt, completion) = (text(record, "", "prompt")?, text(record, "", "completion")?);
                return Ok(Self::Text { prompt, completion });
            }
            if completion.kind() == ValueKind::String {
                return Err(wrong("completion", "a list of messages, as `prompt` is", "a text"));
            }
            let mut messages = messages_in(&prompt, "prompt")?;
            let prompt = messages.len();
            messages.extend(messages_in(&completion, "completion")?);
            (messages, prompt)
        } else if given(record, "instruction").is_some() {
            (instruction_in(record)?, 0)
        } else {
            let fields: Vec<String> =
                pairs(record).iter().take(NAMED_FIELDS).map(|(key, _)| format!("`{key}`")).collect();
            let wanted = "an object with `messages`, `conversations`, `prompt` and `completion`, or \
                 `instruction` and `output`";
            return Err(wrong("the record", wanted, format!("an object with {}", fields.join(", "))));
        };
        let conversation = Conversation {
            messages,
            prompt,
            tools: listed(record, "tools")?,
            documents: listed(record, "documents")?,
            variables: variables_in(record)?,
        };
        if conversation.answers().next().is_none() {
            let field = ["messages", "conversations", "completion"]
                .into_iter()
                .find(|name| given(record, name).is_some());
            let wanted = "a list with a message of the role `assistant`, the answer to be learned";
            return Err(wrong(field.unwrap_or("the record"), wanted, "a list without one"));
        }
        Ok(Self::Conversation(conversation))
    }
}

/// Returns the messages of a list of objects with `role` and `content`.
fn messages_in(value: &Value, place: &str) -> Result<Vec<Value>, ChatError> {
    let items = list(value, place, "a list of messages")?;
    items.iter().enumerate().map(|(at, item)| checked(item, &format!("{place}[{at}]"))).collect()
}

/// Checks the message that stands at `place`.
fn checked(item: &Value, place: &str) -> Result<Value, ChatError> {
    if item.kind() != ValueKind::Map {
        return Err(wrong(place, "an object with `role` and `content`", kind(item)));
    }
    let role = text(item, place, "role")?;
    if !ROLES.contains(&&*role) {
        return Err(wrong(format!("{place}.role"), one_of(&ROLES), format!("`{role}`")));
    }
    let calls = given(item, "tool_calls");
    if let Some(calls) = &calls {
        let place = format!("{place}.tool_calls");
        let calls = list(calls, &place, "a list of calls of tools")?;
        if let Some((at, call)) = calls.iter().enumerate().find(|(_, call)| call.kind() != ValueKind::Map) {
            return Err(wrong(format!("{place}[{at}]"), "an object with `function`", kind(call)));
        }
    }
    let content = item.get_attr("content").unwrap_or_default();
    let place = format!("{place}.content");
    match content.kind() {
        ValueKind::String => {}
        ValueKind::None | ValueKind::Undefined
            if calls.is_some() || given(item, "function_call").is_some() => {}
        ValueKind::Seq => {
            for (at, part) in list(&content, &place, "a list")?.iter().enumerate() {
                let (place, wanted) =
                    (format!("{place}[{at}]"), "an object with `type = \"text\"` and `text`");
                if part.kind() != ValueKind::Map {
                    return Err(wrong(place, wanted, kind(part)));
                }
                let found = text(part, &place, "type")?;
                if found != "text" {
                    return Err(wrong(
                        format!("{place}.type"),
                        "`text`; models of text alone are trained",
                        format!("`{found}`"),
                    ));
                }
                text(part, &place, "text")?;
            }
        }
        _ => return Err(wrong(place, "a text, or a list of parts with texts", kind(&content))),
    }
    Ok(normalized(item))
}

/// Returns the messages of a list of objects with `from` and `value`, with the text in `system` before them.
fn turns_in(record: &Value, turns: &Value) -> Result<Vec<Value>, ChatError> {
    let place = "conversations";
    let items = list(turns, place, "a list of messages")?;
    let mut messages = Vec::with_capacity(items.len() + 1);
    for (at, item) in items.iter().enumerate() {
        let place = format!("{place}[{at}]");
        messages.push(if given(item, "role").is_some() {
            checked(item, &place)?
        } else {
            turn(item, &place)?
        });
    }
    let begins_with_system =
        messages.first().is_some_and(|first| text(first, "", "role").is_ok_and(|role| role == "system"));
    if let Some(system) = optional_text(record, "system")?.filter(|_| !begins_with_system) {
        messages.insert(0, message("system", system));
    }
    Ok(messages)
}

/// Returns the message of an object with `from` and `value`.
fn turn(item: &Value, place: &str) -> Result<Value, ChatError> {
    if item.kind() != ValueKind::Map {
        return Err(wrong(place, "an object with `from` and `value`", kind(item)));
    }
    let from = text(item, place, "from")?;
    let value = text(item, place, "value")?;
    let Some((_, role)) = SPEAKERS.iter().find(|(name, _)| *name == from) else {
        let names = SPEAKERS.map(|(name, _)| name);
        return Err(wrong(format!("{place}.from"), one_of(&names), format!("`{from}`")));
    };
    if from != "function_call" {
        return Ok(message(role, value));
    }
    let wanted = "JSON: an object with `name` and `arguments`, or a list of them";
    let call: Value = serde_json::from_str(&value)
        .map_err(|error| wrong(format!("{place}.value"), wanted, format!("other text ({error})")))?;
    let calls = if call.kind() == ValueKind::Seq { list(&call, place, wanted)? } else { vec![call] };
    if let Some(call) = calls.iter().find(|call| given(call, "name").is_none()) {
        return Err(wrong(format!("{place}.value"), wanted, format!("{} without `name`", kind(call))));
    }
    let call = |function: Value| -> Value {
        [("type", Value::from("function")), ("function", function)].into_iter().collect()
    };
    let calls: Vec<Value> = calls.into_iter().map(call).collect();
    let fields =
        [("role", Value::from(*role)), ("content", Value::from("")), ("tool_calls", Value::from(calls))];
    Ok(fields.into_iter().collect())
}

/// Returns the messages of an instruction: those in `history`, the question and the answer.
fn instruction_in(record: &Value) -> Result<Vec<Value>, ChatError> {
    let mut messages = Vec::new();
    if let Some(system) = optional_text(record, "system")? {
        messages.push(message("system", system));
    }
    if let Some(history) = given(record, "history") {
        let wanted = "a list of pairs of a question and an answer";
        for (at, pair) in list(&history, "history", wanted)?.iter().enumerate() {
            let place = format!("history[{at}]");
            match &*list(pair, &place, "a list of a question and an answer")? {
                [question, answer] if question.as_str().is_some() && answer.as_str().is_some() => {
                    messages
                        .extend([message("user", question.clone()), message("assistant", answer.clone())]);
                }
                other => {
                    let found = format!("a list of {} values", other.len());
                    return Err(wrong(place, "a list of two texts, a question and an answer", found));
                }
            }
        }
    }
    let mut question = text(record, "", "instruction")?;
    if let Some(input) = optional_text(record, "input")? {
        question.push('\n');
        question.push_str(&input);
    }
    messages.extend([message("user", question), message("assistant", text(record, "", "output")?)]);
    Ok(messages)
}

/// Returns the list in a field, which may be written as JSON in a text; `None` if it is missing or
/// an empty text.
fn listed(record: &Value, field: &str) -> Result<Option<Value>, ChatError> {
    let Some(value) = given(record, field) else { return Ok(None) };
    let value = match value.as_str() {
        None => value,
        Some(text) if text.trim().is_empty() => return Ok(None),
        Some(text) => serde_json::from_str(text)
            .map_err(|error| wrong(field, "a list, or the JSON of one", format!("other text ({error})")))?,
    };
    let items = list(&value, field, "a list of objects")?;
    match items.iter().enumerate().find(|(_, item)| item.kind() != ValueKind::Map) {
        Some((at, item)) => Err(wrong(format!("{field}[{at}]"), "an object", kind(item))),
        None => Ok(Some(value)),
    }
}

/// Returns the variables that a record sets for the template, in `chat_template_kwargs`.
fn variables_in(record: &Value) -> Result<Vec<(String, Value)>, ChatError> {
    let field = "chat_template_kwargs";
    match given(record, field) {
        None => Ok(Vec::new()),
        Some(value) if value.kind() == ValueKind::Map => {
            Ok(pairs(&value).into_iter().map(|(key, value)| (key.to_string(), value)).collect())
        }
        Some(value) => Err(wrong(field, "an object with variables of the template", kind(&value))),
    }
}

fn one_of(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    format!("one of {}", words.join(", "))
}
