//! Writes checkpoints while training goes on.
//!
//! At a step boundary a rank takes hold of its share of the state as it is, and goes on. A thread copies what it took
//! while the next step computes its gradients, and then writes the copy; weights and moments wait for the copy before they
//! change, and for nothing else. At most one checkpoint is being written: a second save waits for the first. What several
//! ranks hold alike they write in equal parts, every element exactly once. It does not commit: that is for whoever sees
//! all ranks.
//!
//! Hashing and writing bypass the page cache. Memory is bounded by one copy, which the planner counts. State on a GPU, and what
//! approximate synchronisation keeps, is copied at once.

use super::{Tell, apart};
use crate::checkpoint::{self, Held, NamedPiece};
use crate::frozen::Frozen;
use crate::interpret::Replica;
use crate::stage::Parameter;
use crate::watch::Tempo;
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::{Arrangement, Assignment, Event, Rank, Slice, StepId, TensorKind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where a rank's checkpoints go.
#[derive(Debug)]
pub(super) struct Saver {
    folder: PathBuf,
    attempt: dtrain_protocol::AttemptId,
    rank: Rank,
    arrangement: Arrangement,
    /// Gives back the memory that it copied into.
    writing: Option<JoinHandle<Vec<Vec<f32>>>>,
    /// Memory of the last copy, for the next one.
    room: Vec<Vec<f32>>,
}

/// Some elements of one tensor, as they were after a step.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) name: String,
    pub(super) kind: TensorKind,
    pub(super) slice: Slice,
    pub(super) values: Frozen,
}

impl Saver {
    pub(super) fn new(assignment: &Assignment) -> Self {
        let Assignment { checkpoints, attempt, rank, arrangement, .. } = assignment;
        let (folder, arrangement) = (checkpoints.clone(), *arrangement);
        Self { folder, attempt: *attempt, rank: *rank, arrangement, writing: None, room: Vec::new() }
    }

    /// Takes the state after `step` and begins to write it; `Saved` or `SaveFailed` follows in its time.
    pub(super) fn save(&mut self, replica: &mut Replica<'_>, step: StepId, tell: &Tell) {
        let began = Instant::now();
        self.wait();
        let taken = take(replica, self.rank, &self.arrangement);
        let copying = Arc::new(Copying::default());
        replica.copying = Some(Arc::clone(&copying));
        let stalled = began.elapsed();
        let folder = self.folder.join(format!("{}.partial", folder_name(step, self.attempt)));
        let (rank, tell, tempo) = (self.rank, tell.clone(), replica.tempo);
        let room = std::mem::take(&mut self.room);
        let write = move || {
            let began = Instant::now();
            let ends = Ends(&copying);
            let copied = copies(taken, room);
            Tempo::hold(began, tempo.copy);
            drop(ends);
            let stall_seconds = (stalled + copying.stalled()).as_secs_f64();
            let pieces: Vec<_> = copied.iter().map(Taken::piece).collect();
            tell(match checkpoint::save(&folder, rank, &pieces) {
                Ok(file) => Event::Saved { step, folder, files: vec![file], stall_seconds },
                Err(error) => Event::SaveFailed { step, reason: error.to_string() },
            });
            copied.into_iter().filter_map(|taken| taken.values.give_back()).collect()
        };
        let thread = std::thread::Builder::new().name("save".into()).spawn(write);
        self.writing = Some(thread.expect("a process may start a thread"));
    }

    /// Waits until the last save is told. A panic of its thread was told on standard error already.
    pub(super) fn wait(&mut self) {
        if let Some(writing) = self.writing.take() {
            self.room = writing.join().unwrap_or_default();
        }
    }
}

impl Taken {
    fn piece(&self) -> NamedPiece<'_> {
        let Self { name, kind, slice, values } = self;
        NamedPiece { name, kind: *kind, slice, values: values.as_slice() }
    }
}

/// What was taken, as copies; those of the save before give the room for them.
fn copies(taken: Vec<Taken>, room: Vec<Vec<f32>>) -> Vec<Taken> {
    let mut room = room.into_iter();
    let copy = |taken: Taken| {
        let values = taken.values.copy(|| room.next().unwrap_or_default());
        Taken { values, ..taken }
    };
    taken.into_iter().map(copy).collect()
}

/// Tells the owner of a state when it was copied.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    progress: Mutex<Progress>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    has_ended: bool,
    /// Since when the owner waits.
    waits_since: Option<Instant>,
    /// How long it waited.
    stalled: Duration,
}

impl Copying {
    /// Waits until everything is copied: the state may change from then on.
    pub(crate) fn wait(&self) {
        let mut progress = self.progress();
        if !progress.has_ended {
            progress.waits_since = Some(Instant::now());
        }
        drop(self.ended.wait_while(progress, |progress| !progress.has_ended));
    }

    /// How long the owner waited, once it has ended.
    fn stalled(&self) -> Duration {
        self.progress().stalled
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a copying when it is dropped, in a panic too.
struct Ends<'a>(&'a Copying);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        progress.has_ended = true;
        progress.stalled = progress.waits_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.0.ended.notify_all();
    }
}

/// What this rank writes of weights and moments. A tied embedding is written by the first stage.
fn take(replica: &Replica<'_>, rank: Rank, arrangement: &Arrangement) -> Vec<Taken> {
    let Replica { stage, optimizer, outer, .. } = replica;
    let parameters = stage.parameters();
    let again = stage.tied_across_stages().filter(|_| !stage.has_embedding());
    let held = |(index, parameter): (usize, &Parameter)| {
        let own = if Some(index) == again { 0..0 } else { optimizer.owned(index) };
        let range = own.start as u64..own.end as u64;
        Held { range, holders: arrangement.owners(rank, &parameter.name) }
    };
    let held: Vec<_> = parameters.iter().enumerate().map(held).collect();
    let mut taken = Vec::new();
    for (index, range) in checkpoint::shares(&held, rank) {
        let parameter = &parameters[index];
        #[expect(clippy::cast_possible_truncation, reason = "a position in memory")]
        let inside = range.start as usize..range.end as usize;
        let mut put = |kind, values| {
            let slice = Slice::of(parameter.region.clone(), range.clone());
            taken.push(Taken { name: parameter.name.clone(), kind, slice, values });
        };
        if let Some(outer) = outer {
            let start = parameter.range.start;
            let common = start + inside.start..start + inside.end;
            put(TensorKind::Parameter, Frozen::Copy(outer.anchor()[common.clone()].to_vec()));
            put(TensorKind::OuterMomentum, Frozen::Copy(outer.velocity()[common].to_vec()));
            continue;
        }
        put(TensorKind::Parameter, stage.frozen(index, inside.clone()));
        let begin = optimizer.owned(index).start;
        let moments = optimizer.frozen(index, inside.start - begin..inside.end - begin);
        for (kind, moment) in [TensorKind::FirstMoment, TensorKind::SecondMoment].into_iter().zip(moments) {
            moment.into_iter().for_each(|moment| put(kind, moment));
        }
    }
    taken.extend(apart::taken(replica));
    taken
}
