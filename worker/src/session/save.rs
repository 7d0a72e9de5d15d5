//! Writes checkpoints while training goes on.
//!
//! At a step boundary a rank copies its share of the state and goes on; a thread writes the copy. At most one is
//! being written: a second save waits for the first. What several ranks hold alike they write in equal parts, every
//! element exactly once. It does not commit: that is for whoever sees all ranks.

use super::{Tell, apart};
use crate::checkpoint::{self, Held, NamedPiece};
use crate::interpret::Replica;
use crate::stage::Parameter;
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::{Arrangement, Assignment, Event, Rank, Slice, StepId, TensorKind};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Instant;

/// Where a rank's checkpoints go.
#[derive(Debug)]
pub(super) struct Saver {
    folder: PathBuf,
    attempt: dtrain_protocol::AttemptId,
    rank: Rank,
    arrangement: Arrangement,
    writing: Option<JoinHandle<()>>,
}

/// Some elements of one tensor, copied.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Copied {
    pub(super) name: String,
    pub(super) kind: TensorKind,
    pub(super) slice: Slice,
    pub(super) values: Vec<f32>,
}

impl Saver {
    pub(super) fn new(assignment: &Assignment) -> Self {
        let Assignment { checkpoints, attempt, rank, arrangement, .. } = assignment;
        let (folder, arrangement) = (checkpoints.clone(), *arrangement);
        Self { folder, attempt: *attempt, rank: *rank, arrangement, writing: None }
    }

    /// Copies the state after `step` and begins to write it; `Saved` or `SaveFailed` follows in its time.
    pub(super) fn save(&mut self, replica: &Replica<'_>, step: StepId, tell: &Tell) {
        let began = Instant::now();
        self.wait();
        let copied = snapshot(replica, self.rank, &self.arrangement);
        let stall_seconds = began.elapsed().as_secs_f64();
        let folder = self.folder.join(format!("{}.partial", folder_name(step, self.attempt)));
        let (rank, tell) = (self.rank, tell.clone());
        let write = move || {
            let pieces: Vec<_> = copied.iter().map(Copied::piece).collect();
            tell(match checkpoint::save(&folder, rank, &pieces) {
                Ok(file) => Event::Saved { step, folder, files: vec![file], stall_seconds },
                Err(error) => Event::SaveFailed { step, reason: error.to_string() },
            });
        };
        let thread = std::thread::Builder::new().name("save".into()).spawn(write);
        self.writing = Some(thread.expect("a process may start a thread"));
    }

    /// Waits until the last save is told. A panic of its thread was told on standard error already.
    pub(super) fn wait(&mut self) {
        if let Some(writing) = self.writing.take() {
            drop(writing.join());
        }
    }
}

impl Copied {
    fn piece(&self) -> NamedPiece<'_> {
        let Self { name, kind, slice, values } = self;
        NamedPiece { name, kind: *kind, slice, values }
    }
}

/// A copy of what this rank writes of weights and moments. A tied embedding is written by the first stage.
fn snapshot(replica: &Replica<'_>, rank: Rank, arrangement: &Arrangement) -> Vec<Copied> {
    let Replica { stage, optimizer, outer, .. } = replica;
    let parameters = stage.parameters();
    let again = stage.tied_across_stages().filter(|_| !stage.has_embedding());
    let held = |(index, parameter): (usize, &Parameter)| {
        let own = if Some(index) == again { 0..0 } else { optimizer.owned(index) };
        let range = own.start as u64..own.end as u64;
        Held { range, holders: arrangement.owners(rank, &parameter.name) }
    };
    let held: Vec<_> = parameters.iter().enumerate().map(held).collect();
    let mut copied = Vec::new();
    for (index, range) in checkpoint::shares(&held, rank) {
        let parameter = &parameters[index];
        #[expect(clippy::cast_possible_truncation, reason = "a position in memory")]
        let inside = range.start as usize..range.end as usize;
        let mut copy = |kind, values: Vec<f32>| {
            let slice = Slice::of(parameter.region.clone(), range.clone());
            copied.push(Copied { name: parameter.name.clone(), kind, slice, values });
        };
        let start = parameter.range.start;
        if let Some(outer) = outer {
            let common = start + inside.start..start + inside.end;
            copy(TensorKind::Parameter, outer.anchor()[common.clone()].to_vec());
            copy(TensorKind::OuterMomentum, outer.velocity()[common].to_vec());
            continue;
        }
        let mut values = vec![0.0; inside.len()];
        stage.copy_values(start + inside.start..start + inside.end, &mut values);
        copy(TensorKind::Parameter, values);
        let begin = optimizer.owned(index).start;
        let (first, second) = optimizer.moments(index);
        for (kind, moment) in [(TensorKind::FirstMoment, first), (TensorKind::SecondMoment, second)] {
            if let Some(moment) = moment {
                copy(kind, moment[inside.start - begin..inside.end - begin].to_vec());
            }
        }
    }
    copied.extend(apart::copies(replica));
    copied
}
