//! Random models, clusters and engines.

use super::planner::{ENGINES, Question};
use super::published::recipe;

/// Of the first case; the others follow.
pub(super) const SEED: u64 = 20_250_101;

/// Draws numbers, the same for the same seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `least` to `most`.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.between(0, all.len() as u64 - 1) as usize]
    }
}

/// A case.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// It comes back from this seed.
    pub(super) seed: u64,
    /// Whether all tokens go through the same weights.
    pub(super) is_dense: bool,
    /// GPUs of a host.
    pub(super) per_host: u64,
    pub(super) question: Question,
}

/// `count` cases of models of the Llama family, which all engines train: dense and with experts, any number of layers and of
/// samples, on 1 to 64 hosts.
pub(super) fn cases(count: u64) -> Vec<Case> {
    (SEED..SEED + count).map(case).collect()
}

fn case(seed: u64) -> Case {
    let mut random = Random(seed);
    let engine = random.of(&ENGINES).0;
    let is_dense = random.between(0, 2) > 0;
    let hidden = 1024 * random.of(&[1, 2, 3, 4, 5, 6, 8]);
    let heads = hidden / random.of(&[64, 128]);
    let kv_heads = heads / random.of(&[1, 2, 4]).min(heads);
    let mut model = toml::Table::new();
    model.insert("family".into(), "llama".into());
    let mut set = |key: &str, value: u64| {
        let value = i64::try_from(value).expect("dimensions are small");
        model.insert(key.into(), value.into());
    };
    set("layers", random.between(6, 64));
    set("hidden", hidden);
    set("heads", heads);
    set("kv_heads", kv_heads);
    set("vocab", random.of(&[32_000, 50_257, 128_256]));
    set("context", random.of(&[1024, 2048, 4096, 8192]));
    if is_dense {
        set("ffn", 64 * (hidden * random.of(&[3, 4]) / 64 - random.between(0, 15)));
    } else {
        set("ffn", hidden / random.of(&[1, 2, 4]));
        set("experts", random.of(&[8, 16, 48, 64]));
        set("experts_per_token", random.of(&[1, 2, 4]));
    }
    let (hosts, per_host) = (random.between(1, 64), random.of(&[1, 4, 8]));
    let gpu = random.of(&["H100-SXM-80GB", "H100-SXM-80GB", "A100-SXM-80GB", "B200"]);
    let batch = random.of(&[1, 2, 3, 4, 6]) * hosts * per_host + random.of(&[0, 0, 0, 1, 5]);
    let batch = u32::try_from(batch).expect("batches are small");
    let question = Question {
        recipe: recipe(&model, batch, "bf16"),
        on: format!("{hosts}x{per_host} {gpu}"),
        network: None,
        engine: engine.into(),
    };
    Case { seed, is_dense, per_host, question }
}
