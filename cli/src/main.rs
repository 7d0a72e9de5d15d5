//! The `dtrain` program: reads the command line, and hands over to one command.
//!
//! No rule of training lives here; see `dtrain_planner` and `dtrain_worker` for those.

mod args;
mod commands;
mod context;
mod drive;
mod failure;
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

use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
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
