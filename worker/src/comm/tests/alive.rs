//! Peers that compute for long, that hang, and whose process is frozen.

use super::*;
use dtrain_protocol::RankTransport;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;

/// Transports between processes.
const LINKS: [Kind; 2] = [Kind::SharedMemory, Kind::Tls];

/// Environment variable with the transport to the other process of this test.
const LINK: &str = "DTRAIN_TEST_LINK";

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_rank_that_computes_for_longer_than_the_silence_is_waited_for() {
    for kind in LINKS {
        // Several pieces, which do not all fit into the buffers.
        let length = 1 << 20;
        let results = on_all_that_work(kind, 2, limits(SHORT * 2, MINUTE), |mut group, _| {
            let (own, mut theirs) = (values(group.rank(), length), [0.0]);
            if group.rank() == 1 {
                // A message that the other rank does not read before its own is taken.
                group.exchange(Some(Outgoing { to: 0, values: &own[..1] }), None)?;
                std::thread::sleep(SHORT * 6);
                let mut room = vec![0.0; length];
                group.exchange(None, Some(Incoming { from: 0, values: &mut room }))?;
                assert!(bits(&room) == bits(&values(0, length)), "{kind:?}");
                std::thread::sleep(SHORT * 6);
            } else {
                group.exchange(Some(Outgoing { to: 1, values: &own }), None)?;
                group.exchange(None, Some(Incoming { from: 1, values: &mut theirs }))?;
                assert_eq!(theirs[0].to_bits(), values(1, 1)[0].to_bits(), "{kind:?}");
            }
            group.all_reduce(&mut [1.0; 8])
        });
        for result in results {
            result.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        }
    }
}

#[test]
fn a_rank_that_is_alive_and_does_nothing_is_given_up_at_the_second_limit() {
    type Operation = fn(&mut dyn ProcessGroup) -> Result<(), CommError>;
    let operations: [Operation; 2] = [
        |group| group.all_reduce(&mut [0.0; 8]),
        |group| group.exchange(None, Some(Incoming { from: 1, values: &mut [0.0; 8] })),
    ];
    for (kind, operation) in KINDS.into_iter().flat_map(|kind| operations.map(|operation| (kind, operation)))
    {
        let is_over = Barrier::new(2);
        let results = on_all_that_work(kind, 2, limits(SHORT, SHORT * 3), |mut group, _| {
            let result = if group.rank() == 0 { operation(&mut *group) } else { Ok(()) };
            // The other rank keeps its group, and lives, until then.
            is_over.wait();
            result
        });
        let error = results[0].as_ref().expect_err("the other never comes");
        assert!(matches!(error, CommError::Idle { peer: Rank(1), .. }), "{kind:?}: {error}");
        let plan = if kind == Kind::Threads { "" } else { "; the plan expects a step of 2.1 s" };
        let words = error.to_string();
        assert!(
            words.starts_with("rank 1 is alive but has not joined the ") && words.ends_with(plan),
            "{words}"
        );
    }
}

#[test]
fn a_rank_that_works_is_waited_for_also_by_those_who_wait_for_one_that_waits_for_it() {
    for kind in LINKS {
        let results = on_all_that_work(kind, 3, limits(SHORT, SHORT * 3), |mut group, progress| {
            let mut room = [0.0; 8];
            if group.rank() == 2 {
                let begun = std::time::Instant::now();
                while begun.elapsed() < SHORT * 8 {
                    std::thread::sleep(SHORT / 10);
                    progress.advance();
                }
            } else {
                group.exchange(None, Some(Incoming { from: group.rank() + 1, values: &mut room }))?;
            }
            if group.rank() > 0 {
                group.exchange(Some(Outgoing { to: group.rank() - 1, values: &room }), None)?;
            }
            // No rank leaves before the last one has its data.
            group.barrier()
        });
        for result in results {
            result.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        }
    }
}

#[test]
fn a_process_that_stands_still_is_lost_after_the_silence() {
    for kind in LINKS {
        let (mut group, mut other) = with_a_process(kind, limits(SHORT * 6, MINUTE));
        group.barrier().expect("it is there");
        let process = Pid::from_child(&other);
        kill_process(process, Signal::STOP).expect("it lives");
        let error = group.all_reduce(&mut [0.0; 8]).expect_err("it stands still");
        assert!(matches!(error, CommError::Silent { peer: Rank(1), .. }), "{kind:?}: {error}");
        assert!(error.to_string().starts_with("rank 1 sent no heartbeat for "), "{error}");
        other.kill().expect("it lives");
        other.wait().expect("killed");
    }
}

#[test]
fn a_process_that_is_killed_is_lost_at_once() {
    for kind in LINKS {
        let (mut group, mut other) = with_a_process(kind, limits(MINUTE, MINUTE));
        group.barrier().expect("it is there");
        other.kill().expect("it lives");
        let error = group.all_reduce(&mut [0.0; 8]).expect_err("it is gone");
        assert!(matches!(error, CommError::PeerLost { peer: Rank(1), .. }), "{kind:?}: {error}");
        other.wait().expect("killed");
    }
}

/// Starts rank 0 of two; the other is a process that joins one barrier, then lives until its input ends.
fn with_a_process(kind: Kind, limits: WaitLimits) -> (Box<dyn ProcessGroup>, Child) {
    let (authority, waits) = (Authority::new(), WaitPolicy::new(limits));
    let file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::empty()).expect("memory"));
    file.set_len(shared_memory_layout::mapping_bytes(2)).expect("length");
    let link = match kind {
        Kind::Tls => RankTransport::Tls { bind: "127.0.0.1".into(), identity: authority.of(&seat(1, 2)) },
        _ => RankTransport::SharedMemory {
            descriptor: file.as_raw_fd(),
            bytes: shared_memory_layout::mapping_bytes(2),
        },
    };
    let mut other = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "--nocapture", "comm::tests::alive::be_the_other_process"])
        .env(LINK, serde_json::to_string(&(link, limits)).expect("numbers and texts"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    if kind != Kind::Tls {
        let group = SharedMemory::open(&file, shared_memory_layout::mapping_bytes(2), &seat(0, 2), &waits);
        return (Box::new(group.expect("joined")), other);
    }
    let lines = BufReader::new(other.stdout.take().expect("a pipe")).lines();
    let mut addresses =
        lines.map_while(Result::ok).filter_map(|line| Some(line.split_once("listening ")?.1.to_owned()));
    let address = addresses.next().expect("it listens");
    let (listener, own) = Listener::bind("127.0.0.1").expect("bound");
    let group = listener.connect(&seat(0, 2), &[own, address], &authority.of(&seat(0, 2)), &waits);
    (Box::new(group.expect("joined")), other)
}

#[test]
#[ignore = "not a test: other tests start it as a process"]
fn be_the_other_process() {
    let told = std::env::var(LINK).expect("a link");
    let (link, limits): (RankTransport, WaitLimits) = serde_json::from_str(&told).expect("what was written");
    let announce = |address: &str| {
        println!("listening {address}");
        Ok(vec![String::new(), address.to_owned()])
    };
    let mut group = join(&link, &seat(1, 2), &WaitPolicy::new(limits), announce).expect("joined");
    group.barrier().expect("it is there");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("a pipe");
}
