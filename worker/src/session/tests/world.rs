//! Test world: a tiny decoder, a text to learn, and ranks as threads that share a mapping.

use crate::comm::loopback;
use crate::session::{AgentOrders, EventSink, attempt, attempt_anyway};
use crate::step_timer::Slowdown;
use dtrain_protocol::checkpoint::{folder_name, merge};
use dtrain_protocol::{
    Action, Arrangement, Assignment, AttemptId, Event, Failure, Hyperparameters, Layout, Manifest, Order,
    Pass, Rank, RankTransport, ResumePoint, StepFigures, StepId, StopReason, frame, shared_memory_layout,
};
use dtrain_recipes::{
    Data, DataFormat, Decoder, Documents, Model, OptimizerKind, Recompute, Schedule, Tokenizer,
    ValidationSource, ZeroStage,
};
use std::num::NonZeroU32;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// Samples of one optimizer step.
const BATCH: u32 = 8;

/// Ranks with their assignments.
pub(super) struct World {
    assignments: Vec<Assignment>,
    folder: Arc<TempDir>,
    stop_at: Option<u64>,
    stops_in_validation: bool,
    slowdown: Slowdown,
    /// Callback for the first rank that cannot save its last state.
    on_unsaved: fn(&Sender<Order>, &Path),
}

/// The end of one rank.
pub(super) struct Ended {
    pub(super) result: Result<(), Failure>,
    pub(super) events: Vec<Event>,
    pub(super) assignment: Assignment,
    _folder: Arc<TempDir>,
}

impl World {
    pub(super) fn new(ranks: u32) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let text: String =
            (0..400).map(|i| format!("{} and {} are {}\n", i % 13, i % 7, i % 13 + i % 7)).collect();
        std::fs::write(folder.path().join("text.txt"), text).unwrap();
        let assignments = (0..ranks).map(|rank| assignment(rank, ranks, folder.path())).collect();
        Self {
            assignments,
            folder,
            stop_at: None,
            stops_in_validation: false,
            slowdown: Slowdown::default(),
            on_unsaved: |_, _| (),
        }
    }

    pub(super) fn edit<T>(mut self, change: impl Fn(&mut Assignment) -> T) -> Self {
        self.assignments.iter_mut().for_each(|assignment| drop(change(assignment)));
        self
    }

    pub(super) fn steps(self, steps: u64) -> Self {
        self.edit(|assignment| {
            assignment.until.steps = Some(StepId(steps));
            assignment.training.schedule_steps = 200;
        })
    }

    pub(super) fn rule(self, kind: OptimizerKind) -> Self {
        self.edit(|assignment| assignment.training.optimizer.kind = kind)
    }

    /// Shards the state of the replicas among groups of `shard`; sharded weights are combined with
    /// recompute.
    pub(super) fn zero(self, zero: ZeroStage, shard: u32) -> Self {
        self.edit(|assignment| {
            let arrangement = &mut assignment.arrangement;
            (arrangement.zero, arrangement.shard) = (zero, shard);
            if zero == ZeroStage::Zero3 {
                arrangement.recompute = Recompute::Full;
            }
        })
    }

    pub(super) fn resume(self, from: &Committed, step: StepId) -> Self {
        self.edit(|assignment| {
            assignment.attempt = AttemptId(2);
            assignment.resume = Some(ResumePoint { folder: from.folder.clone(), step });
        })
    }

    /// Orders the last rank to stop during step `step`.
    pub(super) fn stop_at(mut self, step: u64) -> Self {
        self.stop_at = Some(step);
        self
    }

    /// Orders the first rank to stop once a validation has gone on for a while.
    pub(super) fn stop_in_validation(mut self) -> Self {
        self.stops_in_validation = true;
        self
    }

    /// Makes ranks save below a file in place of a folder, until `then` is called with it.
    pub(super) fn without_room(mut self, then: fn(&Sender<Order>, &Path)) -> Self {
        std::fs::write(self.folder.path().join("full"), "no folder").unwrap();
        let below = self.folder.path().join("full/checkpoints");
        self.on_unsaved = then;
        self.edit(|assignment| assignment.checkpoints.clone_from(&below))
    }

    /// Slows the ranks down.
    pub(super) fn slowdown(mut self, slowdown: Slowdown) -> Self {
        self.slowdown = slowdown;
        self
    }

    /// Joins the ranks by shared memory, like processes of one host; otherwise they are threads.
    pub(super) fn share_memory(self) -> Self {
        let ranks = u32::try_from(self.assignments.len()).unwrap();
        let bytes = shared_memory_layout::mapping_bytes(ranks);
        let file = rustix::fs::memfd_create("ranks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        self.edit(|assignment| {
            let descriptor = file.try_clone().unwrap().into_raw_fd();
            assignment.link = RankTransport::SharedMemory { descriptor, bytes };
        })
    }

    /// Runs all ranks to their ends.
    pub(super) fn run(self) -> Vec<Ended> {
        let ranks = u32::try_from(self.assignments.len()).unwrap();
        let groups = loopback::threads(ranks, Duration::from_secs(20));
        let run = |(assignment, group): (Assignment, loopback::ThreadRank)| {
            let (folder, stop_at, slowdown) = (Arc::clone(&self.folder), self.stop_at, self.slowdown);
            let is_last = assignment.rank.0 + 1 == ranks;
            let stops_in_validation = self.stops_in_validation;
            let (on_unsaved, full) = (self.on_unsaved, self.folder.path().join("full"));
            std::thread::spawn(move || {
                let (orders, inbox) = channel();
                let events = Arc::new(Mutex::new(Vec::new()));
                let told = Arc::clone(&events);
                let tell: EventSink = Arc::new(move |event| {
                    // The order lies there before the next step begins, so the step after this is the last.
                    let before =
                        |stop: u64| matches!(&event, Event::Step(figures) if figures.step.0 + 1 == stop);
                    if is_last && stop_at.is_some_and(before) {
                        orders.send(Order::Stop).unwrap();
                    }
                    if stops_in_validation && matches!(event, Event::Validating { .. }) {
                        orders.send(Order::Stop).unwrap();
                    }
                    if matches!(event, Event::SaveFailed { retries: true, .. }) {
                        on_unsaved(&orders, &full);
                    }
                    told.lock().unwrap().push(as_the_agent_reads(&event));
                });
                let mut inbox = AgentOrders::of(inbox);
                let result = match assignment.link {
                    RankTransport::Alone => {
                        attempt_anyway(&assignment, Box::new(group), slowdown, &mut inbox, &tell)
                    }
                    RankTransport::SharedMemory { .. } | RankTransport::Tls { .. } => {
                        attempt(&assignment, &mut inbox, &tell)
                    }
                };
                let events = events.lock().unwrap().clone();
                Ended { result, events, assignment, _folder: folder }
            })
        };
        let threads: Vec<_> = self.assignments.into_iter().zip(groups).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

/// Returns the event after its encoding for the agent.
fn as_the_agent_reads(event: &Event) -> Event {
    frame::read(&mut frame::encode(event).as_slice()).expect("the agent can read it")
}

impl Ended {
    pub(super) fn finished(&self) -> (StepId, StopReason) {
        match (&self.result, self.events.last()) {
            (Ok(()), Some(Event::Finished { step, reason })) => (*step, *reason),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the last file that this rank wrote, with its share of weights and moments.
    pub(super) fn weights(&self) -> Vec<u8> {
        let saved = self.events.iter().rev().find_map(|event| match event {
            Event::Saved { folder, files, .. } => Some(folder.join(&files[0].file.name)),
            _ => None,
        });
        std::fs::read(saved.expect("it saved")).unwrap()
    }
}

/// Returns the losses of the steps, which all ranks report equally.
pub(super) fn losses(ended: &[Ended]) -> Vec<f64> {
    figures(ended, |figures| figures.loss)
}

/// Returns the gradient norms of the steps, which all ranks report equally.
pub(super) fn norms(ended: &[Ended]) -> Vec<f64> {
    figures(ended, |figures| figures.gradient_norm.expect("it is finite"))
}

fn figures(ended: &[Ended], figure: fn(&StepFigures) -> f64) -> Vec<f64> {
    let of = |rank: &Ended| -> Vec<f64> {
        assert!(rank.result.is_ok(), "{:?}", rank.result);
        let figures = rank.events.iter().filter_map(|event| match event {
            Event::Step(figures) => Some(figure(figures)),
            _ => None,
        });
        figures.collect()
    };
    let first = of(&ended[0]);
    assert!(ended.iter().all(|rank| of(rank) == first), "all ranks tell the same");
    first
}

/// A committed checkpoint, which is removed when this is dropped.
pub(super) struct Committed {
    pub(super) folder: PathBuf,
    _keep: TempDir,
}

/// Commits the files that the ranks saved after `step`, as the agent does.
pub(super) fn commit(ended: &[Ended], step: StepId) -> Committed {
    let saved = ended.iter().flat_map(|rank| &rank.events).filter_map(|event| match event {
        Event::Saved { step: saved, files, folder, .. } if *saved == step => Some((folder, files.clone())),
        _ => None,
    });
    let saved: Vec<_> = saved.collect();
    assert_eq!(saved.len(), ended.len(), "every rank saved step {step}");
    let (tensors, files) =
        merge(saved.iter().flat_map(|(_, files)| files.clone())).expect("all is covered once");
    let one = &ended[0].assignment;
    let manifest = Manifest::new(one, step, "test", tensors, files);
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let keep = tempfile::tempdir().unwrap();
    let folder = keep.path().join(folder_name(step, one.attempt));
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(saved[0].0).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    std::fs::write(folder.join("manifest.json"), &manifest).unwrap();
    std::fs::write(folder.join("COMMIT"), blake3::hash(&manifest).to_hex().as_str()).unwrap();
    Committed { folder, _keep: keep }
}

/// Returns the assignment of rank `rank` of `ranks` replicas, with the data in `folder`.
pub(crate) fn assignment(rank: u32, ranks: u32, folder: &Path) -> Assignment {
    let replicas = NonZeroU32::new(ranks).unwrap();
    // Three ranks share no batch of eight evenly: they get one of nine.
    let batch = u64::from(BATCH.next_multiple_of(ranks));
    let micro_batch = if ranks == 3 { 3 } else { 2 };
    let micro_batches = u32::try_from(batch).unwrap() / ranks / micro_batch;
    let mut step = Vec::new();
    for pass in (0..micro_batches).map(|micro| Pass { micro, chunk: 0 }) {
        step.extend([Action::Forward(pass), Action::Backward(pass)]);
    }
    step.extend([Action::ReduceGradients, Action::UpdateWeights]);
    Assignment {
        rank: Rank(rank),
        arrangement: Arrangement { layout: Layout::replicas(replicas), ..Arrangement::SINGLE },
        model: Model::Decoder(decoder()),
        chunks: std::iter::once(0..2).collect(),
        data: Some(Data {
            format: DataFormat::Text {
                tokenizer: Tokenizer::Bytes,
                documents: Documents::Files,
                separator: Default::default(),
            },
            train: vec!["text.txt".into()],
            valid: ValidationSource::Fraction(0.1),
            fraction: 1.0,
            mix: None,
        }),
        data_root: folder.to_owned(),
        training: training(batch, rank, micro_batch, micro_batches),
        step,
        validate_every: 0,
        validate_samples: 7,
        save_every: 0,
        checkpoints: folder.join("checkpoints"),
        ..Assignment::example()
    }
}

fn decoder() -> Decoder {
    Decoder {
        layers: 2,
        hidden: 32,
        heads: 4,
        kv_heads: 2,
        ffn: 64,
        vocab: 256,
        context: 16,
        tied: true,
        ..Decoder::small_llama()
    }
}

fn training(batch: u64, rank: u32, micro_batch: u32, micro_batches: u32) -> Hyperparameters {
    let each = u64::from(micro_batch * micro_batches);
    Hyperparameters {
        batch,
        share: each * u64::from(rank)..each * u64::from(rank + 1),
        micro_batch,
        micro_batches,
        learning_rate: 3e-3,
        warmup_steps: 10,
        schedule_steps: 200,
        schedule: Schedule::Cosine,
        final_fraction: 0.1,
        clip: Some(1.0),
        seed: 3,
        ..Hyperparameters::plain()
    }
}
