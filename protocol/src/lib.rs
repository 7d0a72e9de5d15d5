//! What the two ends of the wire say to each other: ids, layouts, assignments, orders, events, checkpoints.
//!
//! Only words and arithmetic on them, and with the feature `tls` who believes whom. Nothing here reads a clock, a file or a
//! socket.

pub mod ability;
pub mod action;
pub mod arrangement;
pub mod assignment;
pub mod bundle;
pub mod checkpoint;
pub mod device_check;
pub mod event;
pub mod failure;
pub mod frame;
pub mod group;
pub mod ids;
pub mod inputs;
pub mod layout;
pub mod link;
pub mod mapping;
pub mod number;
pub mod order;
pub mod points;
pub mod predict;
pub mod rate;
pub mod rates;
pub mod sample;
pub mod split;
#[cfg(feature = "tls")]
pub mod strangers;
#[cfg(feature = "tls")]
pub mod tls;
pub mod wire;

pub use ability::{Untrainable, cannot_run, cannot_train};
pub use action::{Action, Pass, Toward};
pub use arrangement::{Arrangement, ContextExchange, Ends, RankOrder};
pub use assignment::{
    Assignment, DeviceKind, Link, Placement, ResumePoint, RunUntil, Target, TlsIdentity, Training, WaitLimits,
};
pub use checkpoint::{FileEntry, Manifest, OwnState, Piece, SavedFile, Slice, Tensor, TensorKind};
pub use device_check::{DeviceFindings, DeviceNews, DeviceRequest};
pub use event::{
    Event, GradientNoise, HeldBytes, NamedFigure, Order, PhaseTimes, Stamped, StepFigures, StopReason,
};
pub use failure::Failure;
pub use ids::{AttemptId, Rank, StepId, TrialId};
pub use inputs::{Column, Encoding, InputFile, Inputs, Preprocessing};
pub use layout::{Axis, Channel, Coord, Layout};
pub use predict::{
    ClassScore, Classification, EvaluateRequest, Evaluated, Evaluation, PredictRequest, Predicted,
    Prediction, Trained,
};
pub use rates::{Gpu, HostFacts, Links, ProbeRequest, ProfilePoint, RankRates, Rates, WholeStep};
pub use sample::{SampleRequest, Sampled, Written};
pub use split::{Region, Run};
