//! Messages and formats that dtrain's processes share: ids, layouts, assignments, orders, events,
//! checkpoints.
//!
//! Types and pure functions on them and, with the feature `tls`, authentication. Only `pending_peers` reads a
//! clock and sockets; nothing here reads a file.

pub mod action;
pub mod arrangement;
pub mod assignment;
pub mod bundle;
pub mod checkpoint;
pub mod communication_volume;
pub mod device_check;
pub mod event;
pub mod failure;
pub mod frame;
pub mod hugging_face;
pub mod ids;
pub mod input_manifest;
pub mod layout;
pub mod learning_rate_warmup_and_decay;
pub mod non_finite;
pub mod old_names;
#[cfg(feature = "tls")]
pub mod pending_peers;
pub mod placement;
pub mod predict;
pub mod rates;
pub mod sample;
pub mod series_codec;
pub mod sharding;
pub mod shared_memory_layout;
pub mod shared_memory_size;
pub mod shuffle;
pub mod supported;
#[cfg(feature = "tls")]
pub mod tls;
pub mod unix_group;

pub use action::{Action, Neighbor, Pass};
pub use arrangement::{Arrangement, ContextExchange, EmbeddingHeadCost, RankOrder};
pub use assignment::{
    Assignment, EngineProcess, Hyperparameters, MetricTarget, RankTransport, ResumePoint, RunUntil,
    TlsIdentity, WaitLimits,
};
pub use checkpoint::{FileEntry, Manifest, ReplicaState, SavedFile, Slice, StoredSlice, Tensor, TensorKind};
pub use device_check::{DeviceFindings, DeviceRequest, DeviceResponse};
pub use event::{
    Event, GradientNoise, NamedFigure, Order, PhaseTimes, ResidentBytes, StampedEvent, StepFigures,
    StopReason,
};
pub use failure::{Failure, LeaveCause};
pub use ids::{AttemptId, Rank, StepId, TrialId};
pub use input_manifest::{Column, Encoding, InputFile, InputManifest, Preprocessing};
pub use layout::{Axis, Channel, Coord, Layout};
pub use placement::{DeviceKind, Placement};
pub use predict::{
    ClassScore, Classification, EvaluateRequest, EvaluateResponse, Evaluation, PredictRequest,
    PredictResponse, Prediction, TrainedModel,
};
pub use rates::{Gpu, HostFacts, HostNetwork, ProbeRequest, ProfilePoint, RankRates, Rates, WholeStep};
pub use sample::{GenerationStats, SampleRequest, SampleResponse};
pub use sharding::{ContiguousRun, Region};
pub use supported::{Untrainable, cannot_run, cannot_train};
