//! The user's SSH configuration of a host, as `ssh -G` prints it.

use super::TransportError;
use super::host_spec::{HostSpec, User};
use std::io::ErrorKind;
use std::process::{Command, Stdio};

/// The settings that are used from the output of `ssh -G`; others are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SshConfig {
    pub(super) host_name: Option<String>,
    pub(super) user: Option<String>,
    pub(super) port: Option<u16>,
    /// Paths of the user's keys as written: `~` and `%h` are not replaced yet.
    pub(super) identity_files: Vec<String>,
    pub(super) is_identities_only: bool,
    /// Socket of the SSH agent: `none`, or a path.
    pub(super) identity_agent: Option<String>,
    /// Paths of known_hosts files: the user's, then the machine's.
    pub(super) known_hosts: Vec<String>,
    /// Paths of files of revoked keys, as written; possibly several in one text.
    pub(super) revoked_keys: Option<String>,
    pub(super) host_key_alias: Option<String>,
    /// Bastions, separated by commas, in the order of connection.
    pub(super) proxy_jump: Option<String>,
    pub(super) proxy_command: Option<String>,
}

impl SshConfig {
    /// Runs `ssh -G`; `None` if the program `ssh` is missing.
    pub(super) fn of(host_spec: &HostSpec, user: &User) -> Result<Option<Self>, TransportError> {
        let mut command = Command::new("ssh");
        command.arg("-G").args(arguments(host_spec, user)).stdin(Stdio::null());
        let failed = |said: String| TransportError::Config { host: host_spec.name.clone(), said };
        match command.output() {
            Ok(output) if output.status.success() => {
                Ok(Some(Self::parse(&String::from_utf8_lossy(&output.stdout))))
            }
            Ok(output) => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Parses lines of the form `keyword value`.
    pub(super) fn parse(text: &str) -> Self {
        let mut config = Self::default();
        let mut machine = Vec::new();
        for (key, value) in text.lines().filter_map(|line| line.trim().split_once(' ')) {
            let value = value.trim();
            let said = || Some(value.to_owned()).filter(|value| !value.eq_ignore_ascii_case("none"));
            let words = || value.split_whitespace().map(str::to_owned);
            match key.to_ascii_lowercase().as_str() {
                "hostname" => config.host_name = said(),
                "user" => config.user = said(),
                "port" => config.port = value.parse().ok(),
                "identityfile" => config.identity_files.extend(said()),
                "identitiesonly" => config.is_identities_only = value == "yes",
                "identityagent" => config.identity_agent = Some(value.to_owned()),
                "userknownhostsfile" => config.known_hosts.extend(words()),
                "globalknownhostsfile" => machine.extend(words()),
                "revokedhostkeys" => config.revoked_keys = said(),
                "hostkeyalias" => config.host_key_alias = said(),
                "proxyjump" => config.proxy_jump = said(),
                "proxycommand" => config.proxy_command = said(),
                _ => {}
            }
        }
        config.known_hosts.extend(machine);
        config
    }
}

/// Returns the arguments of `ssh` up to the host name. The name was checked and cannot be an option.
pub(super) fn arguments(host_spec: &HostSpec, user: &User) -> Vec<std::ffi::OsString> {
    let mut words = Vec::new();
    if let Some(config) = &user.config {
        words.extend(["-F".into(), config.into()]);
    }
    if let Some(name) = &host_spec.user {
        words.extend(["-l".into(), name.into()]);
    }
    if let Some(port) = host_spec.port {
        words.extend(["-p".into(), port.to_string().into()]);
    }
    words.extend(["--".into(), host_spec.name.clone().into()]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ssh_says_is_read() {
        let text = "user bob\nhostname 10.0.0.7\nport 2222\nidentitiesonly yes\nstricthostkeychecking ask\n\
                    identityfile ~/.ssh/a key\nidentityfile %d/.ssh/second\nhostkeyalias foo\n\
                    revokedhostkeys ~/.ssh/revoked\n\
                    globalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2\n\
                    userknownhostsfile /home/bob/.ssh/known_hosts\nproxyjump one,two:23\nidentityagent none\n";
        let config = SshConfig::parse(text);
        let expected = SshConfig {
            host_name: Some("10.0.0.7".into()),
            user: Some("bob".into()),
            port: Some(2222),
            identity_files: vec!["~/.ssh/a key".into(), "%d/.ssh/second".into()],
            is_identities_only: true,
            identity_agent: Some("none".into()),
            known_hosts: [
                "/home/bob/.ssh/known_hosts",
                "/etc/ssh/ssh_known_hosts",
                "/etc/ssh/ssh_known_hosts2",
            ]
            .map(str::to_owned)
            .to_vec(),
            revoked_keys: Some("~/.ssh/revoked".into()),
            host_key_alias: Some("foo".into()),
            proxy_jump: Some("one,two:23".into()),
            proxy_command: None,
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn none_is_nothing_and_strange_lines_are_passed_over() {
        let config = SshConfig::parse(
            "proxyjump none\nproxycommand none\nrevokedhostkeys none\nport x\nhostname\n\nidentityfile none\n = \n",
        );
        assert_eq!(config, SshConfig::default());
    }
}
