//! Recipes: the TOML language of dtrain, parsed, checked once, and never changed afterwards.
//!
//! Text comes in; a [`Recipe`] or a list of [`Problem`]s goes out. This crate reads no clock, and only
//! [`sharing`], which runs the user's own `git`, touches files.

pub mod architecture;
pub mod check;
pub mod cluster;
pub mod custom_model;
pub mod data;
pub mod decoder;
pub mod document;
pub mod extends;
pub mod gpu_facts;
pub mod hub_model;
pub mod json_schema;
pub mod keys;
pub mod keyword_enum;
pub mod library;
pub mod line_template;
pub mod model;
pub mod name;
pub mod notice;
pub mod number_format;
mod objective;
mod overrides;
pub mod params;
pub mod placeholder;
pub mod problem;
pub mod recipe;
pub mod recipe_differences;
pub mod recipe_digest;
pub mod sanitize;
pub mod sharing;
pub mod source;
pub mod state;
pub mod subnet;
pub mod sync;
pub mod train;
pub mod training_engine;
pub mod tunable;
mod tune;
pub mod units;
pub mod url;
pub mod workdir;

pub use architecture::{Activation, Family, Norm, Positions, RotaryScalingKind};
pub use check::{CheckContext, CheckedRecipe, FilePattern, ResolvedValue, check};
pub use cluster::{Cluster, Devices, GrowthPolicy, Host, LauncherKind, Slurm, SshBackend};
pub use custom_model::{CustomModel, InputSignature, Outline, PartOutline};
pub use data::{
    Columns, Data, DataFormat, DataKind, Documents, LossOn, Separator, Tokenizer, ValidationSource,
};
pub use decoder::{
    AdaptedLayers, Decoder, DenseLayers, Experts, LatentAttention, Lora, NORM_EPSILON, ROTARY_BASE,
    RotaryScaling, SlidingWindow,
};
pub use document::{Document, Leaf, OLD_KEYS, OLD_WORDS};
pub use extends::resolve_extends;
pub use gpu_facts::{GpuFacts, GpuLink};
pub use hub_model::HubModel;
pub use model::{Cnn, ForeignCommand, Framework, Mlp, MlpActivation, Model};
pub use notice::{NoticePoll, NoticeQuery, NoticeUrl};
pub use objective::{Goal, Metric, Objective, StopConditions};
pub use params::{ParamDomain, ParamRange, ParamValue};
pub use problem::{Problem, render_all};
pub use recipe::{
    CheckpointSchedule, Interval, LayoutPins, PipelineSchedule, Recipe, Recompute, ValidationSchedule,
    ZeroStage,
};
pub use source::{ConfigLayer, Origin, Source};
pub use state::{
    AttentionImplementation, FrozenPrecision, LossKernel, MomentPrecision, Offload, StatePins, StatePolicy,
    StatePrecision,
};
pub use subnet::Subnet;
pub use sync::{Compression, CompressionKind, DiLoCo, Synchronisation};
pub use train::{Fp8Recipe, Optimizer, OptimizerKind, Precision, Schedule, Train, Warmup};
pub use training_engine::TrainingEngine;
pub use tunable::Tunable;
pub use tune::{PrunerKind, SamplerKind, Tune};
pub use units::{Bytes, Samples, Seconds, Tokens};
pub use url::Url;
pub use workdir::{Exclusion, Workdir};
