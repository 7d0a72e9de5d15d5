//! Asks a worker process to continue a text.

use crate::asked::{ask, failed};
use crate::failure::Failure;
use dtrain_protocol::{SampleRequest, Sampled};
use std::ops::ControlFlow;

/// Continues the prompt of `request`; hands over the text piece by piece, as it is written.
pub(crate) fn write(
    request: &SampleRequest,
    more: &mut dyn FnMut(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = failed("the model could not write");
    ask("sample", request, &failed, &mut |answer| match answer {
        Sampled::Text(text) => more(&text).map(ControlFlow::Continue),
        Sampled::Done => Ok(ControlFlow::Break(())),
        Sampled::Failed(reason) => Err(failed(reason)),
    })
}
