//! dtrain as a library: a program with all commands of `dtrain` that also trains networks of its own.
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
//! The program is its own controller, agent and worker: it starts copies of itself, here and on other hosts. No rule of
//! training lives here; see `dtrain_planner` and `dtrain_worker` for those.

mod args;
mod audit;
mod checkpoint_sources;
mod command_error;
mod commands;
mod completion;
mod confirm;
mod context;
mod find_checkpoint;
mod fork;
mod hosts;
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
mod rates;
mod render;
mod run_summary;
mod run_trial;
mod sampler;
mod settings;
mod signals;
mod slurm_job;
mod trials;
mod unigram;
mod unreported_metrics;
mod viewer;
mod watch;

use clap::Parser;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

pub use dtrain_recipes::InputSignature;
pub use dtrain_worker::burn;
pub use dtrain_worker::network::{
    BurnNetwork, HeadlessNetwork, Initializer, LayerContext, ModelPart, ModelSettings, ModuleInput,
    NeuralNetwork, ParameterSpec, SettingValue, Weights,
};
pub use dtrain_worker::stage::{DeferredLossFigures, ModelInput};

/// The allocator of every program that is made of dtrain.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Why a network cannot be built of what a recipe says: a text, or any error.
pub type BuildError = Box<dyn Error + Send + Sync>;

/// A program with the commands of `dtrain`.
#[derive(Debug, Default)]
#[must_use = "call `main`"]
pub struct Program(());

impl Program {
    /// A program that trains the models that dtrain brings along.
    pub fn new() -> Self {
        Self(())
    }

    /// Also trains what `build` makes, where a recipe says `kind = "custom"` and `network = NAME`.
    ///
    /// `build` is called in the controller, to plan, and in every rank. Its modules are made on [`ModelSettings::device`]; what
    /// they draw at random there follows from `train.seed`.
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

    /// Reads the command line and carries it out; the value is for `main` to return.
    pub fn main(self) -> ExitCode {
        run()
    }
}

/// Reads the command line and carries it out.
fn run() -> ExitCode {
    no_core_files();
    signals::outlive_the_file_size_limit();
    if std::env::var_os(completion::VARIABLE).is_some() {
        completion::answer(args::visible);
    }
    let arguments = match args::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help goes to stdout and may meet a closed pipe, which is no error.
            drop(error.print());
            let code = if error.use_stderr() {
                command_error::ExitReason::Usage
            } else {
                command_error::ExitReason::Done
            };
            if error.use_stderr() {
                tell_in_json(&error);
            }
            return ExitCode::from(code.exit_code());
        }
    };
    commands::run(arguments)
}

/// Tells an error of usage to a program that reads JSON.
fn tell_in_json(error: &clap::Error) {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let (is_asked, is_lines) = args::json_asked(words.iter().map(std::ffi::OsString::as_os_str));
    let out = output::Output::new(is_asked, false);
    out.json_error(&command_error::ErrorJson::of_usage(&error.to_string()), is_lines);
}

/// Keeps keys of certificates out of core files, of this process and all that it starts; a program that wants one raises the limit.
fn no_core_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    // It cannot fail: nobody is forbidden to lower a limit.
    let _ = setrlimit(Resource::Core, limit);
}
