//! Names of models on a Hugging Face Hub, such as `hf:Qwen/Qwen2.5-0.5B@main`.
//!
//! Only parses the text. The worker crate downloads the files.

use std::fmt;

/// Prefix of the name of a model on the Hub in a recipe.
const PREFIX: &str = "hf:";

/// Number of hexadecimal digits of a commit.
const COMMIT_DIGITS: usize = 40;

/// Maximum number of characters of an organisation, of a model's name, and of a revision.
const MOST: usize = 96;

/// A model on a Hugging Face Hub, with its revision if one is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// Organisation or user that the model belongs to.
    org: String,
    name: String,
    revision: Option<String>,
}

/// An error in the name of a model on the Hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModelError {
    /// Message: the expectation and the finding.
    pub message: String,
    /// Suggested fix.
    pub hint: &'static str,
}

impl HubModel {
    /// Returns `true` if `text` begins with `hf:`, and so names a model on the Hub and not a folder.
    pub fn is_named(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// Parses `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`. `Err` has a message and a hint for the user.
    pub fn parse(text: &str) -> Result<Self, HubModelError> {
        text.strip_prefix(PREFIX).and_then(Self::parts).ok_or_else(|| {
            let shown: String = text.chars().take(2 * MOST).collect();
            HubModelError {
                message: format!("expected hf:ORG/NAME or hf:ORG/NAME@REVISION, found {shown:?}"),
                hint: "write the name as the page of the model has it, for example hf:Qwen/Qwen2.5-0.5B; the revision is \
                       a branch, a tag or a commit of 40 digits",
            }
        })
    }

    /// Parses a name that the user typed, with or without `hf:`; `None` if the text without it is not
    /// `ORG/NAME`, and so is the path of a folder or another name.
    pub fn typed(text: &str) -> Option<Result<Self, HubModelError>> {
        if Self::is_named(text) { Some(Self::parse(text)) } else { Self::parts(text).map(Ok) }
    }

    fn parts(text: &str) -> Option<Self> {
        let (path, revision) = match text.split_once('@') {
            Some((path, revision)) => (path, Some(revision)),
            None => (text, None),
        };
        let (org, name) = path.split_once('/')?;
        let is_right = is_name(org) && is_name(name) && revision.is_none_or(is_revision);
        is_right.then(|| Self {
            org: org.to_owned(),
            name: name.to_owned(),
            revision: revision.map(|revision| {
                if is_commit(revision) { revision.to_ascii_lowercase() } else { revision.to_owned() }
            }),
        })
    }

    /// Returns the organisation or user that the model belongs to.
    pub fn org(&self) -> &str {
        &self.org
    }

    /// Returns the model's name without its organisation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the named branch, tag or commit; `main` if none is named.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// Returns the commit in 40 lower-case hexadecimal digits; `None` if the model is not pinned to one.
    pub fn commit(&self) -> Option<&str> {
        self.revision.as_deref().filter(|revision| is_commit(revision))
    }

    /// Returns the model at a commit of 40 hexadecimal digits; `None` if `commit` is none.
    pub fn at(&self, commit: &str) -> Option<Self> {
        is_commit(commit).then(|| Self { revision: Some(commit.to_ascii_lowercase()), ..self.clone() })
    }

    /// Returns `true` if both are the same model, at any revision.
    pub fn is_model_of(&self, other: &Self) -> bool {
        (&self.org, &self.name) == (&other.org, &other.name)
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.org, self.name)?;
        self.revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))
    }
}

impl fmt::Display for HubModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.hint)
    }
}

/// Returns `true` if `text` can be the name of an organisation or of a model. The Hub allows no `--` and no
/// `..` either.
fn is_name(text: &str) -> bool {
    is_plain(text, "._-") && !text.contains("--")
}

fn is_revision(text: &str) -> bool {
    is_plain(text, "._-/") && !text.contains("//") && !text.ends_with('/')
}

fn is_plain(text: &str, marks: &str) -> bool {
    text.len() <= MOST
        && text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || marks.contains(c))
        && !text.contains("..")
}

fn is_commit(text: &str) -> bool {
    text.len() == COMMIT_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "060DB6499f32faf8b98477b0a26969ef7d8b9987";

    #[test]
    fn a_name_has_an_organisation_a_model_and_perhaps_a_revision() {
        let model = HubModel::parse("hf:Qwen/Qwen2.5-0.5B").unwrap();
        assert_eq!(
            (model.org(), model.name(), model.revision(), model.commit()),
            ("Qwen", "Qwen2.5-0.5B", "main", None)
        );
        let branch = HubModel::parse("hf:a/b@refs/pr/1").unwrap();
        assert_eq!((branch.revision(), branch.commit()), ("refs/pr/1", None));
        let pinned = model.at(COMMIT).unwrap();
        assert_eq!(pinned.commit(), Some(COMMIT.to_ascii_lowercase().as_str()));
        assert_eq!(pinned.to_string(), format!("hf:Qwen/Qwen2.5-0.5B@{}", COMMIT.to_ascii_lowercase()));
        assert_eq!(HubModel::parse(&pinned.to_string()), Ok(pinned.clone()));
        assert!(pinned.is_model_of(&model) && !pinned.is_model_of(&branch));
        assert_eq!(model.at("main"), None);
    }

    #[test]
    fn a_bare_name_has_one_slash_and_a_path_stays_a_path() {
        assert_eq!(HubModel::typed("Qwen/Qwen2.5-0.5B"), Some(HubModel::parse("hf:Qwen/Qwen2.5-0.5B")));
        assert!(HubModel::typed("a/b@v1").is_some_and(|model| model.is_ok()));
        for path in
            ["folder", "a/b/c", "./a", "../a", "/a/b", "/a", "a/", ".a/b", "a/.b", "~/a", "last@3", "a b/c"]
        {
            assert_eq!(HubModel::typed(path), None, "{path}");
        }
        assert!(HubModel::typed("hf:gpt2").is_some_and(|model| model.is_err()));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "hf:",
            "hf:gpt2",
            "hf://a/b",
            "hf:a/b/c",
            "hf:a/..",
            "hf:../b",
            "hf:a/b@",
            "hf:a/b@../c",
            "hf:a/b@c d",
            "hf:-a/b",
            "hf:a--b/c",
            "a/b",
            "hf:a/b@/c",
            "hf:a/b?c",
        ] {
            let error = HubModel::parse(text).unwrap_err();
            assert!(error.message.contains("hf:ORG/NAME") && error.message.contains(text), "{error}");
        }
    }
}
