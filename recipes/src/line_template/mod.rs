//! Templates that read figures from the output of a foreign program, such as `step {step} * loss {loss}`.

mod line_splitter;
mod matcher;
mod number;
mod tryout;

pub use line_splitter::{LineSplitter, plain};
pub use tryout::{LineMatch, NearestMiss, TemplateReport, Tryout};

use matcher::TemplateMatcher;

/// Length limit in bytes of the beginning of a line that is matched.
const LONGEST: usize = 64 << 10;

/// Names in templates that have a meaning to dtrain; every other name is the name of a metric.
pub const KNOWN: [&str; 8] =
    ["step", "loss", "tokens", "seconds", "learning_rate", "gradient_norm", "valid_loss", "valid_accuracy"];

/// Names that tell the time of a line in the training, and are not results.
const NO_RESULTS: [&str; 3] = ["step", "tokens", "seconds"];

/// Length limit of a metric name, in bytes.
const LONGEST_NAME: usize = 128;

/// Returns `true` if a text is a valid metric name: 1 to 128 letters, digits, or any of `_ . / : @ -`.
pub fn is_metric_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_./:@-".contains(c);
    !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_part)
}

/// A number read from a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    /// Value of the number; may be infinite or NaN.
    pub value: f64,
    /// `true` if the number is written with decimals, such as 1.0.
    pub has_decimals: bool,
}

/// A valid template for lines of a program's output.
///
/// `{name}` matches a number, `*` any text, a blank one or more blanks, and all else itself. A match may
/// begin anywhere in a line. The blanks before and after a `*` may be the same: ` * ` also matches a single
/// blank.
///
/// `{{` and `}}` are escaped braces. A single brace matches itself if it encloses others, or begins with a
/// quote, as in `{'loss': {loss}}`. A `{valid_accuracy}` followed by a percent sign is divided by 100.
#[derive(Clone, Debug, PartialEq)]
pub struct LineTemplate {
    text: String,
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq)]
enum TemplatePart {
    Text(String),
    Blanks,
    Anything,
    Number(String),
}

/// An error in a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template has an opening brace without a closing one, or the reverse.
    #[error(
        "`{{` and `}}` enclose the name of a metric, such as `{{step}}`; write `{{{{` and `}}}}` for braces of the line"
    )]
    Brace,
    /// The template has an invalid metric name.
    #[error(
        "`{0}` cannot be the name of a metric: expected letters, digits, and `_ . / : @ -`; write `{{{{` and `}}}}` for braces of the line"
    )]
    Name(String),
    /// The template names this metric twice.
    #[error("`{{{0}}}` occurs twice")]
    Twice(String),
    /// The template names no metric.
    #[error("it reads no metric, such as `{{loss}}` or `{{val/f1}}`")]
    Nothing,
}

impl LineTemplate {
    /// Parses a template as written in a recipe.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text.trim();
        let mut open = 0u32;
        while let Some(first) = rest.chars().next() {
            let plain = rest.find(|c: char| "{}*".contains(c) || c.is_whitespace()).unwrap_or(rest.len());
            let (part, after) = match first {
                '{' if rest.starts_with("{{") => (TemplatePart::Text("{".to_owned()), &rest[2..]),
                '{' if is_of_line(rest) => {
                    open += 1;
                    (TemplatePart::Text("{".to_owned()), &rest[1..])
                }
                '{' => figure(rest)?,
                '}' if open > 0 => {
                    open -= 1;
                    (TemplatePart::Text("}".to_owned()), &rest[1..])
                }
                '}' if rest.starts_with("}}") => (TemplatePart::Text("}".to_owned()), &rest[2..]),
                '}' => return Err(TemplateError::Brace),
                '*' => (TemplatePart::Anything, rest.trim_start_matches('*')),
                _ if first.is_whitespace() => (TemplatePart::Blanks, rest.trim_start()),
                _ => (TemplatePart::Text(rest[..plain].to_owned()), &rest[plain..]),
            };
            if let TemplatePart::Number(_) = part
                && parts.contains(&part)
            {
                return Err(TemplateError::Twice(rest[1..rest.find('}').unwrap_or(1)].to_owned()));
            }
            match (parts.last_mut(), part) {
                (Some(TemplatePart::Text(before)), TemplatePart::Text(text)) => before.push_str(&text),
                (_, part) => parts.push(part),
            }
            rest = after;
        }
        let is_result = |part: &TemplatePart| matches!(part, TemplatePart::Number(name) if !NO_RESULTS.contains(&name.as_str()));
        if !parts.iter().any(is_result) {
            return Err(TemplateError::Nothing);
        }
        Ok(Self { text: text.trim().to_owned(), parts })
    }

    /// Returns the template as it is written in the recipe.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the numbers that the template reads from a line, by name; `None` if the line does not match.
    ///
    /// A number is as long as possible, and a `*` as short as possible. Time is bounded by the length of the
    /// line times that of the template.
    pub fn read(&self, line: &str) -> Option<Vec<(&str, Number)>> {
        TemplateMatcher::new(&self.parts, beginning(line), false).run().ok()
    }
}

/// Returns the beginning of a line, to which matching is limited.
fn beginning(line: &str) -> &str {
    &line[..line.floor_char_boundary(LONGEST)]
}

/// Returns `true` if the brace at the start of `text` belongs to the line, not to a name: it encloses other
/// braces, or begins with a quote.
fn is_of_line(text: &str) -> bool {
    let mut depth = 0i32;
    let end = text.find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    });
    end.is_some_and(|end| text[1..end].contains('{') || text[1..].trim_start().starts_with(['\'', '"']))
}

/// Parses the `{name}` at the start of `text`; returns it as a part of the template, with the rest of the
/// text.
fn figure(text: &str) -> Result<(TemplatePart, &str), TemplateError> {
    let (name, rest) = text[1..].split_once('}').ok_or(TemplateError::Brace)?;
    let name = name.trim();
    if is_metric_name(name) {
        Ok((TemplatePart::Number(name.to_owned()), rest))
    } else {
        Err(TemplateError::Name(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(template: &str, line: &str) -> Option<Vec<(String, f64)>> {
        let template = LineTemplate::parse(template).expect("a template");
        let found = template.read(line)?;
        Some(found.into_iter().map(|(name, number)| (name.to_owned(), number.value)).collect())
    }

    #[test]
    fn lines_of_other_trainers_are_read() {
        let check = |template: &str, line: &str, expected: &[(&str, f64)]| {
            let expected: Vec<(String, f64)> =
                expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            assert_eq!(read(template, line), Some(expected), "{template}: {line}");
        };
        check("Accuracy: * ({accuracy}%)", "Accuracy: 9813/10000 (98%)", &[("accuracy", 98.0)]);
        check(
            "epoch {step} * f1 {val/f1} auc {val.auc}",
            "epoch 3 | f1 0.5 auc 0.75",
            &[("step", 3.0), ("val/f1", 0.5), ("val.auc", 0.75)],
        );
        check("step {step} loss {loss}", "[rank 0] step 12   loss 0.25.", &[("step", 12.0), ("loss", 0.25)]);
        check(
            "iter {step}: loss {loss},",
            "iter 40: loss 2.31, time 81 ms",
            &[("step", 40.0), ("loss", 2.31)],
        );
        check(
            "step={step} * loss={loss}",
            "step=3 lr=1e-3 x loss=nope loss=-1e-2",
            &[("step", 3.0), ("loss", -0.01)],
        );
        check(
            "{step}/* lr {learning_rate} loss {loss}",
            "1,200/5,000 lr 3e-4 loss 4",
            &[("step", 1200.0), ("learning_rate", 3e-4), ("loss", 4.0)],
        );
        check(
            "Epoch {step} * val_loss: {valid_loss}",
            "Epoch 2 - é - val_loss: 0.5000 - x",
            &[("step", 2.0), ("valid_loss", 0.5)],
        );
        check(
            "{tokens} tokens, step {step}, loss {loss}",
            "8192 tokens, step 1, loss 1",
            &[("tokens", 8192.0), ("step", 1.0), ("loss", 1.0)],
        );
        check("step {step} * loss {loss}", "step 3 loss 0.5", &[("step", 3.0), ("loss", 0.5)]);
        check("step {step} * loss {loss}", "step 3   loss 0.5", &[("step", 3.0), ("loss", 0.5)]);
        check("step {step} * loss {loss}", "step 3 | loss 0.5", &[("step", 3.0), ("loss", 0.5)]);
        check("* step {step} loss {loss} *", "step 3 loss 0.5", &[("step", 3.0), ("loss", 0.5)]);
        check("step {step}*loss {loss}", "step 12, val_loss 9 loss 1", &[("step", 12.0), ("loss", 9.0)]);
        check("step {step} * loss {loss}", "step 12 val_loss 9 loss 1", &[("step", 12.0), ("loss", 1.0)]);
        let csv = |step, loss, acc| [("step", step), ("loss", loss), ("acc", acc)];
        check("{step},{loss},{acc}", "3,0.5,0.91", &csv(3.0, 0.5, 0.91));
        check("{step},{loss},{acc}", "1,512,0.5", &csv(1.0, 512.0, 0.5));
        check("{step},{loss},{acc}", "1,234,512,0.5", &csv(1.0, 234.0, 512.0));
        check("{step},{tokens},{loss}", "1,512,2.0,0.1", &[("step", 1.0), ("tokens", 512.0), ("loss", 2.0)]);
        check("{step}, {loss}", "1,512, 3", &[("step", 1512.0), ("loss", 3.0)]);
        check("{epoch}.{step} {loss}", "3.17 0.5", &[("epoch", 3.0), ("step", 17.0), ("loss", 0.5)]);
        check("{loss}.", "loss 5.", &[("loss", 5.0)]);
        let nan = read("step {step} loss {loss}", "step 1 loss nan").expect("a line of training");
        assert!(nan[1].1.is_nan());
    }

    #[test]
    fn braces_of_the_line_are_read() {
        let figures = Some(vec![("loss".to_owned(), 0.5), ("step".to_owned(), 2.0)]);
        for (template, line) in [
            ("{'loss': {loss}, 'epoch': {step}}", "{'loss': 0.5, 'epoch': 2.0}"),
            ("{{'loss': {loss}, 'epoch': {step}}}", "{'loss': 0.5, 'epoch': 2.0}"),
            ("{loss: {loss}, in: {step: {step}}}", "{loss: 0.5, in: {step: 2}}"),
            ("{ \"a\": 1 } {loss} {step}", "{ \"a\": 1 } 0.5 2"),
            ("{{x}} {loss} }}{step}", "{x} 0.5 }2"),
        ] {
            assert_eq!(read(template, line), figures, "{template}");
        }
        assert_eq!(read("{'loss': {loss}}", "'loss': 0.5"), None);
    }

    #[test]
    fn an_accuracy_in_percent_is_a_share() {
        let accuracy = |template, line| read(template, line).map(|found| found[0].1);
        assert_eq!(accuracy("acc {valid_accuracy}%", "acc 93.0%"), Some(0.93));
        assert_eq!(accuracy("acc {valid_accuracy} %,", "acc 50 %, x"), Some(0.5));
        assert_eq!(accuracy("acc {valid_accuracy}", "acc 0.93"), Some(0.93));
        assert_eq!(accuracy("acc {acc}%", "acc 93%"), Some(93.0), "a name of its own");
    }

    #[test]
    fn groups_of_digits_of_other_locales_are_no_numbers() {
        for line in ["1'234 loss 2", "1\u{202f}234 loss 2", "1\u{a0}234 loss 2"] {
            assert_eq!(read("{step} loss {loss}", line), None, "{line}");
        }
    }

    #[test]
    fn other_lines_are_none() {
        for line in ["", "loading", "step one loss 2", "step 1loss 2", "steps: 1 loss 2", "step 1 loss"] {
            assert_eq!(read("step {step} loss {loss}", line), None, "{line}");
        }
        let long = format!("{}step 1 loss 2", "x".repeat(LONGEST));
        assert_eq!(read("step {step} loss {loss}", &long), None, "the end of a long line is not looked at");
    }

    #[test]
    fn no_number_is_cut_out_of_another_one() {
        for (template, line) in [
            ("{step}*{loss}", "12"),
            ("{step}*{loss}", "0.25"),
            ("{step}*{loss}", "1,512"),
            ("{loss} done", "12,34,567 done"),
            ("loss {loss}", "loss info"),
            ("loss {loss}", "loss 0,25"),
        ] {
            assert_eq!(read(template, line), None, "{template}: {line}");
        }
    }

    #[test]
    fn a_hostile_line_takes_no_longer_than_its_length_times_the_template() {
        let template = "{a}*{b}*{c}*{d}*{e}*{f} * x {g},{h},{i},{j}.{k} end";
        for piece in ["1", "1,", "1 ", " ", "1,111,111,111,", "1.1e1.", "x 1,1,1,1.", "é,1_000"] {
            assert_eq!(read(template, &piece.repeat(LONGEST)), None, "{piece}");
        }
    }

    #[test]
    fn a_template_reads_a_result() {
        let wrong = |text: &str| LineTemplate::parse(text).expect_err(text).to_string();
        assert_eq!(wrong("step {step}"), "it reads no metric, such as `{loss}` or `{val/f1}`");
        assert_eq!(wrong("no braces"), wrong("{step} {seconds} {tokens}"));
        assert_eq!(wrong("{step} {step} {loss}"), "`{step}` occurs twice");
        assert!(wrong("{step loss {loss").starts_with("`{` and `}` enclose the name of a metric"));
        assert!(wrong("{step loss {loss}").contains("write `{{` and `}}` for braces of the line"));
        assert_eq!(wrong("loss {loss}}"), wrong("loss {loss} }"));
        assert!(wrong("{val f1} {loss}").starts_with("`val f1` cannot be the name of a metric"));
    }
}
