//! GPT-3 175B on 64 A100s: Korthikanti et al. 2022, table 5. Eight interleaved stages, eight tensor ranks.

use super::arithmetic::{
    Notes, Part, constant, linear, note_computed, note_error, note_linear, note_peak, one_way_of_eight,
};

/// Tokens per micro-batch: 1 sample of 2048.
const M: f64 = 2048.0;
/// Hidden size.
const H: f64 = 12288.0;

/// Computes the row by hand.
pub(super) fn notes() -> Notes {
    let mut notes = Notes::default();
    let part = device(&mut notes);
    products(&mut notes, part);
    attention(&mut notes);
    beside_products(&mut notes);
    tensor(&mut notes);
    layer(&mut notes);
    ends(&mut notes, part);
    stages(&mut notes);
    step(&mut notes);
    memory(&mut notes);
    notes
}

fn device(notes: &mut Notes) -> Part {
    notes.note("link", 300e9 * constant("general.link"));
    notes.note("network", 200e9 / 8.0 * constant("general.network"));
    Part {
        products: notes
            .note("products", 312e12 * constant("ampere.ceiling_16") * constant("ampere.sustained_16")),
        stream: notes.note("stream", 2.039e12 * constant("general.stream")),
        multiprocessors: 108.0,
    }
}

fn products(notes: &mut Notes, part: Part) {
    // A rank has 12 of 96 heads of 128 channels: 1536 channels of queries, keys and values each.
    note_linear(notes, ["qkv forward", "qkv backward"], [M, 3.0 * 1536.0, H], part);
    note_linear(notes, ["out forward", "out backward"], [M, H, 1536.0], part);
    note_linear(notes, ["up forward", "up backward"], [M, 49152.0 / 8.0, H], part);
    note_linear(notes, ["down forward", "down backward"], [M, H, 49152.0 / 8.0], part);
}

fn attention(notes: &mut Notes) {
    let (rate, stream) = (notes.at("products") * constant("general.unfused"), notes.at("stream"));
    let operations = 2.0 * 1.0 * 2048.0 * 2048.0 * (12.0 * (128.0 + 128.0));
    let scores = 2.0 * 1.0 * 12.0 * 2048.0 * 2048.0;
    notes.note("core forward", operations / rate + constant("general.scores_forward") * scores / stream);
    notes.note(
        "core backward",
        2.0 * operations / rate + constant("general.scores_backward") * scores / stream,
    );
}

fn beside_products(notes: &mut Notes) {
    let (between, inner, wide) = (M / 8.0 * H, 2.0 * M * 3.0 * 1536.0, M * 6144.0);
    let stream = notes.at("stream");
    let forward =
        constant("megatron.passes") * (12.0 * 2.0 * between + 2.0 * inner + 4.0 * 2.0 * wide) / stream;
    let backward =
        constant("megatron.passes") * (16.0 * 2.0 * between + 2.0 * inner + 6.0 * 2.0 * wide) / stream;
    notes.note("element-wise forward", forward);
    notes.note("element-wise backward", backward);
    let operations = notes.note("operations", 34.0 * 0.7 + 4.0 + 6.0);
    notes.note("idle forward", operations * constant("general.kernel"));
    notes.note("idle backward", 1.5 * operations * constant("general.kernel"));
    notes.note("host forward", operations * 2.5e-5);
    notes.note("host backward", 1.5 * operations * 2.5e-5);
}

fn tensor(notes: &mut Notes) {
    let one = one_way_of_eight(2.0 * M * H, notes.at("link"));
    notes.note("tensor forward", 2.0 * (2.0 * one));
    notes.note("tensor backward", 2.0 * (2.0 * one + constant("general.gather_again") * one));
}

fn layer(notes: &mut Notes) {
    note_computed(notes);
    let [computed, host, tensor] =
        ["computed forward", "host forward", "tensor forward"].map(|name| notes.at(name));
    let forward = notes.note("forward", computed.max(host) + tensor);
    let [computed, host, tensor] =
        ["computed backward", "host backward", "tensor backward"].map(|name| notes.at(name));
    let backward = notes.note("backward", computed.max(host) + tensor);
    let again = notes.note("again", notes.at("core forward"));
    notes.note("layer", forward + backward + again);
}

fn ends(notes: &mut Notes, part: Part) {
    let (forward, backward) = linear(M, 6400.0, H, part);
    let loss = constant("general.loss_passes") * 4.0 * M * 6400.0 / part.stream;
    let sum = 2.0 * one_way_of_eight(2.0 * M * H, notes.at("link"));
    notes.note("head", (forward + backward + loss).max(30.0 * 2.5e-5) + sum);
    notes.note("embedding", 20.0 * M * H / part.stream + 10.0 * 2.5e-5);
}

/// Eight stages of twelve layers, each in three chunks.
fn stages(notes: &mut Notes) {
    let [layer, head, embedding] = ["layer", "head", "embedding"].map(|name| notes.at(name));
    let slowest = notes.note("slowest stage", (12.0 * layer + embedding).max(12.0 * layer + head));
    notes.note("micro-batches", 64.0 / 1.0);
    notes.note("bubble", (96.0 * layer + head + embedding - slowest) / 3.0);
    let one = 2.0 * (M / 8.0) * H / notes.at("network") + 25e-6;
    notes.note("messages", 2.0 * one * (63.0 * 3.0 * constant("megatron.message_exposed") + 8.0));
}

fn step(notes: &mut Notes) {
    let layer = notes.note("layer parameters", (4.0 * H * H + 2.0 * H * 49152.0) / 8.0);
    let stage = 12.0 * layer + 51200.0 * H / 8.0;
    notes.note("optimizer", constant("general.optimizer_bytes") * stage / notes.at("stream"));
    notes.note("fixed", 8e-3 + 4.0 * 25e-6);
    let stages = notes.at("micro-batches") * notes.at("slowest stage");
    // `8` is the number of hosts.
    let busy = stages + notes.at("bubble");
    notes.note("stragglers", constant("general.straggler") * (2.0 * 8f64.ln()).sqrt() * busy);
    notes.note("step", stages + notes.sum(&["bubble", "messages", "optimizer", "stragglers", "fixed"]));
    note_error(notes, 13.75);
}

fn memory(notes: &mut Notes) {
    let stage = 12.0 * notes.at("layer parameters") + 51200.0 * H / 8.0;
    let states = notes.note("states", (2.0 + 4.0 + 12.0) * stage);
    let through = M * ((4.0 + 2.0 * 2.0 + 2.0) * 1536.0 + (2.0 + 4.0 + 2.0) * 1536.0 + (2.0 + 2.0) * 6144.0);
    let in_flight = 8.0 * (1.0 + 7.0 / (8.0 * 3.0));
    let activations = notes.note("activations", 12.0 * through * in_flight);
    let scores = 5.0 * 1.0 * 2048.0 * 2048.0 * 12.0;
    let again = 8.0 * M * H + scores + 0.5 * through;
    let working = notes.note("working", again + 4.0 * M * H / 8.0);
    let alive = states + activations + working;
    // The last stage has the logits, and fewer live micro-batches.
    let last = states + 12.0 * through * (1.0 + 2.0 / 3.0) + again.max(10.0 * M * 51200.0 / 8.0);
    assert!(last < alive, "the first stage is the heaviest");
    note_peak(notes, alive, 2.0e9 + 2.0 * 0.3e9);
}
