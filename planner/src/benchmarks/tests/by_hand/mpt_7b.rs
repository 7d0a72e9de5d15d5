//! MPT-7B on eight H100s: llm-foundry's benchmarks. Eight replicas with ZeRO-3.

use super::arithmetic::{
    Notes, Part, constant, linear, note_computed, note_error, note_linear, note_peak, one_way_of_eight,
};

/// Tokens per micro-batch: 6 samples of 2048.
const M: f64 = 12288.0;
/// Hidden size.
const H: f64 = 4096.0;
/// Vocabulary size.
const V: f64 = 50368.0;

/// Computes the row by hand.
pub(super) fn notes() -> Notes {
    let mut notes = Notes::default();
    let part = device(&mut notes);
    products(&mut notes, part);
    attention(&mut notes);
    beside_products(&mut notes);
    layer(&mut notes);
    ends(&mut notes, part);
    replicas(&mut notes);
    step(&mut notes);
    memory(&mut notes);
    notes
}

fn device(notes: &mut Notes) -> Part {
    notes.note("link", 450e9 * constant("general.link"));
    notes.note("attention", 989e12 * constant("hopper.flash") * constant("general.flash_1"));
    Part {
        products: notes
            .note("products", 989e12 * constant("hopper.ceiling_16") * constant("hopper.sustained_16")),
        stream: notes.note("stream", 3.35e12 * constant("general.stream")),
        multiprocessors: 132.0,
    }
}

fn products(notes: &mut Notes, part: Part) {
    note_linear(notes, ["qkv forward", "qkv backward"], [M, 3.0 * H, H], part);
    note_linear(notes, ["out forward", "out backward"], [M, H, H], part);
    note_linear(notes, ["up forward", "up backward"], [M, 16384.0, H], part);
    note_linear(notes, ["down forward", "down backward"], [M, H, 16384.0], part);
}

fn attention(notes: &mut Notes) {
    let causal = 0.5 * 2.0 * 6.0 * 2048.0 * 2048.0 * (32.0 * (128.0 + 128.0));
    let forward = notes.note(
        "core forward",
        causal * (1.0 + constant("general.attention_short") / 2048.0) / notes.at("attention"),
    );
    notes.note("core backward", 3.12 * forward);
}

fn beside_products(notes: &mut Notes) {
    let (between, inner, wide) = (M * H, 2.0 * M * 3.0 * H, M * 16384.0);
    let stream = notes.at("stream");
    let forward = constant("fsdp.passes") * (12.0 * 2.0 * between + 2.0 * inner + 4.0 * 2.0 * wide) / stream;
    let backward = constant("fsdp.passes") * (16.0 * 2.0 * between + 2.0 * inner + 6.0 * 2.0 * wide) / stream;
    notes.note("element-wise forward", forward);
    notes.note("element-wise backward", backward);
    let operations = notes.note("operations", 34.0 * 1.0);
    notes.note("idle forward", operations * constant("general.kernel"));
    notes.note("idle backward", 1.5 * operations * constant("general.kernel"));
    notes.note("host forward", operations * 2e-5);
    notes.note("host backward", 1.5 * operations * 2e-5);
}

fn layer(notes: &mut Notes) {
    note_computed(notes);
    let [computed, host] = ["computed forward", "host forward"].map(|name| notes.at(name));
    let forward = notes.note("forward", computed.max(host));
    let [computed, host] = ["computed backward", "host backward"].map(|name| notes.at(name));
    let backward = notes.note("backward", computed.max(host));
    notes.note("layer", forward + backward);
}

fn ends(notes: &mut Notes, part: Part) {
    let (forward, backward) = linear(M, V, H, part);
    let loss = constant("general.loss_passes") * 4.0 * M * V / part.stream;
    notes.note("head", (forward + backward + loss).max(30.0 * 2e-5));
    notes.note("embedding", 20.0 * M * H / part.stream + 10.0 * 2e-5);
}

/// Each pass gathers a layer's weights (two bytes each), overlapped with nine tenths of its compute.
fn replicas(notes: &mut Notes) {
    let layer = notes.note("layer parameters", 4.0 * H * H + 2.0 * H * 16384.0);
    let gather = notes.note("gather", one_way_of_eight(2.0 * layer, notes.at("link")));
    let [forward, backward] = ["forward", "backward"].map(|name| notes.at(name));
    let exposed = (gather - 0.9 * forward).max(0.0) + (2.0 * gather - 0.9 * backward).max(0.0);
    notes.note("gathering", exposed + constant("general.contention") * 3.0 * gather.min(forward));
}

fn step(notes: &mut Notes) {
    let layers = 32.0 * notes.sum(&["layer", "gathering"]);
    let slowest = notes.note("slowest stage", layers + notes.sum(&["head", "embedding"]));
    // 48 samples: one micro-batch of six on each of eight replicas.
    notes.note("micro-batches", 1.0);
    let replicas = notes.note("replicas", 2.0 * notes.at("gather"));
    let all = 32.0 * notes.at("layer parameters") + V * H;
    let optimizer =
        notes.note("optimizer", constant("general.optimizer_bytes") * all / 8.0 / notes.at("stream"));
    let fixed = notes.note("fixed", 5e-3);
    notes.note("step", 1.0 * slowest + replicas + optimizer + fixed);
    // Measured: 85144 tokens/s.
    note_error(notes, 48.0 * 2048.0 / 85144.0);
}

fn memory(notes: &mut Notes) {
    let layer = notes.at("layer parameters");
    let states = notes.note("states", (4.0 + 8.0) * (32.0 * layer + V * H) / 8.0);
    let gathered = notes.note("gathered", 4.0 * layer + 2.0 * V * H);
    let through = M * ((4.0 + 2.0 * 2.0) * H + (2.0 + 4.0 + 2.0) * H + (2.0 + 2.0) * 16384.0);
    let sums = 4.0 * M * 32.0;
    let activations = notes.note("activations", 32.0 * (through + sums));
    let logits = 4.0 * M * V;
    let working = notes.note("working", (0.3 * through).max(logits) + 4.0 * M * H);
    note_peak(notes, states + gathered + activations + working, 1.5e9 + 0.3e9);
}
