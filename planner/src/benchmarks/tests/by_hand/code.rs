//! The hand-computed values as the code computes them, from the cells of a row.

use crate::analytic::matmul::{ForwardBackward, linear};
use crate::analytic::{Constants, LayerTimes, PeakMemory, StepInputs, StepTimes, head_and_embedding};
use crate::benchmarks::read;
use crate::benchmarks::{RowEstimate, TableRow, estimate_rows};
use std::collections::BTreeMap;

type Values = BTreeMap<&'static str, f64>;

/// Returns all values of a row by name.
pub(super) fn values(row: &TableRow) -> Values {
    let training = read::resolve_training(row, Constants::shipped()).expect("the row has all that is needed");
    let case = training.case();
    let priced = estimate_rows(std::slice::from_ref(row), &[], Constants::shipped()).remove(0);
    let parts = [device(&case), products(&case), layer(&case), step(&case), memory(&case)];
    parts.into_iter().flatten().chain(told(&priced)).collect()
}

fn device(case: &StepInputs<'_>) -> Values {
    [
        ("products", case.device.products),
        ("attention", case.device.attention),
        ("stream", case.device.stream),
        ("link", case.links.link),
        ("network", case.links.network),
    ]
    .into()
}

/// Matrix products of a layer without grouped heads and without a gate.
fn products(case: &StepInputs<'_>) -> Values {
    let (model, tokens, t) = (case.model, case.tokens(), case.config.tensor());
    let (heads, wide) = (model.heads / t * model.head, model.ffn / t);
    let of = |outputs, inputs| linear(tokens, outputs, inputs, &case.device);
    let named = |names: [&'static str; 2], passes: ForwardBackward| {
        [(names[0], passes.forward), (names[1], passes.backward)]
    };
    [
        named(["qkv forward", "qkv backward"], of(3.0 * heads, model.hidden)),
        named(["out forward", "out backward"], of(model.hidden, heads)),
        named(["up forward", "up backward"], of(wide, model.hidden)),
        named(["down forward", "down backward"], of(model.hidden, wide)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn layer(case: &StepInputs<'_>) -> Values {
    let layer = LayerTimes::of(case);
    let both = [
        ("core forward", "core backward", layer.core),
        ("element-wise forward", "element-wise backward", layer.elementwise),
        ("idle forward", "idle backward", layer.idle),
        ("host forward", "host backward", layer.host),
        ("tensor forward", "tensor backward", layer.tensor),
        ("computed forward", "computed backward", layer.computed()),
        ("forward", "backward", layer.passes()),
    ];
    let operations = layer.host.forward / case.engine.profile.launch;
    let once = [("again", layer.recompute), ("layer", layer.total()), ("operations", operations)];
    both.into_iter()
        .flat_map(|(forward, backward, passes)| [(forward, passes.forward), (backward, passes.backward)])
        .chain(once)
        .collect()
}

fn step(case: &StepInputs<'_>) -> Values {
    let (step, model) = (StepTimes::of(case), case.model);
    [
        ("head", head_and_embedding::head_seconds(case)),
        ("embedding", head_and_embedding::embedding_seconds(case)),
        ("layer parameters", (model.attention() + model.feed_forward()) / case.config.tensor()),
        // The first and the last gather are exposed.
        ("gather", step.replicas / 2.0),
        ("gathering", step.gathering),
        ("slowest stage", step.slowest),
        ("micro-batches", step.micro_batches),
        ("bubble", step.bubble),
        ("messages", step.messages),
        ("replicas", step.replicas),
        ("optimizer", step.optimizer),
        ("stragglers", step.stragglers),
        ("fixed", step.fixed),
        ("step", step.total()),
    ]
    .into()
}

fn memory(case: &StepInputs<'_>) -> Values {
    let peak = PeakMemory::of(case);
    [
        ("states", peak.states),
        ("gathered", peak.gathered),
        ("activations", peak.activations),
        ("working", peak.working),
        ("fragments", peak.fragments),
        ("process", peak.process),
        ("peak", peak.total()),
    ]
    .into()
}

/// Returns the values that are printed for the user.
fn told(priced: &RowEstimate) -> Values {
    [("error", priced.error.expect("the row is priced and measured"))].into()
}
