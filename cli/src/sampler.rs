//! Asks a worker process to continue a text.

use crate::failure::{Exit, Failure};
use dtrain_protocol::{SampleRequest, Sampled, frame};
use std::process::{Command, Stdio};

/// Continues the prompt of `request`; hands over the text piece by piece, as it is written.
pub(crate) fn write(
    request: &SampleRequest,
    more: &mut dyn FnMut(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = |cause: String| Failure::new(Exit::WorkerFailed, "the model could not write").cause(cause);
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut child = Command::new(program)
        .args(["worker", "sample"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    // The worker ends when its input does, so the pipe stays open until it is done.
    let mut orders = child.stdin.take();
    let answer = (|| {
        let (Some(orders), Some(said)) = (orders.as_mut(), child.stdout.as_mut()) else {
            return Err(failed("its pipes are missing".into()));
        };
        frame::write(orders, request).map_err(|error| failed(error.to_string()))?;
        loop {
            match frame::read(said).map_err(|error| failed(error.to_string()))? {
                Sampled::Text(text) => more(&text)?,
                Sampled::Done => return Ok(()),
                Sampled::Failed(reason) => return Err(failed(reason)),
            }
        }
    })();
    drop(orders);
    drop(child.wait());
    answer
}
