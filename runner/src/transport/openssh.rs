//! A host over SSH, through the program `ssh`.
//!
//! It honours all of the user's configuration: `ProxyCommand`, `ControlMaster`, certificates, keys in hardware. A
//! process for each command is the price.

use super::child::spawn;
use super::config::arguments;
use super::line::Line;
use super::stream::Stream;
use super::target::{Spoken, User};
use super::{Script, Transport, TransportError};
use dtrain_recipes::Host;
use std::ffi::OsString;
use std::process::Command;

/// Nothing is asked of the user, and nothing is forwarded, whatever the configuration says.
const OPTIONS: [&str; 9] = [
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
];

/// A host over SSH, through the program `ssh`.
#[derive(Clone, Debug)]
pub struct OpenSsh {
    name: String,
    arguments: Vec<OsString>,
}

impl OpenSsh {
    /// Finds out whether `ssh` can run something on the host.
    ///
    /// What the recipe says of the host goes before the user's configuration, as in [`super::Target::resolve`].
    pub fn connect(host: &Host, user: &User) -> Result<Self, TransportError> {
        let mut ssh = Self::new(host, user)?;
        let output = ssh.run(Script("exit 0"))?;
        if output.status == 0 {
            return Ok(ssh);
        }
        Err(TransportError::Command { host: ssh.name, doing: "`ssh`", said: output.stderr.trim().to_owned() })
    }

    fn new(host: &Host, user: &User) -> Result<Self, TransportError> {
        let spoken = Spoken::of(host)?;
        let mut words = vec!["-T".into()];
        for option in OPTIONS {
            words.extend(["-o".into(), option.into()]);
        }
        if let Some(via) = &host.via {
            for bastion in via.split(',').filter(|via| !via.eq_ignore_ascii_case("none")) {
                Spoken::parse(bastion.trim())?;
            }
            words.extend(["-o".into(), format!("ProxyJump={via}").into()]);
        }
        words.extend(arguments(&spoken, user));
        Ok(Self { name: spoken.name, arguments: words })
    }
}

impl Transport for OpenSsh {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&mut self, line: &Line) -> Result<Stream, TransportError> {
        let mut command = Command::new("ssh");
        command.args(&self.arguments).arg(line.text());
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
        let words = OpenSsh::new(&host, &user).expect("plain names").arguments;
        let text = words.join(" ".as_ref()).into_string().expect("UTF-8");
        assert!(text.starts_with("-T -o BatchMode=yes -o "), "{text}");
        assert!(text.ends_with("-o ProxyJump=one,me@two:23 -F /cfg -l train -p 2222 -- gpu"), "{text}");
        for via in ["-oProxyCommand=x", "one, two;x", "$(x)", ""] {
            let host = Host { via: Some(via.into()), ..host.clone() };
            assert!(OpenSsh::new(&host, &user).is_err(), "{via:?}");
        }
    }
}
