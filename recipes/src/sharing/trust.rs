//! Trust in shared packages that do more than train on their own files.
//!
//! The user trusts a URL at one commit with exactly these files. After any change, the package is no longer
//! trusted.

use super::SharingError;
use super::lockfile::{LockedPackage, replace};
use super::store::{Store, find, run_checkout_path, verified_tree};
use crate::check::{CheckedRecipe, ResolvedValue};
use crate::cluster::Cluster;
use crate::document::{Document, SpannedValue, Value};
use crate::hub_model::HubModel;
use crate::model::{ForeignCommand, Model};
use crate::notice::NoticeQuery;
use crate::source::{ConfigLayer, Source};
use crate::training_engine::TrainingEngine;
use crate::url::Url;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// An action of a recipe beyond training, which needs trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capability {
    /// The recipe runs this program with these arguments.
    Runs(Vec<String>),
    /// The recipe reads these files, which are outside its folder.
    Reads(Vec<String>),
    /// The recipe downloads these URLs.
    Downloads(Vec<String>),
    /// The recipe connects to these hosts, or asks these URLs.
    Reaches(Vec<String>),
    /// The recipe passes these options to sbatch, which can select another program.
    Submits(Vec<String>),
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Runs(argv) => {
                write!(f, "runs {}", argv.iter().map(|a| format!("{a:?}")).collect::<Vec<_>>().join(" "))
            }
            Self::Reads(files) => write!(f, "reads {}", files.join(", ")),
            Self::Downloads(urls) => write!(f, "downloads {}", urls.join(", ")),
            Self::Reaches(hosts) => write!(f, "reaches {}", hosts.join(", ")),
            Self::Submits(options) => write!(f, "gives sbatch {}", options.join(" ")),
        }
    }
}

/// Returns the actions beyond training of a checked recipe.
pub fn capabilities(checked: &CheckedRecipe) -> Vec<Capability> {
    let mut found = Vec::new();
    if let Model::Command(command) = &checked.recipe.model {
        found.push(runs(command));
    }
    let (engine, cluster) = (checked.recipe.engine, &checked.recipe.cluster);
    if !engine.is_dtrain() || cluster.python.is_some() {
        found.push(runs_python(cluster.python.clone(), engine.name()));
    }
    let outside: Vec<String> =
        checked.files.iter().map(|file| file.pattern.clone()).filter(|pattern| leads_out(pattern)).collect();
    if !outside.is_empty() {
        found.push(Capability::Reads(outside));
    }
    let urls: Vec<String> =
        checked.files.iter().filter_map(|file| address(file.key, &file.pattern)).collect();
    if !urls.is_empty() {
        found.push(Capability::Downloads(urls));
    }
    let hosts: Vec<String> = checked.recipe.cluster.hosts.iter().map(|host| host.address.clone()).collect();
    if !hosts.is_empty() {
        found.push(Capability::Reaches(hosts));
    }
    found.extend(asks(cluster));
    if let Some(slurm) = checked.recipe.cluster.slurm.as_ref().filter(|slurm| !slurm.options.is_empty()) {
        found.push(Capability::Submits(slurm.options.clone()));
    }
    found
}

/// Returns the capability to run a command, in shell order: variables, program, arguments.
fn runs(command: &ForeignCommand) -> Capability {
    let variables = command.env.iter().map(|(name, value)| format!("{name}={value}"));
    Capability::Runs(variables.chain(command.argv.iter().cloned()).collect())
}

/// Returns the capability to ask for notices; `None` if the recipe asks for none.
fn asks(cluster: &Cluster) -> Option<Capability> {
    Some(match &cluster.notice.as_ref()?.query {
        NoticeQuery::Command(argv) => Capability::Runs(argv.clone()),
        NoticeQuery::Url(url) => Capability::Reaches(vec![url.address.clone()]),
    })
}

/// Returns the capability to run a training engine with the interpreter `python`.
fn runs_python(python: Option<String>, engine: &str) -> Capability {
    Capability::Runs(vec![python.unwrap_or_else(|| "python3".into()), "-m".into(), engine.into()])
}

/// Returns the actions beyond training of a recipe's text, which may be incomplete, such as a base for other
/// recipes.
pub(super) fn capabilities_of_text(text: &str) -> Vec<Capability> {
    let Ok(document) = Document::parse(&Source::new("", ConfigLayer::Extended, text)) else {
        return Vec::new();
    };
    let texts = |path: &str| -> Vec<String> {
        match document.get(path).map(|node| &node.value) {
            Some(Value::Text(text)) => vec![text.clone()],
            Some(Value::List(items)) => items
                .iter()
                .filter_map(|item| match &item.value {
                    Value::Text(text) => Some(text.clone()),
                    _ => item.table().and_then(|table| match &table.get("address")?.node.value {
                        Value::Text(text) => Some(text.clone()),
                        _ => None,
                    }),
                })
                .collect(),
            _ => Vec::new(),
        }
    };
    let variables = document.get("model.env").and_then(SpannedValue::table).into_iter().flatten();
    let variables = variables.filter_map(|(name, entry)| match &entry.node.value {
        Value::Text(text) => Some(format!("{name}={text}")),
        _ => None,
    });
    let keys =
        ["data.train", "data.valid", "data.labels", "data.valid_labels", "data.tokenizer", "train.from"];
    let urls =
        keys.iter().flat_map(|key| texts(key).into_iter().filter_map(|file| address(key, &file))).collect();
    let outside = keys.iter().flat_map(|key| texts(key)).filter(|path| leads_out(path)).collect();
    let engine = texts("engine").pop().filter(|engine| engine != TrainingEngine::Dtrain.name());
    let python = texts("cluster.python").pop();
    let engine = engine.or_else(|| python.as_ref().map(|_| "ENGINE".into()));
    let all = [
        engine.map_or(Capability::Runs(Vec::new()), |engine| runs_python(python, &engine)),
        Capability::Runs(variables.chain(texts("model.argv")).collect()),
        Capability::Reads(outside),
        Capability::Downloads(urls),
        Capability::Reaches(texts("cluster.hosts")),
        Capability::Runs(texts("cluster.notice.command")),
        Capability::Reaches(texts("cluster.notice.url")),
        Capability::Submits(texts("cluster.slurm.options")),
    ];
    let is_something = |capability: &Capability| match capability {
        Capability::Runs(list)
        | Capability::Reads(list)
        | Capability::Downloads(list)
        | Capability::Reaches(list)
        | Capability::Submits(list) => !list.is_empty(),
    };
    all.into_iter().filter(is_something).collect()
}

/// Returns the address of a URL, without its checksum, or the name of a model on the Hub; `None` if the
/// pattern at `key` is a file or a folder.
fn address(key: &str, pattern: &str) -> Option<String> {
    if key == "train.from" && HubModel::is_named(pattern) {
        return Some(pattern.to_owned());
    }
    Url::is_url(pattern).then(|| pattern.split('#').next().unwrap_or_default().to_owned())
}

fn leads_out(pattern: &str) -> bool {
    let path = Path::new(pattern);
    !Url::is_url(pattern)
        && (path.is_absolute() || path.components().any(|part| part == Component::ParentDir))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrustedCommit {
    url: String,
    commit: String,
    tree: String,
}

/// The trusted packages, stored in `trust.toml`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustStore {
    #[serde(default)]
    trusted: Vec<TrustedCommit>,
}

impl TrustStore {
    /// Reads `trust.toml`; an absent file trusts no package. `Err` if other users can read or write it.
    pub fn read(path: &Path) -> Result<Self, SharingError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(SharingError::io(path)(error)),
        };
        let wrong = |detail: String| SharingError::File { path: path.to_owned(), detail };
        let mode = fs::metadata(path).map_err(SharingError::io(path))?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let detail = format!(
                "has mode {mode:o}, so others could have written it; `chmod 600` it after reading it"
            );
            return Err(wrong(detail));
        }
        toml::from_str(&text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))
    }

    /// Writes `trust.toml` with mode 0600.
    pub fn write(&self, path: &Path) -> Result<(), SharingError> {
        let text = toml::to_string(self);
        let text =
            text.map_err(|error| SharingError::File { path: path.to_owned(), detail: error.to_string() })?;
        replace(path, &text, 0o600)
    }

    /// Returns `true` if exactly this commit of the package, with exactly these files, is trusted.
    pub fn holds(&self, locked: &LockedPackage) -> bool {
        self.trusted.contains(&record(locked))
    }

    /// Returns `true` if this commit with files of this hash is trusted under any URL.
    pub(super) fn holds_tree(&self, commit: &str, tree: &str) -> bool {
        self.trusted.iter().any(|trusted| trusted.commit == commit && trusted.tree == tree)
    }

    /// Adds trust in this commit of the package with these files.
    pub fn grant(&mut self, locked: &LockedPackage) {
        if !self.holds(locked) {
            self.trusted.push(record(locked));
        }
    }

    /// Removes all trust in the packages at `url`; returns `true` if there was any.
    pub fn revoke(&mut self, url: &str) -> bool {
        let before = self.trusted.len();
        self.trusted.retain(|trusted| trusted.url != url);
        self.trusted.len() < before
    }
}

fn record(locked: &LockedPackage) -> TrustedCommit {
    TrustedCommit { url: locked.url.clone(), commit: locked.commit.clone(), tree: locked.tree.clone() }
}

/// Checks that a recipe may run: every action beyond training on its package's files comes from the user's
/// own files, or from a trusted and unchanged package. Such actions are running a program, sbatch options,
/// reading other files, downloads, and connecting to hosts.
pub fn permit(store: &Store, trust: &TrustStore, checked: &CheckedRecipe) -> Result<(), SharingError> {
    let said = |keys: &'static [&str]| {
        let says = checked.resolved.iter().filter(|value| keys.contains(&value.path.as_str()));
        says.filter_map(|value| value.origin.source())
    };
    let cluster = &checked.recipe.cluster;
    if let Model::Command(command) = &checked.recipe.model {
        let runs = runs(command);
        said(&["model.argv", "model.env", "model.kind"])
            .try_for_each(|source| require_trust(store, trust, source, &runs))?;
        // A param may be part of the user's own arguments.
        let is_param = |value: &&ResolvedValue| value.path.starts_with("params.");
        let params = checked.resolved.iter().filter(is_param).filter_map(|value| value.origin.source());
        params.into_iter().try_for_each(|source| require_trust(store, trust, source, &runs))?;
    }
    let python = runs_python(cluster.python.clone(), checked.recipe.engine.name());
    said(&["cluster.python"]).try_for_each(|source| require_trust(store, trust, source, &python))?;
    if let Some(asks) = asks(cluster) {
        said(&["cluster.notice.command", "cluster.notice.url", "cluster.notice.headers"])
            .try_for_each(|source| require_trust(store, trust, source, &asks))?;
    }
    let slurm = cluster.slurm.iter();
    let options = slurm.flat_map(|slurm| slurm.options.iter().chain(&slurm.environment)).cloned().collect();
    let submits = Capability::Submits(options);
    said(&["cluster.slurm.options", "cluster.slurm.environment"])
        .try_for_each(|source| require_trust(store, trust, source, &submits))?;
    for file in &checked.files {
        let Some((source, name)) =
            file.origin.source().and_then(|source| Some((source, source.shared.as_ref()?)))
        else {
            continue;
        };
        if let Some(url) = address(file.key, &file.pattern) {
            require_trust(store, trust, source, &Capability::Downloads(vec![url]))?;
            continue;
        }
        let written = Path::new(&file.pattern).strip_prefix(&source.base).unwrap_or(Path::new(&file.pattern));
        if is_outside(written, source, &run_checkout_path(store, &find(store, name)?)) {
            require_trust(store, trust, source, &Capability::Reads(vec![written.display().to_string()]))?;
        }
    }
    let is_of_host = |value: &&ResolvedValue| value.path.starts_with("cluster.hosts[");
    let reaches = Capability::Reaches(cluster.hosts.iter().map(|host| host.address.clone()).collect());
    let hosts = checked.resolved.iter().filter(is_of_host).filter_map(|value| value.origin.source());
    hosts.into_iter().try_for_each(|source| require_trust(store, trust, source, &reaches))
}

/// Returns `true` if the path `written` in a package's recipe may lead out of `root`, the folder of the
/// package's files.
fn is_outside(written: &Path, source: &Source, root: &Path) -> bool {
    // The pattern `.*` also matches `..`.
    let is_wild = |part: &OsStr| {
        part.as_encoded_bytes().starts_with(b".")
            && part.as_encoded_bytes().iter().any(|byte| b"*?[".contains(byte))
    };
    if written.iter().any(is_wild) {
        return true;
    }
    let Some(folder) = &source.folder else { return leads_out(&written.to_string_lossy()) };
    let mut place = PathBuf::new();
    for part in folder.join(written).components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            Component::CurDir => {}
            part => place.push(part),
        }
    }
    !place.starts_with(root)
}

/// Checks that a source may use a capability: it is the user's own, or its package is trusted and unchanged.
fn require_trust(
    store: &Store,
    trust: &TrustStore,
    source: &Source,
    wanted: &Capability,
) -> Result<(), SharingError> {
    let Some(name) = source.shared.clone() else { return Ok(()) };
    let locked = find(store, &name)?;
    // Reads the files again and compares their hash.
    drop(verified_tree(store, &locked)?);
    if trust.holds(&locked) {
        return Ok(());
    }
    let commit = locked.commit.get(..12).unwrap_or(&locked.commit).to_owned();
    Err(SharingError::Untrusted { name, commit, does: wanted.to_string() })
}
