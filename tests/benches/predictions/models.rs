//! What is planned and trained: small models of every kind, so that a step takes some milliseconds to a third of a second.

use dtrain_tests::TestEnv;
use std::fmt::Write;
use std::path::PathBuf;

/// A model with its batch.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    kind: Kind,
    /// Keys of the model beyond its kind, with semicolons between them.
    model: &'static str,
    batch: u32,
}

#[derive(Clone, Copy)]
enum Kind {
    Gpt,
    Llama,
    /// Of so many inputs.
    Mlp(usize),
    /// Of images with so many pixels a side.
    Cnn(usize),
}

/// Rows or images of the data.
const SAMPLES: usize = 2000;

const fn subject(name: &'static str, kind: Kind, model: &'static str, batch: u32) -> Subject {
    Subject { name, kind, model, batch }
}

/// Twenty models: GPT-2 and Llama families, mixtures of experts, perceptrons, residual networks.
pub(crate) fn subjects() -> [Subject; 20] {
    use Kind::{Cnn, Gpt, Llama, Mlp};
    [
        subject("gpt-2x64", Gpt, "layers = 2; hidden = 64; heads = 2; context = 64", 16),
        subject("gpt-4x128", Gpt, "layers = 4; hidden = 128; heads = 4; context = 128", 32),
        subject("gpt-6x192", Gpt, "layers = 6; hidden = 192; heads = 6; context = 128", 8),
        subject("gpt-2x256", Gpt, "layers = 2; hidden = 256; heads = 4; context = 256", 8),
        subject("gpt-8x96", Gpt, "layers = 8; hidden = 96; heads = 4; context = 96", 24),
        subject("gpt-4x256", Gpt, "layers = 4; hidden = 256; heads = 8; context = 64", 12),
        subject("gpt-3x160", Gpt, "layers = 3; hidden = 160; heads = 5; context = 128", 10),
        subject("llama-4x128", Llama, "layers = 4; hidden = 128; heads = 4; kv_heads = 2; context = 128", 16),
        subject("llama-2x256", Llama, "layers = 2; hidden = 256; heads = 4; kv_heads = 4; context = 128", 12),
        subject("llama-6x128", Llama, "layers = 6; hidden = 128; heads = 4; kv_heads = 2; context = 256", 6),
        subject("llama-4x192", Llama, "layers = 4; hidden = 192; heads = 6; kv_heads = 2; context = 128", 12),
        subject("llama-2x384", Llama, "layers = 2; hidden = 384; heads = 6; kv_heads = 6; context = 128", 8),
        subject(
            "experts-4x128",
            Gpt,
            "layers = 4; hidden = 128; heads = 4; context = 128; experts = 4; experts_per_token = 2",
            8,
        ),
        subject(
            "experts-2x192",
            Gpt,
            "layers = 2; hidden = 192; heads = 6; context = 128; experts = 8; experts_per_token = 1",
            12,
        ),
        subject("mlp-3x1024", Mlp(64), "hidden = [1024, 1024, 1024]", 256),
        subject("mlp-6x512", Mlp(32), "hidden = [512, 512, 512, 512, 512, 512]", 512),
        subject("mlp-2x2048", Mlp(128), "hidden = [2048, 2048]", 128),
        subject("cnn-16-32", Cnn(16), "stages = [16, 32]; blocks = 2", 64),
        subject("cnn-16-32-64", Cnn(28), "stages = [16, 32, 64]; blocks = 1", 32),
        subject("cnn-32-64", Cnn(12), "stages = [32, 64]; blocks = 2", 32),
    ]
}

impl Subject {
    /// Writes the recipe with its data, and says where it lies.
    pub(crate) fn write(&self, house: &TestEnv) -> PathBuf {
        let (model, data) = match self.kind {
            Kind::Gpt => ("kind = \"decoder\"".to_owned(), text(house)),
            Kind::Llama => ("kind = \"decoder\"\nfamily = \"llama\"".to_owned(), text(house)),
            Kind::Mlp(inputs) => {
                (format!("kind = \"mlp\"\ninputs = {inputs}\nclasses = 4"), rows(house, inputs))
            }
            Kind::Cnn(side) => (
                format!("kind = \"cnn\"\nchannels = 1\nheight = {side}\nwidth = {side}\nclasses = 4"),
                images(house, side),
            ),
        };
        let Self { name, batch, .. } = self;
        let keys = self.model.replace("; ", "\n");
        house.file(
            "recipe.toml",
            format!(
                "name = \"{name}\"\n[model]\n{model}\n{keys}\n[data]\n{data}\nvalid = \"5%\"\n\
                 [objective]\nstop = {{ steps = 100 }}\n[train]\nbatch = {batch}\nlearning_rate = 1e-3\nseed = 1\n"
            ),
        )
    }
}

/// Bytes that look like chance but are always the same.
fn noise(count: usize) -> impl Iterator<Item = u8> {
    (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
}

fn text(house: &TestEnv) -> String {
    house.file("text.txt", noise(1 << 20).map(|byte| b'a' + byte % 26).collect::<Vec<_>>());
    "train = \"text.txt\"".to_owned()
}

fn rows(house: &TestEnv, inputs: usize) -> String {
    let columns: Vec<String> = (0..inputs).map(|i| format!("c{i}")).collect();
    let mut table = format!("{},class\n", columns.join(","));
    let values: Vec<u8> = noise(SAMPLES * inputs).collect();
    for row in values.chunks(inputs) {
        for value in row {
            write!(table, "{value},").expect("a string grows");
        }
        writeln!(table, "{}", row[0] % 4).expect("a string grows");
    }
    house.file("rows.csv", table);
    "train = \"rows.csv\"\ntarget = \"class\"".to_owned()
}

fn images(house: &TestEnv, side: usize) -> String {
    let size = |n: usize| u32::try_from(n).expect("it is small").to_be_bytes();
    let mut pixels = [0x803u32.to_be_bytes(), size(SAMPLES), size(side), size(side)].concat();
    pixels.extend(noise(SAMPLES * side * side));
    house.file("images.idx", pixels);
    let mut labels = [0x801u32.to_be_bytes(), size(SAMPLES)].concat();
    labels.extend(noise(SAMPLES).map(|byte| byte % 4));
    house.file("labels.idx", labels);
    "format = \"idx\"\ntrain = \"images.idx\"\nlabels = \"labels.idx\"".to_owned()
}
