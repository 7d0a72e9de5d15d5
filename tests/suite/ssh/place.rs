//! Copying of executables to hosts.

use super::server::Server;
use dtrain_recipes::Host;
use dtrain_runner::transport::{OpenSsh, ProgramDigest, Ssh, Transport, TransportError, UploadOutcome};
use dtrain_skip::skip;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A shell program of `bytes` bytes that names itself by a file of its home.
fn program(server: &Server, home: &Path, bytes: usize) -> (PathBuf, ProgramDigest) {
    let mut text = "#!/bin/sh\n[ \"$2\" = --digest ] && exec cat \"$HOME/answer\"\nexit 3\n".to_owned();
    while text.len() < bytes {
        text.push_str("# what follows is never read\n");
    }
    let path = server.path("program");
    fs::write(&path, text).expect("written");
    let digest = ProgramDigest::of(&path).expect("readable");
    fs::write(home.join("answer"), digest.to_string()).expect("written");
    (path, digest)
}

fn placed(home: &Path) -> usize {
    let folders = fs::read_dir(home.join(".cache/dtrain/bin")).expect("a folder");
    folders.map(|folder| fs::read_dir(folder.expect("a folder").path()).expect("a folder").count()).sum()
}

#[test]
fn a_program_is_sent_once() {
    let Some(server) = Server::start() else { return };
    let (path, digest) = program(&server, &server.home(), 64 << 20);
    let mut ssh = Ssh::connect(&server.good()).expect("it connects");
    let UploadOutcome::Sent { bytes, seconds, .. } = ssh.upload(&path, &digest).expect("there is room")
    else {
        panic!("it was not there")
    };
    println!("{bytes} bytes in {seconds:.2} s");
    assert_eq!(ssh.upload(&path, &digest).expect("it is there"), UploadOutcome::AlreadyThere);
    assert_eq!(placed(&server.home()), 1);
    let user = server.user(&server.alias("gpu"));
    let host = Host { address: "gpu".into(), port: 22, user: None, via: None };
    let mut ssh = OpenSsh::connect(&host, &user).expect("`ssh` connects");
    assert_eq!(ssh.upload(&path, &digest).expect("it is there"), UploadOutcome::AlreadyThere);
    fs::remove_dir_all(server.home().join(".cache")).expect("it is there");
    let sent = ssh.upload(&path, &digest).expect("there is room");
    assert!(matches!(sent, UploadOutcome::Sent { .. }), "{sent:?}");
}

#[test]
fn a_program_that_is_cut_short_on_its_way_is_put_again() {
    let Some(server) = Server::start() else { return };
    let (path, digest) = program(&server, &server.home(), 1 << 20);
    let place = server.home().join(".cache/dtrain/bin").join(digest.to_string());
    fs::create_dir_all(&place).expect("a folder");
    fs::write(place.join("dtrain"), "#!/bin/sh\n").expect("written");
    let mut ssh = Ssh::connect(&server.good()).expect("it connects");
    assert!(matches!(ssh.upload(&path, &digest), Ok(UploadOutcome::Sent { .. })));
    assert_eq!(fs::read(place.join("dtrain")).expect("it is there"), fs::read(&path).expect("ours"));
}

#[test]
fn a_host_that_takes_only_a_part_keeps_none_and_says_what_it_found() {
    // 2048 blocks of 512 bytes: a file grows to 1 MiB and no further, whatever is free.
    let Some(server) = Server::with("", "ulimit -f 2048") else { return };
    let (path, digest) = program(&server, &server.home(), 4 << 20);
    let mut ssh = Ssh::connect(&server.good()).expect("it connects");
    match ssh.upload(&path, &digest) {
        Err(TransportError::Damaged { sent, found, .. }) => {
            assert!(sent.0 >= 4 << 20 && found.0 == 1 << 20, "{sent} {found}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(placed(&server.home()), 0);
}

/// A small file system, gone with the test.
struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

#[test]
fn a_full_disk_is_told_before_anything_is_sent() {
    let Some(server) = Server::start() else { return };
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(server.home()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        skip("it needs the right to mount a tmpfs");
        return;
    }
    let disk = Disk(server.home());
    let (path, digest) = program(&server, &server.home(), 4 << 20);
    let mut ssh = Ssh::connect(&server.good()).expect("it connects");
    match ssh.upload(&path, &digest) {
        Err(TransportError::Room { wanted, found, .. }) => {
            assert!(wanted.0 >= 4 << 20 && found.0 < 1 << 20, "{wanted} {found}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(placed(&disk.0), 0);
}
