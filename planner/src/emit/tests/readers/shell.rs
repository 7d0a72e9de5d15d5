//! Reads shell scripts: assignments, arrays, and commands as the words that they are called with.

use super::{Lines, add, plain};
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

/// Returns the commands of a script, with its own variables replaced. Those of the environment have their
/// defaults, or stay as `$NAME`. Commands for an argument of the script are left out.
pub(in super::super) fn commands(text: &str) -> Vec<Vec<String>> {
    let text = without_arguments(text);
    let mut reader = ShellReader { rest: text.chars().peekable(), variables: BTreeMap::new() };
    let (mut all, mut command) = (Vec::new(), Vec::new());
    loop {
        match reader.token(command.is_empty()) {
            ShellToken::Words(words) => command.extend(words),
            ShellToken::Close => panic!("a parenthesis that nothing opens after {command:?}"),
            end => {
                if !command.is_empty() {
                    all.push(std::mem::take(&mut command));
                }
                if matches!(end, ShellToken::EndOfText) {
                    return all;
                }
            }
        }
    }
}

/// Returns the text without the commands that run only if the script is given an argument.
fn without_arguments(text: &str) -> String {
    let (mut others, mut is_inside) = (String::new(), false);
    for line in text.split_inclusive('\n') {
        is_inside |= line.starts_with("if [[ ${1:-}");
        if !is_inside {
            others += line;
        }
        is_inside &= line != "fi\n";
    }
    assert!(!is_inside, "a condition ends:\n{text}");
    others
}

/// Returns the options among `words`, each with the words up to the next one; others have their place as key.
pub(in super::super) fn options(words: &[String]) -> Lines {
    let (mut found, mut option): (Lines, Option<(String, Vec<&str>)>) = (Lines::new(), None);
    let close = |option: Option<(String, Vec<&str>)>, found: &mut Lines| {
        if let Some((key, values)) = option {
            add(found, key, plain(&values.join(" ")));
        }
    };
    for (place, word) in words.iter().enumerate() {
        if let Some((key, value)) = word.strip_prefix("--").and_then(|word| word.split_once('=')) {
            close(option.take(), &mut found);
            add(&mut found, format!("--{key}"), plain(value));
        } else if word.starts_with("--") {
            close(option.take(), &mut found);
            option = Some((word.clone(), Vec::new()));
        } else if let Some((_, values)) = &mut option {
            values.push(word);
        } else {
            add(&mut found, place.to_string(), word.clone());
        }
    }
    close(option, &mut found);
    found
}

enum ShellToken {
    /// One word, or all of an array; none where a variable was set.
    Words(Vec<String>),
    EndOfCommand,
    EndOfText,
    Close,
}

struct ShellReader<'a> {
    rest: Peekable<Chars<'a>>,
    variables: BTreeMap<String, Vec<String>>,
}

impl ShellReader<'_> {
    fn token(&mut self, is_first: bool) -> ShellToken {
        loop {
            match self.rest.peek().copied() {
                None => return ShellToken::EndOfText,
                Some(' ') => drop(self.rest.next()),
                Some('#') => while self.rest.next_if(|c| *c != '\n').is_some() {},
                Some('\n' | ';') => {
                    self.rest.next();
                    return ShellToken::EndOfCommand;
                }
                Some(')') => {
                    self.rest.next();
                    return ShellToken::Close;
                }
                Some('\\') if self.is_continued() => {}
                Some(_) => return ShellToken::Words(self.word(is_first)),
            }
        }
    }

    /// Skips a backslash with the end of its line.
    fn is_continued(&mut self) -> bool {
        let mut ahead = self.rest.clone();
        let is_continued = ahead.next() == Some('\\') && ahead.next() == Some('\n');
        if is_continued {
            self.rest = ahead;
        }
        is_continued
    }

    fn word(&mut self, is_first: bool) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quoted = false;
        while let Some(next) = self.rest.next_if(|c| quoted || !" \n;)".contains(*c)) {
            let word = words.last_mut().expect("there is always one");
            match next {
                '"' => quoted = !quoted,
                '\'' if !quoted => loop {
                    match self.rest.next().expect("a quotation ends") {
                        '\'' => break,
                        other => word.push(other),
                    }
                },
                '\\' => word.push(self.rest.next().expect("a backslash stands before something")),
                '(' if !quoted && is_first && word.ends_with('=') => {
                    let name = word.trim_end_matches('=').to_owned();
                    let items = self.array();
                    self.variables.insert(name, items);
                    return Vec::new();
                }
                '$' => {
                    let mut parts = self.expansion().into_iter();
                    word.push_str(&parts.next().unwrap_or_default());
                    words.extend(parts);
                }
                other => word.push(other),
            }
        }
        assert!(!quoted, "a quotation ends: {words:?}");
        match words[0].split_once('=') {
            Some((name, value)) if is_first && name.chars().all(|c| c.is_ascii_uppercase() || c == '_') => {
                self.variables.insert(name.into(), vec![value.into()]);
                Vec::new()
            }
            _ => words,
        }
    }

    /// Returns the words up to the closing parenthesis.
    fn array(&mut self) -> Vec<String> {
        let mut items = Vec::new();
        loop {
            match self.token(false) {
                ShellToken::Words(words) => items.extend(words),
                ShellToken::EndOfCommand => {}
                ShellToken::Close => return items,
                ShellToken::EndOfText => panic!("an array ends: {items:?}"),
            }
        }
    }

    /// Returns what stands for `$…`, after the dollar.
    fn expansion(&mut self) -> Vec<String> {
        match self.rest.peek().copied() {
            Some('(') => vec![format!("${}", self.enclosed('(', ')'))],
            Some('{') => {
                let inside = self.enclosed('{', '}');
                let inside = &inside[1..inside.len() - 1];
                let (name, rest) = inside.split_at(inside.find([':', '[']).unwrap_or(inside.len()));
                match (self.variables.get(name), rest) {
                    (Some(values), "[@]" | "") => values.clone(),
                    (None, rest) if rest.starts_with(":-") => vec![rest[2..].into()],
                    (None, "" | ":?") => vec![format!("${name}")],
                    // No other expansion is emitted.
                    _ => panic!("the reader does not know ${{{inside}}}"),
                }
            }
            _ => {
                let mut name = String::new();
                while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || "_@".contains(*c)) {
                    name.push(c);
                }
                self.variables.get(&name).cloned().unwrap_or_else(|| vec![format!("${name}")])
            }
        }
    }

    /// Returns the text from an opening character to the one that closes it.
    fn enclosed(&mut self, open: char, close: char) -> String {
        let (mut text, mut depth) = (String::new(), 0);
        for c in self.rest.by_ref() {
            text.push(c);
            depth += i32::from(c == open) - i32::from(c == close);
            if depth == 0 {
                return text;
            }
        }
        panic!("`{open}` is closed: {text}");
    }
}
