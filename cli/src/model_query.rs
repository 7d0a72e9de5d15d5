//! Requests to a worker process that computes with a trained model.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_protocol::frame;
use dtrain_runner::channel;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::ops::ControlFlow;
use std::process::{Command, Stdio};

/// Starts `dtrain worker PART`, sends `request`, and passes each answer to `heard` until that returns
/// `Break`. `failed` converts the cause of a failure into an error.
pub(crate) fn query_worker<Answer: DeserializeOwned, Found>(
    part: &str,
    request: &impl Serialize,
    failed: &dyn Fn(String) -> CommandError,
    heard: &mut dyn FnMut(Answer) -> Result<ControlFlow<Found>, CommandError>,
) -> Result<Found, CommandError> {
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    // Output that a library prints there is no result of this program.
    command.args(["worker", part]).stdin(Stdio::piped()).stdout(Stdio::from(io::stderr()));
    let (mut child, mut messages) = channel::spawn(command).map_err(|error| failed(error.to_string()))?;
    // The worker ends when its input closes, so the pipe stays open until the answers are complete.
    let mut orders = child.stdin.take();
    let answer = (|| {
        let orders = orders.as_mut().expect("it is piped");
        frame::write(orders, request).map_err(|error| failed(error.to_string()))?;
        loop {
            let answer = frame::read(&mut messages).map_err(|error| failed(error.to_string()))?;
            if let ControlFlow::Break(found) = heard(answer)? {
                return Ok(found);
            }
        }
    })();
    drop(orders);
    drop(child.wait());
    answer
}

/// Returns the number of threads for a worker that computes with a trained model.
pub(crate) fn threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
}

/// Returns a function that builds the error for a worker that could not do `what`, from the cause.
pub(crate) fn worker_failed(what: &'static str) -> impl Fn(String) -> CommandError {
    move |cause| CommandError::new(ExitReason::WorkerFailed, what).cause(cause)
}

/// Builds the error for a worker that could not do `what` because of the user's data.
pub(crate) fn data_refused(what: &'static str, cause: String) -> CommandError {
    CommandError::new(ExitReason::Usage, what).cause(cause)
}
