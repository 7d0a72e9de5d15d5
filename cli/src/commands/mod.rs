//! The commands, one in a file.

mod agent;
pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod check_output;
pub(crate) mod checkpoint;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod data;
pub(crate) mod doctor;
mod emit;
pub(crate) mod estimate;
pub(crate) mod export;
mod fence;
pub(crate) mod gc;
pub(crate) mod history;
pub(crate) mod hosts;
pub(crate) mod init;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod model;
mod model_evaluate;
mod model_export;
mod model_predict;
pub(crate) mod note;
pub(crate) mod outlook;
pub(crate) mod package;
pub(crate) mod plan;
pub(crate) mod probe;
pub(crate) mod recipe;
pub(crate) mod report;
pub(crate) mod resume;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod show;
pub(crate) mod tune;
mod watch;

use crate::args::{Arguments, Command, ModelCommand, WorkerPart};
use crate::context::Context;
use crate::failure::{Exit, Outcome};
use crate::output::{Output, complain};
use crate::{limits, signals};
use dtrain_runner::channel;
use std::fs::File;
use std::io;
use std::process::ExitCode;

/// Carries out a command and says what went wrong.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match arguments.command {
        Command::Worker { part, channel } => return with_channel(channel, |channel| worker(part, channel)),
        Command::Agent { stdio: false, digest: false, channel, .. } => {
            return with_channel(channel, dtrain_runner::agent::run);
        }
        Command::Agent { stdio: false, digest: true, .. } => return agent::digest(),
        _ => {}
    }
    let out = Output::new(arguments.json, arguments.quiet);
    let is_lines = arguments.command.prints_lines();
    let outcome = Context::new(out, arguments.state).and_then(|context| {
        if arguments.command.uses_state() {
            context.check_state()?;
        }
        dispatch(&context, arguments.command)
    });
    let exit = outcome.map_err(limits::explained).unwrap_or_else(|failure| {
        complain(&failure.render(out.paint));
        if let Some(error) = failure.json() {
            out.json_error(&error, is_lines);
        }
        failure.exit()
    });
    ExitCode::from(exit.code())
}

/// Runs a part of this program that another process of it starts.
fn with_channel(number: Option<i32>, part: impl FnOnce(File) -> ExitCode) -> ExitCode {
    match number.ok_or(io::ErrorKind::InvalidInput.into()).and_then(channel::take) {
        Ok(channel) => part(channel),
        Err(error) => {
            complain(&format!("error: only dtrain itself starts this command: --channel: {error}\n"));
            ExitCode::from(Exit::Usage.code())
        }
    }
}

fn worker(part: Option<WorkerPart>, channel: File) -> ExitCode {
    match part {
        None => {
            signals::leave_to_the_agent();
            dtrain_worker::run(channel)
        }
        Some(WorkerPart::Probe) => dtrain_worker::probe(channel),
        Some(WorkerPart::Sample) => dtrain_worker::sample(channel),
        Some(WorkerPart::Predict) => dtrain_worker::predict(channel),
        Some(WorkerPart::Evaluate) => dtrain_worker::evaluate(channel),
        Some(WorkerPart::Device) => dtrain_worker::examine(channel),
    }
}

fn dispatch(context: &Context, command: Command) -> Outcome {
    command.outputs().into_iter().try_for_each(|path| context.check_output(path))?;
    if let Command::Run(_) | Command::Tune(_) | Command::Resume(_) = command {
        limits::refuse_few_files()?;
    }
    match command {
        Command::Init(args) => init::run(context, args),
        Command::Check(args) => check::run(context, &args),
        Command::Data(args) => data::run(context, &args),
        Command::Schema => schema::run(context),
        Command::Probe(args) => probe::run(context, &args),
        Command::Plan(args) => plan::run(context, &args),
        Command::Estimate(args) => estimate::run(context, &args),
        Command::Run(args) => run::run(context, &args),
        Command::Tune(args) => tune::run(context, &args),
        Command::Resume(args) => resume::resume(context, &args),
        Command::Attach(args) => resume::attach(context, &args),
        Command::Stop(args) => resume::stop(context, &args),
        Command::Watch(args) => watch::run(context, &args),
        Command::Audit(args) => audit::run(context, &args),
        Command::Fence(args) => fence::run(context, &args),
        Command::Logs(args) => logs::run(context, &args),
        Command::History(args) => history::run(context, &args),
        Command::Compare(args) => compare::run(context, &args),
        Command::Export(args) => export::run(context, &args),
        Command::Show(args) => show::run(context, &args),
        Command::Report(args) => report::run(context, &args),
        Command::Note(args) => note::run(context, &args),
        Command::Rm(args) => rm::run(context, &args),
        Command::Gc(args) => gc::run(context, &args),
        Command::Checkpoint(command) => checkpoint::run(context, &command),
        Command::Recipe(command) => recipe::run(context, command),
        Command::Model(ModelCommand::Sample(args)) => model::sample(context, &args),
        Command::Model(ModelCommand::Predict(args)) => model_predict::run(context, &args),
        Command::Model(ModelCommand::Evaluate(args)) => model_evaluate::run(context, &args),
        Command::Model(ModelCommand::Export(args)) => model_export::run(context, &args),
        Command::Hosts { command } => hosts::run(context, command.as_ref()),
        Command::Doctor(args) => doctor::run(context, &args),
        Command::Completions { shell } => completions::run(context, shell),
        Command::Man { command } => man::run(context, &command),
        Command::Agent { shared, .. } => agent::relay(context, shared),
        Command::Worker { .. } => unreachable!("the hidden commands were taken out above"),
    }
}
