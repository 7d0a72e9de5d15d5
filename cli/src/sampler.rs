//! Asks a worker process to continue a text.

use crate::asked::{ask, failed, refused};
use crate::failure::Failure;
use dtrain_protocol::{SampleRequest, Sampled, Written};
use std::ops::ControlFlow;

/// Continues the prompt of `request`; hands over the text piece by piece, as it is written. Gives what it took.
pub(crate) fn write(
    request: &SampleRequest,
    more: &mut dyn FnMut(&str) -> Result<(), Failure>,
) -> Result<Written, Failure> {
    let mut done = Written::default();
    let what = "the model could not write";
    let failed = failed(what);
    ask("sample", request, &failed, &mut |answer| match answer {
        Sampled::Text(text) => more(&text).map(ControlFlow::Continue),
        Sampled::Done(written) => {
            done = written;
            Ok(ControlFlow::Break(()))
        }
        Sampled::Refused(reason) => Err(refused(what, reason)),
        Sampled::Failed(reason) => Err(failed(reason)),
    })?;
    Ok(done)
}
