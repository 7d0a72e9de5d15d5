//! The `dtrain` program: reads the command line, and hands over to one command.
//!
//! No rule of training lives here; see `dtrain_planner` and `dtrain_worker` for those.

mod args;
mod audit;
mod child;
mod commands;
mod completion;
mod confirm;
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
mod precheck;
mod rates;
mod render;
mod sampler;
mod settings;
mod signals;
mod trials;
mod unigram;
mod viewer;
mod watch;

use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    no_core_files();
    if std::env::var_os(completion::VARIABLE).is_some() {
        completion::answer(args::visible);
    }
    let arguments = match args::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help goes to stdout and may meet a closed pipe, which is no error.
            drop(error.print());
            let code = if error.use_stderr() { failure::Exit::Usage } else { failure::Exit::Done };
            if error.use_stderr() {
                tell_in_json(&error);
            }
            return ExitCode::from(code.code());
        }
    };
    commands::run(arguments)
}

/// Tells an error of usage to a program that reads JSON.
fn tell_in_json(error: &clap::Error) {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let (is_asked, is_lines) = args::json_asked(words.iter().map(std::ffi::OsString::as_os_str));
    let out = output::Output::new(is_asked, false);
    out.json_error(&failure::ErrorJson::of_usage(&error.to_string()), is_lines);
}

/// Keeps keys of certificates out of core files, of this process and all that it starts; a program that wants one raises the limit.
fn no_core_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    // It cannot fail: nobody is forbidden to lower a limit.
    let _ = setrlimit(Resource::Core, limit);
}
