//! The lab does what it says: what other tests find out about a cluster rests on it.

use crate::lab::{Cable, Direction, Lab, Options, namespaces_in_use, signal};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long nothing must be heard until we believe in silence.
const SILENCE: Duration = Duration::from_millis(500);

/// How long something may take that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a command printed; panics when it failed.
fn text(output: &Output) -> String {
    let [out, error] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{}: {out}{error}", output.status);
    out.trim().to_owned()
}

/// What a shell on a host prints, asked from the controller over ssh.
fn ask(lab: &Lab, host: &str, words: &str) -> String {
    text(&lab.command("ssh").args([host, words]).output().expect("ssh starts"))
}

/// How many of so many packets get from one machine to another.
fn arrive(lab: &Lab, from: &str, to: &str, packets: usize) -> usize {
    let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    let receiver = lab.inside(to, bind);
    receiver.set_read_timeout(Some(SILENCE)).expect("not zero");
    let target = (lab.address(to), receiver.local_addr().expect("it is bound").port());
    let sender = lab.inside(from, bind);
    for _ in 0..packets {
        sender.send_to(b"hello", target).expect("a sender is not told of a loss");
    }
    (0..packets).take_while(|_| receiver.recv(&mut [0; 8]).is_ok()).count()
}

/// Whether a packet gets from one machine to another.
fn hears(lab: &Lab, to: &str, from: &str) -> bool {
    arrive(lab, from, to, 1) == 1
}

/// A connection to the sshd of a machine.
fn connect(lab: &Lab, from: &str, to: &str) -> io::Result<TcpStream> {
    let target = (lab.address(to), 22).into();
    lab.inside(from, || TcpStream::connect_timeout(&target, SILENCE))
}

/// Waits until `is_so`; panics with `what` when it takes too long.
fn wait(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not so after {PATIENCE:?}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn hosts_answer_the_controller_through_the_bastion_alone() {
    let Some(lab) = Lab::start(3) else { return };
    for host in ["node1", "node3"] {
        assert_eq!(ask(&lab, host, "hostname; id -un; pwd"), format!("{host}\ndtlab\n/run/dtlab"));
    }
    assert!(lab.log("bastion").contains("Accepted publickey for dtlab"), "{}", lab.log("bastion"));
    let refused = connect(&lab, "controller", "node1").expect_err("there is no road");
    assert_eq!(refused.kind(), ErrorKind::NetworkUnreachable);
    assert_eq!(ask(&lab, "node1", "getent hosts node2 | cut -d' ' -f1"), lab.address("node2").to_string());
    let Some(near) = Lab::with(&Options { hosts: 1, direct: true, ..Options::default() }) else { return };
    assert_eq!(ask(&near, "node1", "hostname"), "node1");
    assert!(!near.log("bastion").contains("Accepted"), "{}", near.log("bastion"));
}

#[test]
fn what_runs_on_a_host_and_where_it_listens_is_seen() {
    let Some(lab) = Lab::start(2) else { return };
    assert_eq!(ask(&lab, "node1", "echo here >>file; cat file"), "here");
    assert_eq!(fs::read_to_string(lab.home("node1").join("file")).expect("it was written"), "here\n");
    assert!(!lab.home("node2").join("file").exists());
    assert_eq!((lab.processes("node1"), lab.ports("node1")), (vec![], BTreeSet::new()));
    let mut program = lab.on("node1", "sleep").arg("1000").spawn().expect("it starts");
    wait("sleep runs on node1", || lab.processes("node1").iter().any(|found| found.command == "sleep 1000"));
    assert_eq!(lab.processes("node2"), []);
    let listener =
        lab.inside("node1", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port"));
    let port = listener.local_addr().expect("it is bound").port();
    assert_eq!((lab.ports("node1"), lab.ports("node2")), (BTreeSet::from([port]), BTreeSet::new()));
    signal(&mut program, Signal::TERM);
    let status = program.wait().expect("it is ours");
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
    let mut program = lab.on("node1", "sleep").arg("1000").spawn().expect("it starts");
    wait("sleep runs on node1", || lab.processes("node1").iter().any(|found| found.command == "sleep 1000"));
    program.kill().expect("it is ours");
    program.wait().expect("it is ours");
    wait("nothing runs on node1", || lab.processes("node1").is_empty());
    assert_eq!(text(&lab.on("node1", "id").arg("-un").output().expect("it starts")), "dtlab");
}

#[test]
fn a_cut_host_is_silent_and_a_healed_one_goes_on() {
    let Some(lab) = Lab::start(2) else { return };
    let mut open = connect(&lab, "node1", "node2").expect("node2 is there");
    open.set_read_timeout(Some(SILENCE)).expect("not zero");
    let mut bytes = [0; 4096];
    wait("sshd greets", || (&open).read(&mut [0; 4096]).is_ok_and(|length| length > 0));
    lab.cut("node2");
    open.write_all(b"SSH-2.0-lab\r\n").expect("the sender is not told");
    let silent = open.read(&mut bytes).expect_err("no machine answers");
    assert_eq!(silent.kind(), ErrorKind::WouldBlock, "no reset: {silent}");
    for (from, to) in [("node1", "node2"), ("bastion", "node2"), ("node2", "node1")] {
        let error = connect(&lab, from, to).expect_err("it is cut");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{from} to {to}: {error}");
    }
    assert!(connect(&lab, "bastion", "node1").is_ok());
    lab.heal("node2");
    wait("the connection goes on", || (&open).read(&mut [0; 4096]).is_ok_and(|length| length > 0));
    assert_eq!(ask(&lab, "node2", "hostname"), "node2");
}

#[test]
fn a_cut_of_one_way_or_between_two_leaves_all_else() {
    let Some(lab) = Lab::start(3) else { return };
    let check = |what: &str, expected: [bool; 6]| {
        let pairs = [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)];
        let found = pairs.map(|(from, to)| hears(&lab, &format!("node{to}"), &format!("node{from}")));
        assert_eq!(found, expected, "{what}; pairs {pairs:?}");
    };
    check("all is well", [true; 6]);
    lab.cut_one_way("node2", Direction::To);
    check("nothing reaches node2", [false, true, true, true, true, false]);
    lab.heal("node2");
    lab.cut_one_way("node2", Direction::From);
    check("nothing leaves node2", [true, false, true, true, false, true]);
    lab.heal("node2");
    lab.cut_between("node1", "node2");
    check("node1 and node2 do not see each other", [false, false, true, true, true, true]);
    lab.heal("node1");
    check("all is well again", [true; 6]);
}

#[test]
fn a_killed_host_runs_nothing_and_starts_again_with_its_disk() {
    let Some(lab) = Lab::start(2) else { return };
    let boot = "cat /proc/sys/kernel/random/boot_id";
    let first = ask(&lab, "node1", boot);
    assert_ne!(first, ask(&lab, "node2", boot));
    ask(&lab, "node1", "echo kept >file; setsid sleep 1000 >/dev/null 2>&1 </dev/null &");
    let mut program = lab.on("node1", "sleep").arg("2000").spawn().expect("it starts");
    wait("both run", || lab.processes("node1").len() == 2);
    signal(&mut program, Signal::STOP);
    lab.kill_host("node1");
    assert_eq!((lab.processes("node1"), lab.ports("node1")), (vec![], BTreeSet::new()));
    assert_eq!(program.wait().expect("it is ours").signal(), Some(Signal::KILL.as_raw()));
    assert_eq!(connect(&lab, "node2", "node1").expect_err("it is off").kind(), ErrorKind::ConnectionRefused);
    lab.start_host("node1");
    assert_eq!(ask(&lab, "node1", "cat file"), "kept");
    assert_ne!(ask(&lab, "node1", boot), first);
}

/// What arrives of bytes that one machine sends another over TCP.
fn travels(lab: &Lab, from: &str, to: &str, bytes: &[u8]) -> Vec<u8> {
    let listener = lab.inside(to, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port"));
    let target = (lab.address(to), listener.local_addr().expect("it is bound").port());
    let mut sender = lab.inside(from, || TcpStream::connect(target).expect("it listens"));
    let reader = std::thread::spawn(move || {
        let mut arrived = Vec::new();
        listener.accept().expect("a client connects").0.read_to_end(&mut arrived).expect("it is read");
        arrived
    });
    sender.write_all(bytes).expect("it is sent");
    sender.shutdown(Shutdown::Write).expect("it is open");
    reader.join().expect("it reads")
}

/// How long 1 MiB takes from one machine to another.
fn lasts(lab: &Lab, from: &str, to: &str) -> Duration {
    let begun = Instant::now();
    assert_eq!(travels(lab, from, to, &vec![7; 1 << 20]).len(), 1 << 20);
    begun.elapsed()
}

#[test]
fn a_slow_host_is_slow_both_ways_until_it_is_healed() {
    let Some(lab) = Lab::start(2) else { return };
    let before = lasts(&lab, "node1", "node2");
    lab.slow("node2", 1 << 20);
    let (to, from) = (lasts(&lab, "node1", "node2"), lasts(&lab, "node2", "node1"));
    lab.heal("node2");
    println!(
        "1 MiB: {before:?} before; at 1 MiB/s {to:?} and {from:?}; {:?} after",
        lasts(&lab, "node1", "node2")
    );
    let least = Duration::from_millis(800);
    assert!(to > least && from > least, "1 MiB at 1 MiB/s took {to:?} and {from:?}");
}

#[test]
fn a_bad_cable_delays_loses_and_spoils_until_it_is_healed() {
    let Some(lab) = Lab::start(2) else { return };
    let delay = Duration::from_millis(40);
    if !lab.bad_cable("node2", &Cable { delay, ..Cable::default() }) {
        return;
    }
    let begun = Instant::now();
    connect(&lab, "node1", "node2").expect("it is far, but there");
    assert!(begun.elapsed() > 2 * delay, "there and back in {:?}", begun.elapsed());
    println!("1 MiB over 80 ms: {:?} and {:?}", lasts(&lab, "node1", "node2"), lasts(&lab, "node2", "node1"));
    lab.bad_cable("node2", &Cable { lost: 0.5, ..Cable::default() });
    wait("node2 is found, though half of the questions are lost", || hears(&lab, "node2", "node1"));
    let some = arrive(&lab, "node1", "node2", 100);
    assert!((20..80).contains(&some), "{some} of 100 packets arrived, about half should");
    lab.bad_cable("node2", &Cable { spoilt: 1.0, ..Cable::default() });
    let sent: Vec<u8> = (0..1 << 16).map(|number: u32| (number / 2) as u8).collect();
    let spoilt = travels(&lab, "node1", "node2", &sent);
    assert_ne!(spoilt, sent);
    let sums = [&spoilt, &sent].map(|all| all.iter().map(|byte| u64::from(*byte)).sum::<u64>());
    assert_eq!((spoilt.len(), sums[0]), (sent.len(), sums[1]), "the same bytes in another order");
    lab.heal("node2");
    assert_eq!(arrive(&lab, "node1", "node2", 100), 100);
    assert!(travels(&lab, "node1", "node2", &sent) == sent);
}

#[test]
fn a_full_disk_takes_nothing_until_it_is_healed() {
    let Some(lab) = Lab::with(&Options { hosts: 1, disk: 8 << 20, ..Options::default() }) else { return };
    let write = |path: &str| {
        let words = format!("echo something | tee {path}");
        lab.on("node1", "sh").args(["-c", &words]).output().expect("it starts")
    };
    lab.fill_disk("node1");
    let error = write("file");
    assert!(String::from_utf8_lossy(&error.stderr).contains("No space left on device"), "{error:?}");
    text(&write("/mnt/file"));
    lab.heal("node1");
    text(&write("file"));
}

/// Mounts and interfaces of the machine that runs the tests.
fn traces() -> (BTreeSet<String>, BTreeSet<String>) {
    let lines = |path: &str| {
        fs::read_to_string(path).expect("there is /proc").lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let interfaces =
        lines("/proc/self/net/dev").into_iter().filter_map(|line| Some(line.split_once(':')?.0.to_owned()));
    (lines("/proc/self/mountinfo").into_iter().collect(), interfaces.collect())
}

#[test]
fn a_lab_leaves_the_machine_as_it_was_even_with_a_frozen_program() {
    let before = traces();
    let begun = Instant::now();
    let Some(lab) = Lab::start(8) else { return };
    let started = begun.elapsed();
    assert_eq!(traces(), before, "while it is up");
    let namespaces = lab.namespaces();
    assert_eq!(namespaces_in_use(&namespaces), namespaces);
    assert_eq!(namespaces.len(), 2 * (1 + 2 + 8));
    let begun = Instant::now();
    drop(lab);
    println!("controller, bastion and 8 hosts: up after {started:?}, gone after {:?}", begun.elapsed());
    assert_eq!(namespaces_in_use(&namespaces), BTreeSet::new());
    assert_eq!(traces(), before, "when it is gone");
    let Some(lab) = Lab::start(1) else { return };
    let mut program = lab.command("sleep").arg("1000").spawn().expect("it starts");
    wait("sleep runs", || lab.processes("controller").iter().any(|found| found.command == "sleep 1000"));
    signal(&mut program, Signal::STOP);
    drop(lab);
    assert_eq!(program.wait().expect("it is ours").signal(), Some(Signal::KILL.as_raw()));
}

/// Set for the test below, when it is the one that is killed.
const VICTIM: &str = "TEST_LAB_VICTIM";

#[test]
fn a_lab_ends_with_a_test_that_is_killed() {
    if std::env::var_os(VICTIM).is_some() {
        let Some(lab) = Lab::start(2) else { return };
        let mut program = lab.command("sleep").arg("1000").spawn().expect("it starts");
        for link in lab.namespaces() {
            println!("\nnamespace {}", link.display());
        }
        println!("\nall");
        program.wait().expect("it is ours");
        unreachable!("the test was not killed");
    }
    let mut test = Command::new(std::env::current_exe().expect("a test knows where it is"))
        .args(["--exact", "--nocapture", "cluster::lab::a_lab_ends_with_a_test_that_is_killed"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(test.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let lines = lines.take_while(|line| line != "all");
    let namespaces: BTreeSet<PathBuf> =
        lines.filter_map(|line| Some(line.strip_prefix("namespace ")?.into())).collect();
    if !namespaces.is_empty() {
        assert_eq!(namespaces_in_use(&namespaces), namespaces);
    }
    test.kill().ok();
    test.wait().expect("it is ours");
    wait("the lab is gone", || namespaces_in_use(&namespaces).is_empty());
}
