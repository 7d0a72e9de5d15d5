//! dtrain as a library: builds programs that have all commands of `dtrain` and also train your own networks.
//!
//! ```no_run
//! use dtrain::burn::nn::{Linear, LinearConfig};
//! use dtrain::{BuildError, BurnNetwork, Program, ModelSettings};
//!
//! fn build(settings: &ModelSettings<'_>) -> Result<BurnNetwork, BuildError> {
//!     let [inputs, classes] = settings.rows()?;
//!     let layer = LinearConfig::new(inputs, classes).init(&settings.device());
//!     Ok(BurnNetwork::whole(settings.reads(), layer, |layer: &Linear, input| layer.forward(input.rows())))
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     Program::new().network("linear", build).main()
//! }
//! ```
//!
//! The program is its own controller, agent and worker: it starts copies of itself, here and on other hosts.
//! No rule of training lives here; see `dtrain_planner` and `dtrain_worker` for those.

mod args;
mod attempt_plans;
mod audit;
mod begin_trial;
mod checkpoint_sources;
mod color;
mod command_error;
mod commands;
mod completions;
mod confirm;
mod context;
mod continue_trial;
mod engine_checkpoints;
mod engine_choice;
mod engine_environments;
mod engine_failures;
mod exit_code;
mod find_checkpoint;
mod hosts;
mod initial_checkpoint;
mod kept_connections;
mod kernel_gpus;
mod limits;
mod load_recipe;
mod model_query;
mod names;
mod networks;
mod output;
mod packages;
mod plan_file;
mod precheck;
mod pretrained;
mod progress_templates;
mod rates;
mod recipe_diff;
mod render;
mod run_mode;
mod run_summary;
mod run_trial;
mod sampler;
mod series;
mod settings;
mod signals;
mod slots;
mod slurm_job;
mod source_checkpoint;
mod supervisor;
mod this_host;
mod trained_model;
mod trial_logs;
mod trials;
mod unigram;
mod unreported_metrics;
mod viewer;
mod watch;
mod weights_provenance;
mod workdir;

use clap::Parser;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

pub use dtrain_recipes::InputSignature;
pub use dtrain_worker::burn;
pub use dtrain_worker::network::{
    BurnNetwork, ForwardMode, HeadlessNetwork, Initializer, LayerContext, ModelInput, ModelPart,
    ModelSettings, ModuleInput, NeuralNetwork, ParameterSpec, SettingValue, Weights,
};
pub use dtrain_worker::stage::DeferredLossFigures;

/// Memory allocator of every program built with dtrain.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Error from a function that builds a network: a text or any error type.
pub type BuildError = Box<dyn Error + Send + Sync>;

/// A program with the commands of `dtrain`, to which your own networks can be added.
#[derive(Debug, Default)]
#[must_use = "call `main`"]
pub struct Program(());

impl Program {
    /// Creates a program that trains dtrain's built-in models.
    pub fn new() -> Self {
        Self(())
    }

    /// Registers `build` for recipes with `kind = "custom"` and `network = NAME`.
    ///
    /// `build` runs in the controller, for planning, and in every rank. It creates modules on
    /// [`ModelSettings::device`]; random initialization there follows `train.seed`.
    pub fn network<N: NeuralNetwork + 'static>(
        self,
        name: &str,
        build: impl Fn(&ModelSettings<'_>) -> Result<N, BuildError> + Send + Sync + 'static,
    ) -> Self {
        let boxed = move |settings: &ModelSettings<'_>| {
            build(settings).map(|network| -> Box<dyn NeuralNetwork> { Box::new(network) })
        };
        dtrain_worker::network::register(name, Arc::new(boxed));
        self
    }

    /// Parses the command line and runs the command; return its value from your `main`.
    pub fn main(self) -> ExitCode {
        run()
    }
}

/// Parses the command line, runs the command, and returns its exit code.
fn run() -> ExitCode {
    no_core_files();
    signals::outlive_the_file_size_limit();
    if std::env::var_os(completions::VARIABLE).is_some() {
        completions::answer(args::visible);
    }
    let arguments = match args::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help goes to stdout; a closed pipe is no error.
            drop(error.print());
            let code =
                if error.use_stderr() { exit_code::ExitReason::Usage } else { exit_code::ExitReason::Done };
            if error.use_stderr() {
                tell_in_json(&error);
            }
            return ExitCode::from(code.exit_code());
        }
    };
    commands::run(arguments)
}

/// Prints a usage error as JSON if the arguments ask for JSON.
fn tell_in_json(error: &clap::Error) {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let (is_asked, is_lines) = args::json_asked(words.iter().map(std::ffi::OsString::as_os_str));
    let out = output::Output::new(is_asked, false);
    out.json_error(&command_error::ErrorJson::of_usage(&error.to_string()), is_lines);
}

/// Sets the soft limit for core files to 0, for this process and its children: core files would contain
/// private keys.
fn no_core_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    // This cannot fail: every process may lower its limits.
    let _ = setrlimit(Resource::Core, limit);
}
