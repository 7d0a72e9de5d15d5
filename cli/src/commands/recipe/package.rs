//! `dtrain recipe add`, `update`, `remove`, `verify`, `publish`, `trust`: recipe packages shared through git.

use crate::args::{AddArgs, PublishArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::matching_files;
use crate::packages::{failure, store, trust, trust_file};
use crate::render::number::counted;
use crate::render::truncate::one_line;
use dtrain_recipes::FilePattern;
use dtrain_recipes::sharing::{self, CheckoutState, LockedPackage, PackageDetails, PublishRequest};
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct LockedPackages<'a> {
    packages: &'a [LockedPackage],
}

/// Adds a package of recipes to the lock file.
pub(crate) fn add(context: &Context, args: &AddArgs) -> CommandResult {
    let store = store(Path::new("."), args.allow_file)?;
    let locked = sharing::add(&store, &address(&args.url), args.rev.as_deref(), args.name.as_deref())
        .map_err(|error| failure(&error))?;
    let shown = sharing::show(&store, &locked.name).map_err(|error| failure(&error))?;
    if context.out.json {
        context.out.json("packages", &LockedPackages { packages: std::slice::from_ref(&locked) })?;
    } else {
        context.out.data(&page(&shown))?;
    }
    context.out.say(&format!("pinned in {}", store.lock.display()));
    let recipe = recipes(&shown).next().unwrap_or("RECIPE");
    context.out.next(&format!("dtrain recipe show {}/{recipe}", locked.name));
    Ok(ExitReason::Done)
}

/// Makes the path of a local folder absolute, so that the lock file works from any folder; returns other URLs
/// unchanged.
fn address(url: &str) -> String {
    let path = Path::new(url);
    match path.is_dir() {
        true => {
            std::fs::canonicalize(path).map_or_else(|_| url.to_owned(), |path| path.display().to_string())
        }
        false => url.to_owned(),
    }
}

/// Describes a package: its origin, its recipes, and what they may do besides training.
pub(crate) fn page(shown: &PackageDetails) -> String {
    let locked = &shown.locked;
    let mut lines =
        vec![format!("{}  {} at {} ({})", locked.name, locked.url, short(&locked.commit), locked.rev)];
    for recipe in recipes(shown) {
        lines.push(format!("  {}/{recipe}", locked.name));
    }
    for (path, capabilities) in &shown.capabilities {
        lines.extend(capabilities.iter().map(|capability| one_line(&format!("  {path} {capability}"))));
    }
    lines.join("\n")
}

fn recipes(shown: &PackageDetails) -> impl Iterator<Item = &str> {
    shown.files.iter().filter_map(|(path, _)| path.strip_suffix(".toml"))
}

fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

/// Updates one package, or without a name all packages, to the newest version.
pub(crate) fn update(context: &Context, package: Option<&str>, allow_file: bool) -> CommandResult {
    let store = store(Path::new("."), allow_file)?;
    let names: Vec<String> = match package {
        Some(name) => vec![name.to_owned()],
        None => sharing::list(&store)
            .map_err(|error| failure(&error))?
            .into_iter()
            .map(|locked| locked.name)
            .collect(),
    };
    let mut updated = Vec::new();
    for name in &names {
        let update = sharing::update(&store, name).map_err(|error| failure(&error))?;
        if update.changes.is_empty() {
            context.out.say(&format!("{name} is unchanged at {}", short(&update.after.commit)));
        } else {
            let (before, after) = (short(&update.before.commit), short(&update.after.commit));
            context
                .out
                .say(&format!("{name} updated from {before} to {after}; its programs are untrusted again"));
            for change in &update.changes {
                context.out.say(&format!("  {change}"));
            }
        }
        updated.push(update.after);
    }
    if context.out.json {
        context.out.json("packages", &LockedPackages { packages: &updated })?;
    }
    context.out.next("dtrain recipe verify");
    Ok(ExitReason::Done)
}

#[derive(Serialize)]
struct VerifiedPackage {
    name: String,
    sound: bool,
    found: String,
}

#[derive(Serialize)]
struct PackageVerification {
    packages: Vec<VerifiedPackage>,
}

/// Verifies all packages against the lock file; fetches missing ones.
pub(crate) fn verify(context: &Context, allow_file: bool) -> CommandResult {
    let store = store(Path::new("."), allow_file)?;
    let fetched = sharing::restore(&store).map_err(|error| failure(&error))?;
    for locked in &fetched {
        context.out.say(&format!("fetched {} at {}", locked.name, short(&locked.commit)));
    }
    let states = sharing::verify(&store).map_err(|error| failure(&error))?;
    let packages: Vec<VerifiedPackage> = states
        .iter()
        .map(|(locked, state)| {
            let found = match state {
                CheckoutState::Sound => "matches dtrain.lock".to_owned(),
                CheckoutState::Missing => "missing".to_owned(),
                CheckoutState::Altered(what) => format!("modified: {what}"),
            };
            VerifiedPackage { name: locked.name.clone(), sound: *state == CheckoutState::Sound, found }
        })
        .collect();
    let broken: Vec<String> =
        packages.iter().filter(|package| !package.sound).map(|package| package.name.clone()).collect();
    let number = counted(packages.len() as u64, "package");
    if context.out.json {
        context.out.json("verification", &PackageVerification { packages })?;
    } else {
        for package in &packages {
            context.out.data(&format!("{}  {}", package.name, package.found))?;
        }
    }
    if let Some(first) = broken.first() {
        return Err(CommandError::new(
            ExitReason::Usage,
            format!("does not match dtrain.lock: {}", broken.join(", ")),
        )
        .hint(format!("`dtrain recipe update {first}` fetches it again")));
    }
    context.out.say(&format!("{number} checked"));
    Ok(ExitReason::Done)
}

#[derive(Serialize)]
struct PublishedJson<'a> {
    commit: &'a str,
    branch: &'a str,
    path: &'a str,
    /// Files named by the recipe that were published with it.
    files: &'a [String],
    pushed: Option<&'a str>,
}

/// Commits a recipe to a branch of a git repository, and pushes it on request.
pub(crate) fn publish(context: &Context, args: &PublishArgs) -> CommandResult {
    let store = store(args.recipe.parent().unwrap_or(Path::new(".")), args.allow_file)?;
    let publication = PublishRequest {
        recipe: &args.recipe,
        repository: &args.repository,
        branch: args.branch.as_deref(),
        message: args.message.as_deref(),
        remote: &args.remote,
        allow_file: args.allow_file,
    };
    let expand = |pattern: &FilePattern, folder: &Path| matching_files(pattern, folder);
    let published = sharing::publish(&publication, Some(&store), &expand).map_err(|error| failure(&error))?;
    if context.out.json {
        let json = PublishedJson {
            commit: &published.commit,
            branch: &published.branch,
            path: &published.path,
            files: &published.files,
            pushed: published.pushed.as_deref(),
        };
        context.out.json("published", &json)?;
    }
    let place = published.pushed.as_deref().unwrap_or("this repository only");
    context.out.say(&format!(
        "{} is on {} at {}: {place}",
        published.path,
        published.branch,
        short(&published.commit)
    ));
    if !published.files.is_empty() {
        context.out.say(&format!("with {}", published.files.join(", ")));
    }
    for command in &published.commands {
        context.out.next(command);
    }
    Ok(ExitReason::Done)
}

#[derive(Serialize)]
struct RemovedJson<'a> {
    package: &'a LockedPackage,
    removed: &'a [std::path::PathBuf],
    kept: Vec<KeptJson<'a>>,
    /// Other lock files that use the package.
    users: &'a [std::path::PathBuf],
    was_trusted: bool,
}

#[derive(Serialize)]
struct KeptJson<'a> {
    path: &'a Path,
    reason: &'a str,
}

/// Removes a package from the lock file and the trust file, and its copy from the store.
pub(crate) fn remove(context: &Context, name: &str) -> CommandResult {
    let store = store(Path::new("."), false)?;
    let known = sharing::list(&store).map_err(|error| failure(&error))?;
    let mut trusted = trust()?;
    let was_trusted = known.iter().any(|locked| locked.name == name && trusted.holds(locked));
    // Trust is revoked before the lock file loses the address; without trust nothing runs anyway.
    if let Some(locked) = known.iter().find(|locked| locked.name == name)
        && trusted.revoke(&locked.url)
    {
        trusted.write(&trust_file()?).map_err(|error| failure(&error))?;
    }
    let removal = sharing::remove(&store, name).map_err(|error| failure(&error))?;
    if context.out.json {
        let kept =
            removal.kept.iter().map(|(path, reason)| KeptJson { path, reason: reason.as_str() }).collect();
        let (removed, users) = (&removal.removed[..], &removal.users[..]);
        let json = RemovedJson { package: &removal.locked, removed, kept, users, was_trusted };
        context.out.json("package_removed", &json)?;
    }
    context.out.say(&format!("{name} is no longer in {}", store.lock.display()));
    if was_trusted {
        context.out.say("its programs may no longer run");
    }
    for user in removal.users.iter().filter(|_| was_trusted) {
        context.out.say(&format!(
            "{} names it too: `dtrain recipe trust {name}` there allows its programs again",
            user.display()
        ));
    }
    for (path, reason) in &removal.kept {
        context.out.say(&format!("kept: {}: {reason}", path.display()));
    }
    Ok(ExitReason::Done)
}

/// Allows the programs of a package, at its current commit, to run.
pub(crate) fn grant(context: &Context, name: &str) -> CommandResult {
    let store = store(Path::new("."), false)?;
    let shown = sharing::show(&store, name).map_err(|error| failure(&error))?;
    let mut trusted = trust()?;
    trusted.grant(&shown.locked);
    let path = trust_file()?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| {
            CommandError::new(ExitReason::Infrastructure, format!("cannot make {}", folder.display()))
                .cause(error.to_string())
        })?;
    }
    trusted.write(&path).map_err(|error| failure(&error))?;
    if context.out.json {
        context.out.json("packages", &LockedPackages { packages: std::slice::from_ref(&shown.locked) })?;
    }
    context.out.say(&page(&shown));
    context.out.say(&format!("{name} may run its programs at commit {}", short(&shown.locked.commit)));
    Ok(ExitReason::Done)
}
