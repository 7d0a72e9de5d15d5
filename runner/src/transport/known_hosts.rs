//! Host key verification against known_hosts files.
//!
//! Not the matcher of libssh2: that one ignores `@revoked` if another line lists the key, has no wildcards,
//! and lets a line for port 22 match other ports. Only hashed names are left to libssh2, one line at a time.
//! A line that cannot be parsed is skipped: the result is then "unknown", which refuses. A file that cannot
//! be read is an error: it may revoke the key.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Magic bytes of a binary revocation list, as `ssh-keygen -k` writes it.
const KRL: &[u8] = b"SSHKRL\n\0";

/// The lines of known_hosts files, and the keys revoked for all hosts.
#[derive(Clone, Debug, Default)]
pub struct KnownHosts {
    lines: Vec<KnownHostsLine>,
    revoked: Vec<String>,
}

#[derive(Clone, Debug)]
struct KnownHostsLine {
    is_revoked: bool,
    hosts: String,
    kind: String,
    key: String,
}

/// The reason why a host's key is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKeyError {
    /// No line of known_hosts lists the host.
    Unknown,
    /// known_hosts lists another key for the host.
    Changed,
    /// A line of known_hosts, or a file of `RevokedHostKeys`, revokes the key.
    Revoked,
}

impl fmt::Display for HostKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "the host is not in known_hosts",
            Self::Changed => {
                "the host key differs from the one in known_hosts: possible man-in-the-middle \
                             attack"
            }
            Self::Revoked => "the host key is revoked, in known_hosts or by `RevokedHostKeys`",
        })
    }
}

impl KnownHosts {
    /// Reads known_hosts files and the files of `RevokedHostKeys`. `Err` names the file that cannot be read.
    ///
    /// A missing known_hosts file has no lines. A missing or binary revocation list is an error: it may
    /// revoke any key.
    pub fn of(known: &[PathBuf], revoked: &[PathBuf]) -> Result<Self, (PathBuf, io::Error)> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| (path, error)
        };
        let mut all = Self::default();
        for path in known {
            match fs::read(path) {
                Ok(bytes) => all.read(&bytes),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(at(path)(error)),
            }
        }
        for path in revoked {
            fs::read(path).and_then(|bytes| all.revoke(&bytes)).map_err(at(path))?;
        }
        Ok(all)
    }

    /// Adds the lines of a known_hosts file.
    pub fn read(&mut self, bytes: &[u8]) {
        // Comments may have any encoding. A host name that is not UTF-8 matches no host.
        let text = String::from_utf8_lossy(bytes);
        self.lines.extend(text.lines().filter_map(KnownHostsLine::parse));
    }

    /// Adds a text file of revoked keys: `type key [comment]` on each line.
    fn revoke(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.starts_with(KRL) {
            let why = "it is a binary list of revoked keys (KRL), which only `cluster.transport = \"openssh\"` \
                       understands; otherwise list the keys as text, one public key on each line";
            return Err(io::Error::other(why));
        }
        let text = String::from_utf8_lossy(bytes);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for (number, line) in (1..).zip(lines) {
            let key = line.split_whitespace().nth(1).filter(|key| STANDARD.decode(key).is_ok());
            let no_key =
                || io::Error::other(format!("entry {number} is not a public key: `type key [comment]`"));
            self.revoked.push(key.ok_or_else(no_key)?.to_owned());
        }
        Ok(())
    }

    /// Returns the key types listed for a host, to be preferred in the handshake: otherwise a host listed
    /// with an ECDSA key alone would present another key and look unknown.
    pub fn kinds(&self, host: &str, port: u16) -> Vec<&str> {
        let mut kinds: Vec<_> = self
            .lines
            .iter()
            .filter(|line| !line.is_revoked && line.names(host, port))
            .map(|line| line.kind.as_str())
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Returns `Ok` if a line lists exactly this key for this host and no line revokes it. `key` is the key
    /// blob of the handshake.
    pub fn check(&self, host: &str, port: u16, key: &[u8]) -> Result<(), HostKeyError> {
        let key = STANDARD.encode(key);
        let named: Vec<_> = self.lines.iter().filter(|line| line.names(host, port)).collect();
        if self.revoked.contains(&key) || named.iter().any(|line| line.is_revoked && line.key == key) {
            return Err(HostKeyError::Revoked);
        }
        let mut listed = named.into_iter().filter(|line| !line.is_revoked).peekable();
        if listed.peek().is_none() {
            return Err(HostKeyError::Unknown);
        }
        if listed.any(|line| line.key == key) { Ok(()) } else { Err(HostKeyError::Changed) }
    }
}

impl KnownHostsLine {
    /// Parses a line `[marker] hosts type key [comment]`; `None` for comments, certificate authorities and
    /// invalid lines.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let first = words.next().filter(|word| !word.starts_with('#'))?;
        let is_revoked = first == "@revoked";
        let hosts = if is_revoked { words.next()? } else { first };
        // libssh2 has no host certificates; an authority's line must not vouch for a plain key.
        if hosts.starts_with('@') {
            return None;
        }
        let (kind, key) = (words.next()?, words.next()?);
        STANDARD.decode(key).ok()?;
        Some(Self { is_revoked, hosts: hosts.into(), kind: kind.into(), key: key.into() })
    }

    fn names(&self, host: &str, port: u16) -> bool {
        if self.hosts.starts_with("|1|") {
            return self.names_hashed(host, port);
        }
        let name = if port == 22 {
            host.to_ascii_lowercase()
        } else {
            format!("[{}]:{port}", host.to_ascii_lowercase())
        };
        let mut is_named = false;
        for pattern in self.hosts.split(',') {
            match pattern.strip_prefix('!') {
                Some(negated) if matches(negated, &name) => return false,
                Some(_) => {}
                None => is_named |= matches(pattern, &name),
            }
        }
        is_named
    }

    fn names_hashed(&self, host: &str, port: u16) -> bool {
        let found = || {
            let session = ssh2::Session::new()?;
            let mut hosts = session.known_hosts()?;
            hosts.read_str(
                &format!("{} {} {}", self.hosts, self.kind, self.key),
                ssh2::KnownHostFileKind::OpenSSH,
            )?;
            // libssh2 lets a hash of the bare name match every port; only the hash of `[host]:port` may.
            let name = if port == 22 { host.to_owned() } else { format!("[{host}]:{port}") };
            Ok::<_, ssh2::Error>(hosts.check(&name, &STANDARD.decode(&self.key).unwrap_or_default()))
        };
        matches!(found(), Ok(ssh2::CheckResult::Match | ssh2::CheckResult::Mismatch))
    }
}

/// Returns `true` if `name` matches `pattern`, in which `*` and `?` are wildcards.
fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.chars().next(), name.chars().next()) {
        (None, None) => true,
        (Some('*'), _) => {
            matches(&pattern[1..], name)
                || name.chars().next().is_some_and(|c| matches(pattern, &name[c.len_utf8()..]))
        }
        (Some('?'), Some(c)) => matches(&pattern[1..], &name[c.len_utf8()..]),
        (Some(p), Some(c)) if p.eq_ignore_ascii_case(&c) => {
            matches(&pattern[p.len_utf8()..], &name[c.len_utf8()..])
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ed25519 key blob whose last byte is `last`.
    fn blob(last: u8) -> Vec<u8> {
        let mut key = vec![0, 0, 0, 11];
        key.extend(b"ssh-ed25519");
        key.extend([0, 0, 0, 32]);
        key.extend([7; 31]);
        key.push(last);
        key
    }

    fn check(file: &str, host: &str, port: u16) -> Result<(), HostKeyError> {
        let mut hosts = KnownHosts::default();
        let text = file.replace("KEY", &STANDARD.encode(blob(1))).replace("OTHER", &STANDARD.encode(blob(2)));
        hosts.read(text.as_bytes());
        hosts.check(host, port, &blob(1))
    }

    #[test]
    fn a_key_is_trusted_only_where_a_line_lists_it_and_none_revokes_it() {
        use HostKeyError::{Changed, Revoked, Unknown};
        let cases: &[(&str, &str, u16, Result<(), HostKeyError>)] = &[
            ("h ssh-ed25519 KEY", "h", 22, Ok(())),
            ("h ssh-ed25519 KEY", "H", 22, Ok(())),
            ("h ssh-ed25519 KEY", "h", 2222, Err(Unknown)),
            ("[h]:2222 ssh-ed25519 KEY", "h", 2222, Ok(())),
            ("h ssh-ed25519 OTHER", "h", 22, Err(Changed)),
            ("h ssh-ed25519 OTHER\nh ssh-ed25519 KEY", "h", 22, Ok(())),
            ("@revoked h ssh-ed25519 KEY\nh ssh-ed25519 KEY", "h", 22, Err(Revoked)),
            ("h ssh-ed25519 KEY\n@revoked * ssh-ed25519 KEY", "h", 22, Err(Revoked)),
            ("@revoked h ssh-ed25519 OTHER\nh ssh-ed25519 KEY", "h", 22, Ok(())),
            ("@revoked h ssh-ed25519 OTHER", "h", 22, Err(Unknown)),
            ("@cert-authority h ssh-ed25519 KEY", "h", 22, Err(Unknown)),
            ("*.example.org,!bad.example.org ssh-ed25519 KEY", "a.example.org", 22, Ok(())),
            ("*.example.org,!bad.example.org ssh-ed25519 KEY", "bad.example.org", 22, Err(Unknown)),
            ("node-? ssh-ed25519 KEY", "node-7", 22, Ok(())),
            ("node-? ssh-ed25519 KEY", "node-17", 22, Err(Unknown)),
            ("# h ssh-ed25519 KEY\n\nh ssh-ed25519", "h", 22, Err(Unknown)),
            ("", "h", 22, Err(Unknown)),
        ];
        for (file, host, port, expected) in cases {
            assert_eq!(check(file, host, *port), *expected, "{file:?} for {host}:{port}");
        }
    }

    /// Checks the key against files with these contents; `None` is a missing file.
    fn of_files(
        known: &[Option<&[u8]>],
        revoked: &[Option<&[u8]>],
    ) -> Result<Result<(), HostKeyError>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let (key, other) = (STANDARD.encode(blob(1)), STANDARD.encode(blob(2)));
        let mut count = 0;
        let mut write = |contents: &Option<&[u8]>| {
            count += 1;
            let path = folder.path().join(format!("file{count}"));
            if let Some(contents) = contents {
                let mut bytes = Vec::new();
                for word in contents.split_inclusive(|byte| byte.is_ascii_whitespace()) {
                    match word.trim_ascii_end() {
                        b"KEY" => bytes.extend([key.as_bytes(), &word[3..]].concat()),
                        b"OTHER" => bytes.extend([other.as_bytes(), &word[5..]].concat()),
                        _ => bytes.extend(word),
                    }
                }
                fs::write(&path, bytes).expect("written");
            }
            path
        };
        let (known, revoked): (Vec<_>, Vec<_>) =
            (known.iter().map(&mut write).collect(), revoked.iter().map(&mut write).collect());
        match KnownHosts::of(&known, &revoked) {
            Ok(hosts) => Ok(hosts.check("h", 22, &blob(1))),
            Err((path, error)) => Err(format!("{}: {error}", path.display())),
        }
    }

    #[test]
    fn bytes_that_are_no_text_do_not_hide_the_lines_around_them() {
        let listed: &[u8] = b"h ssh-ed25519 KEY\n";
        let odd: &[u8] = b"# J\xfcrgen\n\xff\xfe\n@revoked h ssh-ed25519 KEY\n";
        assert_eq!(of_files(&[Some(odd), Some(listed)], &[]), Ok(Err(HostKeyError::Revoked)));
        let comment: &[u8] = b"@revoked h ssh-ed25519 KEY J\xfcrgen\n";
        assert_eq!(of_files(&[Some(comment), Some(listed)], &[]), Ok(Err(HostKeyError::Revoked)));
        assert_eq!(of_files(&[Some(b"# J\xfcrgen\nh ssh-ed25519 KEY\n")], &[]), Ok(Ok(())));
    }

    #[test]
    fn a_file_that_exists_and_cannot_be_read_refuses_and_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let listed = folder.path().join("known_hosts");
        fs::write(&listed, format!("h ssh-ed25519 {}\n", STANDARD.encode(blob(1)))).expect("written");
        let missing = folder.path().join("missing");
        let hosts = KnownHosts::of(&[missing.clone(), listed.clone()], &[]).expect("one need not exist");
        assert_eq!(hosts.check("h", 22, &blob(1)), Ok(()));
        // A folder cannot be read as a file, not even by root.
        let (path, error) = KnownHosts::of(&[folder.path().into(), listed], &[]).expect_err("it may revoke");
        assert_eq!((path.as_path(), error.kind()), (folder.path(), ErrorKind::IsADirectory));
    }

    #[test]
    fn a_list_of_revoked_keys_holds_for_all_hosts_or_refuses_all() {
        let listed: &[Option<&[u8]>] = &[Some(b"h ssh-ed25519 KEY\n")];
        let revoking: &[u8] = b"# old keys\n\n ssh-ed25519 OTHER a\nssh-ed25519 KEY J\xfcrgen\n";
        assert_eq!(of_files(listed, &[Some(revoking)]), Ok(Err(HostKeyError::Revoked)));
        assert_eq!(of_files(listed, &[Some(b""), Some(revoking)]), Ok(Err(HostKeyError::Revoked)));
        assert_eq!(of_files(listed, &[Some(b"ssh-ed25519 OTHER\n")]), Ok(Ok(())));
        for (bad, why) in [
            (Some(&b"SSHKRL\n\0\0\0\0\x01"[..]), "KRL"),
            (Some(b"ssh-ed25519 KEY\nnonsense\n"), "entry 2 is not a public key"),
            (None, "No such file"),
        ] {
            let error = of_files(listed, &[bad]).expect_err(why);
            assert!(error.contains(why) && error.contains("file2: "), "{error}");
        }
    }

    #[test]
    fn a_hashed_name_is_found() {
        // Made once with `ssh-keygen -H` from the names `h` and `[h]:2222`.
        let names = [
            ("|1|Py5tYdauHFt2nwMvR0+GGm0v7kk=|B4BfIZwded17dqWxWFlE6qbPR2s=", "h", 22),
            ("|1|d1p0ywj/QM4ztyk9mdy5vnkUgPM=|ZoZhR1sVhaxnXK+9ABPL5s1c6zU=", "h", 2222),
        ];
        for (hashed, host, port) in names {
            assert_eq!(check(&format!("{hashed} ssh-ed25519 KEY"), host, port), Ok(()), "{host}:{port}");
            assert_eq!(check(&format!("{hashed} ssh-ed25519 OTHER"), host, port), Err(HostKeyError::Changed));
            assert_eq!(
                check(&format!("@revoked {hashed} ssh-ed25519 KEY"), host, port),
                Err(HostKeyError::Revoked)
            );
            let both = format!("{hashed} ssh-ed25519 KEY\n@revoked {hashed} ssh-ed25519 KEY");
            assert_eq!(check(&both, host, port), Err(HostKeyError::Revoked));
            assert_eq!(
                check(&format!("{hashed} ssh-ed25519 KEY"), "other", port),
                Err(HostKeyError::Unknown)
            );
            assert_eq!(check(&format!("{hashed} ssh-ed25519 KEY"), host, 22022), Err(HostKeyError::Unknown));
        }
    }
}
