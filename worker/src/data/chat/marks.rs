//! The tags `{% generation %}` and `{% endgeneration %}`, which stand around answers in a template.
//!
//! The template engine does not have them. They become `{% filter … %}` and `{% endfilter %}`, with a filter
//! that puts a character before and one behind the text. The characters are taken out of the rendered text
//! again. They are two that Unicode gives no meaning, and that the conversation does not have.

use super::python;
use minijinja::value::Value;
use minijinja::{Error, ErrorKind, State};
use std::ops::Range;

/// Name of the filter that the tags apply.
pub(super) const FILTER: &str = "dtrain_generation";

/// Name of the variable with the two characters.
pub(super) const CHARACTERS: &str = "dtrain_generation_characters";

/// Pairs of characters to choose from: the noncharacters of Unicode that are together.
pub(super) fn candidates() -> impl Iterator<Item = [char; 2]> {
    ('\u{fdd0}'..='\u{fdee}').step_by(2).filter_map(|c| Some([c, char::from_u32(u32::from(c) + 1)?]))
}

/// Returns the template with filters in place of the tags, and whether it has any. Lines stay where they are.
pub(super) fn replace(source: &str) -> (String, bool) {
    let (mut out, mut rest, mut has_any) = (String::with_capacity(source.len()), source, false);
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{#")).min() {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_comment = rest.starts_with("{#");
        let end = rest.find(if is_comment { "#}" } else { "%}" }).map_or(rest.len(), |end| end + 2);
        let (tag, behind) = rest.split_at(end);
        rest = behind;
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        let (name, head, tail) = (inner.trim_matches(|c| c == '-' || c == '+'), inner.as_bytes(), inner);
        match name.trim() {
            _ if is_comment => out.push_str(tag),
            word @ ("generation" | "endgeneration") => {
                has_any = true;
                let sign = |c: Option<char>| {
                    c.filter(|c| matches!(c, '-' | '+')).map(String::from).unwrap_or_default()
                };
                let before = sign(head.first().map(|byte| char::from(*byte)));
                let after = sign(tail.chars().last());
                let filter =
                    if word == "generation" { format!("filter {FILTER}") } else { "endfilter".to_owned() };
                let lines = "\n".repeat(inner.matches('\n').count());
                out.push_str(&format!("{{%{before} {filter} {lines}{after}%}}"));
            }
            "raw" => {
                // What is raw is text, up to the tag that ends it.
                let end = rest.find("endraw").unwrap_or(rest.len());
                out.push_str(tag);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    (out, has_any)
}

/// The filter that the tags apply: puts the characters around a text.
pub(super) fn surround(state: &State, text: &Value) -> Result<String, Error> {
    let characters = state.lookup(CHARACTERS);
    let characters: Option<[char; 2]> = characters
        .as_ref()
        .and_then(Value::as_str)
        .and_then(|text| text.chars().collect::<Vec<_>>().try_into().ok());
    let [begin, end] = characters.ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, "`generation` in a place without variables")
    })?;
    Ok(format!("{begin}{}{end}", python::text(text)))
}

/// Returns a rendered text without the characters, and the byte ranges that were between them.
pub(super) fn remove(text: &str, [begin, end]: [char; 2]) -> (String, Vec<Range<usize>>) {
    let (mut plain, mut ranges, mut depth, mut from) =
        (String::with_capacity(text.len()), Vec::new(), 0u32, 0);
    let mut rest = text;
    while let Some(at) = rest.find([begin, end]) {
        plain.push_str(&rest[..at]);
        if rest[at..].starts_with(begin) {
            depth += 1;
            from = if depth == 1 { plain.len() } else { from };
        } else {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                ranges.push(from..plain.len());
            }
        }
        rest = &rest[at + begin.len_utf8()..];
    }
    plain.push_str(rest);
    (plain, ranges)
}
