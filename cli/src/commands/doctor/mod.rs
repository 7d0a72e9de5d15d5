//! `dtrain doctor`: is this machine, or are those hosts, fit to train? Each failure comes with its fix.

mod host;

use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::render::number::counted;
use dtrain_recipes::Bytes;
use dtrain_runner::ledger::History;
use rustix::fs::{MemfdFlags, memfd_create, statfs, statvfs};
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    /// Works, but may disappoint.
    Poor,
    /// Training would fail.
    Bad,
}

/// One check.
#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Good, found: found.into(), fix: None }
    }

    fn poor(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Poor, found: found.into(), fix: Some(fix.into()) }
    }

    fn bad(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Bad, found: found.into(), fix: Some(fix.into()) }
    }
}

#[derive(Serialize)]
struct Report {
    fit: bool,
    checks: Vec<Finding>,
}

#[derive(Serialize)]
struct HostsReport {
    fit: bool,
    hosts: Vec<host::HostReport>,
}

/// Checks this machine, or, where hosts are named, those over SSH.
pub(crate) fn run(context: &Context, hosts: &[String]) -> Outcome {
    if hosts.is_empty() { this_machine(context) } else { over_ssh(context, hosts) }
}

fn over_ssh(context: &Context, hosts: &[String]) -> Outcome {
    let reports = host::examine(hosts);
    let failed = host::failed(&reports);
    if context.out.json {
        context.out.json("doctor", &HostsReport { fit: failed == 0, hosts: reports })?;
    } else {
        for report in &reports {
            context.out.data(&report.host)?;
            for check in &report.checks {
                context.out.data(&line(context.out, check))?;
            }
        }
    }
    if failed > 0 {
        let failed = counted(failed as u64, "check");
        return Err(Failure::new(
            Exit::Preflight,
            format!("not every host is fit to train: {failed} failed"),
        ));
    }
    context.out.say("every host is fit to train");
    Ok(Exit::Done)
}

fn this_machine(context: &Context) -> Outcome {
    let mut checks = vec![program()];
    let state = state_folder(context.home.path());
    let is_usable = state.verdict != Verdict::Bad;
    checks.push(state);
    if is_usable {
        checks.extend([
            file_system(context.home.path()),
            disk(context.home.path()),
            history(&context.home.history()),
        ]);
    }
    checks.extend([cores(), memory(), shared_memory(), open_files(), git(), clock()]);
    checks.extend(gpu());
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Bad).count();
    if context.out.json {
        context.out.json("doctor", &Report { fit: failed == 0, checks })?;
    } else {
        for check in &checks {
            context.out.data(&line(context.out, check))?;
        }
    }
    if failed > 0 {
        let failed = counted(failed as u64, "check");
        return Err(Failure::new(
            Exit::Preflight,
            format!("this machine is not fit to train: {failed} failed"),
        ));
    }
    context.out.say("this machine is fit to train");
    context.out.next("dtrain init");
    Ok(Exit::Done)
}

fn line(out: Output, check: &Finding) -> String {
    let paint = out.paint_data;
    let mark = match check.verdict {
        Verdict::Good => paint.green("ok  "),
        Verdict::Poor => paint.yellow("weak"),
        Verdict::Bad => paint.red("FAIL"),
    };
    let fix = check.fix.as_ref().map_or(String::new(), |fix| format!("\n                        fix: {fix}"));
    format!("{mark}  {:<16}  {}{fix}", check.name, check.found)
}

fn program() -> Finding {
    let cuda = if cfg!(feature = "cuda") { "CPU and CUDA backends" } else { "CPU backend" };
    Finding::good("program", format!("dtrain {}, {cuda}", env!("CARGO_PKG_VERSION")))
}

fn state_folder(path: &Path) -> Finding {
    let name = "state folder";
    let attempt = || -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let probe = path.join(format!(".doctor-{}", std::process::id()));
        let written = fs::File::create(&probe).and_then(|mut file| {
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
    match fs::metadata(path) {
        Ok(found) if found.uid() != rustix::process::getuid().as_raw() => {
            let fix = "name a folder of your own with --state FOLDER";
            Finding::bad(name, format!("{} belongs to another user", path.display()), fix)
        }
        Ok(found) if found.permissions().mode() & 0o022 != 0 => {
            let fix = format!("chmod go-w {}", path.display());
            Finding::bad(name, format!("{} can be written by others", path.display()), fix)
        }
        _ => Finding::good(name, format!("{} can be written", path.display())),
    }
}

/// Kinds of file system on which locks and shared mappings of SQLite are not to be trusted.
const REMOTE: &[(i64, &str)] = &[
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x0102_1997, "9P"),
    (0x00C3_6400, "Ceph"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x5346_414F, "AFS"),
];

fn file_system(path: &Path) -> Finding {
    let name = "file system";
    let kind = match statfs(path) {
        // The width of the field differs between platforms.
        Ok(found) => found.f_type & 0xFFFF_FFFF,
        Err(error) => {
            return Finding::poor(name, format!("its kind is unknown: {error}"), "use a local disk");
        }
    };
    match REMOTE.iter().find(|(magic, _)| *magic == kind) {
        Some((_, kind)) => Finding::bad(
            name,
            format!("{} lies on {kind}, where the history would not be safe", path.display()),
            "name a folder on a local disk with --state FOLDER; checkpoints are kept there, too",
        ),
        None => Finding::good(name, "local"),
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
    if !path.exists() {
        return Finding::good(name, "none yet");
    }
    match History::open_read_only(path) {
        Ok(_) => Finding::good(name, format!("{} can be read", path.display())),
        Err(error) => {
            let why = std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
            let fix = "move the file aside; trials keep their own folders";
            Finding::bad(name, format!("{error}{why}"), fix)
        }
    }
}

fn cores() -> Finding {
    match std::thread::available_parallelism() {
        Ok(cores) => Finding::good("cores", format!("{cores} may be used")),
        Err(error) => Finding::poor("cores", format!("unknown: {error}"), "say cluster.ranks in the recipe"),
    }
}

fn memory() -> Finding {
    let name = "memory";
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let Some(free) = meminfo(&text, "MemAvailable") else {
        return Finding::poor(name, "unknown", "check with free");
    };
    let total = meminfo(&text, "MemTotal").unwrap_or(free);
    let found = format!("{free} of {total} are available");
    if free.0 < 512 << 20 {
        return Finding::bad(name, found, "end other programs; a small model needs about 512 MiB");
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
        Ok(()) => Finding::good(name, "ranks of this machine can share it"),
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
    let found = Command::new("git").arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
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

fn clock() -> Finding {
    let modified = std::env::current_exe().and_then(fs::metadata).and_then(|found| found.modified());
    match modified.map(|built| built.elapsed()) {
        Ok(Err(ahead)) if ahead.duration().as_secs() > 60 => Finding::bad(
            "clock",
            "it is before the time this program was built",
            "set the clock; trials are listed by time, and certificates have a validity",
        ),
        _ => Finding::good("clock", "plausible"),
    }
}

/// Checks that only matter where there is a GPU.
fn gpu() -> Vec<Finding> {
    if !has_gpu() {
        return vec![Finding::good("gpu", "none; training uses the CPU")];
    }
    let mut checks = Vec::new();
    checks.push(if cfg!(feature = "cuda") {
        Finding::good("gpu", "found, and this program can use it")
    } else {
        Finding::poor("gpu", "found, but this program has the CPU backend only", BUILD_WITH_CUDA)
    });
    if cfg!(feature = "cuda") {
        checks.push(library("CUDA driver", "libcuda.so", "install the NVIDIA driver"));
        checks.push(library("NVRTC", "libnvrtc.so", "install the CUDA toolkit, or the package cuda-nvrtc"));
        checks.push(headers());
    }
    checks
}

/// How to build a program that uses GPUs.
pub(crate) const BUILD_WITH_CUDA: &str = "cargo build --release --features cuda";

/// Whether the driver shows an NVIDIA GPU.
pub(crate) fn has_gpu() -> bool {
    Path::new("/dev/nvidia0").exists()
        || Path::new("/dev/dxg").exists() && Path::new("/usr/lib/wsl/lib/libcuda.so").exists()
}

fn library(name: &'static str, file: &str, fix: &str) -> Finding {
    let places = library_folders();
    let found = places.iter().find_map(|folder| {
        let mut names = fs::read_dir(folder).ok()?.filter_map(Result::ok);
        names.find(|entry| entry.file_name().to_string_lossy().starts_with(file)).map(|entry| entry.path())
    });
    match found {
        Some(path) => Finding::good(name, path.display().to_string()),
        None => Finding::bad(name, format!("{file} was not found"), fix),
    }
}

fn library_folders() -> Vec<PathBuf> {
    let from_environment = std::env::var_os("LD_LIBRARY_PATH");
    let mut folders: Vec<PathBuf> =
        from_environment.iter().flat_map(std::env::split_paths).filter(|path| path.is_absolute()).collect();
    folders.extend(cuda_folder().map(|folder| folder.join("lib64")));
    let usual = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/lib64",
        "/usr/local/cuda/lib64",
        "/usr/lib/wsl/lib",
    ];
    folders.extend(usual.map(PathBuf::from));
    folders
}

/// Where the CUDA headers are looked for, in the order of the backend.
fn cuda_folder() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CUDA_PATH") {
        return Some(path.into());
    }
    let usual = ["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from);
    usual
        .into_iter()
        .find(|path| path.exists())
        .or_else(|| Path::new("/usr/bin/nvcc").exists().then(|| "/usr".into()))
}

fn headers() -> Finding {
    let name = "CUDA headers";
    let fix = "install the CUDA toolkit, or the package cuda-cudart-dev, and set CUDA_PATH to its folder";
    let Some(folder) = cuda_folder() else {
        return Finding::bad(
            name,
            "no CUDA installation: CUDA_PATH is not set and /usr/local/cuda is missing",
            fix,
        );
    };
    let header = folder.join("include").join("cuda_fp16.h");
    if header.exists() {
        Finding::good(name, header.display().to_string())
    } else {
        Finding::bad(name, format!("{} is missing", header.display()), fix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(finding.verdict, Verdict::Bad);
        assert!(finding.fix.is_some_and(|fix| fix.contains("--state")));
    }

    #[test]
    fn a_state_folder_that_others_can_write_is_bad() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert_eq!(state_folder(folder.path()).verdict, Verdict::Bad);
    }
}
