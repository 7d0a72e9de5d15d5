//! Benchmark: collectives between two processes of this machine, compared with Open MPI and Gloo.
//!
//! `cargo bench --workspace --bench collectives [-- seconds=1]` starts itself twice for shared memory and
//! twice for mutual TLS over loopback, then the peers, one after the other, and prints medians. All-reduce,
//! reduce-scatter and all-gather of 4 B to 256 MB of f32, where the length is that of the whole buffer;
//! `seconds` are spent on each line. Run it on an idle machine.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

#[path = "../../tests/benches/shared/measured.rs"]
mod measured;

use dtrain_protocol::{
    AttemptId, Rank, RankTransport, TlsIdentity, TrialId, WaitLimits, shared_memory_layout,
};
use dtrain_worker::comm::{CommError, ProcessGroup, RankId, WaitPolicy, join};
use measured::{Better, Row};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

/// Buffer lengths that are measured, in f32 values.
const LENGTHS: [usize; 8] = [1, 16, 256, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];

const RANKS: u32 = 2;

/// Seconds of each call, by operation and bytes.
type Times = BTreeMap<(String, u64), Vec<f64>>;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [first, rank, seconds] = words.as_slice()
        && first == "rank"
    {
        return be_a_rank(rank.parse().expect("a rank"), seconds.parse().expect("seconds"));
    }
    let said = words.iter().find_map(|word| word.strip_prefix("seconds="));
    let seconds: f64 = said.map_or(1.0, |text| text.parse().expect("a number follows the sign"));
    let file = rustix::fs::memfd_create("bench", rustix::fs::MemfdFlags::empty()).expect("memory");
    rustix::fs::ftruncate(&file, shared_memory_layout::mapping_bytes(RANKS)).expect("length");
    let shared = RankTransport::SharedMemory {
        descriptor: file.as_raw_fd(),
        bytes: shared_memory_layout::mapping_bytes(RANKS),
    };
    let shared = ours("shared memory", &vec![shared; RANKS as usize], seconds);
    let tls = ours("mutual TLS", &tls(), seconds);
    let mpi = open_mpi(seconds);
    let gloo = gloo(seconds);
    rows("shared memory", &shared, "Open MPI", &mpi, MPI_NOTE);
    rows("mutual TLS over loopback", &tls, "Gloo", &gloo, GLOO_NOTE);
}

/// Condition of the Open MPI figures that a reader must know.
const MPI_NOTE: &str = "Open MPI is called from C, started with `mpirun --oversubscribe --bind-to core` and otherwise with its \
                        defaults. dtrain works in place; Open MPI's reduce-scatter has a second buffer. Each value is the \
                        median of at least five calls.";

/// Condition of the Gloo figures that a reader must know.
const GLOO_NOTE: &str = "Gloo is called from Python through torch.distributed, and sends over plain TCP. Each value is the median of \
                         at least five calls.";

/// Prints the rows of one transport next to those of a peer library that uses such a transport too; Gloo has TCP
/// only. `said` is the note of rows that have both values.
fn rows(link: &str, ours: &Times, name: &'static str, theirs: &Result<Times, String>, said: &str) {
    for ((operation, bytes), seconds) in ours {
        // One value cannot be divided among the ranks: the call would send nothing.
        if operation != "all-reduce" && *bytes < 4 * u64::from(RANKS) {
            continue;
        }
        let micro = |seconds: &Vec<f64>| vec![1e6 * median(seconds)];
        let found = theirs.as_ref().ok().and_then(|theirs| theirs.get(&(operation.clone(), *bytes)));
        let note = match theirs {
            Err(reason) => reason.clone(),
            Ok(_) if found.is_none() => format!("{name} has no {operation}"),
            Ok(_) => said.to_owned(),
        };
        Row {
            section: "Collectives",
            what: format!("{operation} of {}, {RANKS} processes, {link}", size(*bytes)),
            unit: "µs",
            better: Better::Lower,
            ours: micro(seconds),
            peer: Some((name, found.map(micro).unwrap_or_default())),
            note,
        }
        .print();
    }
}

/// Formats a number of bytes, such as `64 KiB`.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Returns the times that rank 0 of two processes of this program measures.
fn ours(name: &str, links: &[RankTransport], seconds: f64) -> Times {
    let program = std::env::current_exe().expect("a program knows where it is");
    let mut ranks: Vec<(Child, ChildStdin)> = links
        .iter()
        .enumerate()
        .map(|(rank, link)| {
            let mut command = Command::new(&program);
            command.args(["rank".to_owned(), rank.to_string(), seconds.to_string()]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
            let mut to = child.stdin.take().expect("it is piped");
            writeln!(to, "{}", serde_json::to_string(link).expect("a link is JSON")).expect("it reads");
            (child, to)
        })
        .collect();
    let mut from: Vec<_> = ranks
        .iter_mut()
        .map(|(child, _)| BufReader::new(child.stdout.take().expect("it is piped")).lines())
        .collect();
    if matches!(links[0], RankTransport::Tls { .. }) {
        let addresses: Vec<String> =
            from.iter_mut().map(|lines| lines.next().expect("its address").expect("UTF-8")).collect();
        for (_, to) in &mut ranks {
            writeln!(to, "{}", serde_json::to_string(&addresses).expect("JSON")).expect("it reads");
        }
    }
    let times = read(name, from.swap_remove(0).map_while(Result::ok));
    for (mut child, _) in ranks {
        assert!(child.wait().expect("it is ours").success(), "{name}: a rank failed");
    }
    times
}

/// Parses the times from lines of JSON, and prints each as it comes.
fn read(name: &str, lines: impl Iterator<Item = String>) -> Times {
    let mut times = Times::new();
    for line in lines {
        let value: Value = serde_json::from_str(&line).expect("a line of JSON");
        let operation = value["operation"].as_str().expect("an operation").to_owned();
        let bytes = value["bytes"].as_u64().expect("bytes");
        let seconds: Vec<f64> = serde_json::from_value(value["seconds"].clone()).expect("seconds");
        println!("{name:14} {operation:15} {:>8} {:>12.1} µs", size(bytes), 1e6 * median(&seconds));
        times.insert((operation, bytes), seconds);
    }
    times
}

/// Runs one rank: reads its transport from the first line of its input; rank 0 prints its measurements.
fn be_a_rank(rank: u32, seconds: f64) {
    let mut lines = std::io::stdin().lines().map_while(Result::ok);
    let link: RankTransport = serde_json::from_str(&lines.next().expect("a link")).expect("a link");
    let seat =
        RankId { trial: TrialId("bench".into()), attempt: AttemptId(1), rank: Rank(rank), ranks: RANKS };
    let announce = |address: &str| -> Result<Vec<String>, CommError> {
        println!("{address}");
        Ok(serde_json::from_str(&lines.next().expect("addresses")).expect("addresses"))
    };
    let waits = WaitPolicy::new(WaitLimits::for_steps_of(None));
    let mut group = join(&link, &seat, &waits, announce).expect("the other is there");
    for length in LENGTHS {
        let mut values = vec![0.0f32; length];
        type Operation = fn(&mut dyn ProcessGroup, &mut [f32]);
        let operations: [(&str, Operation); 3] = [
            ("all-reduce", |group, values| group.all_reduce(values).expect("the other is there")),
            ("reduce-scatter", |group, values| {
                group.reduce_scatter(values).expect("the other is there");
            }),
            ("all-gather", |group, values| group.all_gather(values).expect("the other is there")),
        ];
        for (name, operation) in operations {
            let times = repeat(&mut *group, &mut values, seconds, operation);
            if rank == 0 {
                println!("{}", json!({ "operation": name, "bytes": 4 * length, "seconds": times }));
            }
        }
    }
}

/// Measures the seconds of each call. Rank 0 decides the number of calls from the first ones, for all
/// ranks.
fn repeat(
    group: &mut dyn ProcessGroup,
    values: &mut [f32],
    seconds: f64,
    operation: fn(&mut dyn ProcessGroup, &mut [f32]),
) -> Vec<f64> {
    let mut once = |group: &mut dyn ProcessGroup| {
        let begun = Instant::now();
        operation(group, values);
        begun.elapsed().as_secs_f64()
    };
    let warm = (0..3).map(|_| once(group)).fold(f64::INFINITY, f64::min).max(1e-7);
    let mut repeats = [(seconds / warm).clamp(5.0, 20_000.0) as f32];
    group.broadcast(0, &mut repeats).expect("the other is there");
    (0..repeats[0] as usize).map(|_| once(group)).collect()
}

/// Returns the transports of ranks that reach each other by mutual TLS.
fn tls() -> Vec<RankTransport> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let link = |rank| {
        let key = KeyPair::generate().expect("a key");
        let name = TlsIdentity::name(&TrialId("bench".into()), AttemptId(1), Rank(rank));
        let params = CertificateParams::new(vec![name]).expect("a valid name");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
        let identity = TlsIdentity { authority: authority.clone(), certificate, key: key.serialize_pem() };
        RankTransport::Tls { bind: "127.0.0.1".into(), identity }
    };
    (0..RANKS).map(link).collect()
}

/// Returns the path of a file in this folder, or below `target`.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches").join(name)
}

/// Runs a peer library's benchmark and parses its lines of JSON; `Err` says why there are none.
fn peer(name: &str, command: &mut Command) -> Result<Times, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {program}: {error}"))?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{name}: {}", error.lines().last().unwrap_or("it failed")));
    }
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(read(name, printed.lines().filter(|line| line.starts_with('{')).map(str::to_owned)))
}

fn open_mpi(seconds: f64) -> Result<Times, String> {
    let program = std::env::temp_dir().join(format!("dtrain-collectives-mpi-{}", std::process::id()));
    let compiled =
        Command::new("mpicc").args(["-O2", "-o"]).arg(&program).arg(place("collectives_mpi.c")).output();
    let compiled = compiled.map_err(|error| format!("Open MPI: mpicc: {error}"))?;
    if !compiled.status.success() {
        return Err(format!("Open MPI: {}", String::from_utf8_lossy(&compiled.stderr)));
    }
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "core", "-n", &RANKS.to_string()]);
    let times = peer("Open MPI", command.arg(&program).arg(seconds.to_string()));
    std::fs::remove_file(&program).ok();
    times
}

fn gloo(seconds: f64) -> Result<Times, String> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/foreign/bin/python");
    if !python.exists() {
        return Err(format!("Gloo: there is no {}; `tests/measure` makes it", python.display()));
    }
    peer("Gloo", Command::new(python).arg(place("collectives_gloo.py")).arg(seconds.to_string()))
}
