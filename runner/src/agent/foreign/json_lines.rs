//! Reader of the JSON lines that a foreign program writes.

use super::rank_output::each_line;
use super::step_tracker::{ReportedLine, StepTracker};
use dtrain_protocol::Event;
use dtrain_recipes::line_template::{Number, is_metric_name};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

/// Maximum number of characters of an invalid line that a notice quotes.
const QUOTED: usize = 80;

/// Maximum number of distinct kinds of lines; a program that exceeds it has new names in every line.
const KINDS: usize = 100;

/// Reads JSON lines until the program ends. The first invalid one is quoted in a notice.
pub(super) fn read_events(from: impl Read, say: &impl Fn(Event)) -> io::Result<()> {
    let mut reader = JsonLineReader::default();
    each_line(from, |_| {}, |line| reader.line(line, say))
}

/// State of the reader after the JSON lines read so far.
#[derive(Default)]
struct JsonLineReader {
    tracker: StepTracker,
    kinds: LineKinds,
    has_quoted: bool,
    has_named: bool,
}

impl JsonLineReader {
    fn line(&mut self, line: &[u8], say: &impl Fn(Event)) {
        let text = String::from_utf8_lossy(line);
        if text.trim().is_empty() {
            return;
        }
        let parsed = serde_json::from_str(&text).or_else(|_| serde_json::from_str(&with_quotes(&text)));
        let Ok(values) = parsed else { return self.quote(&text, say) };
        let values: BTreeMap<String, Value> = values;
        let found: BTreeMap<&str, Number> =
            values.iter().filter_map(|(name, value)| Some((name.as_str(), number(value)?))).collect();
        if found.is_empty() && !values.is_empty() {
            return self.quote(&text, say);
        }
        let bad = found.keys().find(|name| !is_metric_name(name));
        if let Some(bad) = bad
            && !std::mem::replace(&mut self.has_named, true)
        {
            let words = format!(
                "{bad:?} on DTRAIN_EVENTS_FD is ignored: a metric has a name of letters, digits, and `_ . / : @ -`"
            );
            say(Event::Notice(words));
        }
        let kind = self.kinds.index_of(found.keys().copied());
        self.tracker.report(ReportedLine::of(found), kind, say);
    }

    fn quote(&mut self, text: &str, say: &impl Fn(Event)) {
        if std::mem::replace(&mut self.has_quoted, true) {
            return;
        }
        let printable = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
        let quoted: String = printable.take(QUOTED).collect();
        let words = format!(
            "a line on DTRAIN_EVENTS_FD is ignored: expected JSON such as {{\"step\": 1, \"loss\": 0.5}}, found `{quoted}`"
        );
        say(Event::Notice(words));
    }
}

/// Kinds of lines, by the names of their figures. Lines of one kind share a counter.
#[derive(Default)]
struct LineKinds(Vec<BTreeSet<String>>);

impl LineKinds {
    /// Returns the kind of a line: the one with the same names, else one with a subset or a superset of them.
    fn index_of<'n>(&mut self, names: impl Iterator<Item = &'n str>) -> usize {
        let is_figure = |name: &&str| !["step", "tokens", "seconds"].contains(name);
        let names: BTreeSet<String> = names.filter(is_figure).map(str::to_owned).collect();
        let is_like = |known: &BTreeSet<String>| known.is_subset(&names) || names.is_subset(known);
        let same = self.0.iter().position(|known| *known == names);
        same.or_else(|| self.0.iter().position(is_like)).unwrap_or_else(|| {
            if self.0.len() < KINDS {
                self.0.push(names);
            }
            self.0.len() - 1
        })
    }
}

/// Puts quotes around `NaN`, `-inf`, `Infinity` and the like, which JSON lacks and many programs write.
fn with_quotes(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let sign = usize::from(first == '-');
        let letters = rest[sign..].find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len() - sign);
        let length = match first {
            '"' => string_length(rest),
            _ if letters > 0 => sign + letters,
            _ => first.len_utf8(),
        };
        let (part, after) = rest.split_at(length);
        let is_word = ["nan", "inf", "infinity"].iter().any(|word| part[sign..].eq_ignore_ascii_case(word));
        if is_word {
            quoted.extend(["\"", part, "\""]);
        } else {
            quoted.push_str(part);
        }
        rest = after;
    }
    quoted
}

/// Returns the length of the JSON string at the start of `text`, including its quotes.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    let is_end = |(_, c): &(usize, char)| {
        let ends = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        ends
    };
    text.char_indices().skip(1).find(is_end).map_or(text.len(), |(at, _)| at + 1)
}

/// Returns the number in a JSON number or string.
fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(Number { value: number.as_f64()?, has_decimals: number.is_f64() }),
        Value::String(text) => {
            Some(Number { value: text.trim().parse().ok()?, has_decimals: text.contains('.') })
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{NamedFigure, StepId};
    use std::cell::RefCell;

    #[test]
    fn lines_become_events_and_others_are_skipped() {
        // An invalid line may have any bytes and any length.
        let strange = [b"hello \xff\n".as_slice(), &vec![b'x'; 1 << 18]].concat();
        let told = b"\n{\"step\": 3, \"loss\": 0.5, \"tokens\": 8}\n{\"step\": 4, \"valid_loss\": 0.25}\n\
            {\"step\": 5, \"loss\": NaN}\n{\"step\": 6, \"loss\": -Infinity}\n";
        let text = [strange.as_slice(), told].concat();
        let said = RefCell::new(Vec::new());
        read_events(text.as_slice(), &|event| said.borrow_mut().push(event)).expect("text can be read");
        let said = said.into_inner();
        assert!(matches!(&said[0], Event::Notice(words) if words.contains("found `hello")));
        assert!(matches!(&said[1], Event::Step(f) if f.step == StepId(3) && f.tokens == 8));
        assert!(matches!(said[2], Event::Validated { step: StepId(4), loss, .. } if loss == 0.25));
        assert!(matches!(&said[3], Event::Step(f) if f.step == StepId(5) && f.loss.is_nan()));
        assert!(matches!(&said[4], Event::Step(f) if f.loss == f64::NEG_INFINITY));
        assert_eq!(said.len(), 5);
    }

    fn events(text: &str) -> Vec<Event> {
        let said = RefCell::new(Vec::new());
        read_events(text.as_bytes(), &|event| said.borrow_mut().push(event)).expect("text can be read");
        said.into_inner()
    }

    #[test]
    fn any_named_number_is_a_metric_of_the_newest_step() {
        let metrics = |step, all: &[(&str, f64)]| {
            let figures = all.iter().map(|(name, value)| NamedFigure { name: (*name).into(), value: *value });
            Event::Metrics { step: StepId(step), figures: figures.collect() }
        };
        let said = events(
            "{\"step\": 7, \"val/f1\": 0.5, \"note\": \"x\", \"bad name\": 1, \"learning_rate\": 0.1}\n\
             {\"val/f1\": 0.75}\n{\"step\": 8, \"valid_accuracy\": 0.9}\n",
        );
        let notice = |words: &str| Event::Notice(words.to_owned());
        let expected = [
            notice(
                "\"bad name\" on DTRAIN_EVENTS_FD is ignored: a metric has a name of letters, digits, and `_ . / : @ -`",
            ),
            metrics(7, &[("val/f1", 0.5), ("learning_rate", 0.1)]),
            notice("`val/f1` has several values at `step` 7: the last one counts"),
            metrics(7, &[("val/f1", 0.75)]),
            metrics(8, &[("valid.accuracy", 0.9)]),
        ];
        assert_eq!(said, expected);
        assert_eq!(
            events("{\"auc\": 1}\n{\"auc\": 2}\n"),
            [metrics(1, &[("auc", 1.0)]), metrics(2, &[("auc", 2.0)])],
            "lines are counted where no line names a step"
        );
    }

    fn losses(events: &[Event]) -> Vec<(u64, f64)> {
        let of = |event: &Event| if let Event::Step(f) = event { Some((f.step.0, f.loss)) } else { None };
        events.iter().filter_map(of).collect()
    }

    #[test]
    fn numbers_are_read_as_programs_write_them() {
        let said = events(
            "{\"step\": \"1\", \"loss\": \"0.5\"}\n{\"step\": 2, \"loss\": nan, \"note\": \"a NaN, \\\" inf\"}\n\
             {\"step\": 3, \"loss\": -inf, \"note\": \"NaN\"}\n{\"step\": 4, \"loss\": [NaN]}\n",
        );
        let losses = losses(&said);
        assert_eq!((losses.len(), losses[0], losses[2]), (3, (1, 0.5), (3, f64::NEG_INFINITY)));
        assert!(losses[1].1.is_nan());
    }

    #[test]
    fn the_first_line_that_is_not_understood_is_quoted() {
        let said = events("{'step': 1, 'loss': 0.5}\n{'step': 2, 'loss': 0.5}\nx\n{\"note\": \"x\"}\n");
        let [Event::Notice(words)] = &said[..] else { panic!("{said:?}") };
        assert!(words.ends_with("found `{'step': 1, 'loss': 0.5}`"), "{words}");
        let said = events(&format!("\u{1b}{}\n", "x".repeat(1000)));
        assert!(
            matches!(&said[..], [Event::Notice(words)] if words.len() < 250 && !words.contains('\u{1b}'))
        );
    }

    #[test]
    fn lines_with_other_names_have_counters_of_their_own() {
        let mut text = String::new();
        for step in 1..=15 {
            // Only some lines have the learning rate.
            let rate = if step % 2 == 0 { ", \"learning_rate\": 0.1" } else { "" };
            text += &format!("{{\"step\": {step}, \"loss\": 0.5{rate}}}\n");
            if step % 5 == 0 {
                text += &format!("{{\"step\": {}, \"acc\": 0.1}}\n", step / 5);
            }
        }
        let said = events(&text);
        let steps: Vec<u64> = losses(&said).iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, (1..=15).collect::<Vec<_>>());
        let of = |event: &Event| if let Event::Metrics { step, .. } = event { Some(step.0) } else { None };
        assert_eq!(said.iter().filter_map(of).collect::<Vec<_>>(), [1, 2, 3]);
    }
}
