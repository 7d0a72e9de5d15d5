//! What a bench is told after `--`, and what it tells.

/// The words that follow `--`; options are cargo's.
pub(crate) struct Words(Vec<String>);

impl Words {
    pub(crate) fn of_the_command_line() -> Self {
        Self(std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect())
    }

    /// The number of `name=3`, or what is usual.
    pub(crate) fn number(&self, name: &str, usual: u64) -> u64 {
        let said = self.0.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        said.map_or(usual, |text| text.parse().expect("a whole number follows the sign"))
    }

    /// Whether something is asked for: by its name, or by no name at all.
    pub(crate) fn want(&self, name: &str) -> bool {
        let mut names = self.0.iter().filter(|word| !word.contains('=')).peekable();
        names.peek().is_none() || names.any(|word| word == name)
    }
}

/// Prints a line of the report.
#[expect(clippy::print_stdout, reason = "the report of a bench")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
