//! Chat templates: how a tokenizer's model wants a conversation to be written.
//!
//! Templates are rendered as transformers renders them. Differences that are known: integers beyond 128 bits
//! are read as floating-point numbers, and a text that Python cannot compare or add to another value is an
//! error at the same place with other words.

use super::ChatError;
use super::conversation::Conversation;
use super::marks;
use super::message::{given, joined, kind, message, text};
use super::{methods, python};
use chrono::NaiveDateTime;
use chrono::format::{Item, StrftimeItems};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use std::ops::Range;

/// The special tokens that templates know, by the names of their variables.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Names of the templates in a list of several: the usual one, and the one for records with tools.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// A chat template with the special tokens of its tokenizer.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    /// The templates: `default`, and `tool_use` if there is one.
    variants: Vec<Variant>,
    /// Special tokens, by the names of their variables.
    special: Vec<(String, Value)>,
}

/// One of the templates of a tokenizer.
#[derive(Debug)]
struct Variant {
    name: &'static str,
    /// True if the template has the tag `generation`.
    is_marked: bool,
    /// True if the template takes a list of parts as content, as it takes a text.
    takes_parts: bool,
}

/// A rendered conversation.
#[derive(Debug)]
pub(super) struct RenderedChat {
    pub(super) text: String,
    /// Byte ranges of `text` that the template marks as answers; `None` if it has no marks.
    pub(super) marked: Option<Vec<Range<usize>>>,
}

impl ChatTemplate {
    /// Creates the template from the files beside a tokenizer: the JSON of `tokenizer_config.json`, which
    /// has the special tokens, and the text of a template file, used instead of the one in the JSON. `now`
    /// is the local time that templates are told. `Err` if there is no template, or it has a mistake.
    pub(crate) fn new(
        config: Option<&[u8]>,
        file: Option<&str>,
        now: NaiveDateTime,
    ) -> Result<Self, ChatError> {
        let config: Value = match config {
            Some(json) => {
                serde_json::from_slice(json).map_err(|error| ChatError::Config(error.to_string()))?
            }
            None => Value::UNDEFINED,
        };
        let mut environment = environment(now);
        let mut variants = Vec::new();
        for (name, source) in sources(&config, file)? {
            // As in jinja2, all line ends are written as `\n`.
            let (source, is_marked) = marks::replace(&source.replace("\r\n", "\n").replace('\r', "\n"));
            environment.add_template_owned(name, source).map_err(|error| template_error(&error))?;
            variants.push(Variant { name, is_marked, takes_parts: false });
        }
        let mut template = Self { environment, variants, special: special_tokens(&config)? };
        for at in 0..template.variants.len() {
            template.variants[at].takes_parts = template.takes_parts(&template.variants[at]);
        }
        Ok(template)
    }

    /// Returns the end-of-text token that the tokenizer's configuration names.
    pub(super) fn end_of_text(&self) -> Option<&str> {
        self.special.iter().find(|(name, _)| name == "eos_token").and_then(|(_, token)| token.as_str())
    }

    /// Renders the conversation with `messages` in place of its own; `prompts` ends it with the beginning of
    /// an answer.
    pub(super) fn render(
        &self,
        conversation: &Conversation,
        messages: &[Value],
        prompts: bool,
    ) -> Result<RenderedChat, ChatError> {
        let variant = self.variant(conversation);
        let messages = messages.iter();
        let messages: Vec<Value> =
            if variant.takes_parts { messages.cloned().collect() } else { messages.map(joined).collect() };
        self.render_variant(variant, conversation, messages, prompts)
    }

    fn variant(&self, conversation: &Conversation) -> &Variant {
        let of_tools =
            self.variants.iter().find(|variant| variant.name == TOOL_USE && conversation.tools.is_some());
        of_tools.unwrap_or(&self.variants[0])
    }

    fn render_variant(
        &self,
        variant: &Variant,
        conversation: &Conversation,
        messages: Vec<Value>,
        prompts: bool,
    ) -> Result<RenderedChat, ChatError> {
        let characters = marks::candidates().find(|pair| !pair.iter().any(|c| conversation.has(*c)));
        let characters = characters.ok_or_else(|| ChatError::Template {
            line: None,
            detail: "the conversation has all characters from U+FDD0 to U+FDEF, expected not all".to_owned(),
        })?;
        let none = || Value::from(());
        let own = [
            ("messages", Value::from(messages)),
            ("tools", conversation.tools.clone().unwrap_or_else(none)),
            ("documents", conversation.documents.clone().unwrap_or_else(none)),
            ("add_generation_prompt", Value::from(prompts)),
            (marks::CHARACTERS, Value::from(String::from_iter(characters))),
        ];
        let given = self.special.iter().chain(&conversation.variables).cloned();
        let variables: Value = given.chain(own.map(|(name, value)| (name.to_owned(), value))).collect();
        let template = self.environment.get_template(variant.name);
        let text = template
            .and_then(|template| template.render(variables))
            .map_err(|error| template_error(&error))?;
        let (text, ranges) = marks::remove(&text, characters);
        Ok(RenderedChat { text, marked: variant.is_marked.then_some(ranges) })
    }

    /// Returns `true` if a list of parts as content makes the same text as the text itself.
    fn takes_parts(&self, variant: &Variant) -> bool {
        let part: Value = [("type", "text"), ("text", "a")].into_iter().collect();
        let text = |content: Value| {
            let messages = vec![message("user", content), message("assistant", "b")];
            let empty = Conversation {
                messages: Vec::new(),
                tools: None,
                documents: None,
                variables: Vec::new(),
                prompt: 0,
            };
            self.render_variant(variant, &empty, messages, false).ok().map(|chat| chat.text)
        };
        text(Value::from("a")).is_some_and(|wanted| text(Value::from(vec![part])) == Some(wanted))
    }
}

/// Returns an environment like the one of transformers.
fn environment(now: NaiveDateTime) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| {
        let written = match value.as_str() {
            Some(text) => out.write_str(text),
            None => out.write_str(&python::text(value)),
        };
        written.map_err(Error::from)
    });
    environment.add_filter("tojson", python::to_json);
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_filter("trim", |value: &Value, characters: Option<&str>| {
        let text = python::text(value);
        match characters {
            Some(characters) => text.trim_matches(|c| characters.contains(c)).to_owned(),
            None => text.trim_matches(python::is_blank).to_owned(),
        }
    });
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.kind() {
            ValueKind::Undefined => Ok(0),
            _ => value.len().ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, format!("{} has no length", kind(value)))
            }),
        });
    }
    environment.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined
        )
    });
    environment.add_filter(marks::FILTER, marks::surround);
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, python::text(message)))
    });
    environment.add_function("strftime_now", move |format: &str| {
        let items = StrftimeItems::new(format);
        if items.clone().any(|item| item == Item::Error) {
            let detail = format!("`{format}` is not a format of dates");
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
        Ok(now.format_with_items(items).to_string())
    });
    environment
}

/// Returns the sources of the templates, with their names; the first is the one to use without tools.
fn sources(config: &Value, file: Option<&str>) -> Result<Vec<(&'static str, String)>, ChatError> {
    if let Some(source) = file {
        return Ok(vec![(DEFAULT, source.to_owned())]);
    }
    let Some(value) = given(config, "chat_template") else { return Err(ChatError::NoTemplate) };
    if let Some(source) = value.as_str() {
        return Ok(vec![(DEFAULT, source.to_owned())]);
    }
    let (ValueKind::Seq, Ok(items)) = (value.kind(), value.try_iter()) else {
        let detail = format!("`chat_template` is {}, expected a text, or a list of templates", kind(&value));
        return Err(ChatError::Config(detail));
    };
    let (mut found, mut names) = (Vec::new(), Vec::new());
    for (at, item) in items.enumerate() {
        let place = format!("chat_template[{at}]");
        let field = |field| text(&item, &place, field).map_err(|error| ChatError::Config(error.to_string()));
        let (name, source) = (field("name")?, field("template")?);
        if let Some(known) = [DEFAULT, TOOL_USE].into_iter().find(|known| *known == name) {
            found.push((known, source));
        }
        names.push(format!("`{name}`"));
    }
    // `default` comes first in the alphabet.
    found.sort();
    if found.first().is_none_or(|(name, _)| *name != DEFAULT) {
        let detail = format!("`chat_template` has {}, expected one called `default`", names.join(", "));
        return Err(ChatError::Config(detail));
    }
    Ok(found)
}

/// Returns the special tokens of a configuration, each a text or an object with `content`.
fn special_tokens(config: &Value) -> Result<Vec<(String, Value)>, ChatError> {
    let mut tokens = Vec::new();
    for name in SPECIAL_TOKENS {
        let Some(value) = given(config, name) else { continue };
        let token =
            if value.kind() == ValueKind::Map { given(&value, "content").unwrap_or_default() } else { value };
        if token.kind() != ValueKind::String {
            let detail =
                format!("`{name}` is {}, expected a text, or an object with `content`", kind(&token));
            return Err(ChatError::Config(detail));
        }
        tokens.push((name.to_owned(), token));
    }
    Ok(tokens)
}

/// Converts an error of the template engine; the innermost of several is the one that tells the reason.
fn template_error(error: &Error) -> ChatError {
    let mut innermost = error;
    while let Some(source) =
        std::error::Error::source(innermost).and_then(|source| source.downcast_ref::<Error>())
    {
        innermost = source;
    }
    let detail = innermost.detail().map_or_else(|| innermost.kind().to_string(), str::to_owned);
    ChatError::Template { line: innermost.line().or(error.line()), detail }
}
