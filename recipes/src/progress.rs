//! How the lines of a foreign program tell of its progress: a template such as `step {step} * loss {loss}`.

use std::fmt;

/// Longest part of a line that is looked at, in bytes.
const LONGEST: usize = 4096;

/// What a template can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// Steps completed.
    Step,
    /// Training loss.
    Loss,
    /// Tokens, or samples, of the step.
    Tokens,
    /// Seconds of the step.
    Seconds,
    /// Learning rate of the step.
    LearningRate,
    /// Norm of the gradient.
    GradientNorm,
    /// Validation loss.
    ValidLoss,
    /// Share of the validation samples that were read right.
    ValidAccuracy,
}

impl Figure {
    /// All, as a template spells them.
    pub const NAMES: [(&'static str, Self); 8] = [
        ("step", Self::Step),
        ("loss", Self::Loss),
        ("tokens", Self::Tokens),
        ("seconds", Self::Seconds),
        ("learning_rate", Self::LearningRate),
        ("gradient_norm", Self::GradientNorm),
        ("valid_loss", Self::ValidLoss),
        ("valid_accuracy", Self::ValidAccuracy),
    ];
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
    Number(Figure),
}

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace without its other half.
    #[error("`{{` and `}}` enclose the name of a metric, such as `{{step}}`")]
    Brace,
    /// A name that no figure has.
    #[error("unknown metric `{0}`; known are {names}", names = names())]
    Name(String),
    /// A figure that is named twice.
    #[error("`{{{0}}}` occurs twice")]
    Twice(String),
    /// Nothing says where training is.
    #[error("it needs `{{step}}`, and `{{loss}}` or `{{valid_loss}}`")]
    Nothing,
}

fn names() -> String {
    Figure::NAMES.map(|(name, _)| name).join(", ")
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
        let has = |figure| parts.contains(&Part::Number(figure));
        if !has(Figure::Step) || !(has(Figure::Loss) || has(Figure::ValidLoss)) {
            return Err(TemplateError::Nothing);
        }
        Ok(Self(parts))
    }

    /// The figures that a line tells; `None` when it is another line.
    pub fn read(&self, line: &str) -> Option<Vec<(Figure, f64)>> {
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
fn follows(parts: &[Part], line: &str, found: &mut Vec<(Figure, f64)>) -> bool {
    let Some((part, others)) = parts.split_first() else { return true };
    match part {
        Part::Text(text) => line.strip_prefix(text.as_str()).is_some_and(|rest| follows(others, rest, found)),
        Part::Blanks => {
            let rest = line.trim_start();
            rest.len() < line.len() && follows(others, rest, found)
        }
        Part::Number(figure) => {
            let Some((value, length)) = number(line) else { return false };
            found.push((*figure, value));
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
    let figure = Figure::NAMES.iter().find(|(known, _)| *known == name.trim());
    let (_, figure) = figure.ok_or_else(|| TemplateError::Name(name.trim().to_owned()))?;
    Ok((Part::Number(*figure), rest))
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, figure)| figure == self).map_or("", |(name, _)| *name);
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Figure::{LearningRate, Loss, Step, Tokens, ValidLoss};

    fn read(template: &str, line: &str) -> Option<Vec<(Figure, f64)>> {
        Template::parse(template).expect("a template").read(line)
    }

    #[test]
    fn lines_of_other_trainers_are_read() {
        let check = |template: &str, line: &str, expected: &[(Figure, f64)]| {
            assert_eq!(read(template, line).as_deref(), Some(expected), "{template}: {line}");
        };
        check("step {step} loss {loss}", "[rank 0] step 12   loss 0.25.", &[(Step, 12.0), (Loss, 0.25)]);
        check("iter {step}: loss {loss},", "iter 40: loss 2.31, time 81 ms", &[(Step, 40.0), (Loss, 2.31)]);
        check(
            "step={step} * loss={loss}",
            "step=3 lr=1e-3 x loss=nope loss=-1e-2",
            &[(Step, 3.0), (Loss, -0.01)],
        );
        check(
            "{step}/* lr {learning_rate} loss {loss}",
            "1,200/5,000 lr 3e-4 loss 4",
            &[(Step, 1200.0), (LearningRate, 3e-4), (Loss, 4.0)],
        );
        check(
            "Epoch {step} * val_loss: {valid_loss}",
            "Epoch 2 - é - val_loss: 0.5000 - x",
            &[(Step, 2.0), (ValidLoss, 0.5)],
        );
        check(
            "{tokens} tokens, step {step}, loss {loss}",
            "8192 tokens, step 1, loss 1",
            &[(Tokens, 8192.0), (Step, 1.0), (Loss, 1.0)],
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
    fn a_template_says_where_training_is() {
        let wrong = |text: &str| Template::parse(text).expect_err(text).to_string();
        assert_eq!(wrong("loss {loss}"), "it needs `{step}`, and `{loss}` or `{valid_loss}`");
        assert_eq!(wrong("step {step}"), wrong("loss {loss}"));
        assert_eq!(wrong("{step} {step} {loss}"), "`{step}` occurs twice");
        assert_eq!(wrong("{step loss {loss"), "`{` and `}` enclose the name of a metric, such as `{step}`");
        assert!(wrong("{stpe} {loss}").starts_with("unknown metric `stpe`; known are step, loss, tokens"));
    }
}
