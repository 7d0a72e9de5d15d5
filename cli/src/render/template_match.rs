//! Text about how line templates match a program's output.

use dtrain_recipes::line_template::{NearestMiss, TemplateReport};

/// Maximum number of characters of a line that are shown.
const SHOWN: usize = 100;

/// Number of characters shown before a mismatch in a line that is shortened.
const BEFORE: usize = 60;

/// Formats a template and the number of lines that it matches, then the first of them or the nearest
/// mismatch.
pub(crate) fn template_match_lines(tried: &TemplateReport) -> Vec<String> {
    let mut lines = vec![format!("`{}`", tried.template)];
    let shadowed = match tried.shadowed {
        0 => String::new(),
        shadowed => {
            format!("; {} more are read by an earlier template", crate::render::number::whole(shadowed))
        }
    };
    match (&tried.first, &tried.nearest) {
        (Some(first), _) => {
            lines
                .push(format!("  reads {}{shadowed}", crate::render::number::counted(tried.matched, "line")));
            lines.push(format!("  line {}: {}", first.line, shortened(&first.text, 0).0));
            let values = first.values.iter().map(|(name, value)| format!("{name} = {value}"));
            lines.push(format!("  {}", values.collect::<Vec<_>>().join(", ")));
        }
        (None, Some(nearest)) => {
            lines.push("  reads no line".to_owned());
            let (line, column) = (nearest.line, nearest.column);
            lines.push(format!("  line {line}, column {column}: {}", mismatch_text(nearest)));
            lines.extend(mismatch_pointer(nearest).map(|text| format!("  {text}")));
        }
        (None, None) => lines.push("  reads no line".to_owned()),
    }
    lines
}

/// Formats a mismatch: ``expected a blank, found `: loss 2` ``.
pub(crate) fn mismatch_text(nearest: &NearestMiss) -> String {
    let found = nearest.found.as_ref().map_or("the end of the line".to_owned(), |found| format!("`{found}`"));
    format!("expected {}, found {found}", nearest.expected)
}

/// Formats the mismatched line, and below it a caret at the mismatch.
pub(crate) fn mismatch_pointer(nearest: &NearestMiss) -> [String; 2] {
    let (line, caret) = shortened(&nearest.text, nearest.column - 1);
    [line, format!("{}^", " ".repeat(caret))]
}

/// Returns the part of a line around the character with index `at`, and that character's index in the part.
fn shortened(text: &str, at: usize) -> (String, usize) {
    let characters: Vec<char> = text.chars().map(|c| if c == '\t' { ' ' } else { c }).collect();
    let from = if characters.len() <= SHOWN { 0 } else { at.saturating_sub(BEFORE) };
    let to = characters.len().min(from + SHOWN);
    let (before, after) = (if from > 0 { "…" } else { "" }, if to < characters.len() { "…" } else { "" });
    let shown: String = characters[from..to].iter().collect();
    (format!("{before}{shown}{after}"), at - from + usize::from(from > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caret_stands_below_the_place_in_a_line_of_any_length() {
        let nearest = |text: String, column| NearestMiss {
            line: 1,
            column,
            expected: "a blank".to_owned(),
            found: None,
            text,
        };
        assert_eq!(
            mismatch_pointer(&nearest("step\t1:".into(), 7)),
            ["step 1:".to_owned(), "      ^".to_owned()]
        );
        let [line, caret] =
            mismatch_pointer(&nearest(format!("{}!{}", "é".repeat(300), "x".repeat(300)), 301));
        assert!(line.starts_with('…') && line.ends_with('…') && line.chars().count() == SHOWN + 2);
        assert_eq!(line.chars().nth(caret.chars().count() - 1), Some('!'));
        assert_eq!(mismatch_text(&nearest(String::new(), 1)), "expected a blank, found the end of the line");
    }
}
