//! Megatron 22B on eight A100s: Korthikanti et al. 2022, table 5. One stage, one replica, eight tensor ranks.

use super::arithmetic::{
    Notes, Part, constant, linear, note_computed, note_error, note_linear, note_peak, one_way_of_eight,
};

/// Tokens per micro-batch: 4 samples of 2048.
const M: f64 = 8192.0;
/// Hidden size.
const H: f64 = 6144.0;

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
    step(&mut notes);
    memory(&mut notes);
    notes
}

fn device(notes: &mut Notes) -> Part {
    notes.note("link", 300e9 * constant("general.link"));
    Part {
        products: notes
            .note("products", 312e12 * constant("ampere.ceiling_16") * constant("ampere.sustained_16")),
        stream: notes.note("stream", 2.039e12 * constant("general.stream")),
        multiprocessors: 108.0,
    }
}

fn products(notes: &mut Notes, part: Part) {
    // A rank has 8 of 64 heads of 96 channels: 768 channels of queries, keys and values each.
    note_linear(notes, ["qkv forward", "qkv backward"], [M, 3.0 * 768.0, H], part);
    note_linear(notes, ["out forward", "out backward"], [M, H, 768.0], part);
    note_linear(notes, ["up forward", "up backward"], [M, 24576.0 / 8.0, H], part);
    note_linear(notes, ["down forward", "down backward"], [M, H, 24576.0 / 8.0], part);
}

fn attention(notes: &mut Notes) {
    // The head width is a multiple of 8 but not of 64.
    let rate = notes.at("products") * constant("general.unfused") * 0.95;
    let operations = 2.0 * 4.0 * 2048.0 * 2048.0 * (8.0 * (96.0 + 96.0));
    let scores = 2.0 * 4.0 * 8.0 * 2048.0 * 2048.0;
    let stream = notes.at("stream");
    notes.note("core forward", operations / rate + constant("general.scores_forward") * scores / stream);
    notes.note(
        "core backward",
        2.0 * operations / rate + constant("general.scores_backward") * scores / stream,
    );
}

fn beside_products(notes: &mut Notes) {
    let (between, inner, wide) = (M / 8.0 * H, 2.0 * M * 3.0 * 768.0, M * 3072.0);
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
    // 51200 is a multiple of 128 · 8.
    let (forward, backward) = linear(M, 6400.0, H, part);
    let loss = constant("general.loss_passes") * 4.0 * M * 6400.0 / part.stream;
    let sum = 2.0 * one_way_of_eight(2.0 * M * H, notes.at("link"));
    notes.note("head", (forward + backward + loss).max(30.0 * 2.5e-5) + sum);
    notes.note("embedding", 20.0 * M * H / part.stream + 10.0 * 2.5e-5);
}

fn step(notes: &mut Notes) {
    let slowest = notes.note("slowest stage", 48.0 * notes.at("layer") + notes.sum(&["head", "embedding"]));
    // One micro-batch of all four samples.
    notes.note("micro-batches", 1.0);
    let layer = notes.note("layer parameters", (4.0 * H * H + 2.0 * H * 24576.0) / 8.0);
    let stage = 48.0 * layer + 51200.0 * H / 8.0;
    let optimizer = notes.note("optimizer", constant("general.optimizer_bytes") * stage / notes.at("stream"));
    let fixed = notes.note("fixed", 8e-3);
    notes.note("step", 1.0 * slowest + optimizer + fixed);
    note_error(notes, 1.1);
}

fn memory(notes: &mut Notes) {
    let stage = 48.0 * notes.at("layer parameters") + 51200.0 * H / 8.0;
    let states = notes.note("states", (2.0 + 4.0 + 12.0) * stage);
    let through = M * ((4.0 + 2.0 * 2.0 + 2.0) * 768.0 + (2.0 + 4.0 + 2.0) * 768.0 + (2.0 + 2.0) * 3072.0);
    let activations = notes.note("activations", 48.0 * through);
    let scores = 5.0 * 4.0 * 2048.0 * 2048.0 * 8.0;
    let again = 8.0 * M * H + scores + 0.5 * through;
    let logits = 10.0 * M * 51200.0 / 8.0;
    let working = notes.note("working", again.max(logits) + 4.0 * M * H / 8.0);
    note_peak(notes, states + activations + working, 2.0e9 + 0.3e9);
}
