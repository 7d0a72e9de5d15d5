//! What simulated ranks report. The values are as long as those of the worker, so that records have their size.

use super::disk::RankFileSet;
use dtrain_protocol::checkpoint::{StoredSlice, Tensor, TensorKind};
use dtrain_protocol::{
    Event, FileEntry, GradientNoise, PhaseTimes, ResidentBytes, SavedFile, StepFigures, StepId,
};

/// The folder of checkpoints on every host.
pub(super) const CHECKPOINTS: &str =
    "/home/train/.local/state/dtrain/hosts/node1-1f0c8a52/trials/01M8H6ZJK8VGKFNBW9HPH08S5J/checkpoints";

/// The time at which a simulation begins, in milliseconds since the Unix epoch.
pub(super) const EPOCH_MS: u64 = 1_795_874_004_817;

/// Bytes of an element on disk.
const ELEMENT: u64 = 4;

/// The events that ranks send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reporting {
    /// Every rank sends all events of the worker, each as large as the worker's.
    Full,
    /// Every rank sends all events; saved files name no tensors.
    WithoutTensors,
    /// As `WithoutTensors`, but only the first rank reports steps and validations: for simulations of a whole day.
    FirstRank,
}

/// Returns the address on which an agent or a rank of a machine listens.
pub(super) fn address_of(machine: usize, port: u32) -> String {
    format!("10.78.{}.{}:{}", machine / 256, machine % 256, 40_000 + port)
}

/// Returns the machine that has an address.
pub(super) fn machine_at(address: &str) -> Option<usize> {
    let mut parts = address.split(':').next()?.split('.').skip(2).map(|part| part.parse::<usize>().ok());
    Some(parts.next()?? * 256 + parts.next()??)
}

pub(super) fn ready() -> Event {
    Event::Ready {
        step: StepId(0),
        parameters: 220_288,
        device: "cpu (flex, 1 thread)".into(),
        train_samples: 31_402,
        valid_samples: 1_653,
        data_fingerprint: hash(),
        notice: None,
    }
}

/// Returns the report of a step.
pub(super) fn step(step: u64) -> Event {
    Event::Step(StepFigures {
        step: StepId(step),
        loss: 4.868_266_504_257_917,
        gradient_norm: Some(1.449_798_459_104_599_4),
        learning_rate: 0.000_298_713_235_294_117_66,
        noise: Some(GradientNoise { signal: 2.031_710_903_164_505_3, noise: 0.979_057_757_248_725_1 }),
        tokens: 1_536,
        times: PhaseTimes {
            step: 0.139_972_198_000_000_03,
            data: 0.000_026_98,
            forward: 0.022_389_948,
            backward: 0.041_511_017,
            communication: 0.074_647_621,
            bubble: 0.0,
            optimizer: 0.001_396_632,
        },
        memory_bytes: 62_332_928,
        sent_bytes: 1_542_048,
        held: ResidentBytes { weights: 881_152, gradients: 881_152, optimizer: 220_288 },
        elapsed: None,
    })
}

/// Returns the report of a validation.
pub(super) fn validated(step: u64) -> Event {
    Event::Validated {
        step: StepId(step),
        loss: 4.864_784_469_362_348,
        accuracy: Some(0.229_492_187_5),
        seconds: Some(0.044_420_839),
    }
}

/// Returns the file that a rank saved, without tensors.
pub(super) fn saved_file(rank: u32) -> SavedFile {
    let file = FileEntry { name: RankFileSet::name(rank), bytes: 0, chunks: Vec::new() };
    SavedFile { file, tensors: Vec::new() }
}

/// Returns the file that a rank of `ranks` saved, with its share of all tensors: the worker gives each rank the
/// same number of elements.
pub(super) fn saved_file_with_tensors(rank: u32, ranks: u32) -> SavedFile {
    let parameters = parameters();
    let all: u64 = parameters.iter().map(|(_, shape)| shape.iter().product::<u64>()).sum();
    let (first, end) =
        (all * u64::from(rank) / u64::from(ranks), all * u64::from(rank + 1) / u64::from(ranks));
    let (mut at, mut tensors) = (0, Vec::new());
    for (name, shape) in parameters {
        let elements: u64 = shape.iter().product();
        let (from, to) = (first.max(at), end.min(at + elements));
        if from < to {
            for (kind, suffix) in [
                (TensorKind::Parameter, ""),
                (TensorKind::FirstMoment, "#first_moment"),
                (TensorKind::SecondMoment, "#second_moment"),
            ] {
                let slice = StoredSlice {
                    file: RankFileSet::name(rank),
                    key: format!("{name}{suffix}"),
                    sides: Vec::new(),
                    begin: from - at,
                    end: to - at,
                };
                tensors.push(Tensor { name: name.clone(), kind, shape: shape.clone(), pieces: vec![slice] });
            }
        }
        at += elements;
    }
    let bytes = 3 * ELEMENT * (end - first);
    SavedFile { file: FileEntry { name: RankFileSet::name(rank), bytes, chunks: vec![hash()] }, tensors }
}

/// Returns the parameters of the model, with their shapes: those of a decoder of four layers.
fn parameters() -> Vec<(String, Vec<u64>)> {
    const OF_A_BLOCK: [(&str, &[u64]); 16] = [
        ("attention_norm.weight", &[64]),
        ("attention_norm.bias", &[64]),
        ("attention.q.weight", &[64, 64]),
        ("attention.q.bias", &[64]),
        ("attention.k.weight", &[64, 64]),
        ("attention.k.bias", &[64]),
        ("attention.v.weight", &[64, 64]),
        ("attention.v.bias", &[64]),
        ("attention.out.weight", &[64, 64]),
        ("attention.out.bias", &[64]),
        ("ffn_norm.weight", &[64]),
        ("ffn_norm.bias", &[64]),
        ("ffn.up.weight", &[64, 256]),
        ("ffn.up.bias", &[256]),
        ("ffn.down.weight", &[256, 64]),
        ("ffn.down.bias", &[64]),
    ];
    let named = |name: &str, shape: &[u64]| (name.to_owned(), shape.to_vec());
    let blocks = (0..4).flat_map(|block| {
        OF_A_BLOCK.iter().map(move |(name, shape)| (format!("blocks.{block}.{name}"), shape.to_vec()))
    });
    let first = [named("embedding.weight", &[256, 64]), named("positions.weight", &[64, 64])];
    let last = [named("norm.weight", &[64]), named("norm.bias", &[64])];
    first.into_iter().chain(blocks).chain(last).collect()
}

/// Returns a blake3 hash in hex.
fn hash() -> String {
    blake3::hash(b"simulated").to_hex().to_string()
}
