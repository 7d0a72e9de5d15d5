//! The files of the recipe's folder that are sent to the hosts of a training.

use crate::units::Bytes;
use glob::{MatchOptions, Pattern};
use serde::{Deserialize, Serialize};

/// The files of the recipe's folder that are sent to every host: those that git tracks or does not ignore, but
/// for the excluded ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workdir {
    /// Patterns of files and folders that are not sent, as in a `.gitignore`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Maximum total size of the files.
    pub limit: Bytes,
    /// Maximum number of files.
    pub files: u64,
}

impl Workdir {
    /// The maximum total size of the files, unless the recipe sets another.
    pub const DEFAULT_LIMIT: Bytes = Bytes(256 << 20);

    /// The maximum number of files, unless the recipe sets another.
    pub const DEFAULT_FILES: u64 = 20_000;

    /// Checks a pattern of `exclude`; `Err` describes the mistake.
    pub fn check_pattern(pattern: &str) -> Result<(), String> {
        if pattern.starts_with('!') {
            return Err("there are no exceptions, as `!` makes in a .gitignore".to_owned());
        }
        if pattern.split('/').any(|part| matches!(part, "." | "..")) {
            return Err("it begins at the recipe's folder, without `.` and `..`".to_owned());
        }
        match glob_of(pattern) {
            "" => Err("it names nothing".to_owned()),
            // Any other text is a pattern, which is parsed here.
            glob => Pattern::new(glob).map(drop).map_err(|error| error.msg.to_owned()),
        }
    }

    /// Returns a test for the paths that are not sent.
    pub fn exclusion(&self) -> Exclusion {
        Exclusion(self.exclude.iter().filter_map(|pattern| ExcludedPattern::parse(pattern)).collect())
    }
}

impl Default for Workdir {
    fn default() -> Self {
        Self { exclude: Vec::new(), limit: Self::DEFAULT_LIMIT, files: Self::DEFAULT_FILES }
    }
}

/// The patterns of paths that are not sent.
#[derive(Clone, Debug, Default)]
pub struct Exclusion(Vec<ExcludedPattern>);

#[derive(Clone, Debug)]
struct ExcludedPattern {
    glob: Pattern,
    /// True if the whole path must match, not the name of a part of it.
    is_anchored: bool,
    /// True if only folders match.
    is_folder: bool,
}

impl Exclusion {
    /// Returns `true` if the file or folder at `path`, or a folder that contains it, is excluded. The path is
    /// relative to the recipe's folder.
    pub fn contains(&self, path: &str, is_folder: bool) -> bool {
        let ends = path.match_indices('/').map(|(end, _)| (&path[..end], true));
        ends.chain([(path, is_folder)])
            .any(|(path, is_folder)| self.0.iter().any(|pattern| pattern.matches(path, is_folder)))
    }
}

impl ExcludedPattern {
    fn parse(pattern: &str) -> Option<Self> {
        let glob = glob_of(pattern);
        Some(Self {
            glob: Pattern::new(glob).ok()?,
            is_anchored: pattern.starts_with('/') || glob.contains('/'),
            is_folder: pattern.ends_with('/'),
        })
    }

    fn matches(&self, path: &str, is_folder: bool) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
        (is_folder || !self.is_folder)
            && self.glob.matches_with(if self.is_anchored { path } else { name }, options)
    }
}

/// Returns a pattern without the slashes that only say what it matches.
fn glob_of(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
    pattern.strip_suffix('/').unwrap_or(pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_gitignore() {
        let check = |pattern: &str, path: &str, is_excluded: bool| {
            let workdir = Workdir { exclude: vec![pattern.to_owned()], ..Workdir::default() };
            assert_eq!(workdir.exclusion().contains(path, false), is_excluded, "{pattern} {path}");
        };
        check("*.ckpt", "a.ckpt", true);
        check("*.ckpt", "deep/er/a.ckpt", true);
        check("*.ckpt", "a.ckpt.py", false);
        check("runs/", "runs/1/log", true);
        check("runs/", "deep/runs/log", true);
        check("runs/", "runs", false);
        check("runs", "runs", true);
        check("/runs", "deep/runs", false);
        check("data/*.bin", "data/a.bin", true);
        check("data/*.bin", "data/deep/a.bin", false);
        check("data/*.bin", "deep/data/a.bin", false);
        check("data/**/a.bin", "data/deep/er/a.bin", true);
        check("[ab]?", "a1", true);
        check(".env*", ".env.local", true);
    }

    #[test]
    fn patterns_that_would_match_nothing_are_refused() {
        for wrong in ["", "/", "!keep", "../data", "a/./b", "[", "a**b"] {
            assert!(Workdir::check_pattern(wrong).is_err(), "{wrong}");
        }
        for right in ["*.ckpt", "runs/", "/a/**/b", ".env", "a b"] {
            assert_eq!(Workdir::check_pattern(right), Ok(()), "{right}");
        }
    }
}
