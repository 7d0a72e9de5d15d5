//! A disk whose power can be cut: ext4 in a file, on a loop device, mounted where only the calling thread sees it.
//!
//! A cut is `EXT4_IOC_SHUTDOWN` without a flush of the journal, as the file system testers of the kernel do it: what was not
//! written to the file by then, data and names alike, is gone when it is mounted again. It does not emulate a device that lies
//! about its own cache.

use rustix::ioctl::{Setter, ioctl};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where administrators find their tools.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// `_IOR('X', 125, __u32)`.
const SHUTDOWN: u32 = 0x8004_587D;

/// `EXT4_GOING_FLAGS_NOLOGFLUSH`: what the journal has not written is dropped.
const NO_FLUSH: u32 = 2;

/// A disk. Dropping it leaves no mount and no loop device behind.
pub(super) struct Disk {
    folder: tempfile::TempDir,
}

/// Runs `work` in a thread that has its mounts for itself. When it ends, however it does, the kernel takes them, and with them
/// their loop devices. `Err` tells why disks cannot be mounted here.
pub(super) fn with_own_mounts<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("cutting the power of a disk needs root, for loop devices and mounts".into());
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: it parts mounts and the working folder only, not the table of open files.
            #[expect(unsafe_code, reason = "the call could also part open files, which this does not")]
            let parted = unsafe { unshare_unsafe(UnshareFlags::NEWNS) };
            parted.map_err(|error| format!("mounts of its own: {error}"))?;
            run("mount", &["--make-rprivate", "/"])?;
            drop(Disk::new(16 << 20)?);
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Disk {
    /// A new disk of so many bytes, mounted. `Err` tells what the machine does not allow.
    pub(super) fn new(bytes: u64) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let disk = Self { folder };
        let image = disk.image();
        std::fs::create_dir(disk.path()).map_err(|error| error.to_string())?;
        File::create(&image).and_then(|file| file.set_len(bytes)).map_err(|error| error.to_string())?;
        run("mkfs.ext4", &["-q", "-F", text(&image)])?;
        disk.mount()?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    /// Cuts the power, now: every later call to its files fails.
    pub(super) fn cut(&self) {
        let root = File::open(self.path()).expect("it is mounted");
        // SAFETY: the kernel reads one u32 from the pointer, and writes nothing.
        #[expect(unsafe_code, reason = "the kernel has no other word for it")]
        let cut = unsafe { ioctl(&root, Setter::<SHUTDOWN, u32>::new(NO_FLUSH)) };
        cut.expect("ext4 can be shut down");
    }

    /// Gives it power again, with what was on it.
    pub(super) fn restart(&self) {
        unmount(&self.path()).expect("no file is open any more");
        self.mount().expect("the journal is read");
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn mount(&self) -> Result<(), String> {
        run("mount", &["-t", "ext4", "-o", "loop", text(&self.image()), text(&self.path())])
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if unmount(&self.path()).is_err() {
            // A process still has a file open: the mount goes when it closes.
            drop(run("umount", &["--lazy", text(&self.path())]));
        }
    }
}

/// A disk in memory, which is full soon. Dropping it leaves no mount behind.
pub(super) struct Memory {
    folder: tempfile::TempDir,
}

impl Memory {
    /// A new one of so many bytes.
    pub(super) fn new(bytes: u64) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let size = format!("size={bytes},mode=700");
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", text(folder.path())])?;
        Ok(Self { folder })
    }

    /// Where it is mounted.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Changes its size, in bytes.
    pub(super) fn resize(&self, bytes: u64) -> Result<(), String> {
        run("mount", &["-o", &format!("remount,size={bytes}"), text(self.folder.path())])
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(unmount(self.folder.path()));
    }
}

/// Unmounts; a process that was just killed may hold a file for a moment.
fn unmount(path: &Path) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let done = run("umount", &[text(path)]);
        if done.is_ok() || Instant::now() > until {
            return done;
        }
        sleep(Duration::from_millis(20));
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).env("PATH", PATH).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {}", error.trim())) }
}
