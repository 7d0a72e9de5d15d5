//! Writes checkpoints while training goes on.
//!
//! At a step boundary a replica copies its share of the state, one `1 / replicas` of weights and moments, and
//! goes on; a thread writes the copy. At most one is being written: a second save waits for the first. Every
//! element is written by exactly one replica. It does not commit: that is for whoever sees all ranks.

use super::Tell;
use crate::checkpoint::{self, NamedPiece};
use crate::interpret::Replica;
use crate::stage::Parameter;
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::{Assignment, Event, Rank, StepId, TensorKind};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Instant;

/// Where a rank's checkpoints go.
#[derive(Debug)]
pub(super) struct Saver {
    folder: PathBuf,
    attempt: dtrain_protocol::AttemptId,
    rank: Rank,
    writing: Option<JoinHandle<()>>,
}

/// A range of one tensor, copied.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) kind: TensorKind,
    pub(super) shape: Vec<u64>,
    pub(super) begin: u64,
    pub(super) values: Vec<f32>,
}

impl Saver {
    pub(super) fn new(assignment: &Assignment) -> Self {
        let Assignment { checkpoints, attempt, rank, .. } = assignment;
        Self { folder: checkpoints.clone(), attempt: *attempt, rank: *rank, writing: None }
    }

    /// Copies the state after `step` and begins to write it; `Saved` or `SaveFailed` follows in its time.
    pub(super) fn save(&mut self, replica: &Replica<'_>, step: StepId, tell: &Tell) {
        let began = Instant::now();
        self.wait();
        let held = snapshot(replica);
        let stall_seconds = began.elapsed().as_secs_f64();
        let folder = self.folder.join(format!("{}.partial", folder_name(step, self.attempt)));
        let (rank, tell) = (self.rank, tell.clone());
        let write = move || {
            tell(match checkpoint::save(&folder, rank, &held.iter().map(Held::piece).collect::<Vec<_>>()) {
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

impl Held {
    fn piece(&self) -> NamedPiece<'_> {
        let Self { name, kind, shape, begin, values } = self;
        NamedPiece { name, kind: *kind, shape, begin: *begin, values }
    }
}

/// A copy of this rank's share of weights and moments. A tied embedding is written by the first stage.
fn snapshot(replica: &Replica<'_>) -> Vec<Held> {
    let parameters = replica.stage.parameters();
    let again = replica.stage.tied_across_stages().filter(|_| !replica.stage.has_embedding());
    let size =
        |(index, one): (usize, &Parameter)| if Some(index) == again { 0 } else { one.range.len() as u64 };
    let sizes: Vec<_> = parameters.iter().enumerate().map(size).collect();
    let replicas = replica.mesh.replicas();
    let shares = checkpoint::share(&sizes, replicas.rank(), replicas.ranks());
    let mut held = Vec::with_capacity(3 * shares.len());
    for (index, range) in shares {
        let parameter = &parameters[index];
        #[expect(clippy::cast_possible_truncation, reason = "a position in memory")]
        let inside = range.start as usize..range.end as usize;
        let mut hold = |kind, values: Vec<f32>| {
            let shape = parameter.shape.iter().map(|side| *side as u64).collect();
            held.push(Held { name: parameter.name.clone(), kind, shape, begin: range.start, values });
        };
        let start = parameter.range.start;
        let mut values = vec![0.0; inside.len()];
        replica.stage.copy_values(start + inside.start..start + inside.end, &mut values);
        hold(TensorKind::Parameter, values);
        let (first, second) = replica.optimizer.moments(index);
        for (kind, moment) in [(TensorKind::FirstMoment, first), (TensorKind::SecondMoment, second)] {
            if let Some(moment) = moment {
                hold(kind, moment[inside.clone()].to_vec());
            }
        }
    }
    held
}
