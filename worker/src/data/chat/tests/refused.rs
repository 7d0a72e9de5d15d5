//! Records and templates that are refused, and how values are written.

use super::super::{ChatEncoder, ChatRecord, ChatTemplate};
use super::{now, ranges, records, texts, tokenizer};
use dtrain_recipes::LossOn;
use minijinja::value::Value;

fn error(record: &str) -> String {
    let record: Value = serde_json::from_str(record).expect("it is JSON");
    ChatRecord::parse(&record).expect_err("it is no conversation").to_string()
}

#[test]
fn a_record_that_is_no_conversation_is_refused_with_its_field() {
    let cases = [
        (r#"["a"]"#, "`the record` is a list, expected a JSON object"),
        (
            r#"{"text": "a", "id": 1}"#,
            "`the record` is an object with `text`, `id`, expected an object with `messages`",
        ),
        (r#"{"messages": "a"}"#, "`messages` is a text, expected a list of messages"),
        (
            r#"{"messages": [{"role": "user", "content": "a"}]}"#,
            "`messages` is a list without one, expected a list with a message of the role `assistant`",
        ),
        (
            r#"{"messages": [{"role": "critic", "content": "a"}]}"#,
            "`messages[0].role` is `critic`, expected one of `system`, `developer`, `user`",
        ),
        (r#"{"messages": [{"content": "a"}]}"#, "`messages[0].role` is missing, expected a text"),
        (
            r#"{"messages": [{"role": "user", "content": 5}]}"#,
            "`messages[0].content` is a number, expected a text, or a list of parts",
        ),
        (r#"{"messages": [{"role": "user"}]}"#, "`messages[0].content` is missing"),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#,
            "`messages[0].content[0].type` is `image`, expected `text`",
        ),
        (
            r#"{"messages": [{"role": "assistant", "tool_calls": ["a"]}]}"#,
            "`messages[0].tool_calls[0]` is a text, expected an object with `function`",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": "a"}], "tools": [1]}"#,
            "`tools[0]` is a number, expected an object",
        ),
        (r#"{"messages": [{"role": "assistant", "content": "a"}], "tools": "no"}"#, "`tools` is other text"),
        (
            r#"{"conversations": [{"from": "bing", "value": "a"}]}"#,
            "`conversations[0].from` is `bing`, expected one of `human`",
        ),
        (
            r#"{"conversations": [{"from": "function_call", "value": "a"}]}"#,
            "`conversations[0].value` is other text",
        ),
        (r#"{"instruction": "a"}"#, "`output` is missing, expected a text"),
        (
            r#"{"instruction": "a", "output": "b", "history": [["a"]]}"#,
            "`history[0]` is a list of 1 values, expected a list of two texts",
        ),
        (r#"{"prompt": "a", "completion": [1]}"#, "`completion` is a list, expected a text"),
        (
            r#"{"prompt": [{"role": "user", "content": "a"}], "completion": "b"}"#,
            "`completion` is a text, expected a list of messages",
        ),
        (
            r#"{"prompt": [{"role": "assistant", "content": "a"}], "completion": [{"role": "user", "content": "b"}]}"#,
            "`completion` is a list without one",
        ),
    ];
    for (record, wanted) in cases {
        let found = error(record);
        assert!(found.starts_with(wanted), "{record}: {found}");
    }
}

#[test]
fn a_template_that_fails_names_its_line() {
    let made = |source: &str| {
        ChatTemplate::new(None, Some(source), now()).map(|_| ()).map_err(|error| error.to_string())
    };
    let found = made("{% for m in messages %}\n{{ m.role }\n{% endfor %}").expect_err("a brace is missing");
    assert!(found.starts_with("the chat template, line 2: "), "{found}");
    let none = ChatTemplate::new(Some(b"{}"), None, now()).expect_err("there is none").to_string();
    assert!(
        none.contains("`chat_template` in tokenizer_config.json") && none.contains("`data.template`"),
        "{none}"
    );
    let named = br#"{"chat_template": [{"name": "rag", "template": "a"}]}"#;
    let found = ChatTemplate::new(Some(named), None, now()).expect_err("none is usual").to_string();
    assert_eq!(found, "tokenizer_config.json: `chat_template` has `rag`, expected one called `default`");

    let source = "{# a\n note #}\n{%- if messages|length > 2 %}\n{{- raise_exception('Two are enough') }}\n{%- endif %}";
    let template = ChatTemplate::new(None, Some(source), now()).expect("the template has no mistakes");
    let tokenizer = tokenizer();
    let encoder = ChatEncoder::new(&template, &tokenizer, LossOn::All);
    let found = encoder.encode(&records()[1]).expect_err("it has three messages").to_string();
    assert_eq!(found, "the chat template, line 4: Two are enough");
    let encoder = ChatEncoder::new(&template, &tokenizer, LossOn::Answers);
    let found = encoder.encode(&records()[0]).expect_err("no answer is written").to_string();
    assert!(found.starts_with("the answer in message 2 cannot be found"), "{found}");
}

#[test]
fn a_template_is_taken_from_a_list_by_the_tools_of_the_record() {
    let config = br#"{"eos_token": {"content": "</s>"}, "chat_template": [
        {"name": "tool_use", "template": "tools{{ messages[1].content }}{{ eos_token }}"},
        {"name": "default", "template": "{{ messages[1].content }}{{ eos_token }}"}]}"#;
    let (template, tokenizer) =
        (ChatTemplate::new(Some(config), None, now()).expect("it is a template"), tokenizer());
    let encoder = ChatEncoder::new(&template, &tokenizer, LossOn::All);
    let text = |record: &str| {
        let record =
            ChatRecord::parse(&serde_json::from_str(record).expect("it is JSON")).expect("it is a record");
        tokenizer
            .decode(&encoder.encode(&record).expect("it is rendered").ids, false)
            .expect("they are tokens")
    };
    let messages = r#""messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;
    assert_eq!(text(&format!("{{{messages}}}")), "b</s>");
    assert_eq!(text(&format!(r#"{{{messages}, "tools": []}}"#)), "toolsb</s>");
}

#[test]
fn a_completion_counts_with_the_end_of_the_text() {
    let config = br#"{"eos_token": "</s>"}"#;
    let (template, tokenizer) =
        (ChatTemplate::new(Some(config), Some(""), now()).expect("it is one"), tokenizer());
    let encoder = ChatEncoder::new(&template, &tokenizer, LossOn::Answers);
    let record =
        serde_json::from_str(r#"{"prompt": "What is it?", "completion": " It is."}"#).expect("it is JSON");
    let found = encoder.encode(&ChatRecord::parse(&record).expect("it is a record")).expect("it has tokens");
    assert_eq!(texts(&tokenizer, &found.ids, &ranges(&found.counted)), [" It is.</s>"]);
}

#[test]
fn values_are_written_as_in_python() {
    let cases = [
        ("{{ x }}", "{'a': [1, 2.0, None, True], \"b'\": 'ü\\n'}"),
        ("{{ x | tojson }}", r#"{"a": [1, 2.0, null, true], "b'": "ü\n"}"#),
        (
            "{{ x | tojson(ensure_ascii=True, separators=(',', ':')) }}",
            r#"{"a":[1,2.0,null,true],"b'":"\u00fc\n"}"#,
        ),
        ("{{ x.a | tojson(indent=2) }}", "[\n  1,\n  2.0,\n  null,\n  true\n]"),
        ("{{ {'b': 1, 'a': {}} | tojson(sort_keys=True) }}", r#"{"a": {}, "b": 1}"#),
        ("{{ 1e16 }} {{ 0.00001 }} {{ 123456789.125 }}", "1e+16 1e-05 123456789.125"),
        ("{{ nothing }}|{{ nothing | length }}|{{ none is iterable }}", "|0|False"),
        (
            "{{ 'a-b-c'.rsplit('-', 1) }} {{ 'a-b'.partition('-') }} {{ 'ab'.removeprefix('a') }}",
            "['a-b', 'c'] ['a', '-', 'b'] b",
        ),
        (
            "a\n  {% if true %}\nb\n  {% generation %}\nc\n  {% endgeneration %}\n{% endif %}\nd\n",
            "a\nb\nc\nd",
        ),
        ("{# {% generation %} #}{% raw %}{% generation %}{% endraw %}\r\ne", "{% generation %}e"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2026"),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
    ];
    let tokenizer = tokenizer();
    for (source, wanted) in cases {
        let template = ChatTemplate::new(None, Some(source), now()).expect("the template has no mistakes");
        let record = r#"{"messages": [{"role": "assistant", "content": ""}],
            "chat_template_kwargs": {"x": {"a": [1, 2.0, null, true], "b'": "ü\n"}}}"#;
        let record =
            ChatRecord::parse(&serde_json::from_str(record).expect("it is JSON")).expect("it is a record");
        let ChatRecord::Conversation(conversation) = &record else { unreachable!("it has messages") };
        let encoder = ChatEncoder::new(&template, &tokenizer, LossOn::All);
        assert_eq!(encoder.render(conversation).expect("it is rendered").0, wanted, "{source}");
    }
}
