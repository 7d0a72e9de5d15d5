//! Redacts secrets in a text before it is stored.
//!
//! Secrets are recognized by the form of services' tokens (`ghp_…`, `AKIA…`, the block of a private key),
//! otherwise by the name before the value (`password = …`). Each is replaced by `[removed: RULE]`, so that a
//! reader knows its kind. A secret without a form or a name is not found.

use std::collections::BTreeMap;

/// Pattern of a kind of token: name of the rule, prefix of the token, characters allowed after it, and their
/// least number.
struct TokenPattern(&'static str, &'static str, fn(char) -> bool, usize);

const FORMS: [TokenPattern; 19] = [
    TokenPattern("AWS access key", "AKIA", is_upper, 16),
    TokenPattern("AWS access key", "ASIA", is_upper, 16),
    TokenPattern("GitHub token", "ghp_", is_plain, 30),
    TokenPattern("GitHub token", "gho_", is_plain, 30),
    TokenPattern("GitHub token", "ghu_", is_plain, 30),
    TokenPattern("GitHub token", "ghs_", is_plain, 30),
    TokenPattern("GitHub token", "ghr_", is_plain, 30),
    TokenPattern("GitHub token", "github_pat_", is_word, 22),
    TokenPattern("GitLab token", "glpat-", is_word, 20),
    TokenPattern("API key", "sk-", is_word, 20),
    TokenPattern("Slack token", "xoxa-", is_word, 10),
    TokenPattern("Slack token", "xoxb-", is_word, 10),
    TokenPattern("Slack token", "xoxp-", is_word, 10),
    TokenPattern("Slack token", "xoxr-", is_word, 10),
    TokenPattern("Slack token", "xoxs-", is_word, 10),
    TokenPattern("Hugging Face token", "hf_", is_plain, 30),
    TokenPattern("Google API key", "AIza", is_word, 35),
    TokenPattern("npm token", "npm_", is_plain, 30),
    TokenPattern("JSON web token", "eyJ", is_dotted, 30),
];

/// Suffixes of names whose values are secret, in lower case and without `_` and `-`.
const NAMES: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "credential",
    "credentials",
];

/// Suffixes of names whose values are secret if they are a long random word.
const HINTS: [&str; 5] = ["key", "auth", "authorization", "bearer", "signature"];

/// Values after secret names that are no secrets: types and constants of programs.
const HARMLESS: [&str; 16] = [
    "string",
    "str",
    "bytes",
    "option",
    "optional",
    "any",
    "bool",
    "int",
    "none",
    "null",
    "nil",
    "undefined",
    "true",
    "false",
    "self",
    "required",
];

/// Fewest characters of a word that counts as random.
const LONG: usize = 32;

fn is_upper(c: char) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit()
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn is_dotted(c: char) -> bool {
    is_word(c) || c == '.'
}

fn is_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || "+/=_-".contains(c)
}

/// Returns the text with each secret replaced by a marker; the number of lines is unchanged.
pub(crate) fn redacted(text: &str) -> String {
    let mut is_in_key = false;
    let line = |line: &str| {
        let is_end = line.contains("-----END ");
        let is_begin = line.contains("-----BEGIN ") && line.contains("PRIVATE KEY");
        // A hunk of a patch may end before the block does.
        is_in_key = (is_in_key || is_begin) && !line.starts_with("@@ ") && !line.starts_with("diff --git ");
        if is_in_key || is_private_key_line(line) {
            is_in_key &= !is_end;
            let sign = line.get(..1).filter(|sign| ["+", "-", " "].contains(sign)).unwrap_or("");
            let end = if line.ends_with('\n') { "\n" } else { "" };
            return format!("{sign}[removed: private key]{end}");
        }
        redact_named_values(&redact_tokens(line))
    };
    text.split_inclusive('\n').map(line).collect()
}

/// Returns `true` if a line belongs to a private key whose first line is not in the text: a full line of
/// base64 and nothing else.
fn is_private_key_line(line: &str) -> bool {
    let word = line.get(1..).unwrap_or("").trim();
    let has = |is: fn(&char) -> bool| word.chars().any(|c| is(&c));
    (60..=76).contains(&word.len())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "+/=".contains(c))
        && has(char::is_ascii_uppercase)
        && has(char::is_ascii_lowercase)
        && has(char::is_ascii_digit)
}

fn marker(rule: &str) -> String {
    format!("[removed: {rule}]")
}

/// Returns the length in bytes of the beginning of `text` whose characters all satisfy `is`.
fn run(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is(c)).unwrap_or(text.len())
}

/// Redacts tokens with a known form, and passwords in URLs.
fn redact_tokens(line: &str) -> String {
    let (mut out, mut rest) = (String::new(), line);
    while let Some(first) = rest.chars().next() {
        let is_at_word = out.chars().next_back().is_none_or(|c| !is_word(c) || out.ends_with("-"));
        let form =
            FORMS.iter().filter(|_| is_at_word || first == 'e').find_map(|form| match_token(form, rest));
        if let Some((rule, length)) = form {
            out.push_str(&marker(rule));
            rest = &rest[length..];
        } else if let Some((before, length)) = rest.strip_prefix("://").and_then(password_of) {
            out.push_str(&rest[..3 + before]);
            out.push_str(&marker("password of an address"));
            rest = &rest[3 + before + length..];
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}

/// Returns the rule and the length of the token that `text` begins with; `None` without one.
fn match_token(form: &TokenPattern, text: &str) -> Option<(&'static str, usize)> {
    let &TokenPattern(rule, prefix, is, least) = form;
    let token = text.strip_prefix(prefix)?;
    let length = run(token, is);
    let token = &token[..length];
    let fits = match rule {
        "API key" => token.chars().any(|c| c.is_ascii_digit()),
        "JSON web token" => token.matches('.').count() == 2,
        "AWS access key" => length == least,
        _ => true,
    };
    (length >= least && fits).then_some((rule, prefix.len() + length))
}

/// Returns the start and the length of the password in a URL, in the text after `://`. A long user name
/// without a password is a token.
fn password_of(address: &str) -> Option<(usize, usize)> {
    let authority = &address[..run(address, |c| !c.is_whitespace() && !"/\"'`<>".contains(c))];
    let (user, _) = authority.rsplit_once('@')?;
    match user.split_once(':') {
        Some((name, password)) if !password.is_empty() && !is_reference(password) => {
            Some((name.len() + 1, password.len()))
        }
        None if user.len() >= 20 => Some((0, user.len())),
        _ => None,
    }
}

/// Returns `true` if a value only refers to a secret, or is a placeholder for one.
fn is_reference(value: &str) -> bool {
    value.starts_with(['$', '{', '<', '[', '*', '%', '…']) || value.starts_with("...")
}

/// Redacts the values that follow the name of a secret.
fn redact_named_values(line: &str) -> String {
    let (mut out, mut rest, mut is_hinted) = (String::new(), line, false);
    while let Some(first) = rest.chars().next() {
        let length = run(rest, is_word);
        if length == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let random = run(rest, is_base64);
        if is_hinted && is_random(&rest[..random]) {
            out.push_str(&marker("high entropy"));
            rest = &rest[random..];
            continue;
        }
        let word = &rest[..length];
        let name: String = word.to_ascii_lowercase().replace(['_', '-'], "");
        let is_secret = NAMES.iter().any(|end| name.ends_with(end));
        is_hinted |= is_secret || HINTS.iter().any(|end| name.ends_with(end));
        let value = value_after(&rest[length..], word.starts_with("--")).filter(|_| is_secret);
        let (from, to) = value
            .filter(|(from, to)| is_literal_secret(&name, &rest[length..], *from, *to))
            .unwrap_or((0, 0));
        out.push_str(&rest[..length + from]);
        if to > from {
            out.push_str(&marker(&format!("value of {}", word.trim_start_matches('-'))));
        }
        rest = &rest[length + to..];
    }
    out
}

/// Returns the start and the end of the value assigned to a name, in the text after the name.
fn value_after(text: &str, is_option: bool) -> Option<(usize, usize)> {
    let blank = |text: &str| run(text, |c| c == ' ' || c == '\t');
    let closing = run(text, |c| "\"'`]".contains(c));
    let mut at = closing + blank(&text[closing..]);
    let sign = run(&text[at..], |c| ":=>".contains(c));
    if sign == 0 && !(is_option && at > closing) {
        return None;
    }
    at += sign;
    at += blank(&text[at..]);
    let quote = text[at..].chars().next().filter(|c| "\"'`".contains(*c));
    if let Some(quote) = quote {
        at += 1;
        return Some((at, at + text[at..].find(quote).unwrap_or(text[at..].trim_end().len())));
    }
    let length = run(&text[at..], |c| !c.is_whitespace() && !",;\"'`".contains(c));
    // `password: str = "…"`
    let after = &text[at + length..];
    let typed = blank(after);
    if text[closing..].trim_start().starts_with(':') && after[typed..].starts_with('=') {
        let (from, to) = value_after(&after[typed..], false)?;
        return Some((at + length + typed + from, at + length + typed + to));
    }
    Some((at, at + length))
}

/// Returns `true` if the value from `from` to `to` is the secret itself, and not code that reads it elsewhere.
fn is_literal_secret(name: &str, text: &str, from: usize, to: usize) -> bool {
    let value = &text[from..to];
    let is_quoted = text[..from].ends_with(['"', '\'', '`']);
    let has_digit = value.chars().any(|c| c.is_ascii_digit());
    let is_number = value.chars().all(|c| c.is_ascii_digit() || "._".contains(c));
    if value.is_empty() || is_reference(value) || HARMLESS.contains(&value.to_ascii_lowercase().as_str()) {
        return false;
    }
    // Language models have tokens of their own: `next_token = 7`, `eos_token = "end"`.
    if name.ends_with("token") && (is_number || value.len() < 8 || !has_digit && value.len() < 20) {
        return false;
    }
    is_quoted || value.chars().all(|c| c.is_ascii_alphanumeric() || "_-+/=.@!%^*~#?".contains(c))
}

/// Returns `true` if a word looks random: it is long, consists of letters and digits, and has a high entropy.
fn is_random(word: &str) -> bool {
    let has = |is: fn(&char) -> bool| word.chars().any(|c| is(&c));
    word.len() >= LONG && has(char::is_ascii_digit) && has(char::is_ascii_alphabetic) && entropy(word) >= 3.0
}

/// Returns the entropy of a word in bits per character, from the frequencies of its characters.
fn entropy(word: &str) -> f64 {
    let mut counts: BTreeMap<char, u32> = BTreeMap::new();
    word.chars().for_each(|c| *counts.entry(c).or_default() += 1);
    let all: f64 = counts.values().map(|count| f64::from(*count)).sum();
    counts.values().map(|count| f64::from(*count) / all).map(|share| -share * share.log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written in one piece, such strings would alarm secret scanners of this repository.
    fn of(prefix: &str, length: usize) -> String {
        let letters = "Q7wE2rT9yU4iO1pA8sD3fG6hJ5kL0zXcVbNm";
        prefix.chars().chain(letters.chars().cycle().take(length)).collect()
    }

    #[test]
    fn what_has_the_form_of_a_secret_is_removed() {
        for (rule, token) in [
            ("AWS access key", of("AKIA", 16).to_uppercase()),
            ("GitHub token", of("ghp_", 36)),
            ("GitHub token", of("github_pat_", 40)),
            ("GitLab token", of("glpat-", 20)),
            ("API key", of("sk-", 48)),
            ("API key", of("sk-proj-", 48)),
            ("Slack token", of("xoxb-", 24)),
            ("Hugging Face token", of("hf_", 34)),
            ("Google API key", of("AIza", 35)),
            ("JSON web token", format!("{}.{}.{}", of("eyJ", 20), of("eyJ", 20), of("", 20))),
        ] {
            for around in ["+x = \"TOKEN\"\n", "-TOKEN", " f(TOKEN, 1)", "+a=b TOKEN TOKEN"] {
                let cleaned = redacted(&around.replace("TOKEN", &token));
                assert_eq!(cleaned, around.replace("TOKEN", &marker(rule)), "{token}");
            }
        }
        let url = redacted("+git clone https://me:hunter2@host/r.git https://host/x:y@z ssh://git@host\n");
        let kept = "+git clone https://me:[removed: password of an address]@host/r.git https://host/x:y@z ssh://git@host\n";
        assert_eq!(url, kept);
        let token = redacted(&format!("https://{}@host", of("", 40)));
        assert_eq!(token, "https://[removed: password of an address]@host");
    }

    #[test]
    fn a_private_key_is_removed_whole_even_where_a_patch_has_only_a_part_of_it() {
        let (begin, end) = ("-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----");
        let row = of("", 64);
        let patch = format!(
            "+a\n+{begin}\n+{row}\n+short==\n+{end}\n b\n {begin}\n-{row}\n@@ -1 +1 @@\n+c\n-{row}\n"
        );
        let gone = "[removed: private key]";
        let expected = format!(
            "+a\n+{gone}\n+{gone}\n+{gone}\n+{gone}\n b\n {gone}\n-{gone}\n@@ -1 +1 @@\n+c\n-{gone}\n"
        );
        assert_eq!(redacted(&patch), expected);
        let public = "+-----BEGIN CERTIFICATE-----\n+MIIB\n";
        assert_eq!(redacted(public), public);
    }

    #[test]
    fn the_value_of_a_name_is_removed_however_it_is_written() {
        let word = of("", 12);
        for (line, expected) in [
            ("+password = hunter2", "+password = [removed: value of password]"),
            ("+DB_PASSWORD=hunter2", "+DB_PASSWORD=[removed: value of DB_PASSWORD]"),
            ("+  \"api_key\": \"a b c\",", "+  \"api_key\": \"[removed: value of api_key]\","),
            ("+apiKey: 'x'", "+apiKey: '[removed: value of apiKey]'"),
            ("+password: str = \"x\"", "+password: str = \"[removed: value of password]\""),
            (
                "+os.environ[\"HF_TOKEN\"] = \"RANDOM\"",
                "+os.environ[\"HF_TOKEN\"] = \"[removed: value of HF_TOKEN]\"",
            ),
            ("+run --password hunter2 --x 1", "+run --password [removed: value of password] --x 1"),
            ("-client_secret: RANDOM # old", "-client_secret: [removed: value of client_secret] # old"),
            ("+token: RANDOM", "+token: [removed: value of token]"),
            ("+secret = \"never closed", "+secret = \"[removed: value of secret]"),
            (
                "+passwd=a password=b",
                "+passwd=[removed: value of passwd] password=[removed: value of password]",
            ),
        ] {
            assert_eq!(redacted(&line.replace("RANDOM", &word)), expected);
        }
        let long = of("", 40);
        assert_eq!(redacted(&format!("+login(key, \"{long}\")")), "+login(key, \"[removed: high entropy]\")");
        let hex = "9f86d081884c7d659a2feaa0c55ad015";
        assert_eq!(
            redacted(&format!("+Authorization: Basic {hex}")),
            "+Authorization: Basic [removed: high entropy]"
        );
    }

    #[test]
    fn what_is_no_secret_stays_as_it_is() {
        let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        for line in [
            "+stop = { tokens = \"20M\" }",
            "+tokenizer = \"bytes\"",
            "+eos_token = \"<|endoftext|>\"",
            "+next_token = 50256",
            "+let token = tokenizer.next();",
            "+token = sample(logits)",
            "+max_tokens: 4096,",
            "+    password: String,",
            "+password = os.environ[\"PASSWORD\"]",
            "+password=$PASSWORD",
            "+password = None",
            "+api_key = \"<your key>\"",
            "+# the secret of good training is data",
            "+import sklearn; disk-usage-of-the-whole-cluster-2024",
            "+sk-learn-is-the-name-of-a-package",
            "+key = \"model.layers.0.attention.weight\"",
            "+hf_transfer_downloads_large_files_quickly = True",
            "+https://example.org:8080/a@b",
            "+AKIA",
            "",
            "\\ No newline at end of file",
            "+größe = \"Ümlaut\" # päßword",
        ] {
            assert_eq!(redacted(line), line);
        }
        let line = format!("+sha256 = \"{digest}\"\n+{digest}\n");
        assert_eq!(redacted(&line), line);
    }
}
