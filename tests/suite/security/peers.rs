//! Unauthenticated connections to every port and socket of a running trial: no data passes, training is
//! unaffected, and no secret is exposed.

use super::secrets::{KEYS, holding, is_private};
use crate::cluster::train::nothing_is_left;
use crate::lab::{Lab, Options};
use dtrain_protocol::frame;
use dtrain_runner::control_protocol::AgentRequest;
use dtrain_skip::skip;
use dtrain_tests::{SHORT_TRAINING, TestEnv, numbered_lines, root};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

const CANARY: &str = "canary-0b51d7e3";

/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(90);

/// Strangers at each port.
const STRANGERS: usize = 300;

/// Most that an agent may grow by, in bytes, in at least one round of strangers after the first. What an allocator keeps for later
/// is taken in some rounds and used in the others; what each stranger leaves behind grows in every round.
const GROWTH: u64 = 8 << 20;

/// Rounds in which strangers knock.
const ROUNDS: usize = 4;

/// Most that it may have at all.
const MOST: u64 = 128 << 20;

#[test]
fn a_trial_on_two_hosts_does_not_mind_strangers_and_leaves_no_key() {
    let Some(lab) = Lab::with(&Options { hosts: 2, direct: true, ..Options::default() }) else { return };
    let hosts = ["node1", "node2"];
    let recipe = format!("name = \"guarded\"\n{SHORT_TRAINING}");
    let cluster = "[cluster]\nlauncher = \"ssh\"\nhosts = [\"node[1-2]\"]\n";
    for machine in ["controller", "node1", "node2"] {
        lab.put(machine, "text.txt", numbered_lines());
        lab.put(machine, "recipe.toml", &recipe);
        lab.put(machine, "hosts.toml", cluster);
    }
    let said = tempfile::NamedTempFile::new().expect("room on disk");
    let mut command = lab.command("dtrain");
    command
        .args(["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample"])
        .args(["--set", "objective.stop={ steps = 300 }"])
        .env("HF_TOKEN", CANARY);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut run =
        command.stderr(File::create(said.path()).expect("ours")).spawn().expect("the program starts");
    let words = || fs::read_to_string(said.path()).expect("UTF-8");
    let until = Instant::now() + PATIENCE;
    // The door of the agent, and the rank's.
    while !words().contains("trial guarded-1") || hosts.iter().any(|host| lab.ports(host).len() < 2) {
        assert!(Instant::now() < until && run.try_wait().expect("ours").is_none(), "{}", words());
        thread::sleep(Duration::from_millis(20));
    }

    let mut knocked = 0;
    let mut knock_at_all = || {
        for host in hosts {
            let (ports, address) = (lab.ports(host), lab.address(host));
            assert!(!ports.is_empty(), "{host} listens nowhere: {}", words());
            for port in ports {
                let (came, heard) = lab.inside("controller", || knock(address, port));
                // An alert of TLS has seven bytes.
                assert!(heard <= 7 * came, "{host}:{port} said {heard} bytes to {came} strangers");
                knocked += came;
            }
            for process in lab.processes(host) {
                let is_told = [CANARY, KEYS[0]].iter().any(|secret| process.command.contains(secret));
                assert!(!is_told, "{process:?}");
            }
        }
        hosts.map(|host| agents(&lab, host))
    };
    let rounds: Vec<_> = (0..ROUNDS).map(|_| knock_at_all()).collect();
    assert!(run.try_wait().expect("ours").is_none(), "it was over before all had knocked: {}", words());
    println!("{knocked} strangers knocked; agents: {rounds:?}");
    for host in 0..hosts.len() {
        let rounds: Vec<_> = rounds.iter().map(|round| &round[host]).collect();
        let is_one = rounds.iter().all(|agents| agents.len() == 1 && agents.keys().eq(rounds[0].keys()));
        assert!(is_one, "the same agent lives in all rounds: {rounds:?}");
        let bytes: Vec<u64> = rounds.iter().flat_map(|agents| agents.values().copied()).collect();
        let least = bytes.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).min();
        assert!(least < Some(GROWTH), "an agent grew in every round: {bytes:?}");
        assert!(bytes.iter().all(|bytes| *bytes < MOST), "an agent is too large: {bytes:?}");
    }
    assert!(knocked >= 1000, "only {knocked} strangers got as far as a door");
    assert!(run.wait().expect("ours").success(), "{}", words());
    assert!(
        words().contains("completed after 300 of 300 steps") && !words().contains("retrying in"),
        "{}",
        words()
    );
    nothing_is_left(&lab, &hosts);

    let key =
        fs::read_to_string(root().join("target/test-data/lab-keys/user/ed25519")).expect("the user's key");
    let secret = key.lines().nth(2).expect("it has lines");
    for machine in ["controller", "node1", "node2"] {
        let state = lab.home(machine).join(".local/state/dtrain");
        is_private(&state);
        let found = holding(&state, &[CANARY, secret, KEYS[0], KEYS[1]]);
        assert!(found.is_empty(), "{machine}: {found:#?}");
        assert!(!holding(&state, &["guarded", "attempt"]).is_empty(), "{machine} keeps something");
    }
    assert!(!words().contains(CANARY));
}

/// Memory of each agent of a host, in bytes, by the number of its process.
fn agents(lab: &Lab, host: &str) -> BTreeMap<u32, u64> {
    let all = lab.processes(host).into_iter().filter(|process| process.is_hidden_command("agent"));
    all.map(|process| (process.id, resident(process.id))).collect()
}

fn resident(id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0)
}

/// Strangers of every kind at one port: gone at once, with noise, with our own frames in the clear, with the head of a long TLS record,
/// and silent. Gives how many were connected, and the bytes that they were answered with.
fn knock(address: Ipv4Addr, port: u16) -> (usize, usize) {
    let address = SocketAddr::from((address, port));
    let follow = frame::encode(&AgentRequest::Follow { from: 0 });
    let lead = frame::encode(&"lead");
    let mut noise = *blake3::hash(&port.to_le_bytes()).as_bytes();
    let (mut held, mut came, mut turned_away) = (Vec::new(), 0, 0);
    for stranger in 0..STRANGERS {
        noise = *blake3::hash(&noise).as_bytes();
        // If no process accepts, the connection is full after a while.
        let Ok(mut socket) = TcpStream::connect_timeout(&address, Duration::from_millis(5)) else {
            turned_away += 1;
            if turned_away > 20 {
                break;
            }
            continue;
        };
        came += 1;
        let words: &[u8] = match stranger % 6 {
            0 => continue,
            1 => &noise,
            2 => &follow,
            3 => &lead,
            4 => &[22, 3, 1, 0x40, 0],
            _ => &[],
        };
        // It fails when the door is shut already.
        drop(socket.write_all(words));
        held.push(socket);
    }
    thread::sleep(Duration::from_millis(200));
    let mut heard = 0;
    for mut socket in held {
        socket.set_nonblocking(true).expect("a socket");
        heard += socket.read(&mut [0; 4096]).unwrap_or(0);
    }
    (came, heard)
}

/// The socket of an agent answers its own user, and no other, whatever the modes of folders are.
#[test]
fn another_user_reads_nothing_from_an_agent() {
    if !geteuid().is_root() {
        skip("it needs root, to become another user");
        return;
    }
    let house = TestEnv::default();
    let argv = "[model]\nkind = 'command'\nargv = ['sleep', '600']\n[objective]\nstop = { steps = 1 }\n";
    let recipe = house.file("recipe.toml", argv).display().to_string();
    house.expect(0, ["run", &recipe, "--detach"]);
    let trial = house.newest_trial();
    let card: serde_json::Value =
        serde_json::from_slice(&fs::read(trial.join("agent.json")).expect("an agent")).expect("JSON");
    let socket = Path::new(card["socket"].as_str().expect("a path")).to_owned();
    let ask = move || {
        let mut stream = UnixStream::connect(&socket).map_err(|error| error.kind())?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).map_err(|error| error.kind())?;
        drop(frame::write(&mut stream, &AgentRequest::Follow { from: 0 }));
        let mut answer = [0; 64];
        stream.read(&mut answer).map_err(|error| error.kind())
    };
    let as_nobody = |ask: &(dyn Fn() -> Result<usize, std::io::ErrorKind> + Sync)| {
        let work = || {
            let nobody = Uid::from_raw(65534);
            set_thread_res_uid(nobody, nobody, nobody).expect("root may");
            ask()
        };
        thread::scope(|scope| scope.spawn(work).join().expect("it does not panic"))
    };
    assert!(matches!(ask(), Ok(1..)), "its own user is answered");
    assert_eq!(as_nobody(&ask), Err(std::io::ErrorKind::PermissionDenied), "the folder is its user's own");
    for path in
        trial.ancestors().take_while(|path| path.starts_with(house.state().parent().expect("a house")))
    {
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("ours");
    }
    fs::set_permissions(card["socket"].as_str().expect("a path"), Permissions::from_mode(0o777))
        .expect("ours");
    assert!(
        matches!(as_nobody(&ask), Ok(0) | Err(std::io::ErrorKind::ConnectionReset)),
        "{:?}",
        as_nobody(&ask)
    );
    assert!(matches!(ask(), Ok(1..)), "its own user still is");
    house.expect(0, ["stop", "last"]);
}
