//! Provenance of a trial: git commit and uncommitted changes, program, machine, settings. Secrets are never
//! stored.

mod repository;

use crate::secrets;
use repository::Repository;
pub(crate) use repository::RepositoryFiles;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Code, program, environment and command that produced a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Git repository around the recipe; `None` outside of one.
    pub git: Option<GitState>,
    /// Version of dtrain and the features it was built with, such as `0.1.0 (cuda)`.
    pub program: String,
    /// Operating system, processor, variables and others, by name such as `variable.CUDA_VISIBLE_DEVICES`.
    pub environment: BTreeMap<String, String>,
    /// Command line without values that look like secrets.
    pub command: Vec<String>,
}

/// State of a git repository: its commit, and the changes since (a dirty tree).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitState {
    /// Hash of the commit that is checked out.
    pub revision: String,
    /// Branch that is checked out; `None` if none is.
    pub branch: Option<String>,
    /// Uncommitted changes of tracked files, as a patch with secrets replaced by markers; `None` without
    /// changes.
    pub patch: Option<String>,
    /// True if the patch was cut at the size limit.
    pub is_patch_cut: bool,
    /// Names of untracked files that are not ignored, at most 200.
    pub untracked: Vec<String>,
}

/// Largest patch that is stored, in bytes.
const PATCH_LIMIT: usize = 1 << 20;

/// Most names of untracked files that are stored.
const UNTRACKED_LIMIT: usize = 200;

/// Patterns of files that may contain secrets: their changes are not stored.
const PRIVATE: &[&str] = &[
    ":(top,exclude,glob)**/.env*",
    ":(top,exclude,glob)**/*.pem",
    ":(top,exclude,glob)**/*.key",
    ":(top,exclude,glob)**/*secret*",
    ":(top,exclude,glob)**/*credential*",
];

/// Environment variables whose values are stored. None of them holds a secret, all of them affect training.
pub(crate) const VALUES: &[&str] = &[
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "DTRAIN_STATE",
    "GOMP_CPU_AFFINITY",
    "LD_LIBRARY_PATH",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "RUST_LOG",
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
];

/// Prefixes of environment variables whose names are stored; their values only if [`VALUES`] has them.
const NAMES: &[&str] = &["CUDA_", "DTRAIN_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "RAYON_", "SLURM_"];

impl GitState {
    /// Returns `true` if tracked files differ from the commit.
    pub fn is_dirty(&self) -> bool {
        self.patch.is_some()
    }
}

impl Provenance {
    /// Collects the provenance of a trial that a program with these features starts now, from a recipe in
    /// `folder`.
    pub fn collect(folder: &Path, features: &[&str]) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        Self {
            git: git(folder),
            program: if features.is_empty() {
                version.to_owned()
            } else {
                format!("{version} ({})", features.join(", "))
            },
            environment: environment(std::env::vars_os().filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
            })),
            command: without_secrets(std::env::args().map(|word| secrets::redacted(&word))),
        }
    }
}

/// Returns the state of the repository around `folder`; `None` outside of one or without git. No program that
/// the repository names is run.
pub fn git(folder: &Path) -> Option<GitState> {
    let repository = Repository::discover(folder)?;
    let revision = repository.head(&["rev-parse", "--verify", "HEAD"])?;
    let branch = repository.head(&["symbolic-ref", "--short", "--quiet", "HEAD"]);
    let mut diff = vec!["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short"];
    // Submodules are not entered: git would obey their settings.
    diff.extend(["--ignore-submodules=dirty", "HEAD", "--", ":(top)"]);
    diff.extend(PRIVATE);
    // If git fails, the changes are unknown, which is not the same as none.
    let unknown = || ("# git could not show what differs\n".to_owned(), true);
    let (patch, is_patch_cut) = repository.query_files(&revision, &diff, PATCH_LIMIT).unwrap_or_else(unknown);
    let others = ["ls-files", "--others", "--exclude-standard", "--full-name", "--", ":(top)"];
    let (untracked, _) = repository.query_files(&revision, &others, 1 << 16).unwrap_or_default();
    Some(GitState {
        revision,
        branch,
        patch: (!patch.is_empty()).then(|| secrets::redacted(whole_lines(&patch, is_patch_cut))),
        is_patch_cut,
        untracked: untracked.lines().take(UNTRACKED_LIMIT).map(str::to_owned).collect(),
    })
}

/// Returns a patch, without its last line if that was cut: a part of a secret does not look like one.
fn whole_lines(patch: &str, is_cut: bool) -> &str {
    if is_cut { patch.rfind('\n').map_or("", |end| &patch[..=end]) } else { patch }
}

/// Returns the properties of the machine and its environment variables, by name.
fn environment(variables: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let mut found = machine();
    for (name, value) in variables {
        if VALUES.contains(&name.as_str()) {
            found.insert(format!("variable.{name}"), value);
        } else if NAMES.iter().any(|prefix| name.starts_with(prefix)) {
            found.insert(format!("variable.{name}"), "(set)".to_owned());
        }
    }
    found
}

fn machine() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut tell = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            found.insert(name.to_owned(), value);
        }
    };
    tell("host", sysinfo::System::host_name().ok());
    tell("system", sysinfo::System::long_os_version().ok());
    tell("kernel", sysinfo::System::kernel_version().ok());
    tell("architecture", Some(std::env::consts::ARCH.to_owned()));
    tell("cores", std::thread::available_parallelism().ok().map(|cores| cores.to_string()));
    let kinds = sysinfo::RefreshKind::nothing()
        .with_cpu(sysinfo::CpuRefreshKind::nothing())
        .with_memory(sysinfo::MemoryRefreshKind::nothing().with_ram());
    if let Ok(system) = sysinfo::System::new_with_specifics(kinds) {
        tell(
            "processor",
            system.cpus().first().map(|cpu| cpu.brand().to_owned()).filter(|brand| !brand.is_empty()),
        );
        tell("memory_bytes", Some(system.total_memory().to_string()));
    }
    if let Ok(nvml) = nvml_wrapper::Nvml::init() {
        tell("driver", nvml.sys_driver_version().ok());
        for index in 0..nvml.device_count().unwrap_or(0) {
            tell(&format!("gpu.{index}"), nvml.device_by_index(index).and_then(|gpu| gpu.name()).ok());
        }
    }
    found
}

/// Returns a command line without values that look like secrets.
fn without_secrets(words: impl Iterator<Item = String>) -> Vec<String> {
    let is_secret = |word: &str| {
        let word = word.to_lowercase();
        ["password", "secret", "token=", "apikey", "api_key", "api-key"]
            .iter()
            .any(|mark| word.contains(mark))
    };
    let mut hides_next = false;
    words
        .map(|word| {
            if std::mem::take(&mut hides_next) {
                return "…".to_owned();
            }
            match word.split_once('=') {
                Some((name, _)) if is_secret(&format!("{name}=")) => format!("{name}=…"),
                Some(_) => word,
                None => {
                    hides_next = word.starts_with('-') && is_secret(&format!("{word}="));
                    word
                }
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn run(folder: &Path, words: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let done =
            Command::new("git").arg("-C").arg(folder).args(identity).args(words).output().expect("git runs");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn a_repository_is_told_with_what_differs_but_not_with_private_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        assert_eq!(git(at), None, "no repository");
        run(at, &["init", "-q", "-b", "main"]);
        assert_eq!(git(at), None, "no commit");
        for (name, text) in [("a.toml", "x = 1\n"), (".env", "KEY=1\n")] {
            std::fs::write(at.join(name), text).expect("written");
        }
        run(at, &["add", "-A"]);
        run(at, &["commit", "-q", "-m", "first"]);
        let clean = git(at).expect("a repository");
        assert_eq!(
            (clean.branch.as_deref(), clean.is_dirty(), clean.revision.len()),
            (Some("main"), false, 40)
        );

        std::fs::create_dir(at.join("below")).expect("made");
        let changes = "x = 2\npassword = \"hidden\"\n";
        for (name, text) in [("a.toml", changes), (".env", "KEY=hidden\n"), ("new", "token = hidden\n")] {
            std::fs::write(at.join(name), text).expect("written");
        }
        // A repository must not be able to choose a program to run.
        run(at, &["config", "diff.external", "touch ran"]);
        run(at, &["config", "core.fsmonitor", "touch ran"]);
        let dirty = git(&at.join("below")).expect("a repository");
        let patch = dirty.patch.as_deref().expect("differs");
        assert!(patch.contains("-x = 1\n+x = 2\n+password = \"[removed: value of password]\"\n"), "{patch}");
        assert!(!patch.contains("hidden"), "{patch}");
        assert!(!at.join("ran").exists() && !at.join("below/ran").exists());
        assert_eq!(git(at).expect("a repository").untracked, ["new"]);
    }

    #[test]
    fn a_long_patch_is_cut_and_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        run(at, &["init", "-q"]);
        std::fs::write(at.join("a"), "").expect("written");
        run(at, &["add", "-A"]);
        run(at, &["commit", "-q", "-m", "first"]);
        std::fs::write(at.join("a"), "0123456789\n".repeat(200_000)).expect("written");
        let found = git(at).expect("a repository");
        assert!(found.is_patch_cut);
        let patch = found.patch.expect("it differs");
        assert!(patch.len() <= PATCH_LIMIT && patch.len() > PATCH_LIMIT - 100, "{}", patch.len());
        assert!(patch.ends_with("0123456789\n"), "whole lines only");
    }

    #[test]
    fn values_of_unknown_variables_and_secrets_on_the_command_line_are_not_kept() {
        let variables = [("CUDA_VISIBLE_DEVICES", "0,1"), ("DTRAIN_TOKEN", "hidden"), ("AWS_KEY", "hidden")];
        let found = environment(variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())));
        assert_eq!(found["variable.CUDA_VISIBLE_DEVICES"], "0,1");
        assert_eq!(found["variable.DTRAIN_TOKEN"], "(set)");
        assert!(
            found.values().chain(found.keys()).all(|text| !text.contains("hidden") && !text.contains("AWS"))
        );

        let words = [
            "dtrain",
            "run",
            "r.toml",
            "--set",
            "data.tokenizer=bytes",
            "--api-key",
            "hidden",
            "x.password=hidden",
        ];
        let kept = without_secrets(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(
            kept,
            ["dtrain", "run", "r.toml", "--set", "data.tokenizer=bytes", "--api-key", "…", "x.password=…"]
        );
    }
}
