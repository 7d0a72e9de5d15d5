//! Publishes a recipe to a git repository of the user, on a branch of its own.

use super::SharingError;
use super::git::Git;
use super::git_url::{check_push, check_rev, is_local};
use super::lockfile::{self, LockedPackage};
use super::referenced_files::{Expand, referenced_files};
use super::store::Store;
use super::tree::{RepositoryFile, Tree, private_folder};
use crate::check::{CheckContext, check};
use crate::document::Document;
use crate::extends::resolve_extends;
use crate::problem::{Problem, render_all};
use crate::source::{ConfigLayer, Source};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A request to publish a recipe: its file, and the repository, branch and remote that get it.
#[derive(Clone, Debug)]
pub struct PublishRequest<'p> {
    /// Path of the recipe file to publish.
    pub recipe: &'p Path,
    /// A git work tree that belongs to the user.
    pub repository: &'p Path,
    /// Branch that gets the commit, which must not be checked out; `None` for `recipes/NAME`.
    pub branch: Option<&'p str>,
    /// Commit message; `None` for `NAME: publish the recipe`.
    pub message: Option<&'p str>,
    /// Name of the remote to which the branch is pushed, if the repository has it.
    pub remote: &'p str,
    /// `true` to allow pushing to a remote on this machine.
    pub allow_file: bool,
}

/// The result of a publication.
#[derive(Clone, Debug)]
pub struct PublishedRecipe {
    /// Hash of the new commit.
    pub commit: String,
    /// Branch that got the commit.
    pub branch: String,
    /// Path of the recipe in the repository.
    pub path: String,
    /// Paths in the repository of the other published files, which the recipe names.
    pub files: Vec<String>,
    /// URLs to which the branch was pushed; `None` if the repository has no such remote.
    pub pushed: Option<String>,
    /// Commands left to the user: to push, or for others to add the package.
    pub commands: Vec<String>,
}

/// Checks a recipe, commits it as `NAME.toml` with the files that it names, and pushes the branch. `expand`
/// finds the files of a pattern.
///
/// The work tree and the index of the repository are not touched and no hook runs: the commit is built from
/// objects. `Err` if the recipe is invalid, a file that it names cannot be published, or git refuses.
pub fn publish(
    publication: &PublishRequest<'_>,
    store: Option<&Store>,
    expand: Expand<'_>,
) -> Result<PublishedRecipe, SharingError> {
    let RecipeWithFiles { name, files: tree, packages } = check_recipe(publication.recipe, store, expand)?;
    let branch = publication.branch.map_or_else(|| format!("recipes/{name}"), ToOwned::to_owned);
    check_rev(&branch)?;
    check_rev(publication.remote)?;
    let path = format!("{name}.toml");
    let message =
        publication.message.map_or_else(|| format!("{name}: publish the recipe"), ToOwned::to_owned);
    let git = Git::new(publication.repository, publication.allow_file);
    let remotes = git.line(&["remote"])?;
    let has_remote = remotes.lines().any(|remote| remote == publication.remote);
    let mut urls = String::new();
    if has_remote {
        // Checked before anything is written: a commit that cannot be pushed would stay on the branch.
        urls = git.line(&["remote", "get-url", "--push", "--all", "--", publication.remote])?;
        urls.lines().try_for_each(|url| check_push(url, publication.allow_file))?;
    }
    let commit = commit_files(git, &branch, &tree, &message)?;
    let files = tree.into_keys().filter(|file| *file != path).collect();
    let reference = format!("refs/heads/{branch}:refs/heads/{branch}");
    let folder = publication.repository.display();
    if !has_remote {
        let commands = vec![
            format!("git -C {folder} remote add {} URL", publication.remote),
            format!("git -C {folder} push {} {reference}", publication.remote),
        ];
        return Ok(PublishedRecipe { commit, branch, path, files, pushed: None, commands });
    }
    push(git, &urls, &format!("{commit}:refs/heads/{branch}"))?;
    let url = git.line(&["remote", "get-url", "--", publication.remote])?;
    let mut commands = Vec::new();
    let known = store.map_or(Ok(Vec::new()), |store| lockfile::read(&store.lock))?;
    // The recipe extends one of these packages.
    for locked in known.into_iter().filter(|locked| packages.contains(&locked.name)) {
        let allow = if is_local(&locked.url) { " --allow-file" } else { "" };
        let LockedPackage { url, rev, name, .. } = &locked;
        commands.push(format!("dtrain recipe add {url} --rev {rev} --name {name}{allow}"));
    }
    let (address, allow) = address(&url, publication.repository);
    commands.push(format!("dtrain recipe add {address} --rev {branch}{allow}"));
    Ok(PublishedRecipe { commit, branch, path, files, pushed: Some(url), commands })
}

/// Pushes a commit to each of `urls`, one per line.
///
/// The settings of a repository can name programs that a push runs. So git works in a new repository that
/// borrows the objects: only the settings of the user and of the system apply.
fn push(git: Git<'_>, urls: &str, reference: &str) -> Result<(), SharingError> {
    let own = git.line(&["rev-parse", "--absolute-git-dir"])?;
    let path = |name| git.line(&["rev-parse", "--path-format=absolute", "--git-path", name]);
    let (objects, shallow) = (path("objects")?, path("shallow")?);
    let format = format!("--object-format={}", git.line(&["rev-parse", "--show-object-format"])?);
    // Base of relative URLs.
    let top = git.line(&["rev-parse", "--show-toplevel"]).unwrap_or_else(|_| own.clone());
    let bare = Path::new(&own).join(format!("dtrain-push-{}", std::process::id()));
    let pushed = || {
        private_folder(&bare)?;
        Git::bare(&bare, git.allow_file).run(&["init", "-q", "--bare", "--template=", &format])?;
        if Path::new(&shallow).exists() {
            std::fs::copy(&shallow, bare.join("shallow")).map_err(SharingError::io(Path::new(&shallow)))?;
        }
        let from = Git {
            git_dir: Some(&bare),
            objects: Some(Path::new(&objects)),
            ..Git::new(Path::new(&top), git.allow_file)
        };
        urls.lines().try_for_each(|url| {
            from.run(&["push", "-q", "--no-recurse-submodules", "--", url, reference]).map(drop)
        })
    };
    let pushed = pushed();
    drop(std::fs::remove_dir_all(&bare));
    pushed
}

/// Returns the URL of a remote in a form that works from any folder, and the flag that `dtrain recipe add`
/// needs for it.
fn address(url: &str, repository: &Path) -> (String, &'static str) {
    if is_local(url) {
        let path = repository.join(url);
        let path = std::fs::canonicalize(&path).unwrap_or(path);
        let address = if url.starts_with("file://") { url.to_owned() } else { path.display().to_string() };
        return (address, " --allow-file");
    }
    match url.split_once(':') {
        // A host without a user, which is valid only in `ssh://`.
        Some((host, path)) if !url.contains("://") && !host.contains('@') => {
            let root = if path.starts_with('/') { "" } else { "/~/" };
            (format!("ssh://{host}{root}{path}"), "")
        }
        _ => (url.to_owned(), ""),
    }
}

/// A valid recipe to publish, with the files that are published with it.
struct RecipeWithFiles {
    name: String,
    /// All files to publish, including the recipe.
    files: Tree,
    /// Names of the packages whose recipes the recipe extends.
    packages: BTreeSet<String>,
}

fn check_recipe(
    path: &Path,
    store: Option<&Store>,
    expand: Expand<'_>,
) -> Result<RecipeWithFiles, SharingError> {
    let bytes = std::fs::read(path).map_err(SharingError::io(path))?;
    let (bases, packages) = (RefCell::new(Vec::new()), RefCell::new(BTreeSet::new()));
    let find = super::resolver(store);
    let resolve = |reference: &str, from: &Source| -> Result<Source, String> {
        let found = find(reference, from)?;
        match &found.shared {
            Some(package) => drop(packages.borrow_mut().insert(package.clone())),
            None => bases.borrow_mut().push(PathBuf::from(&found.name)),
        }
        Ok(found)
    };
    let checked = || -> Result<_, Vec<Problem>> {
        let document = Document::parse_bytes(path, ConfigLayer::Recipe, bytes.clone())?;
        check(&resolve_extends(document, &resolve)?, &CheckContext::of_file(path))
    };
    let checked = checked().map_err(|problems| SharingError::Recipe(render_all(&problems, false)))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut files = referenced_files(folder, &checked, &bases.into_inner(), expand)?;
    let name = checked.recipe.name;
    let own = format!("{name}.toml");
    let file = RepositoryFile { is_executable: false, bytes };
    if files.insert(own.clone(), file.clone()).is_some_and(|other| other.bytes != file.bytes) {
        let what =
            format!("{own}, which it names, is a file of another content, and the name that the recipe gets");
        return Err(SharingError::Incomplete(vec![what]));
    }
    Ok(RecipeWithFiles { name, files, packages: packages.into_inner() })
}

/// Commits files to a branch, on top of its tip, or of the checked-out commit for a new branch.
fn commit_files(git: Git<'_>, branch: &str, files: &Tree, message: &str) -> Result<String, SharingError> {
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
        for (path, file) in files {
            let blob = with_index.feed(&["hash-object", "-w", "--stdin"], &file.bytes)?;
            let blob = String::from_utf8_lossy(&blob).trim_end().to_owned();
            let mode = if file.is_executable { "100755" } else { "100644" };
            with_index.run(&[
                "update-index",
                "--add",
                "--replace",
                "--cacheinfo",
                &format!("{mode},{blob},{path}"),
            ])?;
        }
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
    // The old value makes the update fail if another process moved the branch meanwhile.
    let zero = "0".repeat(commit.len());
    git.run(&["update-ref", &full, &commit, old.as_deref().unwrap_or(&zero)])?;
    Ok(commit)
}
