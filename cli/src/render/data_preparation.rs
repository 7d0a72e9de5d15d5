//! Progress of downloading data and tokenizing text, on one line.

use super::number::count;
use crate::output::Output;
use dtrain_recipes::url;
use dtrain_worker::data::{DownloadProgress, PreparationStep, TokenizationProgress};
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::{Cell, RefCell};
use std::time::Instant;

/// Progress line on stderr. Where no bar is drawn, only downloads are announced.
pub(crate) struct DataPreparationBar {
    out: Output,
    bar: ProgressBar,
    /// Time at which tokenization started.
    begun: Cell<Instant>,
    /// URL of the current download, which is announced once.
    named: RefCell<String>,
}

impl DataPreparationBar {
    /// Creates a progress line, which is drawn with the first progress.
    pub(crate) fn new(out: Output) -> Self {
        let bar = if out.draws() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("a template of our own"));
        Self { out, bar, begun: Cell::new(Instant::now()), named: RefCell::default() }
    }

    /// Shows the progress of a download or of tokenization.
    pub(crate) fn show(&self, work: PreparationStep<'_>) {
        let message = match work {
            PreparationStep::Fetching(fetched) => {
                self.begun.set(Instant::now());
                if !self.out.draws() && self.named.replace(fetched.url.to_owned()) != fetched.url {
                    self.out.say(&format!("downloading {}", fetched.url));
                }
                downloading(&fetched)
            }
            PreparationStep::Tokenizing(prepared) => {
                tokenizing_summary(prepared, self.begun.get().elapsed().as_secs_f64())
            }
        };
        self.bar.set_message(message);
        self.bar.tick();
    }
}

/// Formats the progress of a download: `downloading corpus.txt: 3.2 of 12.0 MB`.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn downloading(fetched: &DownloadProgress<'_>) -> String {
    let (name, megabytes) = (url::file_extension(fetched.url), |bytes: u64| bytes as f64 / 1e6);
    match fetched.of {
        Some(of) => format!("downloading {name}: {:.1} of {:.1} MB", megabytes(fetched.bytes), megabytes(of)),
        None => format!("downloading {name}: {:.1} MB", megabytes(fetched.bytes)),
    }
}

impl Drop for DataPreparationBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Formats the progress of tokenization:
/// `tokenizing: 120 MB of text, 30K documents, 28M tokens, 1.1M tokens/s`.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn tokenizing_summary(prepared: TokenizationProgress, seconds: f64) -> String {
    let TokenizationProgress { bytes, documents, tokens } = prepared;
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
    fn the_line_of_a_download_has_its_name_and_how_much_is_here() {
        let fetched = DownloadProgress {
            url: "https://host/a/corpus.txt?raw=1",
            bytes: 3_200_000,
            of: Some(12_000_000),
        };
        assert_eq!(downloading(&fetched), "downloading corpus.txt: 3.2 of 12.0 MB");
        assert_eq!(downloading(&DownloadProgress { of: None, ..fetched }), "downloading corpus.txt: 3.2 MB");
    }

    #[test]
    fn the_line_has_text_documents_tokens_and_speed() {
        let words = tokenizing_summary(
            TokenizationProgress { bytes: 120_000_000, documents: 3, tokens: 40_000_000 },
            20.0,
        );
        assert!(words.contains("120 MB") && words.contains("3 documents"), "{words}");
        assert!(words.contains(&format!("{} tokens/s", count(2e6))), "{words}");
    }
}
