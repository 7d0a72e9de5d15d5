//! What the two ends of the wire say to each other: ids, layouts, assignments, orders, events, checkpoints.
//!
//! Only words and arithmetic on them. Nothing here reads a clock, a file or a socket.

pub mod ability;
pub mod action;
pub mod assignment;
pub mod checkpoint;
pub mod event;
pub mod frame;
pub mod ids;
pub mod layout;
<<<<<<< HEAD
pub mod link;
=======
pub mod mapping;
>>>>>>> 7330658 (protocol: where things lie in the memory that ranks of one host share)
pub mod order;
pub mod rate;
pub mod rates;
pub mod sample;
pub mod split;

pub use ability::cannot_run;
pub use action::{Action, Toward};
pub use assignment::{Assignment, DeviceKind, Link, Placement, ResumePoint, RunUntil, TlsIdentity, Training};
pub use checkpoint::{FileEntry, Manifest, Piece, SavedFile, Tensor, TensorKind};
pub use event::{Event, Failure, Order, PhaseTimes, Stamped, StepFigures, StopReason};
pub use ids::{AttemptId, Rank, StepId, TrialId};
pub use layout::{Axis, Coord, Layout};
pub use rates::{Gpu, HostFacts, ProbeRequest, ProfilePoint, RankRates, Rates};
pub use sample::{SampleRequest, Sampled};
