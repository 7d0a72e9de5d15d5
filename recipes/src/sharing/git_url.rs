//! Checks the URLs and revisions that are passed to git.

use super::SharingError;

/// Checks that a URL is `https://…`, `ssh://…`, `user@host:path`, or, if `allow_file`, `file://…` or an
/// absolute path. Refuses anything that git would read as an option or as a program to run.
pub fn check_url(url: &str, allow_file: bool) -> Result<(), SharingError> {
    let refuse = |why| Err(SharingError::Url { url: redact(url), why });
    if url.is_empty() || url.len() > 2048 {
        return refuse("it is empty or longer than 2048 characters");
    }
    if url.starts_with('-') {
        return refuse("it would be read as an option");
    }
    if url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return refuse("it contains spaces or control characters");
    }
    if url.contains("::") {
        return refuse("remote helpers run programs");
    }
    if let Some(rest) = url.strip_prefix("https://") {
        let host = rest.split('/').next().unwrap_or("");
        return match host {
            "" => refuse("it names no host"),
            // A user or password would be copied into the lock file.
            host if host.contains('@') => refuse("it contains a user or a password; use a credential helper"),
            // Any other text is a host name.
            _ => Ok(()),
        };
    }
    if let Some(rest) = url.strip_prefix("ssh://") {
        return if is_ssh_host(rest.split('/').next().unwrap_or("")) {
            Ok(())
        } else {
            refuse("it names no proper host")
        };
    }
    if url.starts_with("file://") || url.starts_with('/') {
        return if allow_file { Ok(()) } else { refuse("local repositories need `--allow-file`") };
    }
    match url.split_once(':') {
        Some((host, path)) if !url.contains("://") => {
            let is_right =
                host.contains('@') && is_ssh_host(host) && !path.is_empty() && !path.starts_with('-');
            if is_right { Ok(()) } else { refuse("it is not of the form `user@host:path`") }
        }
        _ => refuse("only https and ssh are used"),
    }
}

/// Checks that the URL of a remote to push to uses https or ssh, or is on this machine if `allow_file`.
pub(super) fn check_push(url: &str, allow_file: bool) -> Result<(), SharingError> {
    let refuse = |why| Err(SharingError::Push { url: redact(url), why });
    match url.split_once("://") {
        Some(("https" | "ssh" | "file", _)) => {}
        // Any other scheme is refused.
        Some(_) => return refuse("only https and ssh are used"),
        None if url.contains("::") => return refuse("remote helpers run programs"),
        None => {}
    }
    if is_local(url) && !allow_file { refuse("local repositories need `--allow-file`") } else { Ok(()) }
}

/// Returns `true` if git takes `url` as a repository on this machine.
pub(super) fn is_local(url: &str) -> bool {
    match url.split_once("://") {
        Some((scheme, _)) => scheme == "file",
        // A colon before the first slash ends a host name.
        None => !url.split('/').next().unwrap_or("").contains(':'),
    }
}

/// Returns `true` if `text` is `[user@]host[:port]` without a password, and ssh cannot take it as an option.
fn is_ssh_host(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').map_or((None, text), |(user, host)| (Some(user), host));
    let is_word = |word: &str| {
        !word.is_empty()
            && !word.starts_with('-')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:[]".contains(c))
    };
    // A password would be copied into the lock file.
    user.is_none_or(|user| is_word(user) && !user.contains(':')) && is_word(host)
}

/// Redacts a URL for messages: replaces the part before the host, which may be a password or a token.
fn redact(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let host = rest.find('/').unwrap_or(rest.len());
    match rest[..host].rfind('@') {
        Some(at) if !scheme.is_empty() => format!("{scheme}://…{}", &rest[at..]),
        _ => url.to_owned(),
    }
}

/// Checks that a revision is a valid name of a branch, a tag or a commit.
pub(super) fn check_rev(rev: &str) -> Result<(), SharingError> {
    let is_right = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let is_rev = (1..=128).contains(&rev.len())
        && rev.chars().all(is_right)
        && !rev.starts_with(['-', '.', '/'])
        && !rev.contains("..");
    let wanted = "a branch, a tag or a commit";
    if is_rev { Ok(()) } else { Err(SharingError::Name { text: rev.to_owned(), wanted }) }
}

/// Returns the default name of a repository: the last part of its URL without `.git`.
pub(super) fn name_of(url: &str) -> &str {
    let last = url.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or(url);
    last.strip_suffix(".git").unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_transports_are_used() {
        for url in ["https://example.org/a/b.git", "ssh://git@example.org:22/a", "git@example.org:a/b.git"] {
            assert!(check_url(url, false).is_ok(), "{url}");
        }
        for url in [
            "",
            "-uploadpack=x",
            "--upload-pack=touch /tmp/x",
            "ext::sh -c id",
            "ext::sh",
            "http://example.org/a",
            "git://example.org/a",
            "file:///a",
            "/a",
            "../a",
            "https://",
            "https://user:secret@example.org/a",
            "https://secret@example.org/a",
            "ssh://git:secret@example.org/a",
            "http://git:secret@example.org/a",
            "ssh://-oProxyCommand=x/a",
            "ssh://a@-oProxyCommand/a",
            "-a@b:c",
            "a@-b:c",
            "host:path",
            "a@b:-c",
            "https://a/b c",
            "https://a/\nb",
            "fd::3/x",
            "C:\\x",
        ] {
            let refused = check_url(url, false).expect_err(url).to_string();
            assert!(!refused.contains("secret"), "{refused}");
        }
        assert!(check_url("file:///a", true).is_ok() && check_url("/a", true).is_ok());
    }

    #[test]
    fn a_remote_is_pushed_to_by_known_transports() {
        for url in ["https://example.org/a", "ssh://git@example.org/a", "git@example.org:a", "host:a/b"] {
            assert!(check_push(url, false).is_ok(), "{url}");
        }
        for url in ["/a", "../a:b/c", "./a:b", "a", "file:///a"] {
            assert!(check_push(url, true).is_ok(), "{url}");
            let refused = check_push(url, false).expect_err(url).to_string();
            assert!(refused.contains("--allow-file"), "{refused}");
        }
        for url in ["http://user:secret@example.org/a", "git://a/b", "ext::sh -c id"] {
            let refused = check_push(url, true).expect_err(url).to_string();
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn names_come_from_urls() {
        assert_eq!(name_of("https://example.org/a/recipes.git"), "recipes");
        assert_eq!(name_of("git@example.org:recipes"), "recipes");
        assert_eq!(name_of("/a/b/"), "b");
    }

    #[test]
    fn revisions_are_plain_words() {
        assert!(check_rev("main").is_ok() && check_rev("v1.0/x").is_ok());
        for rev in ["", "-x", "a..b", "a b", "a:b", "@{-1}", "a^{commit}"] {
            assert!(check_rev(rev).is_err(), "{rev}");
        }
    }
}
