//! The line that is shown while text is made into tokens.

use super::number::count;
use crate::output::Output;
use dtrain_worker::data::Prepared;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Instant;

/// A line on standard error; nothing where no line can be drawn.
pub(crate) struct Preparing {
    bar: ProgressBar,
    begun: Instant,
}

impl Preparing {
    /// A line that is drawn when it is first told of something.
    pub(crate) fn new(out: Output) -> Self {
        let bar = if out.draws() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("a template of our own"));
        Self { bar, begun: Instant::now() }
    }

    /// Shows how far it has come.
    pub(crate) fn show(&self, prepared: Prepared) {
        self.bar.set_message(words(prepared, self.begun.elapsed().as_secs_f64()));
        self.bar.tick();
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// `tokenizing: 120 MB of text, 30K documents, 28M tokens, 1.1M tokens/s`.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn words(prepared: Prepared, seconds: f64) -> String {
    let Prepared { bytes, documents, tokens } = prepared;
    let speed = tokens as f64 / seconds.max(1e-3);
    format!(
        "tokenizing: {:.0} MB of text, {} documents, {} tokens, {} tokens/s",
        bytes as f64 / 1e6,
        count(documents as f64),
        count(tokens as f64),
        count(speed)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_text_documents_tokens_and_speed() {
        let words = words(Prepared { bytes: 120_000_000, documents: 3, tokens: 40_000_000 }, 20.0);
        assert!(words.contains("120 MB") && words.contains("3 documents"), "{words}");
        assert!(words.contains(&format!("{} tokens/s", count(2e6))), "{words}");
    }
}
