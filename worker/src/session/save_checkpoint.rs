//! Asynchronous checkpoints: saves weights and optimizer state while training goes on.
//!
//! At a step boundary a rank takes a snapshot of its share of the state, and goes on. A thread copies it
//! while the next step computes its gradients, and then writes the copy; weights and moments wait for the
//! copy before they change, and for nothing else. At most one checkpoint is being written: a second save
//! waits for the first. State that several ranks hold is written in equal parts, every element exactly
//! once. The leader, which sees all ranks, commits.
//!
//! Hashing and writing bypass the page cache. Memory is bounded by one copy, which the planner counts.
//! State on a GPU, and that of approximate synchronization, is copied at once.

use super::tensor_snapshot::TensorSnapshot;
use super::{AgentOrders, EventSink, extra_state};
use crate::checkpoint::{self, CheckpointError, NamedPiece, TensorShard};
use crate::data::DataSet;
use crate::network::ModelParameter;
use crate::snapshot::{CopyCompletion, CopyEndGuard, Snapshot};
use crate::train_step::Replica;
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::input_manifest::{INPUTS, PREPROCESSING, TOKENIZER};
use dtrain_protocol::sharding::ranks_holding;
use dtrain_protocol::{
    Arrangement, Assignment, Event, Failure, Rank, SavedFile, Slice, StepId, StopReason, TensorKind,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between a failed attempt to save the last checkpoint and the next attempt.
const RETRY: Duration = Duration::from_secs(2);

/// A writer of a rank's checkpoints.
#[derive(Debug)]
pub(super) struct CheckpointSaver {
    folder: PathBuf,
    attempt: dtrain_protocol::AttemptId,
    rank: Rank,
    arrangement: Arrangement,
    /// Name and content of the files that describe the training data, which rank 0 writes; empty for
    /// other ranks.
    inputs: Arc<[(&'static str, Vec<u8>)]>,
    /// Thread that writes the current checkpoint; returns the memory of its copy for reuse, and the error
    /// if it failed.
    writing: Option<JoinHandle<(Vec<Vec<f32>>, Option<String>)>>,
    /// Error of the last save; `None` if it succeeded.
    failure: Option<String>,
    /// Memory of the last copy, for reuse by the next one.
    room: Vec<Vec<f32>>,
}

/// The reaction to a checkpoint that cannot be written, and the report of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// Training continues without the checkpoint.
    Continue,
    /// Training is over, and [`CheckpointSaver::insist`] tries again.
    Retry,
    /// Training is over, and a failed attempt has already been reported.
    RetrySilently,
}

impl OnFailure {
    /// Returns the value of `retries` in the event `SaveFailed`; `None` if the failure is not reported.
    fn retries(self) -> Option<bool> {
        match self {
            Self::Continue => Some(false),
            Self::Retry => Some(true),
            Self::RetrySilently => None,
        }
    }
}

impl CheckpointSaver {
    pub(super) fn new(assignment: &Assignment, inputs: Vec<(&'static str, Vec<u8>)>) -> Self {
        let Assignment { checkpoints, attempt, rank, arrangement, .. } = assignment;
        let (folder, arrangement) = (checkpoints.clone(), *arrangement);
        let inputs = if rank.0 == 0 { inputs.into() } else { Arc::default() };
        Self {
            folder,
            attempt: *attempt,
            rank: *rank,
            arrangement,
            inputs,
            writing: None,
            failure: None,
            room: Vec::new(),
        }
    }

    /// Takes a snapshot of the state after `step` and starts to write it in a thread, which reports the
    /// end as `Saved` or `SaveFailed`.
    pub(super) fn save(
        &mut self,
        replica: &mut Replica<'_>,
        step: StepId,
        on_failure: OnFailure,
        tell: &EventSink,
    ) {
        let began = Instant::now();
        self.wait();
        self.failure = None;
        let taken = take_snapshots(replica, self.rank, &self.arrangement);
        let copying = Arc::new(CopyCompletion::default());
        replica.copying = Some(Arc::clone(&copying));
        let stalled = began.elapsed();
        let folder = self.folder.join(format!("{}.partial", folder_name(step, self.attempt)));
        let (rank, tell, slowdown) = (self.rank, tell.clone(), replica.slowdown);
        let room = std::mem::take(&mut self.room);
        let inputs = Arc::clone(&self.inputs);
        let write = move || {
            let began = Instant::now();
            let ends = CopyEndGuard(&copying);
            let copied = copies(taken, room);
            slowdown.hold_copy(began);
            drop(ends);
            let stall_seconds = (stalled + copying.stalled()).as_secs_f64();
            let pieces: Vec<_> = copied.iter().map(TensorSnapshot::piece).collect();
            let reason = match write_files(&folder, rank, &pieces, &inputs) {
                Ok(files) => {
                    tell(Event::Saved { step, folder, files, stall_seconds });
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            if let (Some(reason), Some(retries)) = (&reason, on_failure.retries()) {
                tell(Event::SaveFailed { step, reason: reason.clone(), retries });
            }
            (copied.into_iter().filter_map(|taken| taken.values.give_back()).collect(), reason)
        };
        let thread = std::thread::Builder::new().name("save".into()).spawn(write);
        self.writing = Some(thread.expect("a process may start a thread"));
    }

    /// Waits until the last save is done and reported. A panic of its thread has already been reported on
    /// standard error.
    pub(super) fn wait(&mut self) {
        if let Some(writing) = self.writing.take() {
            let panicked = |_| (Vec::new(), Some("the thread that saves panicked".to_owned()));
            (self.room, self.failure) = writing.join().unwrap_or_else(panicked);
        }
    }

    /// Waits until the state after `step`, the last step, is saved, and retries after a failure: a full
    /// disk must not destroy the result of training.
    ///
    /// `Err` if a stop is ordered meanwhile.
    pub(super) fn insist(
        &mut self,
        replica: &mut Replica<'_>,
        (step, reason): (StepId, StopReason),
        orders: &mut AgentOrders,
        tell: &EventSink,
    ) -> Result<(), Failure> {
        // The stop that ended training does not end this wait.
        let was_stopped = reason == StopReason::Ordered;
        self.wait();
        while let Some(reason) = self.failure.take() {
            let until = Instant::now() + RETRY;
            while Instant::now() < until {
                if !was_stopped && orders.stop() {
                    return Err(Failure::Unsaved { step, reason });
                }
                std::thread::sleep(RETRY / 20);
            }
            self.save(replica, step, OnFailure::RetrySilently, tell);
            self.wait();
        }
        Ok(())
    }
}

/// Returns the files of a checkpoint that describe the data: [`INPUTS`], [`TOKENIZER`] if there is text
/// with one, and [`PREPROCESSING`] if there are rows.
pub(super) fn inputs(data: &DataSet) -> Vec<(&'static str, Vec<u8>)> {
    let json = serde_json::to_vec(&data.inputs()).expect("inputs have string keys only");
    let tokenizer = data.tokenizer.as_ref().and_then(crate::data::TextTokenizer::json);
    let tokenizer = tokenizer.map(|json| (TOKENIZER, json.into_bytes()));
    let preprocessing = data.preprocessing.as_ref().map(|preprocessing| {
        (PREPROCESSING, serde_json::to_vec(preprocessing).expect("it has string keys only"))
    });
    std::iter::once((INPUTS, json)).chain(tokenizer).chain(preprocessing).collect()
}

/// Writes a rank's files of a checkpoint and returns them; the file with its tensors comes first.
fn write_files(
    folder: &Path,
    rank: Rank,
    pieces: &[NamedPiece<'_>],
    inputs: &[(&'static str, Vec<u8>)],
) -> Result<Vec<SavedFile>, CheckpointError> {
    let others = inputs.iter().map(|(name, content)| checkpoint::save_file(folder, name, content));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    let tensors = checkpoint::save(folder, rank, pieces)?;
    Ok(std::iter::once(tensors).chain(others).collect())
}

/// Copies the snapshots `taken`, into the memory `room` of an earlier save.
fn copies(taken: Vec<TensorSnapshot>, room: Vec<Vec<f32>>) -> Vec<TensorSnapshot> {
    let mut room = room.into_iter();
    let copy = |taken: TensorSnapshot| {
        let values = taken.values.copy(|| room.next().unwrap_or_default());
        TensorSnapshot { values, ..taken }
    };
    taken.into_iter().map(copy).collect()
}

/// Returns snapshots of this rank's share of the weights, the moments and the extra state. The first
/// stage writes a tied embedding.
fn take_snapshots(replica: &Replica<'_>, rank: Rank, arrangement: &Arrangement) -> Vec<TensorSnapshot> {
    let Replica { stage, optimizer, outer, .. } = replica;
    let parameters = stage.parameters();
    let again = stage.tied_across_stages().filter(|_| !stage.has_embedding());
    let held = |(index, parameter): (usize, &ModelParameter)| {
        let own = if Some(index) == again { 0..0 } else { optimizer.owned(index) };
        let range = own.start as u64..own.end as u64;
        TensorShard { range, holders: arrangement.owners(rank, &parameter.name) }
    };
    let mut held: Vec<_> = parameters.iter().enumerate().map(held).collect();
    held.extend(stage.frozen_parameters().iter().map(|parameter| {
        // The second copy of a tied embedding.
        let is_again = parameter.name == "embedding.weight" && !stage.has_embedding();
        let length = if is_again { 0 } else { parameter.range.len() as u64 };
        TensorShard { range: 0..length, holders: ranks_holding(&parameter.name, &arrangement.layout, rank) }
    }));
    let mut taken = Vec::new();
    for (index, range) in checkpoint::write_shares(&held, rank) {
        #[expect(clippy::cast_possible_truncation, reason = "a position in memory")]
        let inside = range.start as usize..range.end as usize;
        if let Some(frozen) = index.checked_sub(parameters.len()) {
            let parameter = &stage.frozen_parameters()[frozen];
            let slice = Slice::of(parameter.region.clone(), range);
            let values = stage.frozen_snapshot(frozen, inside);
            taken.push(TensorSnapshot {
                name: parameter.name.clone(),
                kind: TensorKind::Parameter,
                slice,
                values,
            });
            continue;
        }
        let parameter = &parameters[index];
        let mut put = |kind, values| {
            let slice = Slice::of(parameter.region.clone(), range.clone());
            taken.push(TensorSnapshot { name: parameter.name.clone(), kind, slice, values });
        };
        if let Some(outer) = outer {
            let start = parameter.range.start;
            let common = start + inside.start..start + inside.end;
            put(TensorKind::Parameter, Snapshot::Copy(outer.anchor()[common.clone()].to_vec()));
            put(TensorKind::OuterMomentum, Snapshot::Copy(outer.velocity()[common].to_vec()));
            continue;
        }
        put(TensorKind::Parameter, stage.snapshot(index, inside.clone()));
        let begin = optimizer.owned(index).start;
        let moments = optimizer.snapshot(index, inside.start - begin..inside.end - begin);
        for (kind, moment) in [TensorKind::FirstMoment, TensorKind::SecondMoment].into_iter().zip(moments) {
            moment.into_iter().for_each(|moment| put(kind, moment));
        }
    }
    taken.extend(extra_state::taken(replica));
    taken
}
