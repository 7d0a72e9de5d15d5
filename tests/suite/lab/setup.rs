//! Requirements of a lab on the machine, and preparation of its machines before their first start.

use super::machine::Machine;
use super::space::{self, Space};
use super::{HOME, Options, UID, USER, keys, net};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// Everything a lab asks the kernel for.
const PROBE: &str = "mount -t tmpfs tmpfs /mnt && mount -t proc proc /proc && \
                     ip link add br0 type bridge && ip link add v0 type veth peer name v1";

/// For all machines; the user's keys are out of the user's reach, so that no test locks itself out.
const SSHD: &str = "\
Port 22
AddressFamily inet
HostKey /run/lab/ed25519
HostKey /run/lab/ecdsa
PidFile none
AuthorizedKeysFile /run/lab/authorized_keys
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
PrintMotd no
LogLevel VERBOSE
";

/// Why there can be no lab here.
pub(super) fn check() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("a lab of hosts needs root, for namespaces".into());
    }
    for (program, package) in [
        ("/usr/sbin/sshd", "openssh-server"),
        ("ssh", "openssh-client"),
        ("ip", "iproute2"),
        ("nsenter", "util-linux"),
    ] {
        let path = space::PATH.split(':').map(|folder| Path::new(folder).join(program));
        if !path.into_iter().any(|path| path.exists()) {
            return Err(format!("a lab of hosts needs {program} (package {package})"));
        }
    }
    let output = Command::new("unshare")
        .args(["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "sh", "-c", PROBE])
        .env("PATH", space::PATH)
        .output();
    let output = output.map_err(|error| format!("unshare does not start: {error}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or(format!("a lab of hosts needs namespaces: {}", error.trim()))
}

/// Makes the networks, and the folder `/mnt/<name>` of each machine.
pub(super) fn furnish(space: &Space, machines: &[Machine], options: &Options) {
    let mut script = net::script(machines);
    let folder = space.path("mnt");
    for (name, text) in users() {
        write(&folder.join(name), &text, 0o644);
        writeln!(script, "mount --bind /mnt/{name} /etc/{name}").expect("to a string");
    }
    for machine in machines {
        let (name, disk) = (&machine.name, options.disk);
        let own = folder.join(name);
        for part in ["home", "small", "lab"] {
            fs::create_dir_all(own.join(part)).expect("it is ours");
        }
        write(&own.join("hosts"), net::hosts_file(machine, machines), 0o644);
        write(&own.join("lab/sshd_config"), format!("{SSHD}AllowUsers {USER}\n"), 0o644);
        write(&own.join("lab/authorized_keys"), keys::public("user", "ed25519"), 0o644);
        for kind in keys::KINDS {
            write(&own.join("lab").join(kind), read(&keys::of(name).join(kind)), 0o600);
        }
        let owner = format!("uid={UID},gid={UID},mode=755");
        writeln!(script, "mount -t tmpfs -o size={disk},{owner} tmpfs /mnt/{name}/home")
            .expect("to a string");
        writeln!(script, "mount -t tmpfs -o size=16m,mode=1777 tmpfs /mnt/{name}/small")
            .expect("to a string");
    }
    let program = dtrain_tests::program();
    let programs = program.parent().expect("a program lies in a folder").display();
    writeln!(script, "mkdir /mnt/controller/programs\nmount --bind '{programs}' /mnt/controller/programs")
        .expect("to a string");
    space.run(&script);
    may_connect(&folder.join("controller/home"), machines, options);
}

/// Gives the controller's user a key, the hosts' keys, and the way to the hosts.
fn may_connect(home: &Path, machines: &[Machine], options: &Options) {
    let mut known = String::new();
    for machine in machines {
        for kind in keys::KINDS {
            let (name, key) = (&machine.name, keys::public(&machine.name, kind));
            writeln!(known, "{name} {key}").expect("to a string");
        }
    }
    let jump = if options.direct { "" } else { "Host node*\n    ProxyJump bastion\n" };
    let ssh = home.join(".ssh");
    fs::create_dir(&ssh).expect("the home is new");
    write(&ssh.join("known_hosts"), &known, 0o600);
    write(&ssh.join("config"), format!("{jump}Host *\n    BatchMode yes\n"), 0o600);
    write(&ssh.join("id_ed25519"), read(&keys::of("user").join("ed25519")), 0o600);
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o700)).expect("it is ours");
    for path in ["", "known_hosts", "config", "id_ed25519"].map(|name| ssh.join(name)) {
        chown(path, Some(UID), Some(UID)).expect("it is ours");
    }
}

/// The files in `/etc` that define users: the machine's users, and ours in front. No user has a password.
fn users() -> [(&'static str, String); 3] {
    let with = |path: &str, line: String| {
        let theirs = fs::read_to_string(path).unwrap_or_default();
        let theirs = theirs.lines().filter(|line| !line.starts_with(&format!("{USER}:")));
        theirs.fold(line, |text, line| text + "\n" + line) + "\n"
    };
    [
        ("passwd", with("/etc/passwd", format!("{USER}:x:{UID}:{UID}::{HOME}:/bin/sh"))),
        ("group", with("/etc/group", format!("{USER}:x:{UID}:"))),
        // A locked password (`!`) would lock the key out too, where sshd does not ask PAM.
        ("shadow", format!("root:*:::::::\n{USER}:*:::::::\n")),
    ]
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write(path: &Path, text: impl AsRef<[u8]>, mode: u32) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}
