use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A program that prints the digest in the file `answer`, and otherwise does as told.
const PROGRAM: &str = r#"#!/bin/sh
case "$2" in
--digest) cat "$HOME/answer" ;;
--stdio) echo "$1 $2" >&2; cat; exit 7 ;;
esac
"#;

fn program(home: &Path) -> (PathBuf, ProgramDigest) {
    let path = home.join("program");
    fs::write(&path, PROGRAM).expect("written");
    let digest = ProgramDigest::of(&path).expect("readable");
    fs::write(home.join("answer"), digest.to_string()).expect("written");
    (path, digest)
}

#[test]
fn this_machine_tells_its_facts() {
    let output = LocalShell::default().run(FACTS).expect("there is a shell");
    assert_eq!(output.status, 0, "{}", output.stderr);
    let cores = output.stdout.lines().find_map(|line| line.strip_prefix("cores=")).expect("a line");
    assert!(cores.parse::<u32>().expect("a number") >= 1);
}

#[test]
fn a_program_is_placed_once_and_runs() {
    let home = tempfile::tempdir().expect("a folder");
    let (path, digest) = program(home.path());
    let mut host = LocalShell::at(home.path());
    let placed = host.upload(&path, &digest).expect("there is room");
    assert!(
        matches!(placed, UploadOutcome::Sent { bytes, .. } if bytes == PROGRAM.len() as u64),
        "{placed:?}"
    );
    assert_eq!(host.upload(&path, &digest).expect("it is there"), UploadOutcome::AlreadyThere);
    let folder = home.path().join(".cache/dtrain/bin").join(digest.to_string());
    let files: Vec<_> =
        fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("a file")).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&files[0].path())), (0o700, 0o700));

    let mut stream = host.open(&digest, ProgramMode::Stdio).expect("it starts");
    stream.write_all(b"hello").expect("it reads");
    assert_eq!(stream.ending(Duration::from_millis(1)), None);
    stream.end_input().expect("it is open");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("it writes");
    assert_eq!(said, "hello");
    let ending = stream.ending(PATIENCE).expect("it ended");
    let expected =
        ProgramExit { status: Some(7), stderr: "agent --stdio\n".into(), ..ProgramExit::default() };
    assert_eq!(ending, expected);
}

#[test]
fn trials_that_start_at_once_send_the_program_once() {
    let home = tempfile::tempdir().expect("a folder");
    let (path, digest) = program(home.path());
    let put = || LocalShell::at(home.path()).upload(&path, &digest).expect("there is room");
    let placed = std::thread::scope(|scope| {
        let uploads = [(); 4].map(|()| scope.spawn(put));
        uploads.map(|upload| upload.join().expect("no panic"))
    });
    let sent = placed.iter().filter(|placed| matches!(placed, UploadOutcome::Sent { .. })).count();
    assert_eq!(sent, 1, "{placed:?}");
}

/// A program whose content changed and not its length, as after a loss of power, is found and replaced.
#[test]
fn a_program_that_was_damaged_later_is_put_again() {
    let home = tempfile::tempdir().expect("a folder");
    let (path, digest) = program(home.path());
    let mut host = LocalShell::at(home.path());
    host.upload(&path, &digest).expect("there is room");
    let placed = home.path().join(".cache/dtrain/bin").join(digest.to_string()).join("dtrain");
    for damage in [PROGRAM.replace("cat \"$HOME/answer\"", "echo another #1   "), "\0".repeat(PROGRAM.len())]
    {
        assert_eq!(damage.len(), PROGRAM.len());
        fs::write(&placed, damage).expect("ours");
        let facts = host.run(FACTS).expect("there is a shell").stdout;
        assert!(facts.contains(&format!("damaged_programs= {digest}\n")), "{facts}");
        let put = host.upload(&path, &digest).expect("there is room");
        assert!(matches!(put, UploadOutcome::Sent { was_damaged: true, .. }), "{put:?}");
        assert_eq!(fs::read_to_string(&placed).expect("it is there"), PROGRAM);
        assert_eq!(host.upload(&path, &digest).expect("it is there"), UploadOutcome::AlreadyThere);
    }
}

#[test]
fn a_program_that_is_not_what_it_should_be_is_removed() {
    let home = tempfile::tempdir().expect("a folder");
    let (path, digest) = program(home.path());
    let mut host = LocalShell::at(home.path());
    fs::write(home.path().join("answer"), "another").expect("written");
    let refused = host.upload(&path, &digest).expect_err("it is another");
    assert!(refused.to_string().contains("its digest is another"), "{refused}");
    fs::write(&path, "\x7fELF of another machine").expect("written");
    let refused = host.upload(&path, &digest).expect_err("it does not run");
    assert!(matches!(refused, TransportError::Unfit { .. }), "{refused:?}");
    let folder = home.path().join(".cache/dtrain/bin").join(digest.to_string());
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0);
}

#[test]
fn a_program_that_ended_by_a_signal_or_never_was_tells_so() {
    let home = tempfile::tempdir().expect("a folder");
    let (path, digest) = program(home.path());
    let mut host = LocalShell::at(home.path());
    let stream = host.open(&digest, ProgramMode::Stdio).expect("a shell starts");
    let ending = stream.ending(PATIENCE).expect("it ended");
    assert!(ending.status == Some(127) && ending.stderr.contains("not found"), "{ending:?}");
    fs::write(&path, "#!/bin/sh\nkill -9 $$\n").expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("ours");
    let folder = home.path().join(".cache/dtrain/bin").join(digest.to_string());
    fs::create_dir_all(&folder).expect("a folder");
    // A child process may still have the written file open, and an open file cannot be executed.
    let copied = std::process::Command::new("cp").args([&path, &folder.join("dtrain")]).status();
    assert!(copied.expect("`cp` is everywhere").success());
    let ending =
        host.open(&digest, ProgramMode::Stdio).expect("it starts").ending(PATIENCE).expect("it ended");
    assert_eq!((ending.status, ending.signal.as_deref()), (None, Some("9")));
}

#[test]
fn a_stream_is_dropped_at_once_while_its_program_lives() {
    let mut host = LocalShell::default();
    let stream = host.start(&CommandLine::shell()).expect("a shell starts");
    // What would wait for the program waits for a minute.
    (&stream).write_all(b"echo $$\nexec sleep 60\n").expect("it reads");
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).expect("it says its number");
    let program: i32 = line.trim().parse().expect("a number");
    drop(stream);
    let program = Pid::from_raw(program).expect("a process");
    kill_process(program, Signal::KILL).expect("the program lives on");
}
