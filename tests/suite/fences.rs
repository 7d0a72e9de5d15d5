//! Fenced blocks of documents: the commands and the recipes that a reader copies.
//!
//! `CONTRIBUTING.md` lists the info strings. They are the same in `README.md`, `docs/` and `examples/`.

use dtrain_tests::root;
use std::fs;

/// Languages of blocks that are shown, and written to a file where the info string names one.
const LANGUAGES: [&str; 6] = ["toml", "csv", "text", "python", "json", "rust"];

/// A fenced block.
#[derive(Debug)]
pub(crate) struct Block {
    /// Document and line of the opening fence.
    pub(crate) place: String,
    info: Vec<String>,
    pub(crate) text: String,
}

/// What a test does with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'b> {
    /// Commands of dtrain that are run; `exit` is the expected exit code where it is not the usual one.
    Run { exit: Option<i32> },
    /// Commands of dtrain whose arguments are parsed only: they need other hosts, Slurm, a GPU or a person.
    Parsed,
    /// Commands of other programs.
    Other,
    /// Text in one of the [`LANGUAGES`], and the file that it is written to.
    Shown { language: &'b str, file: Option<&'b str> },
}

impl Block {
    /// What the info string says; panics when it is not one of those that `CONTRIBUTING.md` lists.
    pub(crate) fn kind(&self) -> Kind<'_> {
        let info: Vec<&str> = self.info.iter().map(String::as_str).collect();
        match *info.as_slice() {
            ["sh"] => Kind::Run { exit: None },
            ["sh", "parsed"] => Kind::Parsed,
            ["sh", "other"] => Kind::Other,
            ["sh", word] if word.starts_with("exit=") => {
                let code: Result<i32, _> = word["exit=".len()..].parse();
                let code = code.unwrap_or_else(|_| panic!("{}: {word} names no exit code", self.place));
                Kind::Run { exit: Some(code) }
            }
            [language] if LANGUAGES.contains(&language) => Kind::Shown { language, file: None },
            [language, file] if LANGUAGES.contains(&language) => Kind::Shown { language, file: Some(file) },
            _ => panic!("{}: `{}` is no info string of CONTRIBUTING.md", self.place, self.info.join(" ")),
        }
    }

    /// The command lines, each split into words; comments and empty lines are left out.
    pub(crate) fn lines(&self) -> Vec<Vec<String>> {
        self.text.lines().map(words).filter(|words| !words.is_empty()).collect()
    }

    /// The commands of dtrain, without its name. `cargo run --release -- ARGUMENTS` is one of them.
    ///
    /// Panics where another program is called.
    pub(crate) fn commands(&self) -> Vec<Vec<String>> {
        self.lines().into_iter().map(|words| self.arguments(words)).collect()
    }

    fn arguments(&self, words: Vec<String>) -> Vec<String> {
        for prefix in [&["dtrain"][..], &["cargo", "run", "--release", "--"]] {
            if words.len() > prefix.len() && words.iter().zip(prefix).all(|(word, wanted)| word == wanted) {
                return words[prefix.len()..].to_vec();
            }
        }
        panic!("{}: `{}` is no command of dtrain; mark the block `sh other`", self.place, words.join(" "))
    }
}

/// The fenced blocks of a document, by its path below the root.
pub(crate) fn blocks(document: &str) -> Vec<Block> {
    let text =
        fs::read_to_string(root().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"));
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(info) = line.strip_prefix("```") {
            match open.take() {
                Some(block) => blocks.push(block),
                None => {
                    let info = info.split_whitespace().map(str::to_owned).collect();
                    open = Some(Block { place: format!("{document}:{number}"), info, text: String::new() });
                }
            }
        } else if let Some(block) = &mut open {
            block.text += line;
            block.text += "\n";
        }
    }
    assert!(open.is_none(), "{document}: the last block is not closed");
    blocks
}

/// The first command of a document that contains this word.
pub(crate) fn command_with(document: &str, word: &str) -> Vec<String> {
    let blocks = blocks(document);
    let commands = blocks.iter().filter(|block| matches!(block.kind(), Kind::Run { .. } | Kind::Parsed));
    let mut found = commands.flat_map(Block::commands).filter(|command| command.iter().any(|w| w == word));
    found.next().unwrap_or_else(|| panic!("{document} has no command with `{word}`"))
}

/// Words of a command line as a shell splits them: quotes hold words together, `#` begins a comment.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (c, quote) {
            ('#', None) if word.is_none() => break,
            ('"' | '\'', None) => {
                quote = Some(c);
                word = Some(word.unwrap_or_default());
            }
            (c, Some(open)) if c == open => quote = None,
            (' ', None) => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// A command without its `> FILE`, and that file.
pub(crate) fn redirected(mut command: Vec<String>) -> (Vec<String>, Option<String>) {
    let Some(at) = command.iter().position(|word| word == ">") else { return (command, None) };
    let file = command.split_off(at).into_iter().nth(1);
    (command, Some(file.expect("a file stands after `>`")))
}

#[test]
fn words_are_split_as_a_shell_splits_them() {
    assert_eq!(words("plan r.toml --on \"2x8 H100\"  # a comment"), ["plan", "r.toml", "--on", "2x8 H100"]);
    assert_eq!(words("run --set 'model.argv=[\"a b\"]'"), ["run", "--set", "model.argv=[\"a b\"]"]);
    assert_eq!(words("note last \"\" a#b"), ["note", "last", "", "a#b"]);
    assert!(words("  # only a comment").is_empty());
}

#[test]
fn a_redirection_is_taken_off_a_command() {
    let (command, file) = redirected(words("plan r.toml > out.txt"));
    assert_eq!(command, ["plan", "r.toml"]);
    assert_eq!(file.as_deref(), Some("out.txt"));
    assert_eq!(redirected(words("plan r.toml")).1, None);
}
