//! Kind of file system under a history: whether SQLite is safe there, and with which journal.

use std::io;
use std::path::Path;

/// Kind of the file system that a folder is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// File system that is local to this host.
    Local,
    /// File system shared by hosts, with working locks but without shared memory: a write-ahead log would be
    /// corrupted there, a rollback journal is not (<https://sqlite.org/wal.html>,
    /// <https://sqlite.org/useovernet.html>).
    Shared(&'static str),
    /// Network file system whose locks hold on one host only, or not at all: no history is safe there.
    Unsafe(&'static str),
}

/// Magic numbers of the kernel for file systems that are not local.
const KNOWN: &[(u64, FileSystemKind)] = &[
    (0x6969, FileSystemKind::Shared("NFS")),
    (0x0BD0_0BD0, FileSystemKind::Shared("Lustre")),
    (0x4750_4653, FileSystemKind::Shared("GPFS")),
    (0x1983_0326, FileSystemKind::Shared("BeeGFS")),
    (0x00C3_6400, FileSystemKind::Shared("Ceph")),
    (0x0102_1997, FileSystemKind::Shared("9P")),
    (0xFF53_4D42, FileSystemKind::Unsafe("CIFS")),
    (0xFE53_4D42, FileSystemKind::Unsafe("SMB")),
    (0x517B, FileSystemKind::Unsafe("SMB")),
    (0x6573_5546, FileSystemKind::Unsafe("FUSE")),
    (0x5346_414F, FileSystemKind::Unsafe("AFS")),
];

impl FileSystemKind {
    /// Returns the kind of the file system that `folder` is on; an error if it cannot be read.
    pub fn of(folder: &Path) -> io::Result<Self> {
        // Width and sign of the field differ between platforms.
        #[expect(clippy::cast_sign_loss, reason = "a number of 32 bits in a wider word")]
        let number = (rustix::fs::statfs(folder)?.f_type as u64) & 0xFFFF_FFFF;
        Ok(Self::from_magic_number(number))
    }

    fn from_magic_number(number: u64) -> Self {
        KNOWN.iter().find(|(known, _)| *known == number).map_or(Self::Local, |(_, ground)| *ground)
    }

    /// Returns the journal mode for a history at `path` on this kind of file system; `Err` if none is safe.
    pub(super) fn journal_mode(self, path: &Path) -> Result<&'static str, String> {
        match self {
            Self::Local => Ok("WAL"),
            Self::Shared(_) => Ok("TRUNCATE"),
            Self::Unsafe(name) => Err(format!(
                "{} is on a network file system ({name}), where SQLite loses data; keep it on a local disk: \
                 unset DTRAIN_STATE (the default is ~/.local/state/dtrain) or set it to a local folder",
                path.display()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_one_that_the_file_system_can_keep() {
        let journal = |number, path| FileSystemKind::from_magic_number(number).journal_mode(Path::new(path));
        let message = journal(0x517B, "/home/a/history.db").expect_err("SMB is refused");
        assert!(message.contains("SMB") && message.contains("~/.local/state/dtrain"), "{message}");
        assert_eq!(journal(0x6969, "x"), Ok("TRUNCATE"), "NFS");
        assert_eq!(journal(0xEF53, "x"), Ok("WAL"), "ext4");
        assert_eq!(journal(0x794C_7630, "x"), Ok("WAL"), "overlayfs");
    }
}
