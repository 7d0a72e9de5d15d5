//! What the user declares: the TOML language of dtrain, checked once and never changed afterwards.
//!
//! Text comes in, a [`Recipe`] or a list of [`Problem`]s goes out. This crate reads no clock and
//! touches no file outside [`sharing`], which runs the user's own `git`.

mod assignment;
pub mod canonical;
pub mod check;
pub mod cluster;
pub mod count;
pub mod data;
pub mod decoder;
pub mod document;
pub mod extends;
pub mod keys;
pub mod library;
pub mod model;
pub mod name;
pub mod network;
mod objective;
pub mod own;
pub mod params;
pub mod placeholder;
pub mod problem;
pub mod progress;
pub mod recipe;
pub mod schema;
pub mod search;
pub mod sharing;
pub mod source;
pub mod sync;
pub mod text;
pub mod train;
mod tune;
pub mod units;
pub mod url;
pub mod words;

pub use check::{CheckContext, Checked, FilePattern, Resolved, check};
pub use cluster::{Cluster, Devices, Host, Launcher, Slurm, Transport};
pub use data::{Columns, Data, DataFormat, DataKind, Documents, Separator, Tokenizer, Valid};
pub use decoder::{
    AdaptedLayers, Decoder, DenseLayers, Experts, Latent, Lora, NORM_EPSILON, ROTARY_BASE, Window,
};
pub use document::{Document, Leaf};
pub use extends::extended;
pub use model::{Activation, Cnn, Command, Family, Framework, Mlp, MlpActivation, Model, Norm, Positions};
pub use network::Network;
pub use objective::{Goal, Metric, Objective, Stop};
pub use own::{Outline, Own, PartOutline, Reads};
pub use params::{ParamRange, ParamValue, Within};
pub use problem::{Problem, render_all};
pub use recipe::{
    Checkpointing, Every, LayoutPins, PipelineSchedule, Recipe, Recompute, Validating, ZeroStage,
};
pub use search::Choice;
pub use source::{Layer, Origin, Source};
pub use sync::{Compression, CompressionKind, Local, Synchronisation};
pub use train::{Fp8Recipe, Optimizer, OptimizerKind, Precision, Schedule, Train, Warmup};
pub use tune::{PrunerKind, SamplerKind, Tune};
pub use units::{Bytes, Samples, Seconds, Tokens};
pub use url::Url;
