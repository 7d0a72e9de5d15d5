//! Command lines: constants, or constants with validated words in them.
//!
//! A host runs them by the user's login shell, whatever that is, so they are one line without `'`, `!` and `\`
//! inside of quotes. Values of users are never part of them.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

/// BLAKE3 of a program: the name it has on every host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramDigest(blake3::Hash);

impl ProgramDigest {
    /// Of a file.
    pub fn of(program: &Path) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(program)?)?;
        Ok(Self(hasher.finalize()))
    }

    /// From 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        blake3::Hash::from_hex(text).ok().map(Self)
    }
}

impl fmt::Display for ProgramDigest {
    /// 64 hexadecimal digits in lower case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

/// What a program placed on a host is asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramMode {
    /// The agent: orders on standard input, answers on standard output.
    Stdio,
    /// Prints the digest of its own file and ends.
    Digest,
}

impl ProgramMode {
    /// The words on the command line.
    pub const fn arguments(self) -> &'static str {
        match self {
            Self::Stdio => "agent --stdio",
            Self::Digest => "agent --digest",
        }
    }
}

/// Name of a file that is still being sent: no two uploads share one.
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

/// A command line for the shell of a host. Nothing outside of this module makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine(String);

impl CommandLine {
    /// The text, for whoever carries it.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// A shell whose script follows on standard input.
    pub(super) fn shell() -> Self {
        Self("exec sh -s".into())
    }

    /// A program placed on the host.
    pub(super) fn program(digest: &ProgramDigest, word: ProgramMode) -> Self {
        Self(format!(r#"exec "$HOME/.cache/dtrain/bin/{digest}/dtrain" {}"#, word.arguments()))
    }

    /// Makes the folder of a program and tells `size=` (absent where it is not there) and `df=`, a line of `df -P`.
    ///
    /// Uploads given up a day ago are removed.
    pub(super) fn probe_program(digest: &ProgramDigest) -> Self {
        Self(format!(
            r#"exec sh -c 'LC_ALL=C; export LC_ALL; umask 077; d="$HOME/.cache/dtrain/bin/{digest}"; mkdir -p "$d" || exit 1; find "$d" -name ".part.*" -mtime +1 -exec rm -f {{}} +; [ -x "$d/dtrain" ] && echo "size=$(wc -c <"$d/dtrain")"; echo "df=$(df -Pk "$d" | tail -n 1)"'"#
        ))
    }

    /// Writes standard input to a file beside the program.
    pub(super) fn receive_part(digest: &ProgramDigest, part: PartName) -> Self {
        Self(format!(r#"exec sh -c 'umask 077; exec cat >"$HOME/.cache/dtrain/bin/{digest}/{part}"'"#))
    }

    /// Puts a file in its place when it has this length and names itself as it should, and removes it otherwise.
    ///
    /// Tells `size=`, `digest=` and `df=`, the last after the removal.
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
