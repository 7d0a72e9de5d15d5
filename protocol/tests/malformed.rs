//! No bytes make a decoder panic, and none make it take much more memory than they have themselves.
//!
//! What is done with the bytes is that of the fuzz targets, see `tests/fuzz`.

#![expect(unsafe_code, reason = "the count of what is allocated stands before the allocator")]

#[path = "../../tests/fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is the whole of another crate too")]
mod decoders;

use dtrain_protocol::frame::{self, FrameError, MAX_IN_PIECES, MAX_PAYLOAD};
use dtrain_protocol::*;
use dtrain_recipes::{Optimizer, Schedule};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};
use std::alloc::{GlobalAlloc, Layout as Room, System};
use std::cell::Cell;
use std::path::PathBuf;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// Counts what each thread has allocated.
struct Counting;

fn count(change: impl Fn(usize) -> usize) {
    // A thread that is ending counts nothing any more.
    _ = LIVE.try_with(|live| {
        live.set(change(live.get()));
        PEAK.with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, room: Room) -> *mut u8 {
        count(|live| live.saturating_add(room.size()));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(room) }
    }

    unsafe fn dealloc(&self, at: *mut u8, room: Room) {
        count(|live| live.saturating_sub(room.size()));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(at, room) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes that live at once during `work`, beside those that did before.
fn peak(work: impl FnOnce()) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    work();
    PEAK.get().saturating_sub(before)
}

/// What a decoder may take: some room of its own, and so many bytes for each that came. Of JSON a number or a bracket may be one byte,
/// and a list that grows has twice the room it needs, beside what it had before.
fn fits(decode: fn(&[u8]), bytes: &[u8]) {
    fits_in(64, decode, bytes);
}

fn fits_in(for_each: usize, decode: fn(&[u8]), bytes: &[u8]) {
    const OWN: usize = 192 << 10;
    let taken = peak(|| decode(bytes));
    let most = OWN + for_each * bytes.len();
    assert!(taken <= most, "{taken} bytes were taken for {}, at most {most} are fine", bytes.len());
}

const ALL: [fn(&[u8]); 5] =
    [decoders::frames, decoders::messages, decoders::manifest, decoders::head, decoders::bundle];

fn assignment() -> Assignment {
    Assignment {
        trial: TrialId("01JTRIAL".into()),
        attempt: AttemptId(3),
        rank: Rank(1),
        data_root: "/data".into(),
        training: Hyperparameters {
            batch: 8,
            share: 0..8,
            micro_batch: 4,
            micro_batches: 2,
            optimizer: Optimizer { beta2: 0.99, weight_decay: 0.0, ..Optimizer::ADAMW },
            schedule_steps: 9,
            schedule: Schedule::Cosine,
            final_fraction: 0.1,
            clip: Some(1.0),
            ..Hyperparameters::plain()
        },
        until: RunUntil { steps: Some(StepId(9)), ..RunUntil::default() },
        step: vec![Action::Forward(Pass { micro: 0, chunk: 0 }), Action::UpdateWeights],
        link: RankTransport::Tls {
            bind: "10.0.0.1".into(),
            identity: TlsIdentity { authority: "a".into(), certificate: "b".into(), key: "c".into() },
        },
        waits: WaitLimits::for_steps_of(Some(2.1)),
        validate_every: 5,
        save_every: 10,
        checkpoints: "/checkpoints".into(),
        resume: Some(ResumePoint { folder: "/checkpoints/step-000000001.a1".into(), step: StepId(1) }),
        ..Assignment::example()
    }
}

/// Two files of one tensor in four pieces.
fn manifest() -> Manifest {
    let file = |rank| format!("rank-0000{rank}.safetensors");
    let piece = |rank, rows: std::ops::Range<u64>, begin, end| StoredSlice {
        file: file(rank),
        key: format!("w.{rank}.{begin}"),
        sides: vec![rows, 0..3],
        begin,
        end,
    };
    let pieces = vec![piece(0, 0..2, 0, 4), piece(0, 0..2, 4, 6), piece(1, 2..4, 0, 1), piece(1, 2..4, 1, 6)];
    let tensor = Tensor { name: "w".into(), kind: TensorKind::Parameter, shape: vec![4, 3], pieces };
    let entry = |rank| FileEntry { name: file(rank), bytes: 100, chunks: vec!["0".repeat(64)] };
    Manifest::new(&assignment(), StepId(2), "0.1.0", vec![tensor], vec![entry(0), entry(1)])
}

/// One message or file of each kind, all of them right.
fn samples() -> Vec<Value> {
    let Manifest { tensors, files, .. } = manifest();
    let saved = SavedFile { file: files[0].clone(), tensors };
    let step = StepFigures {
        step: StepId(4),
        loss: 1.5,
        gradient_norm: Some(0.5),
        learning_rate: 1e-3,
        elapsed: Some(0.5),
        noise: Some(GradientNoise { signal: 1.0, noise: 2.0 }),
        tokens: 64,
        times: PhaseTimes::default(),
        memory_bytes: 1 << 30,
        held: ResidentBytes::default(),
        sent_bytes: 12,
    };
    let event =
        Event::Saved { step: StepId(4), folder: PathBuf::from("/c"), files: vec![saved], stall_seconds: 0.1 };
    let stamped = |event| StampedEvent { attempt: AttemptId(3), rank: Rank(1), sequence: 9, at_ms: 1, event };
    let failed = Event::Failed(Failure::Command { code: None, signal: Some(9), last: vec!["oh".into()] });
    let value = |message: &dyn erased::Message| message.value();
    vec![
        value(&assignment()),
        value(&manifest()),
        value(&event),
        value(&stamped(Event::Step(step))),
        value(&stamped(failed)),
        value(&Order::Peers(vec!["10.0.0.1:7000".into()])),
        json!({ "w": { "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24] }, "__metadata__": { "a": "b" } }),
    ]
}

mod erased {
    /// Anything that can be written as JSON.
    pub(super) trait Message {
        fn value(&self) -> serde_json::Value;
    }

    impl<T: serde::Serialize> Message for T {
        fn value(&self) -> serde_json::Value {
            serde_json::to_value(self).expect("messages have string keys only")
        }
    }
}

/// Every place of a document, the deepest last.
fn places(value: &Value, here: String, all: &mut Vec<String>) {
    all.push(here.clone());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| places(item, format!("{here}/{i}"), all));
        }
        Value::Object(map) => map.iter().for_each(|(key, item)| places(item, format!("{here}/{key}"), all)),
        _ => {}
    }
}

/// What nobody expects in the place of anything.
fn strange() -> Vec<Value> {
    let deep = (0..120).fold(json!(1), |inner, _| json!([inner]));
    vec![
        json!(null),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(u32::MAX),
        json!(1e308),
        json!(0.5),
        json!(true),
        json!(""),
        json!("../../etc/passwd"),
        json!("\u{0}\u{1b}[2J"),
        json!("x".repeat(3000)),
        json!([]),
        json!({}),
        json!(vec![1; 3000]),
        json!([[0, u64::MAX], [1, 1]]),
        json!({ "start": 5, "end": 2 }),
        json!({ "start": 0, "end": u64::MAX }),
        json!({ "__metadata__": [[[]]] }),
        deep,
    ]
}

/// A file of the format of checkpoints with this table of contents.
fn headed(json: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json, &[0; 24]].concat()
}

/// All decoders read the bytes, as they are and where their own wrapping would have them.
fn read_by_all(bytes: &[u8]) {
    ALL.iter().for_each(|decode| fits(*decode, bytes));
    // Every key and value of a recipe knows where it stands; a recipe has a megabyte at most.
    fits_in(160, decoders::recipe, bytes);
    fits(decoders::frames, &decoders::framed(bytes));
    fits(decoders::head, &headed(bytes));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        read_by_all(&bytes);
    }

    #[test]
    fn messages_with_something_strange_in_them_are_refused(
        (sample, place, other) in (any::<Index>(), any::<Index>(), any::<Index>()),
        (thing, is_doubled) in (any::<Index>(), any::<bool>()),
    ) {
        let samples = samples();
        let mut message = sample.get(&samples).clone();
        for place in [place, other] {
            let mut all = Vec::new();
            places(&message, String::new(), &mut all);
            let target = message.pointer_mut(&all[place.index(all.len())]).expect("it was just found");
            match target {
                Value::Array(items) if is_doubled && !items.is_empty() => {
                    let again = thing.get(items.as_slice()).clone();
                    items.push(again);
                }
                target => *target = thing.get(&strange()).clone(),
            }
        }
        read_by_all(message.to_string().as_bytes());
    }

    #[test]
    fn messages_with_wrong_bytes_are_refused(
        sample in any::<Index>(),
        edits in prop::collection::vec((any::<Index>(), 0_usize..9, prop::collection::vec(any::<u8>(), 0..5)), 1..5),
    ) {
        let mut bytes = sample.get(&samples()).to_string().into_bytes();
        let mut stream = [decoders::framed(&bytes), decoders::framed(b"\"stop\""), decoders::framed(&bytes)].concat();
        for (at, removed, inserted) in edits {
            for bytes in [&mut bytes, &mut stream] {
                let begin = at.index(bytes.len() + 1);
                let end = (begin + removed).min(bytes.len());
                bytes.splice(begin..end, inserted.clone());
            }
        }
        read_by_all(&bytes);
        fits(decoders::frames, &stream);
    }

    #[test]
    fn whatever_length_is_announced_only_what_comes_has_room(length in any::<u32>(), rest in prop::collection::vec(any::<u8>(), 0..64)) {
        let bytes = [&length.to_le_bytes()[..], &rest].concat();
        let mut result = None;
        let taken = peak(|| result = Some(frame::read::<Value>(&mut bytes.as_slice())));
        assert!(taken <= 80 << 10, "{taken} bytes for {length} that were announced");
        let is_too_long = matches!(result, Some(Err(FrameError::TooLong(..))));
        prop_assert!(is_too_long == (length as usize > MAX_PAYLOAD && bytes.len() >= 8), "{result:?}");
        let file = [&u64::from(length).to_le_bytes()[..], &rest].concat();
        fits(decoders::head, &file);
    }
}

#[test]
fn the_samples_are_right() {
    let samples = samples();
    let text = |at: usize| samples[at].to_string().into_bytes();
    assert!(frame::read::<Assignment>(&mut decoders::framed(&text(0)).as_slice()).is_ok());
    let vouched = blake3::hash(&text(1)).to_hex();
    assert_eq!(Manifest::parse_committed(&text(1), vouched.as_bytes()), Ok(manifest()));
    assert!(frame::read::<Event>(&mut decoders::framed(&text(2)).as_slice()).is_ok());
    assert!(frame::read::<StampedEvent>(&mut decoders::framed(&text(3)).as_slice()).is_ok());
    let file = headed(&text(6));
    assert_eq!(checkpoint::header::decode(&text(6), file.len() as u64).map(|places| places.len()), Ok(1));
}

/// The largest messages that a training may need: each was once over a limit that made its sender panic.
#[test]
fn very_large_trainings_are_told_in_pieces() {
    let pass = |micro| Pass { micro, chunk: 0 };
    let step = (0..400_000).flat_map(|micro| [Action::Forward(pass(micro)), Action::Backward(pass(micro))]);
    let long = Assignment { step: step.collect(), ..assignment() };
    let of_many: Vec<_> = (0..100_000).map(|rank| Assignment { rank: Rank(rank), ..assignment() }).collect();
    let mut from_the_agent = frame::encode(&long);
    assert!(from_the_agent.len() > MAX_PAYLOAD);
    let told: Assignment = frame::read_within(&mut from_the_agent.as_slice(), MAX_IN_PIECES).expect("pieces");
    assert_eq!(told, long);
    from_the_agent.truncate(MAX_PAYLOAD);
    let torn = frame::read_within::<Assignment>(&mut from_the_agent.as_slice(), MAX_IN_PIECES);
    assert!(matches!(torn, Err(FrameError::Torn)), "{torn:?}");
    let order = frame::encode(&of_many);
    assert!(order.len() > MAX_PAYLOAD);
    let told: Vec<Assignment> = frame::read_within(&mut order.as_slice(), MAX_IN_PIECES).expect("pieces");
    assert_eq!(told.last(), of_many.last());
    // 85 G parameters with their moments are a terabyte, and each 4 MiB of it have a hash.
    let hashes = vec!["0".repeat(64); (85usize << 30) * 12 / (4 << 20)];
    let contents = frame::encode(&hashes);
    assert!(contents.len() > MAX_PAYLOAD);
    let told: Vec<String> = frame::read_within(&mut contents.as_slice(), MAX_IN_PIECES).expect("pieces");
    assert_eq!(told.len(), hashes.len());
}

#[test]
fn a_length_of_4_gib_costs_nothing() {
    let mut bytes = vec![0xff; 8];
    bytes.extend([0; 100]);
    let taken = peak(|| {
        let result = frame::read::<Event>(&mut bytes.as_slice());
        assert!(matches!(result, Err(FrameError::TooLong(0x100_0001, MAX_PAYLOAD))), "{result:?}");
    });
    assert_eq!(taken, 0);
    read_by_all(&bytes);
}

/// Each takes what it can of memory or stack: brackets, commas, names, dimensions.
#[test]
fn documents_made_to_be_costly_are_not() {
    let many = |text: &str, times: usize| text.repeat(times);
    let pieces = many(r#"{"file":"a","key":"","begin":0,"end":1},"#, 400);
    let dimensions = |count: usize| {
        let ones = many("1,", count);
        let mut value = serde_json::to_value(manifest()).expect("it is JSON");
        value["tensors"][0]["shape"] =
            serde_json::from_str(&format!("[{}]", ones.trim_end_matches(','))).expect("numbers");
        value["tensors"][0]["pieces"] = json!([
            { "file": "rank-00000.safetensors", "key": "a", "begin": 0, "end": 1 },
            { "file": "rank-00000.safetensors", "key": "b", "begin": 0, "end": 1 },
        ]);
        value.to_string()
    };
    for text in [
        many("[", 200_000),
        many("{\"a\":", 200_000),
        format!("{{\"__metadata__\":{}", many("[", 200_000)),
        format!("{{\"__metadata__\":[{}0]}}", many("0,", 500_000)),
        format!("{{\"a\":[{}0]}}", many("0,", 500_000)),
        format!(
            "{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{}0],\"data_offsets\":[0,0]}}}}",
            many("1,", 200_000)
        ),
        format!("{{\"peers\":[{}\"\"]}}", many("\"\",", 300_000)),
        format!("{{{}\"z\":0}}", (0..50_000).map(|n| format!("\"{n}\":0,")).collect::<String>()),
        format!(
            "{{\"saved\":{{\"step\":1,\"folder\":\"\",\"stall_seconds\":0,\"files\":[{{\"file\":{{\"name\":\"a\",\"bytes\":0,\"chunks\":[]}},\
                 \"tensors\":[{{\"name\":\"\",\"kind\":\"parameter\",\"shape\":[1],\"pieces\":[{}]}}]}}]}}}}",
            pieces.trim_end_matches(',')
        ),
        dimensions(4),
        dimensions(100_000),
        many("a.", 50_000) + "a = 1",
    ] {
        read_by_all(text.as_bytes());
    }
}
