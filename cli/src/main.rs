//! The `dtrain` program: reads the command line, and hands over to one command.
//!
//! No rule of training lives here; see `dtrain_planner` and `dtrain_worker` for those.

mod args;
mod child;
mod commands;
mod context;
mod drive;
mod ending;
mod failure;
mod holders;
mod hosts;
mod job;
mod load;
mod output;
mod packages;
mod rates;
mod render;
mod sampler;
mod settings;
mod signals;
mod trials;
mod unigram;
mod viewer;

use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    no_core_files();
    let arguments = match args::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help goes to stdout and may meet a closed pipe, which is no error.
            drop(error.print());
            let code = if error.use_stderr() { failure::Exit::Usage } else { failure::Exit::Done };
            return ExitCode::from(code.code());
        }
    };
    commands::run(arguments)
}

/// Keeps keys of certificates out of core files, of this process and all that it starts; a program that wants one raises the limit.
fn no_core_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    // It cannot fail: nobody is forbidden to lower a limit.
    let _ = setrlimit(Resource::Core, limit);
}
