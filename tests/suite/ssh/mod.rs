//! Hosts over SSH, against a real sshd on the loopback interface.

use dtrain_runner::transport::known_hosts::Distrust;
use dtrain_runner::transport::ssh::{Ssh, Target};
use dtrain_runner::transport::{FACTS, Transport, TransportError};
use dtrain_tests::House;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An sshd that accepts one key, and ends with the test.
struct Server {
    process: Child,
    folder: tempfile::TempDir,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Server {
    /// `None`, with a word on why, where no sshd is installed or we may not run one.
    #[expect(clippy::print_stdout, reason = "the log of the tests tells what was left out")]
    fn start() -> Option<Self> {
        let sshd = Path::new("/usr/sbin/sshd");
        if !sshd.exists() || !rustix::process::geteuid().is_root() {
            println!("left out: needs /usr/sbin/sshd (package openssh-server) and root");
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
        fs::copy(path("user.pub"), path("authorized")).expect("copied");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {0}/host\nHostKey {0}/host_ecdsa\nPidFile none\n\
             AuthorizedKeysFile {0}/authorized\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin yes\n",
            folder.path().display()
        );
        fs::write(path("config"), config).expect("written");
        let process = Command::new(sshd)
            .args(["-D", "-e", "-f"])
            .arg(path("config"))
            .stderr(Stdio::null())
            .spawn()
            .expect("sshd starts");
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "sshd does not listen");
            std::thread::yield_now();
        }
        Some(Self { process, folder, port })
    }

    /// Root at the server, with the user's key, and known_hosts made of `lines` where `HOST` and `ECDSA` stand for
    /// the server's public keys.
    fn target(&self, key: &str, lines: &str) -> Target {
        let public = |name: &str| {
            let text = fs::read_to_string(self.folder.path().join(name)).expect("a public key");
            text.split(' ').take(2).collect::<Vec<_>>().join(" ")
        };
        let lines = lines
            .replace("ECDSA", &public("host_ecdsa.pub"))
            .replace("HOST", &public("host.pub"))
            .replace("NAME", &format!("[127.0.0.1]:{}", self.port));
        let known_hosts = self.folder.path().join("known_hosts");
        fs::write(&known_hosts, lines).expect("written");
        Target {
            host: "127.0.0.1".into(),
            port: self.port,
            user: "root".into(),
            keys: vec![self.folder.path().join(key)],
            known_hosts: vec![known_hosts],
        }
    }
}

#[test]
fn a_known_host_runs_the_script_and_a_doubtful_one_gets_no_key_of_ours() {
    let Some(server) = Server::start() else { return };
    for lines in ["NAME HOST", "NAME ECDSA", "* ECDSA"] {
        let mut ssh = Ssh::connect(&server.target("user", lines)).unwrap_or_else(|e| panic!("{lines}: {e}"));
        let output = ssh.run(FACTS).expect("the script runs");
        assert!(output.status == 0 && output.stdout.contains("system=Linux"), "{output:?}");
    }
    for (lines, expected) in [
        ("", Distrust::Unknown),
        ("127.0.0.1 HOST", Distrust::Unknown),
        (
            "NAME ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcB",
            Distrust::Changed,
        ),
        ("NAME HOST\n@revoked * HOST", Distrust::Revoked),
    ] {
        match Ssh::connect(&server.target("user", lines)).err() {
            Some(TransportError::HostKey { problem, fingerprint, .. }) => {
                assert_eq!(problem, expected, "{lines:?}");
                assert!(fingerprint.starts_with("SHA256:"));
            }
            other => panic!("{lines:?}: expected {expected:?}, found {other:?}"),
        }
    }
    doctor_examines(&server);
    let refused = Ssh::connect(&server.target("stranger", "NAME HOST")).err();
    assert!(matches!(refused, Some(TransportError::Authentication { .. })), "{refused:?}");
}

/// `dtrain doctor` over SSH, with the keys and the known_hosts of a user.
fn doctor_examines(server: &Server) {
    let house = House::default();
    let target = server.target("user", "NAME HOST");
    let keys = fs::read(&target.keys[0]).expect("a key");
    let key = house.file(".ssh/id_ed25519", keys);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("ours");
    let known = house.file(".ssh/known_hosts", fs::read(&target.known_hosts[0]).expect("lines"));
    let home = key.ancestors().nth(2).expect("a home").to_owned();
    let host = format!("root@127.0.0.1:{}", server.port);
    let mut command = house.dtrain(["doctor", &host, "--json"]);
    let output = command.env("HOME", &home).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let checks = report["hosts"][0]["checks"].as_array().unwrap_or_else(|| panic!("no checks: {text}"));
    assert!(checks.iter().any(|check| check["name"] == "cores" && check["verdict"] == "good"), "{text}");
    fs::remove_file(known).expect("it is ours");
    let output = house.dtrain(["doctor", &host]).env("HOME", &home).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("not in known_hosts") && text.contains("SHA256:"), "{text}");
}
