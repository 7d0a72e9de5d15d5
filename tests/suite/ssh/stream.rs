//! Streams to programs over SSH.

use super::server::Server;
use dtrain_runner::transport::{FACTS, ProgramDigest, ProgramMode, Ssh, SshTarget, Transport};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes that go each way.
const MUCH: usize = 8 << 20;

/// Puts a program in its place without sending it.
fn place(home: &Path, text: &str) -> ProgramDigest {
    let program = home.join("program");
    fs::write(&program, text).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("ours");
    let digest = ProgramDigest::of(&program).expect("readable");
    let folder = home.join(".cache/dtrain/bin").join(digest.to_string());
    fs::create_dir_all(&folder).expect("a folder");
    // A file that this process wrote may still be open in a child of it, and does not run then.
    let copied = Command::new("cp").args([&program, &folder.join("dtrain")]).status();
    assert!(copied.expect("`cp` is everywhere").success());
    digest
}

/// Bytes that do not repeat soon.
fn noise() -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..MUCH).map(|_| next()).collect()
}

/// What goes in comes out, while it goes in.
fn echoes(transport: &mut dyn Transport, echo: &ProgramDigest, noise: &[u8]) -> Duration {
    let since = Instant::now();
    let stream = transport.open(echo, ProgramMode::Stdio).expect("it starts");
    let mut heard = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&stream).write_all(noise).expect("it reads");
            stream.end_input().expect("it is open");
        });
        (&stream).read_to_end(&mut heard).expect("it writes");
    });
    assert!(heard == noise, "{} of {} bytes came back, or others", heard.len(), noise.len());
    let ending = stream.ending(Duration::from_secs(10)).expect("it ended");
    assert_eq!((ending.status, ending.stderr.as_str()), (Some(0), "agent --stdio\n"));
    since.elapsed()
}

const ECHO: &str = "#!/bin/sh\necho \"$1 $2\" >&2\nexec cat\n";

#[test]
fn eight_mebibytes_go_both_ways_at_once() {
    // New keys after each MiB, so that they are made in the middle of everything.
    for limit in ["", "RekeyLimit 1M"] {
        let Some(bastion) = Server::with(limit, "") else { return };
        let Some(host) = Server::with(limit, "") else { return };
        let (echo, noise) = (place(&host.home(), ECHO), noise());
        for target in [host.good(), host.behind(&bastion)] {
            let mut ssh = Ssh::connect(&target).expect("it connects");
            let took = echoes(&mut ssh, &echo, &noise);
            println!("8 MiB both ways, {limit:?}, bastion {}: {took:?}", target.via.is_some());
        }
    }
}

#[test]
fn several_streams_of_one_session_and_of_one_bastion_do_not_hold_each_other_up() {
    let Some(bastion) = Server::start() else { return };
    let Some(host) = Server::start() else { return };
    let (echo, noise) = (place(&host.home(), ECHO), noise());
    let behind = host.behind(&bastion);
    let bastions = dtrain_runner::transport::Bastions::default();
    let connect = |target: &SshTarget| Ssh::through(target, &bastions).expect("it connects");
    let mut hosts = [connect(&behind), connect(&behind), connect(&behind)];
    // This stream is never read: it must not use up the window of the others.
    let silent =
        hosts[0].open(&place(&host.home(), "#!/bin/sh\nexec yes\n"), ProgramMode::Stdio).expect("it starts");
    std::thread::scope(|scope| {
        for ssh in &mut hosts {
            scope.spawn(|| echoes(ssh, &echo, &noise));
        }
    });
    drop(silent);
    assert_eq!(bastion.logins(), 1);
}

#[test]
fn a_stream_is_closed_at_once_while_its_program_lives() {
    let Some(host) = Server::start() else { return };
    // What would wait for it waits for two minutes.
    let stubborn = "#!/bin/sh\ntrap '' HUP PIPE TERM\necho $$\nfor i in $(seq 2400); do\n\
                    [ -d \"$HOME\" ] || break\nsleep 0.05\ndone\n";
    let stubborn = place(&host.home(), stubborn);
    let mut ssh = Ssh::connect(&host.good()).expect("it connects");
    let stream = ssh.open(&stubborn, ProgramMode::Stdio).expect("it starts");
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).expect("it says its number");
    let process = format!("/proc/{}", line.trim());
    drop(stream);
    assert!(Path::new(&process).exists(), "the stream was closed before its program ended");
    let output = ssh.run(FACTS).expect("the session goes on");
    assert_eq!(output.status, 0);
    drop(ssh);
    assert!(Path::new(&process).exists(), "it was to live on");
    // It ends with the folder of its host.
}

#[test]
fn a_program_tells_why_it_ended() {
    let Some(host) = Server::start() else { return };
    let mut ssh = Ssh::connect(&host.good()).expect("it connects");
    let wordy = place(&host.home(), "#!/bin/sh\nseq 100000 >&2\nexit 9\n");
    let ending = ssh.open(&wordy, ProgramMode::Stdio).expect("it starts").ending(Duration::from_secs(10));
    let ending = ending.expect("it ended");
    assert_eq!(ending.status, Some(9));
    assert!(ending.stderr.len() == 4096 && ending.stderr.ends_with("99999\n100000\n"), "{ending:?}");
    // What is written to a program that does not read is no reason not to hear it.
    let deaf = place(&host.home(), "#!/bin/sh\necho last words\nexec sleep 1\n");
    let mut stream = ssh.open(&deaf, ProgramMode::Stdio).expect("it starts");
    stream.pipe().set_write_timeout(Some(Duration::from_millis(100))).expect("it is a socket");
    stream.write_all(&noise()).expect_err("it is not read");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("the end comes");
    assert_eq!(said, "last words\n");
    assert_eq!(stream.ending(Duration::from_secs(10)).expect("it ended").status, Some(0));
    let killed = place(&host.home(), "#!/bin/sh\nkill -9 $$\n");
    let ending = ssh.open(&killed, ProgramMode::Stdio).expect("it starts").ending(Duration::from_secs(10));
    assert_eq!(ending.expect("it ended").signal.as_deref(), Some("KILL"));
    let stream = ssh.open(&place(&host.home(), ECHO), ProgramMode::Stdio).expect("it starts");
    host.hang_up();
    let mut rest = Vec::new();
    (&stream).read_to_end(&mut rest).expect("the end comes");
    let ending = stream.ending(Duration::from_secs(10)).expect("it ended");
    assert!(ending.broken.is_some() && ending.status.is_none(), "{ending:?}");
}
