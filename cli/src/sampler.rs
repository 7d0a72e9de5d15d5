//! Text generation in a worker process.

use crate::command_error::CommandError;
use crate::model_query::{data_refused, query_worker, worker_failed};
use dtrain_protocol::{GenerationStats, SampleRequest, SampleResponse};
use std::ops::ControlFlow;

/// Continues the prompt of `request`; passes on the text piece by piece. Returns tokens and seconds.
pub(crate) fn generate(
    request: &SampleRequest,
    more: &mut dyn FnMut(&str) -> Result<(), CommandError>,
) -> Result<GenerationStats, CommandError> {
    let mut done = GenerationStats::default();
    let what = "the model could not write";
    let failed = worker_failed(what);
    query_worker("sample", request, &failed, &mut |answer| match answer {
        SampleResponse::Text(text) => more(&text).map(ControlFlow::Continue),
        SampleResponse::Done(written) => {
            done = written;
            Ok(ControlFlow::Break(()))
        }
        SampleResponse::Refused(reason) => Err(data_refused(what, reason)),
        SampleResponse::Failed(reason) => Err(failed(reason)),
    })?;
    Ok(done)
}
