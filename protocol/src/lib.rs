//! What the two ends of the wire say to each other: ids, layouts, assignments, orders, events, checkpoints.
//!
//! Only words and arithmetic on them, and with the feature `tls` who believes whom. Nothing here reads a clock, a file or a
//! socket.

pub mod supported;
pub mod action;
pub mod arrangement;
pub mod assignment;
pub mod bundle;
pub mod checkpoint;
pub mod device_check;
pub mod event;
pub mod failure;
pub mod frame;
pub mod unix_group;
pub mod ids;
pub mod input_manifest;
pub mod layout;
pub mod shared_memory_size;
pub mod shared_memory_layout;
pub mod non_finite;
pub mod old_names;
pub mod shuffle;
pub mod series_codec;
pub mod predict;
pub mod learning_rate;
pub mod rates;
pub mod sample;
pub mod sharding;
#[cfg(feature = "tls")]
pub mod pending_peers;
#[cfg(feature = "tls")]
pub mod tls;
pub mod communication_volume;

pub use supported::{Untrainable, cannot_run, cannot_train};
pub use action::{Action, Pass, Neighbor};
pub use arrangement::{Arrangement, ContextExchange, EmbeddingHeadCost, RankOrder};
pub use assignment::{
    Assignment, DeviceKind, RankTransport, Placement, ResumePoint, RunUntil, MetricTarget, TlsIdentity, Hyperparameters, WaitLimits,
};
pub use checkpoint::{FileEntry, Manifest, ReplicaState, StoredSlice, SavedFile, Slice, Tensor, TensorKind};
pub use device_check::{DeviceFindings, DeviceResponse, DeviceRequest};
pub use event::{
    Event, GradientNoise, ResidentBytes, NamedFigure, Order, PhaseTimes, StampedEvent, StepFigures, StopReason,
};
pub use failure::Failure;
pub use ids::{AttemptId, Rank, StepId, TrialId};
pub use input_manifest::{Column, Encoding, InputFile, InputManifest, Preprocessing};
pub use layout::{Axis, Channel, Coord, Layout};
pub use predict::{
    ClassScore, Classification, EvaluateRequest, EvaluateResponse, Evaluation, PredictRequest, PredictResponse,
    Prediction, TrainedModel,
};
pub use rates::{Gpu, HostFacts, HostNetwork, ProbeRequest, ProfilePoint, RankRates, Rates, WholeStep};
pub use sample::{SampleRequest, SampleResponse, GenerationStats};
pub use sharding::{Region, ContiguousRun};
