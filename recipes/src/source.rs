//! Where a value was said: layer, file, and the bytes within it.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Largest text that is read as a recipe, in bytes.
pub const LARGEST: usize = 1 << 20;

/// Who said a value. Later layers win.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigLayer {
    /// What holds when nobody says anything.
    Default,
    /// The user's own settings file.
    Settings,
    /// A recipe that the user's recipe extends.
    Extended,
    /// The recipe.
    Recipe,
    /// A cluster file.
    Cluster,
    /// An environment variable `DTRAIN_*`.
    Environment,
    /// `--set key=value`.
    Assignment,
}

impl fmt::Display for ConfigLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Settings => "settings",
            Self::Extended => "extended recipe",
            Self::Recipe => "recipe",
            Self::Cluster => "cluster file",
            Self::Environment => "environment",
            Self::Assignment => "--set",
        })
    }
}

/// A text with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What messages call it: a path, `library/tiny-llama`, `--set`, an environment variable.
    pub name: String,
    /// Who says it.
    pub layer: ConfigLayer,
    /// TOML.
    pub text: String,
    /// Folder of the file, which relative paths in it start from; `None` where there is no file.
    pub folder: Option<PathBuf>,
    /// Name under which the lock file knows the git repository this text came from.
    pub shared: Option<String>,
    /// Where relative data paths in the text start, seen from the folder of the recipe being checked.
    /// Empty but for recipes extended from another folder; [`crate::resolve_extends`] fills it in.
    pub base: PathBuf,
}

impl Source {
    /// A text that is no file of the user's.
    pub fn new(name: impl Into<String>, layer: ConfigLayer, text: impl Into<String>) -> Self {
        Self { name: name.into(), layer, text: text.into(), folder: None, shared: None, base: PathBuf::new() }
    }

    /// The text of a file.
    pub fn file(path: &std::path::Path, layer: ConfigLayer, text: impl Into<String>) -> Self {
        let folder = path.parent().map(PathBuf::from);
        Self {
            name: path.display().to_string(),
            layer,
            text: text.into(),
            folder,
            shared: None,
            base: PathBuf::new(),
        }
    }
}

/// Where one value, or one key, was said.
#[derive(Clone, Debug)]
pub struct Origin {
    pub(crate) source: Option<Arc<Source>>,
    pub(crate) span: Range<usize>,
}

impl Origin {
    /// Nobody said it: a default of the language.
    pub fn builtin() -> Self {
        Self { source: None, span: 0..0 }
    }

    pub(crate) fn of(source: &Arc<Source>, span: Range<usize>) -> Self {
        Self { source: Some(Arc::clone(source)), span }
    }

    /// Who said it.
    pub fn layer(&self) -> ConfigLayer {
        self.source.as_ref().map_or(ConfigLayer::Default, |source| source.layer)
    }

    /// The text it stands in; `None` for a default.
    pub fn source(&self) -> Option<&Source> {
        self.source.as_deref()
    }

    /// Bytes of the text.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The bytes themselves; `None` for a default.
    pub fn text(&self) -> Option<&str> {
        self.source.as_ref()?.text.get(self.span.clone())
    }

    /// Line and column, both from 1, the column in characters. `None` where there is no file to point into.
    pub fn position(&self) -> Option<(usize, usize)> {
        let source = self.source.as_ref()?;
        match source.layer {
            ConfigLayer::Default | ConfigLayer::Environment | ConfigLayer::Assignment => None,
            ConfigLayer::Settings | ConfigLayer::Extended | ConfigLayer::Recipe | ConfigLayer::Cluster => {
                Some(position(&source.text, self.span.start))
            }
        }
    }

    /// Key that sorts origins by layer (highest first: what the user said last), source and place.
    pub(crate) fn order(&self) -> (std::cmp::Reverse<ConfigLayer>, String, usize) {
        let name = self.source.as_ref().map_or(String::new(), |source| source.name.clone());
        (std::cmp::Reverse(self.layer()), name, self.span.start)
    }
}

/// `recipe.toml:12:9`, `--set`, `environment variable DTRAIN_TRAIN__SEED` or `default`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(source) = &self.source else { return f.write_str("default") };
        match self.position() {
            Some((line, column)) => write!(f, "{}:{line}:{column}", source.name),
            None => f.write_str(&source.name),
        }
    }
}

/// Line and column of a byte, both from 1.
pub(crate) fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = &text[..floor(text, byte)];
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

/// The nearest boundary of a character at or before a byte.
pub(crate) fn floor(text: &str, byte: usize) -> usize {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        assert_eq!(position("a\nçé = 1", 7), (2, 4));
        assert_eq!(position("", 10), (1, 1));
    }

    #[test]
    fn only_files_have_positions() {
        let origin = |layer| Origin::of(&Arc::new(Source::new("here", layer, "a = 1")), 4..5).to_string();
        assert_eq!(origin(ConfigLayer::Recipe), "here:1:5");
        assert_eq!(origin(ConfigLayer::Assignment), "here");
        assert_eq!(Origin::builtin().to_string(), "default");
    }
}
