//! Toy rank that trains nothing: it implements the protocol of a worker, and its weights are a function of
//! its steps alone.
//!
//! Ranks meet after every step in shared memory, so that they stop at the same step.

use dtrain_protocol::{
    Assignment, Event, Failure, FileEntry, Order, PhaseTimes, Rank, RankTransport, SavedFile, StepFigures,
    StepId, StopReason, StoredSlice, Tensor, TensorKind, checkpoint, frame, shuffle::splitmix64,
};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Number of weights of one rank.
const WIDTH: usize = 64;

/// Name of a file with the failure of the toy, and the step after which it fails. It is read once: the next
/// attempt does not fail.
pub(crate) const SABOTAGE: &str = "sabotage";

/// Name of a file with the path of a control group with little memory.
pub(crate) const GROUP: &str = "group";

static STOP: AtomicBool = AtomicBool::new(false);

/// Pipe for events.
static CHANNEL: OnceLock<File> = OnceLock::new();

pub(crate) fn run(channel: File) -> ExitCode {
    CHANNEL.set(channel).expect("set once");
    println!("a library prints this");
    let mut stdin = io::stdin();
    let assignment: Assignment = frame::read(&mut stdin).expect("an assignment");
    let (peers, told) = mpsc::channel();
    thread::spawn(move || {
        loop {
            match frame::read(&mut io::stdin()) {
                Ok(Order::Stop) => STOP.store(true, Ordering::SeqCst),
                Ok(Order::Peers(addresses)) => drop(peers.send(addresses)),
                Err(_) => std::process::exit(3),
            }
        }
    });
    if let RankTransport::Tls { bind, identity } = &assignment.link {
        assert!(identity.key.contains("PRIVATE KEY") && identity.certificate.contains("CERTIFICATE"));
        say(&Event::Listening(format!("{bind}:{}", 9000 + assignment.rank.0)));
        let addresses = told.recv().expect("the agent relays addresses");
        let expected: Vec<_> = (0..assignment.arrangement.layout.world())
            .map(|rank| format!("{bind}:{}", 9000 + rank))
            .collect();
        assert_eq!(addresses, expected);
    }
    match train(&assignment) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&Event::Failed(failure));
            ExitCode::FAILURE
        }
    }
}

fn train(a: &Assignment) -> Result<(), Failure> {
    let (mut step, mut weights) = (0, vec![0.0f32; WIDTH]);
    if let Some(point) = &a.resume {
        let detail = |detail: String| Failure::CorruptCheckpoint { folder: point.folder.clone(), detail };
        let bytes =
            fs::read(point.folder.join(file_name(a.rank))).map_err(|error| detail(error.to_string()))?;
        let manifest =
            fs::read(point.folder.join("manifest.json")).map_err(|error| detail(error.to_string()))?;
        let manifest: dtrain_protocol::Manifest =
            serde_json::from_slice(&manifest).map_err(|error| detail(error.to_string()))?;
        let entry =
            manifest.files.iter().find(|file| file.name == file_name(a.rank)).expect("every rank saved");
        if entry.chunks != [blake3::hash(&bytes).to_hex().to_string()] {
            return Err(detail(format!("{}: chunk 0", entry.name)));
        }
        weights = bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        step = point.step.0;
    }
    let meeting = match &a.link {
        RankTransport::SharedMemory { descriptor, .. } => {
            let path = format!("/proc/self/fd/{descriptor}");
            Some(OpenOptions::new().read(true).write(true).open(path).expect("the mapping is inherited"))
        }
        RankTransport::Alone | RankTransport::Tls { .. } => None,
    };
    say(&Event::Ready {
        notice: None,
        step: StepId(step),
        parameters: WIDTH as u64,
        device: "toy".into(),
        train_samples: 1,
        valid_samples: 1,
        data_fingerprint: "toy".into(),
    });
    let last = a.until.steps.expect("the toy stops by steps").0;
    while step < last {
        step += 1;
        for (index, weight) in weights.iter_mut().enumerate() {
            let noise =
                splitmix64(splitmix64(a.training.seed, step), u64::from(a.rank.0) << 32 | index as u64)
                    as u32;
            *weight = *weight * 0.999 + noise as f32;
        }
        thread::sleep(Duration::from_secs_f64(a.training.learning_rate));
        let stop = meet(meeting.as_ref(), a, step)?;
        sabotage(a, step)?;
        say(&Event::Step(figures(step)));
        if stop || step == last || step % a.save_every == 0 {
            save(a, step, &weights);
        }
        if stop && step < last {
            say(&Event::Finished { step: StepId(step), reason: StopReason::Ordered });
            return Ok(());
        }
    }
    say(&Event::Finished { step: StepId(step), reason: StopReason::Complete });
    Ok(())
}

/// Waits until all ranks are at `step`; returns `true` if one of them was asked to stop.
fn meet(meeting: Option<&File>, a: &Assignment, step: u64) -> Result<bool, Failure> {
    let mine = u64::from(STOP.load(Ordering::SeqCst));
    let Some(meeting) = meeting else { return Ok(mine == 1) };
    let place = |rank: u32| u64::from(rank) * 64 + step % 2 * 16;
    let write = |at: u64, value: u64| meeting.write_all_at(&value.to_le_bytes(), at).expect("shared memory");
    let read = |at: u64| {
        let mut bytes = [0; 8];
        meeting.read_exact_at(&mut bytes, at).expect("shared memory");
        u64::from_le_bytes(bytes)
    };
    write(place(a.rank.0) + 8, mine);
    write(place(a.rank.0), step);
    let until = Instant::now() + Duration::from_secs(5);
    let mut stop = false;
    for peer in 0..a.arrangement.layout.world() {
        while read(place(peer)) != step {
            if Instant::now() > until {
                let detail = format!("silent at step {step}");
                return Err(Failure::PeerLost { peer: Some(Rank(peer)), detail });
            }
            thread::sleep(Duration::from_micros(200));
        }
        stop |= read(place(peer) + 8) == 1;
    }
    Ok(stop)
}

/// Fails as the sabotage file says, if it names this step; the last rank does it.
fn sabotage(a: &Assignment, step: u64) -> Result<(), Failure> {
    let path = a.data_root.join(SABOTAGE);
    if a.rank.0 + 1 != a.arrangement.layout.world() {
        return Ok(());
    }
    let Ok(text) = fs::read_to_string(&path) else { return Ok(()) };
    let (kind, at) = text.split_once(' ').expect("kind and step");
    if at.parse::<u64>().expect("a step") != step {
        return Ok(());
    }
    fs::remove_file(&path).expect("read once");
    match kind {
        "memory" => Err(Failure::OutOfMemory { detail: "8 GiB".into() }),
        "nan" => Err(Failure::NotFinite { step: StepId(step), figure: "loss".into() }),
        "exit" => std::process::exit(9),
        "hang" => {
            thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        "hog" => hog(a),
        "garble" => {
            channel().write_all(&[7; 64]).expect("a pipe");
            thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        other => panic!("no such sabotage: {other}"),
    }
}

/// Allocates more memory than the control group of the test allows.
fn hog(a: &Assignment) -> ! {
    let group = fs::read_to_string(a.data_root.join(GROUP)).expect("the test made one");
    fs::write(Path::new(group.trim()).join("cgroup.procs"), std::process::id().to_string())
        .expect("we are root");
    // The agent reads the limits of its ranks four times per second.
    thread::sleep(Duration::from_secs(3));
    let mut held = Vec::new();
    loop {
        held.push(vec![1u8; 1 << 20]);
        thread::sleep(Duration::from_millis(2));
    }
}

fn save(a: &Assignment, step: u64, weights: &[f32]) {
    let folder = a.checkpoints.join(format!("{}.partial", checkpoint::folder_name(StepId(step), a.attempt)));
    fs::create_dir_all(&folder).expect("room on disk");
    let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let mut file = File::create(folder.join(file_name(a.rank))).expect("room on disk");
    file.write_all(&bytes).and_then(|()| file.sync_all()).expect("room on disk");
    let begin = u64::from(a.rank.0) * WIDTH as u64;
    let name = file_name(a.rank);
    let piece = StoredSlice {
        file: name.clone(),
        key: "w".into(),
        sides: Vec::new(),
        begin,
        end: begin + WIDTH as u64,
    };
    let shape = vec![u64::from(a.arrangement.layout.world()) * WIDTH as u64];
    let tensor = Tensor { name: "w".into(), kind: TensorKind::Parameter, shape, pieces: vec![piece] };
    let chunks = vec![blake3::hash(&bytes).to_hex().to_string()];
    let file = FileEntry { name, bytes: bytes.len() as u64, chunks };
    let files = vec![SavedFile { file, tensors: vec![tensor] }];
    say(&Event::Saved { step: StepId(step), folder, files, stall_seconds: 0.0 });
}

fn file_name(rank: Rank) -> String {
    format!("rank-{:05}.bin", rank.0)
}

/// Returns the contents of a checkpoint, rank by rank.
pub(crate) fn state(folder: &Path, world: u32) -> Vec<u8> {
    let read = |rank| fs::read(folder.join(file_name(Rank(rank)))).expect("every rank saved");
    (0..world).flat_map(read).collect()
}

fn figures(step: u64) -> StepFigures {
    StepFigures {
        step: StepId(step),
        loss: 1.0 / step as f64,
        gradient_norm: Some(1.0),
        learning_rate: 1e-3,
        elapsed: None,
        noise: None,
        tokens: 8,
        times: PhaseTimes::default(),
        memory_bytes: 1 << 20,
        sent_bytes: 0,
        held: dtrain_protocol::ResidentBytes::default(),
    }
}

fn channel() -> &'static File {
    CHANNEL.get().expect("taken at the start")
}

fn say(event: &Event) {
    frame::write(&mut channel(), event).expect("the agent listens");
}
