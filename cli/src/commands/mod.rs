//! The commands of `dtrain`, one file or folder each.

mod agent;
mod audit;
mod check;
mod checkpoint;
mod compare;
mod completions;
mod data;
mod doctor;
mod drain;
mod engine;
mod estimate;
mod export;
mod fence;
mod gc;
mod history;
mod hosts;
mod init;
mod logs;
mod man;
mod model;
mod model_evaluate;
mod model_export;
mod model_predict;
mod note;
mod plan;
mod probe;
mod recipe;
mod report;
mod resume;
mod rm;
mod run;
mod schema;
mod show;
mod supervise;
mod tune;
mod watch;

use crate::args::{Arguments, CommandArgs, ModelCommand, WorkerPart};
use crate::command_error::CommandResult;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::{Output, write_stderr};
use crate::{limits, signals};
use dtrain_protocol::TrialId;
use dtrain_runner::channel;
use std::fs::File;
use std::io;
use std::process::ExitCode;

/// Runs the command that the arguments select, and prints its error.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match arguments.command {
        CommandArgs::Worker { part: Some(WorkerPart::Engine { assignment }), .. } => {
            return dtrain_worker::engine_rank::run(&assignment);
        }
        CommandArgs::Worker { part, channel } => {
            return with_channel(channel, |channel| worker(part, channel));
        }
        CommandArgs::Agent { stdio: false, digest: false, channel, .. } => {
            return with_channel(channel, dtrain_runner::agent::run);
        }
        CommandArgs::Agent { stdio: false, digest: true, .. } => return agent::digest(),
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
    let exit = outcome.map_err(limits::with_limit_hint).unwrap_or_else(|failure| {
        write_stderr(&failure.render(out.paint));
        if let Some(error) = failure.json() {
            out.json_error(&error, is_lines);
        }
        failure.exit()
    });
    ExitCode::from(exit.exit_code())
}

/// Runs an internal entry point, which another dtrain process starts, with the channel at descriptor
/// `number`.
fn with_channel(number: Option<i32>, part: impl FnOnce(File) -> ExitCode) -> ExitCode {
    match number.ok_or(io::ErrorKind::InvalidInput.into()).and_then(channel::open_inherited) {
        Ok(channel) => part(channel),
        Err(error) => {
            write_stderr(&format!("error: only dtrain itself starts this command: --channel: {error}\n"));
            ExitCode::from(ExitReason::Usage.exit_code())
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
        Some(WorkerPart::Engine { assignment }) => dtrain_worker::engine_rank::run(&assignment),
    }
}

fn dispatch(context: &Context, command: CommandArgs) -> CommandResult {
    command.outputs().into_iter().try_for_each(|path| context.check_output(path))?;
    if let CommandArgs::Run(_) | CommandArgs::Tune(_) | CommandArgs::Resume(_) = command {
        limits::refuse_few_files()?;
    }
    match command {
        CommandArgs::Init(args) => init::run(context, args),
        CommandArgs::Check(args) => check::run(context, &args),
        CommandArgs::Data(args) => data::run(context, &args),
        CommandArgs::Schema => schema::run(context),
        CommandArgs::Probe(args) => probe::run(context, &args),
        CommandArgs::Plan(args) => plan::run(context, &args),
        CommandArgs::Estimate(args) => estimate::run(context, &args),
        CommandArgs::Run(args) => run::run(context, &args),
        CommandArgs::Tune(args) => tune::run(context, &args),
        CommandArgs::Resume(args) => resume::resume(context, &args),
        CommandArgs::Attach(args) => resume::attach(context, &args),
        CommandArgs::Stop(args) => resume::stop(context, &args),
        CommandArgs::Watch(args) => watch::run(context, &args),
        CommandArgs::Audit(args) => audit::run(context, &args),
        CommandArgs::Drain(args) => drain::run(context, &args),
        CommandArgs::Fence(args) => fence::run(context, &args),
        CommandArgs::Logs(args) => logs::run(context, &args),
        CommandArgs::History(args) => history::run(context, &args),
        CommandArgs::Compare(args) => compare::run(context, &args),
        CommandArgs::Export(args) => export::run(context, &args),
        CommandArgs::Show(args) => show::run(context, &args),
        CommandArgs::Report(args) => report::run(context, &args),
        CommandArgs::Note(args) => note::run(context, &args),
        CommandArgs::Rm(args) => rm::run(context, &args),
        CommandArgs::Gc(args) => gc::run(context, &args),
        CommandArgs::Checkpoint(command) => checkpoint::run(context, &command),
        CommandArgs::Recipe(command) => recipe::run(context, command),
        CommandArgs::Model(ModelCommand::Sample(args)) => model::sample(context, &args),
        CommandArgs::Model(ModelCommand::Predict(args)) => model_predict::run(context, &args),
        CommandArgs::Model(ModelCommand::Evaluate(args)) => model_evaluate::run(context, &args),
        CommandArgs::Model(ModelCommand::Export(args)) => model_export::run(context, &args),
        CommandArgs::Hosts { command } => hosts::run(context, command.as_ref()),
        CommandArgs::Engine(command) => engine::run(context, command),
        CommandArgs::Doctor(args) => doctor::run(context, &args),
        CommandArgs::Completions { shell } => completions::run(context, shell),
        CommandArgs::Man { command } => man::run(context, &command),
        CommandArgs::Agent { shared, .. } => agent::relay(context, shared),
        CommandArgs::Supervise { trial } => supervise::run(context, &TrialId(trial)),
        CommandArgs::Worker { .. } => unreachable!("the hidden commands were taken out above"),
    }
}
