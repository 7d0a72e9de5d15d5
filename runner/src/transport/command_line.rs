//! Command lines: constants, some with validated words in them.
//!
//! A host runs them in the user's login shell, which may be any, so each is one line without `'`, `!` and `\`
//! inside quotes. User input is never part of one.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

/// BLAKE3 hash of a program, which is part of the program's path on every host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramDigest(blake3::Hash);

impl ProgramDigest {
    /// Hashes the file `program`.
    pub fn of(program: &Path) -> io::Result<Self> {
        Self::read(&mut File::open(program)?)
    }

    /// Flushes the file `program` to its disk and hashes it, so that what was verified survives a loss of power.
    pub fn of_flushed(program: &Path) -> io::Result<Self> {
        let mut file = File::open(program)?;
        file.sync_all()?;
        Self::read(&mut file)
    }

    fn read(file: &mut File) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file)?;
        Ok(Self(hasher.finalize()))
    }

    /// Parses a hash from 64 hexadecimal digits; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        blake3::Hash::from_hex(text).ok().map(Self)
    }
}

impl fmt::Display for ProgramDigest {
    /// Writes the hash as 64 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

/// The mode in which an uploaded program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramMode {
    /// The relay: requests on standard input, replies on standard output.
    Stdio,
    /// Prints the digest of its own file and exits.
    Digest,
}

impl ProgramMode {
    /// Returns the command-line arguments that select this mode.
    pub const fn arguments(self) -> &'static str {
        match self {
            Self::Stdio => "agent --stdio",
            Self::Digest => "agent --digest",
        }
    }
}

/// Name of a partially uploaded file; unique for each upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartName(u128);

impl PartName {
    pub(super) fn generate() -> Self {
        Self(ulid::Ulid::generate().0)
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".part.{:032x}", self.0)
    }
}

/// A command line for the shell of a host. Only this module creates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine(String);

impl CommandLine {
    /// Returns the text to send to the shell.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns the command line of a shell that reads its script from standard input.
    pub(super) fn shell() -> Self {
        Self("exec sh -s".into())
    }

    /// Returns the command line that starts an uploaded program.
    pub(super) fn program(digest: &ProgramDigest, word: ProgramMode) -> Self {
        Self(format!(r#"exec "$HOME/.cache/dtrain/bin/{digest}/dtrain" {}"#, word.arguments()))
    }

    /// Returns a command line that creates the program's folder, and prints `size=` and `digest=`, which the program
    /// there says of itself (neither if there is no program), and `df=` with a line of `df -P`.
    ///
    /// It removes parts of uploads older than a day.
    pub(super) fn probe_program(digest: &ProgramDigest) -> Self {
        let word = ProgramMode::Digest.arguments();
        Self(format!(
            r#"exec sh -c 'LC_ALL=C; export LC_ALL; umask 077; d="$HOME/.cache/dtrain/bin/{digest}"; mkdir -p "$d" || exit 1; find "$d" -name ".part.*" -mtime +1 -exec rm -f {{}} +; if [ -x "$d/dtrain" ]; then echo "size=$(wc -c <"$d/dtrain")"; t=$(command -v timeout >/dev/null 2>&1 && echo "timeout -s KILL 8"); echo "digest=$($t "$d/dtrain" {word} </dev/null 2>/dev/null)"; fi; echo "df=$(df -Pk "$d" | tail -n 1)"'"#
        ))
    }

    /// Returns a command line that writes standard input to a file beside the program.
    pub(super) fn receive_part(digest: &ProgramDigest, part: PartName) -> Self {
        Self(format!(r#"exec sh -c 'umask 077; exec cat >"$HOME/.cache/dtrain/bin/{digest}/{part}"'"#))
    }

    /// Returns a command line that installs a part with the right length and digest, and removes any other.
    ///
    /// It prints `size=`, `digest=` and `df=`, the last one after the removal.
    pub(super) fn install_part(digest: &ProgramDigest, part: PartName, bytes: u64) -> Self {
        let word = ProgramMode::Digest.arguments();
        Self(format!(
            r#"exec sh -c 'LC_ALL=C; export LC_ALL; d="$HOME/.cache/dtrain/bin/{digest}"; p="$d/{part}"; s=$(wc -c <"$p" || echo 0); s=$((s)); echo "size=$s"; if [ "$s" -eq {bytes} ] && chmod 700 "$p" && h="$("$p" {word} </dev/null)"; then :; fi; echo "digest=$h"; if [ "$h" = {digest} ] && mv -f "$p" "$d/dtrain"; then echo "placed=1"; else rm -f "$p"; fi; echo "df=$(df -Pk "$d" | tail -n 1)"'"#
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest() -> ProgramDigest {
        ProgramDigest(blake3::hash(b"program"))
    }

    #[test]
    fn a_digest_is_64_digits_in_lower_case_whatever_it_was_read_from() {
        let text = digest().to_string();
        assert!(text.len() == 64 && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')), "{text}");
        assert_eq!(ProgramDigest::parse(&text.to_uppercase()), Some(digest()));
        for bad in
            ["", "0", &text[1..], &format!("{text}0"), &text.replace(&text[..1], "$"), "../../../bin/sh"]
        {
            assert_eq!(ProgramDigest::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn names_of_parts_differ_and_are_plain_words() {
        let (one, other) = (PartName::generate(), PartName::generate());
        assert_ne!(one, other);
        let text = one.to_string();
        let digits = text.strip_prefix(".part.").expect("a part");
        assert!(digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit()), "{text}");
    }

    #[test]
    fn lines_are_fit_for_any_login_shell() {
        let part = PartName::generate();
        for line in [
            CommandLine::shell(),
            CommandLine::program(&digest(), ProgramMode::Stdio),
            CommandLine::probe_program(&digest()),
            CommandLine::receive_part(&digest(), part),
            CommandLine::install_part(&digest(), part, 7),
        ] {
            let text = line.text();
            assert!(!text.contains(['\n', '!', '\\', '`']), "{text}");
            assert!(matches!(text.matches('\'').count(), 0 | 2), "{text}");
            assert!(text.starts_with("exec "), "{text}");
        }
        let expected = format!(r#"exec "$HOME/.cache/dtrain/bin/{}/dtrain" agent --stdio"#, digest());
        assert_eq!(CommandLine::program(&digest(), ProgramMode::Stdio).text(), expected);
    }
}
