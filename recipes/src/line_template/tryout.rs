//! Tries templates on the output of a program, and reports where one does not match.

use super::matcher::{MismatchPosition, PartialMatch, TemplateMatcher};
use super::{LineTemplate, Number, TemplatePart, beginning};
use serde::{Serialize, Serializer};

/// Number of characters that are quoted from a line, from the position at which a template fails.
const QUOTED: usize = 24;

/// A tryout of templates on the lines of a program's output, with statistics for each template.
#[derive(Debug)]
pub struct Tryout<'t> {
    templates: &'t [LineTemplate],
    tried: Vec<TemplateReport>,
    /// For each template, its longest partial match with any line so far.
    fits: Vec<Option<PartialMatch>>,
    lines: u64,
}

/// A report on the lines that one template matches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TemplateReport {
    /// The template as it is written in the recipe.
    pub template: String,
    /// Number of lines for which this is the first template that matches.
    pub matched: u64,
    /// Number of lines that the template matches, but that an earlier template matches too.
    pub shadowed: u64,
    /// The first line that the template matches; `None` if it matches none.
    pub first: Option<LineMatch>,
    /// The line with the longest partial match; `None` once a line matches.
    pub nearest: Option<NearestMiss>,
}

/// A line that a template matches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineMatch {
    /// Line number in the output, from 1.
    pub line: u64,
    /// Text of the line, without colors and escape sequences.
    pub text: String,
    /// The numbers read from the line, with their names, in the order of the template.
    #[serde(serialize_with = "as_map")]
    pub values: Vec<(String, f64)>,
}

/// The position at which a template fails to match a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NearestMiss {
    /// Line number in the output, from 1.
    pub line: u64,
    /// Column at which the match fails, in characters from 1.
    pub column: usize,
    /// Part of the template that was expected there, in words.
    pub expected: String,
    /// Text found there instead; `None` at the end of the line.
    pub found: Option<String>,
    /// Text of the line, without colors and escape sequences.
    pub text: String,
}

impl<'t> Tryout<'t> {
    /// Returns a tryout of these templates that has not seen any line.
    pub fn new(templates: &'t [LineTemplate]) -> Self {
        let tried = |template: &LineTemplate| TemplateReport {
            template: template.text.clone(),
            matched: 0,
            shadowed: 0,
            first: None,
            nearest: None,
        };
        let fits = vec![None; templates.len()];
        Self { templates, tried: templates.iter().map(tried).collect(), fits, lines: 0 }
    }

    /// Matches all templates against line `number` of the output, as plain text.
    pub fn line(&mut self, number: u64, text: &str) {
        self.lines += 1;
        let mut is_read = false;
        for ((template, tried), fit) in self.templates.iter().zip(&mut self.tried).zip(&mut self.fits) {
            let is_traced = tried.first.is_none();
            match TemplateMatcher::new(&template.parts, beginning(text), is_traced).run() {
                Ok(values) => {
                    if is_read {
                        tried.shadowed += 1;
                    } else {
                        tried.matched += 1;
                    }
                    is_read = true;
                    tried.nearest = None;
                    let named = |(name, number): (&str, Number)| (name.to_owned(), number.value);
                    tried.first.get_or_insert_with(|| LineMatch {
                        line: number,
                        text: text.to_owned(),
                        values: values.into_iter().map(named).collect(),
                    });
                }
                Err(Some(stop)) if fit.as_ref().is_none_or(|best| *best < stop.fit) => {
                    tried.nearest = Some(nearest(template, number, text, &stop));
                    *fit = Some(stop.fit);
                }
                Err(_) => {}
            }
        }
    }

    /// Returns the number of lines tried so far.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns one report per template, in the order of the templates.
    pub fn tried(&self) -> &[TemplateReport] {
        &self.tried
    }

    /// Returns `true` if any template matched any line.
    pub fn has_match(&self) -> bool {
        self.tried.iter().any(|tried| tried.matched > 0)
    }
}

fn as_map<S: Serializer>(values: &[(String, f64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(values.iter().map(|(name, value)| (name, value)))
}

fn nearest(template: &LineTemplate, line: u64, text: &str, stop: &MismatchPosition) -> NearestMiss {
    let expected = match template.parts.get(stop.fit.parts) {
        Some(TemplatePart::Text(text)) => format!("`{text}`"),
        Some(TemplatePart::Number(name)) => format!("a number for {{{name}}}"),
        Some(TemplatePart::Blanks) => "a blank".to_owned(),
        Some(TemplatePart::Anything) | None => "anything".to_owned(),
    };
    let found: String = text[stop.at..].chars().take(QUOTED).collect();
    NearestMiss {
        line,
        column: text[..stop.at].chars().count() + 1,
        expected,
        found: (!found.is_empty()).then_some(found),
        text: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(templates: &[&str], lines: &[&str]) -> Vec<TemplateReport> {
        let templates: Vec<LineTemplate> =
            templates.iter().map(|text| LineTemplate::parse(text).expect("a template")).collect();
        let mut tryout = Tryout::new(&templates);
        for (number, line) in (1..).zip(lines) {
            tryout.line(number, line);
        }
        tryout.tried().to_vec()
    }

    #[test]
    fn lines_are_counted_for_the_template_that_reads_them() {
        let found = tried(
            &["step {step} loss {loss}", "loss {loss}"],
            &["begin", "step 1 loss 4", "loss 3", "step 2 loss 2"],
        );
        assert_eq!((found[0].matched, found[0].shadowed), (2, 0));
        assert_eq!((found[1].matched, found[1].shadowed), (1, 2));
        let first = found[0].first.as_ref().expect("a line");
        assert_eq!((first.line, first.text.as_str()), (2, "step 1 loss 4"));
        assert_eq!(first.values, [("step".to_owned(), 1.0), ("loss".to_owned(), 4.0)]);
        assert!(found.iter().all(|one| one.nearest.is_none()));
    }

    #[test]
    fn where_a_template_stops_to_fit_is_told() {
        for (template, lines, line, column, expected, found) in [
            (
                "step {step} loss {loss}",
                &["start", "Step: 1 Loss: 0.5"][..],
                2,
                1,
                "`step`",
                Some("Step: 1 Loss: 0.5"),
            ),
            ("step {step} loss {loss}", &["é step 1: loss 2"], 1, 9, "a blank", Some(": loss 2")),
            ("step {step} * loss={loss}", &["x", "step 1 lr 2 loss: 3"], 2, 17, "`loss=`", Some(": 3")),
            ("step {step} loss {loss}", &["loading", "step 1 loss"], 2, 12, "a blank", None),
            (
                "step {step} loss {loss}",
                &["step 1 los", "step 2 loss none"],
                2,
                13,
                "a number for {loss}",
                Some("none"),
            ),
        ] {
            let all = tried(&[template], lines);
            let nearest = all[0].nearest.clone().expect(template);
            let (at, what) =
                ((nearest.line, nearest.column), (nearest.expected.as_str(), nearest.found.as_deref()));
            assert_eq!((at, what), ((line, column), (expected, found)), "{template}: {lines:?}");
        }
    }
}
