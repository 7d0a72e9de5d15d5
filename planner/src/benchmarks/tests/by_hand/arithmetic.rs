//! Formulas of `docs/cost-model.md` that several rows use, in the notation of the page.

use crate::analytic::Constants;
use crate::analytic::constants::fitted::FittedConstant;

/// Returns a constant by its table and key.
pub(super) fn constant(name: &str) -> f64 {
    FittedConstant::named(name)
        .unwrap_or_else(|| panic!("there is no constant {name}"))
        .of(Constants::shipped())
}

/// Named values in the order of computation.
#[derive(Default)]
pub(super) struct Notes(pub(super) Vec<(&'static str, f64)>);

impl Notes {
    /// Records a value under `name` and returns it.
    pub(super) fn note(&mut self, name: &'static str, value: f64) -> f64 {
        assert!(self.0.iter().all(|(other, _)| *other != name), "{name} is noted twice");
        self.0.push((name, value));
        value
    }

    /// Returns a recorded value.
    pub(super) fn at(&self, name: &str) -> f64 {
        self.0.iter().find(|(other, _)| *other == name).unwrap_or_else(|| panic!("{name} was not noted")).1
    }

    /// Returns the sum of some recorded values.
    pub(super) fn sum(&self, names: &[&str]) -> f64 {
        names.iter().map(|name| self.at(name)).sum()
    }
}

/// Throughput of a device: FLOP/s, bytes/s, multiprocessors.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) products: f64,
    pub(super) stream: f64,
    pub(super) multiprocessors: f64,
}

/// Returns the seconds of a 16-bit matrix product. All dimensions of the three rows are multiples of 64 and
/// at least 128.
fn product(m: f64, n: f64, k: f64, part: Part) -> f64 {
    assert!([m, n, k].iter().all(|size| size % 64.0 == 0.0 && *size >= 128.0));
    let tiles = (m / 128.0).ceil() * (n / 128.0).ceil();
    let waves = tiles / ((tiles / part.multiprocessors).ceil() * part.multiprocessors);
    let padding = ((m / 128.0) / (m / 128.0).ceil()).sqrt();
    let arithmetic = 2.0 * m * n * k / (part.products * waves.powf(constant("general.wave")) * padding);
    let traffic = 2.0 * (m * k + k * n + m * n) / part.stream;
    arithmetic.max(traffic)
}

/// Returns the seconds of a linear layer's forward and backward.
pub(super) fn linear(tokens: f64, outputs: f64, inputs: f64, part: Part) -> (f64, f64) {
    let to_inputs = product(tokens, inputs, outputs, part);
    let to_weights = product(outputs, inputs, tokens, part);
    (product(tokens, outputs, inputs, part), to_inputs + to_weights)
}

/// Returns the seconds of an all-gather or reduce-scatter of `bytes` among eight devices of one host.
pub(super) fn one_way_of_eight(bytes: f64, link: f64) -> f64 {
    7.0 / 8.0 * bytes / link + constant("general.link_start") + 7.0 * constant("general.link_member")
}

/// Records forward and backward of a linear layer.
pub(super) fn note_linear(notes: &mut Notes, names: [&'static str; 2], shape: [f64; 3], part: Part) {
    let (forward, backward) = linear(shape[0], shape[1], shape[2], part);
    notes.note(names[0], forward);
    notes.note(names[1], backward);
}

/// Records the compute of a layer: matrix products, attention, element-wise passes and idle time.
pub(super) fn note_computed(notes: &mut Notes) {
    let parts = ["qkv", "out", "core", "up", "down", "element-wise", "idle"];
    let sum = |notes: &Notes, pass: &str| parts.iter().map(|part| notes.at(&format!("{part} {pass}"))).sum();
    let (forward, backward) = (sum(notes, "forward"), sum(notes, "backward"));
    notes.note("computed forward", forward);
    notes.note("computed backward", backward);
}

/// Records the error of the step relative to the measured time.
pub(super) fn note_error(notes: &mut Notes, measured: f64) {
    let step = notes.at("step");
    notes.note("error", step / measured - 1.0);
}

/// Records the peak memory, from live bytes, fragmentation and `process`.
pub(super) fn note_peak(notes: &mut Notes, alive: f64, process: f64) {
    let fragments = notes.note("fragments", 0.04 * alive);
    notes.note("process", process);
    notes.note("peak", alive + fragments + process);
}
