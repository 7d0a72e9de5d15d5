//! Checks of this machine: state folder, disk, memory, clock and the like.

use super::{Finding, gpu};
use dtrain_recipes::sharing::git_command;
use dtrain_recipes::{Bytes, TrainingEngine};
use dtrain_runner::engine_environment::{self, is_installed};
use dtrain_runner::ledger::{FileSystemKind, History};
use dtrain_runner::{Home, files};
use rustix::fs::{MemfdFlags, memfd_create, statvfs};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns all checks of this machine, that of the state folder first.
pub(super) fn checks(home: &Home) -> Vec<Finding> {
    let mut checks = vec![program()];
    let state = state_folder(home.path());
    checks.push(state);
    // An unwritable folder may still be readable.
    if home.path().is_dir() {
        checks.extend([file_system(home.path()), disk(home.path()), history(&home.history())]);
    }
    checks.extend([cores(), memory(), shared_memory(), open_files(), git(), clock(&home.history())]);
    checks.extend(gpu::checks());
    checks.extend(engines(home));
    checks
}

/// Checks the engines whose environment was installed.
fn engines(home: &Home) -> Vec<Finding> {
    let Some(versions) = engine_environment::installed(home) else { return Vec::new() };
    let versions = match versions {
        Ok(versions) => versions,
        Err(reason) => {
            let fix = "remove that folder, and install the engine again with `dtrain engine install`";
            return vec![Finding::poor("engine", reason, fix)];
        }
    };
    let installed = TrainingEngine::ALL.iter().filter(|engine| is_installed(**engine, &versions));
    installed.map(|engine| engine_finding(*engine, &versions)).collect()
}

/// Returns the finding about an engine with packages of these versions, by name.
pub(super) fn engine_finding(engine: TrainingEngine, versions: &BTreeMap<String, String>) -> Finding {
    let problems = engine_environment::problems(engine, versions);
    if problems.is_empty() {
        let version = |name: &&str| Some(format!("{name} {}", versions.get(*name)?));
        let shown: Vec<_> = ["torch", "torchtitan", "transformers"].iter().filter_map(version).collect();
        return Finding::good("engine", format!("{engine}: {}", shown.join(", ")));
    }
    let found = format!("{engine}: its environment {}", problems.join(", "));
    Finding::bad("engine", found, engine_environment::remedy(engine))
}

fn program() -> Finding {
    let backends = match (cfg!(feature = "cuda"), cfg!(feature = "wgpu")) {
        (false, false) => "CPU backend",
        (true, false) => "CPU and CUDA backends",
        (false, true) => "CPU and wgpu backends",
        (true, true) => "CPU, CUDA and wgpu backends",
    };
    Finding::good("program", format!("dtrain {}, {backends}", env!("CARGO_PKG_VERSION")))
}

fn state_folder(path: &Path) -> Finding {
    let name = "state folder";
    if let Err(error) = files::check_state(path) {
        let words = error.to_string();
        let (what, fix) =
            words.split_once("; ").unwrap_or((&words, "name another folder with --state FOLDER"));
        return Finding::bad(name, what.to_owned(), fix);
    }
    let attempt = || -> std::io::Result<()> {
        files::make_folder(path)?;
        let probe = path.join(format!(".doctor-{}", std::process::id()));
        let written = files::create(&probe).and_then(|mut file| {
            file.write_all(b"dtrain")?;
            file.sync_all()
        });
        let removed = fs::remove_file(&probe);
        written.and(removed)
    };
    if let Err(error) = attempt() {
        let fix = "make it writable, or name another with --state FOLDER or DTRAIN_STATE";
        return Finding::bad(name, format!("{} cannot be written: {error}", path.display()), fix);
    }
    Finding::good(name, format!("{} can be written", path.display()))
}

fn file_system(path: &Path) -> Finding {
    let name = "file system";
    match FileSystemKind::of(path) {
        Ok(FileSystemKind::Local) => Finding::good(name, "local"),
        Ok(FileSystemKind::Shared(kind)) => {
            Finding::good(name, format!("{kind}; the history uses a journal mode that is safe there"))
        }
        Ok(FileSystemKind::Unsafe(kind)) => Finding::bad(
            name,
            format!("{} is on {kind}, where the history could be corrupted", path.display()),
            "name a folder on a local disk with --state FOLDER; checkpoints are kept there, too",
        ),
        Err(error) => Finding::poor(name, format!("its kind is unknown: {error}"), "use a local disk"),
    }
}

fn disk(path: &Path) -> Finding {
    let name = "free disk";
    let Ok(found) = statvfs(path) else { return Finding::poor(name, "unknown", "check with df") };
    let free = Bytes(found.f_bavail.saturating_mul(found.f_frsize));
    let fix = format!("free some space below {}, or name another folder with --state FOLDER", path.display());
    match free.0 {
        ..0x2000_0000 => Finding::bad(name, format!("{free}; checkpoints need at least 512 MiB"), fix),
        0x2000_0000..0x1_0000_0000 => Finding::poor(name, format!("{free}; large models need more"), fix),
        _ => Finding::good(name, free.to_string()),
    }
}

fn history(path: &Path) -> Finding {
    let name = "history";
    if path.try_exists().is_ok_and(|exists| !exists) {
        return Finding::good(name, "none yet");
    }
    match History::open_read_only(path).and_then(|history| history.check()) {
        Ok(()) => Finding::good(name, format!("{} is intact", path.display())),
        Err(error) => {
            let why = std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
            let fix = "move the file aside; trials keep their own folders";
            Finding::bad(name, format!("{error}{why}"), fix)
        }
    }
}

fn cores() -> Finding {
    match std::thread::available_parallelism() {
        Ok(cores) => Finding::good("cores", format!("{cores} available")),
        Err(error) => Finding::poor("cores", format!("unknown: {error}"), "set cluster.ranks in the recipe"),
    }
}

fn memory() -> Finding {
    let name = "memory";
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let Some(free) = meminfo(&text, "MemAvailable") else {
        return Finding::poor(name, "unknown", "check with free");
    };
    let total = meminfo(&text, "MemTotal").unwrap_or(free);
    let found = format!("{free} of {total} available");
    if free.0 < 512 << 20 {
        return Finding::bad(name, found, "close other programs; a small model needs about 512 MiB");
    }
    Finding::good(name, found)
}

fn meminfo(text: &str, key: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(Bytes(kib << 10))
}

fn shared_memory() -> Finding {
    let name = "shared memory";
    let made = memfd_create(c"dtrain-doctor", MemfdFlags::CLOEXEC)
        .and_then(|file| rustix::fs::ftruncate(&file, 1 << 20));
    match made {
        Ok(()) => Finding::good(name, "available to the ranks of this machine"),
        Err(error) => Finding::bad(
            name,
            format!("cannot be made: {error}"),
            "allow memfd_create in the sandbox or container",
        ),
    }
}

fn open_files() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if limit < 256 {
        return Finding::bad("open files", format!("at most {limit}"), "ulimit -n 1024");
    }
    let found = if limit == u64::MAX { "no limit".to_owned() } else { format!("up to {limit}") };
    Finding::good("open files", found)
}

fn git() -> Finding {
    let found = git_command("").arg("--version").output();
    match found {
        Ok(output) if output.status.success() => {
            Finding::good("git", String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => Finding::poor(
            "git",
            "not found; trials are recorded without their code, and recipes cannot be shared",
            "install git",
        ),
    }
}

/// Tolerated difference between two clocks, or between readings of one clock before and after it was set.
const LEEWAY: Duration = Duration::from_secs(60);

/// Greatest plausible age of the running program: ten years.
const OLDEST: Duration = Duration::from_secs(315_576_000);

fn clock(history: &Path) -> Finding {
    let built = std::env::current_exe().and_then(fs::metadata).and_then(|found| found.modified());
    let latest = History::open_read_only(history).and_then(|history| history.latest_ms());
    let latest = latest.ok().flatten().map(|(label, ms)| (label, UNIX_EPOCH + Duration::from_millis(ms)));
    clock_of(SystemTime::now(), built.ok(), latest)
}

/// Compares the clock with this program's build time, and with the time of the last recorded trial.
fn clock_of(now: SystemTime, built: Option<SystemTime>, latest: Option<(String, SystemTime)>) -> Finding {
    let name = "clock";
    let ahead = |of: SystemTime| of.duration_since(now).ok().filter(|ahead| *ahead > LEEWAY);
    let days = |span: Duration| match span.as_secs() {
        seconds @ ..172_800 => format!("{} min", seconds / 60),
        seconds => format!("{} days", seconds / 86_400),
    };
    if built.and_then(ahead).is_some() {
        let fix = "set the clock; the times of trials come from it";
        return Finding::bad(name, "it is earlier than the build time of this program", fix);
    }
    if let Some((label, ahead)) = latest.and_then(|(label, at)| Some((label, ahead(at)?))) {
        let found = format!("it is {} earlier than the newest trial, {label}", days(ahead));
        return Finding::poor(name, found, "set the clock, unless it was wrong when that trial ran");
    }
    match built.and_then(|built| now.duration_since(built).ok()).filter(|age| *age > OLDEST) {
        Some(age) => {
            let found = format!("it is {} later than the build of this program", days(age));
            Finding::poor(name, found, "set the clock, unless the program is that old")
        }
        None => Finding::good(name, "plausible"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_clock_is_compared_with_the_program_and_with_the_newest_trial() {
        let at = |days: u64| UNIX_EPOCH + Duration::from_secs(days * 86_400);
        let verdict = |now, latest: Option<u64>| {
            let finding =
                clock_of(at(now), Some(at(20_000)), latest.map(|days| ("a-1".to_owned(), at(days))));
            (finding.verdict, finding.found)
        };
        assert_eq!(verdict(20_010, None).0, CheckStatus::Good);
        assert_eq!(verdict(20_010, Some(20_009)).0, CheckStatus::Good);
        assert_eq!(verdict(19_990, None).0, CheckStatus::Bad);
        let (poor, found) = verdict(20_010, Some(20_013));
        assert_eq!(poor, CheckStatus::Poor);
        assert!(found.contains("3 days earlier than the newest trial, a-1"), "{found}");
        assert_eq!(verdict(20_000 + 5000, None).0, CheckStatus::Poor, "fourteen years on");
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       2048 kB\nMemAvailable:   1024 kB\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(Bytes(1 << 20)));
        assert_eq!(meminfo(text, "SwapFree"), None);
    }

    #[test]
    fn a_state_folder_below_a_file_is_bad_and_says_how_to_name_another() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("it can be written");
        let finding = state_folder(&file.join("state"));
        assert_eq!(finding.verdict, CheckStatus::Bad);
        assert!(finding.fix.is_some_and(|fix| fix.contains("--state")));
    }

    #[test]
    fn a_state_folder_that_others_can_write_is_bad() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert_eq!(state_folder(folder.path()).verdict, CheckStatus::Bad);
    }
}
