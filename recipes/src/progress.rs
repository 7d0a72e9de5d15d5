//! How the lines of a foreign program tell of its progress: a template such as `step {step} * loss {loss}`.

/// Longest part of a line that is looked at, in bytes.
const LONGEST: usize = 4096;

/// Names that dtrain itself knows; every other name is that of a metric.
pub const KNOWN: [&str; 8] =
    ["step", "loss", "tokens", "seconds", "learning_rate", "gradient_norm", "valid_loss", "valid_accuracy"];

/// Names that say when a line was printed, and measure nothing by themselves.
const NO_RESULTS: [&str; 3] = ["step", "tokens", "seconds"];

/// Longest name of a metric, in bytes.
const LONGEST_NAME: usize = 128;

/// Whether a metric can be called so: 1 to 128 letters, digits, or any of `_ . / : @ -`.
pub fn is_metric_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_./:@-".contains(c);
    !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_part)
}

/// A checked template.
///
/// `{name}` stands for a number, `*` for anything, a blank for one or more blanks, and all else for itself. It may
/// begin anywhere in a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Blanks,
    Anything,
    Number(String),
}

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace without its other half.
    #[error("`{{` and `}}` enclose the name of a metric, such as `{{step}}`")]
    Brace,
    /// No metric can be called so.
    #[error("`{0}` cannot be the name of a metric: expected letters, digits, and `_ . / : @ -`")]
    Name(String),
    /// A metric that is named twice.
    #[error("`{{{0}}}` occurs twice")]
    Twice(String),
    /// It reads no result.
    #[error("it reads no metric, such as `{{loss}}` or `{{val/f1}}`")]
    Nothing,
}

impl Template {
    /// Reads a template as it stands in a recipe.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text.trim();
        while let Some(first) = rest.chars().next() {
            let plain = rest.find(|c: char| "{}*".contains(c) || c.is_whitespace()).unwrap_or(rest.len());
            let (part, after) = match first {
                '{' => figure(rest)?,
                '}' => return Err(TemplateError::Brace),
                '*' => (Part::Anything, rest.trim_start_matches('*')),
                _ if first.is_whitespace() => (Part::Blanks, rest.trim_start()),
                _ => (Part::Text(rest[..plain].to_owned()), &rest[plain..]),
            };
            if let Part::Number(_) = part
                && parts.contains(&part)
            {
                return Err(TemplateError::Twice(rest[1..rest.find('}').unwrap_or(1)].to_owned()));
            }
            parts.push(part);
            rest = after;
        }
        let is_result =
            |part: &Part| matches!(part, Part::Number(name) if !NO_RESULTS.contains(&name.as_str()));
        if !parts.iter().any(is_result) {
            return Err(TemplateError::Nothing);
        }
        Ok(Self(parts))
    }

    /// The numbers of a line, by name; `None` when it is another line.
    pub fn read(&self, line: &str) -> Option<Vec<(&str, f64)>> {
        let end = (0..=line.len().min(LONGEST)).rev().find(|at| line.is_char_boundary(*at))?;
        let line = &line[..end];
        line.char_indices().find_map(|(at, _)| {
            let mut found = Vec::new();
            // A number begins where it begins, and not in its middle.
            let is_inside = matches!(self.0.first(), Some(Part::Number(_)))
                && line[..at].ends_with(|c: char| c.is_ascii_digit() || ".-+".contains(c));
            (!is_inside && follows(&self.0, &line[at..], &mut found)).then_some(found)
        })
    }
}

/// Whether `line` begins as `parts` say; what they name is added to `found`.
fn follows<'t>(parts: &'t [Part], line: &str, found: &mut Vec<(&'t str, f64)>) -> bool {
    let Some((part, others)) = parts.split_first() else { return true };
    match part {
        Part::Text(text) => line.strip_prefix(text.as_str()).is_some_and(|rest| follows(others, rest, found)),
        Part::Blanks => {
            let rest = line.trim_start();
            rest.len() < line.len() && follows(others, rest, found)
        }
        Part::Number(figure) => {
            let Some((value, length)) = number(line) else { return false };
            found.push((figure.as_str(), value));
            follows(others, &line[length..], found) || {
                found.pop();
                false
            }
        }
        Part::Anything => {
            let before = found.len();
            let ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
            ends.into_iter().any(|at| {
                found.truncate(before);
                follows(others, &line[at..], found)
            })
        }
    }
}

/// The number that a text begins with, and its length: `1`, `0.25`, `1e-3`, `1,000`, `nan`.
fn number(text: &str) -> Option<(f64, usize)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || ".,_+-".contains(c);
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    (1..=end).rev().find_map(|length| {
        let word = &text[..length];
        if word.ends_with([',', '_']) {
            return None;
        }
        Some((word.replace([',', '_'], "").parse().ok()?, length))
    })
}

/// The figure that a text begins with, and what follows it.
fn figure(text: &str) -> Result<(Part, &str), TemplateError> {
    let (name, rest) = text[1..].split_once('}').ok_or(TemplateError::Brace)?;
    let name = name.trim();
    if is_metric_name(name) {
        Ok((Part::Number(name.to_owned()), rest))
    } else {
        Err(TemplateError::Name(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(template: &str, line: &str) -> Option<Vec<(String, f64)>> {
        let template = Template::parse(template).expect("a template");
        let found = template.read(line)?;
        Some(found.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
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
        let nan = read("step {step} loss {loss}", "step 1 loss nan").expect("a line of training");
        assert!(nan[1].1.is_nan());
    }

    #[test]
    fn other_lines_are_none() {
        for line in ["", "loading", "step one loss 2", "step 1loss 2", "steps: 1 loss 2", "step 1 loss"] {
            assert_eq!(read("step {step} loss {loss}", line), None, "{line}");
        }
        assert_eq!(read("step {step} loss {loss}", &format!("{}step 1 loss 2", "x".repeat(5000))), None);
    }

    #[test]
    fn a_template_reads_a_result() {
        let wrong = |text: &str| Template::parse(text).expect_err(text).to_string();
        assert_eq!(wrong("step {step}"), "it reads no metric, such as `{loss}` or `{val/f1}`");
        assert_eq!(wrong("no braces"), wrong("{step} {seconds} {tokens}"));
        assert_eq!(wrong("{step} {step} {loss}"), "`{step}` occurs twice");
        assert_eq!(wrong("{step loss {loss"), "`{` and `}` enclose the name of a metric, such as `{step}`");
        assert!(wrong("{val f1} {loss}").starts_with("`val f1` cannot be the name of a metric"));
    }
}
