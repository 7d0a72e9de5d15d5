//! The transport over SSH through the program `ssh`.
//!
//! It honours the user's configuration: `ProxyCommand`, `ControlMaster`, certificates, Kerberos, hardware
//! keys. The price is one process for each command.

use super::command_line::CommandLine;
use super::host_spec::{HostSpec, User};
use super::local_shell::spawn;
use super::program_stream::ProgramStream;
use super::ssh_config::arguments;
use super::{Script, Transport, TransportError};
use dtrain_recipes::Host;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Options that override the user's configuration, since `ssh` takes the first value it finds: the host key
/// must be known, `ssh` asks no questions, and nothing is forwarded.
const FORCED: &str = "\
StrictHostKeyChecking yes
NoHostAuthenticationForLocalhost no
VerifyHostKeyDNS no
UpdateHostKeys no
BatchMode yes
ConnectTimeout 10
ServerAliveInterval 5
ServerAliveCountMax 3
ForwardAgent no
ForwardX11 no
PermitLocalCommand no
";

/// More options that override the user's configuration, for the target only: a bastion needs forwarding.
const OPTIONS: [&str; 2] = ["ClearAllForwardings=yes", "RemoteCommand=none"];

/// The transport to a host over SSH through the program `ssh`.
#[derive(Clone, Debug)]
pub struct OpenSsh {
    name: String,
    arguments: Vec<OsString>,
    /// The configuration file that each `ssh` process reads.
    configuration: Arc<Configuration>,
}

/// A file that `ssh` reads in place of the user's configuration, which it includes. The `ssh` processes for
/// bastions read it too; they would not get options of the command line.
#[derive(Debug)]
struct Configuration(PathBuf);

impl Configuration {
    fn of(user: &User) -> io::Result<Self> {
        let mut text = FORCED.as_bytes().to_vec();
        let mut include =
            |path: &Path| text.extend([b"Include \"", path.as_os_str().as_bytes(), b"\"\n"].concat());
        match &user.config {
            Some(path) => include(&std::path::absolute(path)?),
            None => ["~/.ssh/config", "/etc/ssh/ssh_config"].map(Path::new).into_iter().for_each(include),
        }
        let file = Self(std::env::temp_dir().join(format!("dtrain-ssh-{}", ulid::Ulid::generate())));
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file.0)?.write_all(&text)?;
        Ok(file)
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

impl OpenSsh {
    /// Checks that `ssh` can run a command on the host.
    ///
    /// Settings of the recipe precede the user's configuration, as in [`super::SshTarget::resolve`].
    pub fn connect(host: &Host, user: &User) -> Result<Self, TransportError> {
        let mut ssh = Self::new(host, user)?;
        let output = ssh.run(Script("exit 0"))?;
        if output.status == 0 {
            return Ok(ssh);
        }
        Err(TransportError::Command { host: ssh.name, doing: "`ssh`", said: output.stderr.trim().to_owned() })
    }

    fn new(host: &Host, user: &User) -> Result<Self, TransportError> {
        let host_spec = HostSpec::of(host)?;
        let broken = |source| TransportError::Stream { host: host_spec.name.clone(), source };
        let configuration = Configuration::of(user).map_err(broken)?;
        let mut words = vec!["-T".into()];
        for option in OPTIONS {
            words.extend(["-o".into(), option.into()]);
        }
        if let Some(via) = &host.via {
            for bastion in via.split(',').filter(|via| !via.eq_ignore_ascii_case("none")) {
                HostSpec::parse(bastion.trim())?;
            }
            words.extend(["-o".into(), format!("ProxyJump={via}").into()]);
        }
        words.extend(arguments(&host_spec, &User { config: None, ..user.clone() }));
        Ok(Self { name: host_spec.name, arguments: words, configuration: Arc::new(configuration) })
    }
}

impl Transport for OpenSsh {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&mut self, line: &CommandLine) -> Result<ProgramStream, TransportError> {
        let mut command = Command::new("ssh");
        command.arg("-F").arg(&self.configuration.0).args(&self.arguments).arg(line.text());
        spawn(command).map_err(|source| TransportError::Stream { host: self.name.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_comes_after_all_options() {
        let host = Host {
            address: "gpu".into(),
            port: 2222,
            user: Some("train".into()),
            via: Some("one,me@two:23".into()),
        };
        let user = User { name: "me".into(), home: "/home/me".into(), config: Some("/cfg".into()) };
        let ssh = OpenSsh::new(&host, &user).expect("plain names");
        let text = ssh.arguments.join(" ".as_ref()).into_string().expect("UTF-8");
        let file = ssh.configuration.0.clone();
        let end = "-o ProxyJump=one,me@two:23 -l train -p 2222 -- gpu";
        assert!(text.starts_with("-T -o ") && text.ends_with(end), "{text}");
        let configuration = fs::read_to_string(&file).expect("it is there");
        assert!(configuration.starts_with("StrictHostKeyChecking yes\n"), "{configuration}");
        assert!(configuration.ends_with("\nInclude \"/cfg\"\n"), "{configuration}");
        drop(ssh);
        assert!(!file.exists());
        for via in ["-oProxyCommand=x", "one, two;x", "$(x)", ""] {
            let host = Host { via: Some(via.into()), ..host.clone() };
            assert!(OpenSsh::new(&host, &user).is_err(), "{via:?}");
        }
    }
}
