//! Conversations beside what transformers makes of them; `tests/data/chat.py` writes these.

mod refused;

use super::conversation::Conversation;
use super::python::is_blank;
use super::{ChatEncoder, ChatError, ChatRecord, ChatTemplate};
use chrono::{NaiveDate, NaiveDateTime};
use dtrain_recipes::LossOn;
use minijinja::value::Value;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

const TEMPLATES: [&str; 13] = [
    "chatml",
    "gemma3",
    "gemma3_training",
    "llama3",
    "llama3_1",
    "llama3_training",
    "mistral_nemo",
    "phi3_5",
    "phi3_5_training",
    "qwen3",
    "qwen3_instruct_2507",
    "qwen3_instruct_2507_training",
    "qwen3_training",
];

/// What transformers makes of a conversation with a template.
#[derive(Debug, PartialEq, serde::Deserialize)]
struct Wanted {
    ids: Option<Ids>,
    /// Ranges of tokens that count; `None` if the template has no marks.
    counted: Option<Vec<TokenRange>>,
    /// The message of `raise_exception`; empty for another error.
    refused: Option<String>,
}

/// Numbers of the first token of a range, and of the first behind it.
type TokenRange = (usize, usize);

/// Tokens, or the name of a template with the same.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(untagged)]
enum Ids {
    Own(Vec<u32>),
    Of(String),
}

#[derive(serde::Deserialize)]
struct File {
    bos_token: Option<String>,
    eos_token: Option<String>,
    wanted: Vec<Wanted>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/chat")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).expect("the fixture is there")
}

fn file(name: &str) -> File {
    serde_json::from_str(&read(&format!("{name}.json"))).expect("the fixture is as expected")
}

fn now() -> NaiveDateTime {
    NaiveDate::from_ymd_opt(2026, 7, 26).and_then(|day| day.and_hms_opt(12, 0, 0)).expect("this is a time")
}

/// The tokens of a case, wherever they stand.
fn ids(wanted: &Wanted, case: usize) -> Option<Vec<u32>> {
    match wanted.ids.clone()? {
        Ids::Own(ids) => Some(ids),
        Ids::Of(name) => ids(&file(&name).wanted[case], case),
    }
}

fn template_of(name: &str, source: &str) -> ChatTemplate {
    let File { bos_token, eos_token, .. } = file(name);
    let fields = [("bos_token", bos_token), ("eos_token", eos_token)];
    let config = fields.map(|(name, token)| token.map(|token| format!("{name:?}: {token:?}")));
    let config = format!("{{{}}}", config.into_iter().flatten().collect::<Vec<_>>().join(", "));
    ChatTemplate::new(Some(config.as_bytes()), Some(source), now()).expect("the template has no mistakes")
}

fn template(name: &str) -> ChatTemplate {
    template_of(name, &read(&format!("templates/{name}.jinja")))
}

fn tokenizer() -> Tokenizer {
    read("tokenizer.json").parse().expect("it is a tokenizer")
}

fn records() -> Vec<ChatRecord> {
    let records: Vec<Value> =
        serde_json::from_str(&read("conversations.json")).expect("the records are JSON");
    let parse = |record: &Value| ChatRecord::parse(&record.get_attr("record").expect("it has a record"));
    records.iter().map(|record| parse(record).expect("the record is a conversation")).collect()
}

fn ranges(counted: &[bool]) -> Vec<TokenRange> {
    let mut ranges: Vec<TokenRange> = Vec::new();
    for (at, _) in counted.iter().enumerate().filter(|(_, is_counted)| **is_counted) {
        match ranges.last_mut() {
            Some((_, end)) if *end == at => *end += 1,
            _ => ranges.push((at, at + 1)),
        }
    }
    ranges
}

/// Tokens that count, as texts.
fn texts(tokenizer: &Tokenizer, ids: &[u32], counted: &[TokenRange]) -> Vec<String> {
    let text =
        |(begin, end): &TokenRange| tokenizer.decode(&ids[*begin..*end], false).expect("they are tokens");
    counted.iter().map(text).collect()
}

/// Returns `true` if the masks are the same, in the part of the conversation that is learned.
fn is_same(found: &[TokenRange], wanted: &[TokenRange], conversation: &Conversation) -> bool {
    found == wanted || (conversation.prompt > 0 && !found.is_empty() && wanted.ends_with(found))
}

#[test]
fn tokens_and_masks_are_those_of_transformers() {
    let (tokenizer, records) = (tokenizer(), records());
    let mut wrong = Vec::new();
    for name in TEMPLATES {
        let template = template(name);
        let encoder = ChatEncoder::new(&template, &tokenizer, LossOn::Answers);
        let all = ChatEncoder::new(&template, &tokenizer, LossOn::All);
        let (mut same, mut masks, mut refused) = (0, 0, 0);
        for (case, (record, wanted)) in records.iter().zip(&file(name).wanted).enumerate() {
            let found = all.encode(record);
            match (ids(wanted, case), &found) {
                (Some(ids), Ok(found)) if ids == found.ids => same += 1,
                (Some(ids), Ok(found)) => {
                    let text = |ids: &[u32]| tokenizer.decode(ids, false).expect("they are tokens");
                    wrong.push(format!("{name} {case}:\n{:?}\n{:?}", text(&ids), text(&found.ids)));
                }
                (Some(_), Err(error)) => wrong.push(format!("{name} {case}: {error}")),
                (None, Err(ChatError::Template { detail, .. })) => match &wanted.refused {
                    Some(wanted) if !wanted.is_empty() && wanted != detail => {
                        wrong.push(format!("{name} {case}: {wanted:?}, {detail:?}"));
                    }
                    _ => refused += 1,
                },
                (None, found) => wrong.push(format!("{name} {case}: wanted {wanted:?}, found {found:?}")),
            }
            let (Some(counted), Some(ids)) = (&wanted.counted, ids(wanted, case)) else { continue };
            match encoder.encode(record) {
                Ok(found) => {
                    let ChatRecord::Conversation(conversation) = record else {
                        unreachable!("all have messages")
                    };
                    let found = ranges(&found.counted);
                    if is_same(&found, counted, conversation) {
                        masks += 1;
                    } else {
                        let (left, right) =
                            (texts(&tokenizer, &ids, counted), texts(&tokenizer, &ids, &found));
                        wrong.push(format!("{name} {case} mask:\n{left:?}\n{right:?}"));
                    }
                }
                Err(error) => wrong.push(format!("{name} {case} mask: {error}")),
            }
        }
        println!("{name}: tokens of {same} equal, {refused} refused by both; masks of {masks} equal");
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Answers of templates without marks, beside the marks that TRL puts into them: in the same template, and in
/// the original where its text is the same.
#[test]
fn answers_that_are_not_marked_are_found() {
    let (tokenizer, records) = (tokenizer(), records());
    let mut wrong = Vec::new();
    for name in TEMPLATES.into_iter().filter(|name| name.ends_with("_training")) {
        let original = name.trim_end_matches("_training");
        let source = read(&format!("templates/{name}.jinja"));
        let bare = source
            .replace("{%- generation %}", "{%- if true %}")
            .replace("{%- endgeneration %}", "{%- endif %}")
            .replace("{%- generation -%}", "{%- if true -%}")
            .replace("{%- endgeneration -%}", "{%- endif -%}");
        for (which, template) in
            [("without its marks", template_of(name, &bare)), (original, template(original))]
        {
            let encoder = ChatEncoder::new(&template, &tokenizer, LossOn::Answers);
            let (mut same, mut others, mut refused, mut told) = (0, 0, 0, 0);
            for (case, (record, wanted)) in records.iter().zip(&file(name).wanted).enumerate() {
                let (Some(ids), Some(counted)) = (ids(wanted, case), &wanted.counted) else {
                    refused += 1;
                    continue;
                };
                let ChatRecord::Conversation(conversation) = record else {
                    unreachable!("all have messages")
                };
                match encoder.encode(record) {
                    Ok(found) if found.ids != ids => others += 1,
                    Ok(found) => {
                        let found = ranges(&found.counted);
                        // The prompt of a model that is told not to think has the empty thoughts already:
                        // they are no part of the answer.
                        let is_told =
                            conversation.variables.iter().any(|(name, _)| name == "enable_thinking");
                        if is_same(&found, counted, conversation) {
                            same += 1;
                        } else if is_told && name == "qwen3_training" {
                            told += 1;
                        } else {
                            let (left, right) =
                                (texts(&tokenizer, &ids, counted), texts(&tokenizer, &ids, &found));
                            wrong.push(format!("{name} {which} {case}:\n{left:?}\n{right:?}"));
                        }
                    }
                    Err(error) => wrong.push(format!("{name} {which} {case}: {error}")),
                }
            }
            println!(
                "{name}, {which}: masks of {same} equal, {told} told not to think, \
                 {others} of another text, {refused} refused"
            );
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Every answer is found in the seven templates without marks, and each has its text and the end of its turn.
#[test]
fn every_answer_is_found_with_the_end_of_its_turn() {
    let (tokenizer, records) = (tokenizer(), records());
    let ends = [
        ("chatml", "<|im_end|>\n"),
        ("gemma3", "<end_of_turn>\n"),
        ("llama3_1", "<|eot_id|>"),
        ("mistral_nemo", "</s>"),
        ("phi3_5", "<|end|>\n"),
        ("qwen3", "<|im_end|>\n"),
        ("qwen3_instruct_2507", "<|im_end|>\n"),
    ];
    for (name, end) in ends {
        let template = template(name);
        let encoder = ChatEncoder::new(&template, &tokenizer, LossOn::Answers);
        let mut conversations = 0;
        for (case, record) in records.iter().enumerate() {
            let ChatRecord::Conversation(conversation) = record else { unreachable!("all have messages") };
            let (text, answers) = match encoder.render(conversation) {
                Err(ChatError::Template { .. }) => continue,
                other => other.expect("the answers are found"),
            };
            conversations += 1;
            assert_eq!(answers.len(), conversation.answers().count());
            for (at, range) in conversation.answers().zip(answers) {
                let content = conversation.messages[at].get_attr("content").unwrap_or_default();
                let content = content.as_str().unwrap_or_default();
                // Earlier thoughts are left out by Qwen3.
                let calls_tools =
                    !conversation.messages[at].get_attr("tool_calls").unwrap_or_default().is_undefined();
                let said = content.rsplit("</think>").next().unwrap_or_default().trim_matches(is_blank);
                let answer = text[range].trim_end_matches("<|endoftext|>");
                // Llama and Mistral write nothing but the call.
                assert!(calls_tools || answer.contains(said), "{name} {case}: {answer:?} has not {said:?}");
                assert!(answer.ends_with(end), "{name} {case}: {answer:?} does not end with {end:?}");
                assert!(
                    !answer.contains("assistant\n") || content.contains("assistant\n"),
                    "{name} {case}: {answer:?}"
                );
            }
        }
        println!("{name}: the answers of {conversations} conversations are found");
    }
}
