//! Putting a recipe into a git repository of the user's, on a branch of its own.

use super::SharingError;
use super::git::Git;
use super::store::Store;
use super::url::{check_push, check_rev};
use crate::check::{CheckContext, check};
use crate::document::Document;
use crate::extends::extended;
use crate::problem::{Problem, render_all};
use crate::source::Layer;
use std::path::Path;

/// What is to be published where.
#[derive(Clone, Debug)]
pub struct Publication<'p> {
    /// The recipe's file.
    pub recipe: &'p Path,
    /// A git work tree of the user's.
    pub repository: &'p Path,
    /// Branch that gets the commit; it must not be the one that is checked out. Default: `recipes/NAME`.
    pub branch: Option<&'p str>,
    /// Text of the commit. Default: `NAME: publish the recipe`.
    pub message: Option<&'p str>,
    /// Remote that the branch is pushed to, when the repository has one of this name.
    pub remote: &'p str,
    /// Whether a remote on this machine may be pushed to.
    pub allow_file: bool,
}

/// What was published.
#[derive(Clone, Debug)]
pub struct Published {
    /// The new commit.
    pub commit: String,
    /// Its branch.
    pub branch: String,
    /// Path of the recipe in the repository.
    pub path: String,
    /// URL it was pushed to; `None` when the repository has no such remote.
    pub pushed: Option<String>,
    /// What is left to type: how to push, or how others get it.
    pub commands: Vec<String>,
}

/// Checks a recipe, commits it as `NAME.toml` and pushes the branch.
///
/// The work tree and the index of the repository are not touched and no hook runs: the commit is built from
/// objects. `Err` when the recipe does not hold, or git refuses.
pub fn publish(publication: &Publication<'_>, store: Option<&Store>) -> Result<Published, SharingError> {
    let (name, text) = sound_recipe(publication.recipe, store)?;
    let branch = publication.branch.map_or_else(|| format!("recipes/{name}"), ToOwned::to_owned);
    check_rev(&branch)?;
    check_rev(publication.remote)?;
    let path = format!("{name}.toml");
    let message =
        publication.message.map_or_else(|| format!("{name}: publish the recipe"), ToOwned::to_owned);
    let git = Git::new(publication.repository, publication.allow_file);
    let remotes = git.line(&["remote"])?;
    let has_remote = remotes.lines().any(|remote| remote == publication.remote);
    if has_remote {
        // Before anything is written: a commit that cannot be pushed would stay on the branch.
        let urls = git.line(&["remote", "get-url", "--push", "--all", "--", publication.remote])?;
        urls.lines().try_for_each(|url| check_push(url, publication.allow_file))?;
    }
    let commit = committed(git, &branch, &path, &text, &message)?;
    let reference = format!("refs/heads/{branch}:refs/heads/{branch}");
    let folder = publication.repository.display();
    if !has_remote {
        let commands = vec![
            format!("git -C {folder} remote add {} URL", publication.remote),
            format!("git -C {folder} push {} {reference}", publication.remote),
        ];
        return Ok(Published { commit, branch, path, pushed: None, commands });
    }
    git.run(&["push", "-q", "--no-recurse-submodules", "--", publication.remote, &reference])?;
    let url = git.line(&["remote", "get-url", "--", publication.remote])?;
    let commands = vec![format!("dtrain recipe add {url} --rev {branch}")];
    Ok(Published { commit, branch, path, pushed: Some(url), commands })
}

/// The name and text of a recipe that holds.
fn sound_recipe(path: &Path, store: Option<&Store>) -> Result<(String, String), SharingError> {
    let bytes = std::fs::read(path).map_err(SharingError::io(path))?;
    let checked = || -> Result<_, Vec<Problem>> {
        let document = Document::parse_bytes(path, Layer::Recipe, bytes.clone())?;
        check(&extended(document, &super::resolver(store))?, &CheckContext::of_file(path))
    };
    let checked = checked().map_err(|problems| SharingError::Recipe(render_all(&problems, false)))?;
    let text = String::from_utf8(bytes).map_err(|_| SharingError::Recipe("not UTF-8 text".to_owned()))?;
    Ok((checked.recipe.name, text))
}

/// A commit on a branch, over what the branch has, or over the checked-out commit for a new branch.
fn committed(
    git: Git<'_>,
    branch: &str,
    path: &str,
    text: &str,
    message: &str,
) -> Result<String, SharingError> {
    let full = format!("refs/heads/{branch}");
    let current = git.line(&["symbolic-ref", "-q", "HEAD"]).unwrap_or_default();
    if current == full {
        let detail = format!(
            "{branch} is checked out there; publish on another branch, which leaves the work tree alone"
        );
        return Err(SharingError::Refused(detail));
    }
    let existing =
        |name: &str| git.line(&["rev-parse", "-q", "--verify", &format!("{name}^{{commit}}")]).ok();
    let old = existing(&full);
    let parent = old.clone().or_else(|| existing("HEAD"));
    let folder = git.line(&["rev-parse", "--absolute-git-dir"])?;
    let index = Path::new(&folder).join(format!("dtrain-index-{}", std::process::id()));
    let with_index = Git { index: Some(&index), ..git };
    let built = || {
        with_index.run(&["read-tree", parent.as_deref().unwrap_or("--empty")])?;
        let blob = with_index.feed(&["hash-object", "-w", "--stdin"], text.as_bytes())?;
        let blob = String::from_utf8_lossy(&blob).trim_end().to_owned();
        with_index.run(&["update-index", "--add", "--cacheinfo", &format!("100644,{blob},{path}")])?;
        with_index.line(&["write-tree"])
    };
    let tree = built();
    drop(std::fs::remove_file(&index));
    let mut arguments = vec!["commit-tree", "-m", message];
    if let Some(parent) = &parent {
        arguments.extend(["-p", parent]);
    }
    let tree = tree?;
    arguments.push(&tree);
    let commit = git.line(&arguments)?;
    // The old value makes the update fail when somebody else moved the branch meanwhile.
    let zero = "0".repeat(commit.len());
    git.run(&["update-ref", &full, &commit, old.as_deref().unwrap_or(&zero)])?;
    Ok(commit)
}
