//! An sshd that a test starts for itself.

use dtrain_runner::transport::{SshTarget, User};
use dtrain_skip::skip;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// An sshd that accepts one key, and ends with the test.
pub(super) struct Server {
    process: Child,
    folder: tempfile::TempDir,
    pub(super) port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Server {
    /// `None`, the test being skipped, where no sshd is installed or we may not run one.
    pub(super) fn start() -> Option<Self> {
        Self::with("", "")
    }

    /// With more lines of configuration, and something for the shell to do before.
    pub(super) fn with(lines: &str, before: &str) -> Option<Self> {
        let sshd = Path::new("/usr/sbin/sshd");
        if !sshd.exists() || !rustix::process::geteuid().is_root() {
            skip("it needs root and /usr/sbin/sshd (Debian package openssh-server)");
            return None;
        }
        fs::create_dir_all("/run/sshd").expect("sshd's own folder");
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for (kind, name) in
            [("ed25519", "host"), ("ecdsa", "host_ecdsa"), ("ed25519", "user"), ("ed25519", "stranger")]
        {
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", kind, "-N", "", "-f"]).arg(path(name)).status();
            assert!(made.expect("ssh-keygen comes with sshd").success());
        }
        fs::create_dir(path("home")).expect("a folder");
        fs::copy(path("user.pub"), path("authorized")).expect("copied");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {0}/host\nHostKey {0}/host_ecdsa\nPidFile none\n\
             AuthorizedKeysFile {0}/authorized\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin yes\nSetEnv HOME={0}/home\n{lines}\n",
            folder.path().display()
        );
        fs::write(path("config"), config).expect("written");
        let process = Command::new("sh")
            .args(["-c", &format!("{before}\nexec {} -D -E \"$1\" -f \"$2\"", sshd.display()), "sh"])
            .args([path("log"), path("config")])
            .spawn()
            .expect("sshd starts");
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "sshd does not listen");
            std::thread::yield_now();
        }
        Some(Self { process, folder, port })
    }

    /// Ends all connections, as if the machine had gone.
    pub(super) fn hang_up(&self) {
        let id = self.process.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("it runs");
        for child in children.split_whitespace() {
            let child = Pid::from_raw(child.parse().expect("a number")).expect("a process");
            kill_process(child, Signal::KILL).expect("it is ours");
        }
    }

    /// A file of the server's folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What those who log in have for a home.
    pub(super) fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// Returns the number of logins.
    pub(super) fn logins(&self) -> usize {
        fs::read_to_string(self.path("log")).expect("a log").matches("Accepted publickey").count()
    }

    /// Root at the server, with the user's key, and known_hosts made of `lines` where `HOST` and `ECDSA` stand for
    /// the server's public keys.
    pub(super) fn target(&self, key: &str, lines: &str) -> SshTarget {
        SshTarget {
            host: "127.0.0.1".into(),
            port: self.port,
            user: "root".into(),
            keys: vec![self.path(key)],
            is_keys_only: true,
            agent: None,
            known_hosts: vec![self.knowing(lines)],
            revoked_keys: Vec::new(),
            key_alias: None,
            via: None,
        }
    }

    /// As [`target`](Self::target), for whom all is well.
    pub(super) fn good(&self) -> SshTarget {
        self.target("user", "NAME HOST")
    }

    /// Behind a bastion.
    pub(super) fn behind(&self, bastion: &Self) -> SshTarget {
        SshTarget { via: Some(Box::new(bastion.good())), ..self.good() }
    }

    fn knowing(&self, lines: &str) -> PathBuf {
        let public = |name: &str| {
            let text = fs::read_to_string(self.path(name)).expect("a public key");
            text.split(' ').take(2).collect::<Vec<_>>().join(" ")
        };
        let lines = lines
            .replace("ECDSA", &public("host_ecdsa.pub"))
            .replace("HOST", &public("host.pub"))
            .replace("NAME", &format!("[127.0.0.1]:{}", self.port));
        let known_hosts = self.path("known_hosts");
        fs::write(&known_hosts, lines).expect("written");
        known_hosts
    }

    /// Lines of an SSH configuration that call the server `name`.
    pub(super) fn alias(&self, name: &str) -> String {
        format!(
            "Host {name}\nHostName 127.0.0.1\nPort {}\nUser root\nIdentityFile {}\nIdentitiesOnly yes\n\
             UserKnownHostsFile {}\n",
            self.port,
            self.path("user").display(),
            self.knowing("NAME HOST").display()
        )
    }

    /// A user of this machine with an SSH configuration of his own.
    pub(super) fn user(&self, config: &str) -> User {
        let file = self.path("ssh_config");
        fs::write(&file, config).expect("written");
        User { name: "nobody".into(), home: self.home(), config: Some(file) }
    }
}
