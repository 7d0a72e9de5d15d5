//! Sources of configuration, and origins: the layer, file and byte range of each value.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Size limit of a text that is read as a recipe, in bytes.
pub const LARGEST: usize = 1 << 20;

/// A layer of configuration. Later layers override earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigLayer {
    /// The defaults that are built into dtrain.
    Default,
    /// The user's own settings file.
    Settings,
    /// Recipes that the user's recipe extends.
    Extended,
    /// The recipe that the user trains.
    Recipe,
    /// The cluster file given by `--cluster`.
    Cluster,
    /// Environment variables `DTRAIN_*`.
    Environment,
    /// Assignments on the command line: `--set key=value`.
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

/// A TOML text with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Name of the source in messages: a path, `library/tiny-llama`, `--set`, or an environment variable.
    pub name: String,
    /// Layer of the values in the source.
    pub layer: ConfigLayer,
    /// The TOML text of the source.
    pub text: String,
    /// Folder of the source's file, the base of relative paths in it; `None` if the source is not a file.
    pub folder: Option<PathBuf>,
    /// Name in the lock file of the package that contains the source; `None` if it is in no package.
    pub shared: Option<String>,
    /// Base of relative data paths in the text, relative to the folder of the recipe being checked. Empty
    /// except for recipes extended from another folder; [`crate::resolve_extends`] sets it.
    pub base: PathBuf,
}

impl Source {
    /// Creates a source that is not a file of the user.
    pub fn new(name: impl Into<String>, layer: ConfigLayer, text: impl Into<String>) -> Self {
        Self { name: name.into(), layer, text: text.into(), folder: None, shared: None, base: PathBuf::new() }
    }

    /// Creates a source from the text of a file.
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

/// The origin of a value or a key: its layer and position.
#[derive(Clone, Debug)]
pub struct Origin {
    pub(crate) source: Option<Arc<Source>>,
    pub(crate) span: Range<usize>,
}

impl Origin {
    /// Returns the origin of a built-in default.
    pub fn builtin() -> Self {
        Self { source: None, span: 0..0 }
    }

    pub(crate) fn of(source: &Arc<Source>, span: Range<usize>) -> Self {
        Self { source: Some(Arc::clone(source)), span }
    }

    /// Returns the layer that the value comes from.
    pub fn layer(&self) -> ConfigLayer {
        self.source.as_ref().map_or(ConfigLayer::Default, |source| source.layer)
    }

    /// Returns the source that contains the value; `None` for a default.
    pub fn source(&self) -> Option<&Source> {
        self.source.as_deref()
    }

    /// Returns the byte range of the value in the source's text.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns the source text of the value; `None` for a default.
    pub fn text(&self) -> Option<&str> {
        self.source.as_ref()?.text.get(self.span.clone())
    }

    /// Returns the line and column of the value, both from 1, the column in characters; `None` if its source
    /// is not a file.
    pub fn position(&self) -> Option<(usize, usize)> {
        let source = self.source.as_ref()?;
        match source.layer {
            ConfigLayer::Default | ConfigLayer::Environment | ConfigLayer::Assignment => None,
            ConfigLayer::Settings | ConfigLayer::Extended | ConfigLayer::Recipe | ConfigLayer::Cluster => {
                Some(position(&source.text, self.span.start))
            }
        }
    }

    /// Returns the sort key of origins: layer (highest first), source, and position.
    pub(crate) fn order(&self) -> (std::cmp::Reverse<ConfigLayer>, String, usize) {
        let name = self.source.as_ref().map_or(String::new(), |source| source.name.clone());
        (std::cmp::Reverse(self.layer()), name, self.span.start)
    }
}

/// Formats the origin: `recipe.toml:12:9`, `--set`, `environment variable DTRAIN_TRAIN__SEED` or `default`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(source) = &self.source else { return f.write_str("default") };
        match self.position() {
            Some((line, column)) => write!(f, "{}:{line}:{column}", source.name),
            None => f.write_str(&source.name),
        }
    }
}

/// Returns the line and column of the byte offset `byte` in `text`, both from 1.
pub(crate) fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = &text[..floor(text, byte)];
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

/// Returns the nearest character boundary of `text` at or before the offset `byte`.
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
