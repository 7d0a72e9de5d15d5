//! The models that are trained, and how far each can be cut.

use std::ops::RangeInclusive;

/// A decoder of five blocks, so that stages are uneven; GPT-2's family with a tied embedding.
const GPT: &str = r#"
kind = "decoder"
layers = 5
hidden = 32
heads = 4
ffn = 64
context = 16
"#;

/// Llama's family, with fewer key heads than query heads, and blocks for three chunks of two stages.
const LLAMA: &str = r#"
kind = "decoder"
family = "llama"
layers = 6
hidden = 32
heads = 8
kv_heads = 4
ffn = 64
context = 16
"#;

/// Twelve experts a block, of which a token passes two. All sizes divide by two, three, four and six.
const MOE: &str = r#"
kind = "decoder"
family = "llama"
layers = 4
hidden = 24
heads = 12
ffn = 24
context = 24
experts = 12
"#;

/// The same with sizes that divide by five.
const FIVES: &str = r#"
kind = "decoder"
family = "llama"
layers = 2
hidden = 20
heads = 5
ffn = 20
context = 10
experts = 5
"#;

/// The same with sizes that divide by seven.
const SEVENS: &str = r#"
kind = "decoder"
family = "llama"
layers = 2
hidden = 28
heads = 7
ffn = 28
context = 14
experts = 7
"#;

/// Experts that take no more than their share, with biases and a tied embedding elsewhere.
const CAPACITY: &str = r#"
kind = "decoder"
layers = 4
hidden = 32
heads = 8
ffn = 32
context = 16
experts = 8
capacity = 1.0
balance = 0.1
"#;

/// Experts that every token passes, so that it is known how many go where.
const EVERYBODY: &str = r#"
kind = "decoder"
layers = 2
hidden = 32
heads = 4
ffn = 32
context = 16
experts = 4
experts_per_token = 4
"#;

const MLP: &str = r#"
kind = "mlp"
inputs = 6
hidden = [16, 12, 16, 8]
classes = 3
"#;

/// Eight blocks: up to four chunks for each of two stages.
const DEEP: &str = r#"
kind = "mlp"
inputs = 6
hidden = [8, 8, 8, 8, 8, 8, 8, 8]
classes = 3
"#;

/// Six channels make the last norms average over three channels of four pixels. Over one channel of four pixels, some
/// weights would have gradients that are rounding alone, which AdamW enlarges to whole steps.
const CNN: &str = r#"
kind = "cnn"
channels = 1
height = 4
width = 4
stages = [4, 6]
blocks = 2
classes = 3
"#;

const TEXT: &str = r#"train = "text.txt""#;
const TABLE: &str = "train = \"table.csv\"\ntarget = \"class\"";
const IMAGES: &str = "train = \"images.csv\"\ntarget = \"class\"";

/// What is trained, and how far it can be cut.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) name: &'static str,
    /// The subject that it stands in for where pairs of choices are covered: itself, or one of other sizes.
    pub(super) kind: &'static str,
    pub(super) model: &'static str,
    pub(super) data: &'static str,
    /// Further keys of `[train]`.
    pub(super) train: &'static str,
    /// Blocks that stages share out.
    pub(super) blocks: u32,
    /// For each axis along which it can be cut, what the degree must divide. Replicas and stages need not divide anything.
    pub(super) sizes: &'static [(&'static str, u32)],
    /// Ranks of its layouts.
    pub(super) ranks: RangeInclusive<u32>,
}

/// All models whose layouts are compared.
pub(super) static SUBJECTS: [Subject; 9] = [
    Subject {
        name: "gpt",
        kind: "gpt",
        model: GPT,
        data: TEXT,
        train: "",
        blocks: 5,
        sizes: &[("tensor", 4), ("context", 8)],
        ranks: 2..=8,
    },
    Subject {
        name: "llama",
        kind: "llama",
        model: LLAMA,
        data: TEXT,
        train: "z_loss = 1e-2\n",
        blocks: 6,
        sizes: &[("tensor", 4), ("context", 8)],
        ranks: 2..=8,
    },
    Subject {
        name: "moe",
        kind: "moe",
        model: MOE,
        data: TEXT,
        train: "",
        blocks: 4,
        sizes: &[("tensor", 12), ("context", 12), ("expert", 12)],
        ranks: 2..=8,
    },
    Subject {
        name: "capacity",
        kind: "capacity",
        model: CAPACITY,
        data: TEXT,
        train: "",
        blocks: 4,
        sizes: &[("tensor", 8), ("expert", 8)],
        ranks: 2..=8,
    },
    Subject {
        name: "mlp",
        kind: "mlp",
        model: MLP,
        data: TABLE,
        train: "",
        blocks: 4,
        sizes: &[],
        ranks: 2..=8,
    },
    Subject {
        name: "deep",
        kind: "mlp",
        model: DEEP,
        data: TABLE,
        train: "",
        blocks: 8,
        sizes: &[],
        ranks: 2..=8,
    },
    Subject {
        name: "cnn",
        kind: "cnn",
        model: CNN,
        data: IMAGES,
        train: "",
        blocks: 4,
        sizes: &[],
        ranks: 2..=8,
    },
    Subject {
        name: "fives",
        kind: "moe",
        model: FIVES,
        data: TEXT,
        train: "",
        blocks: 2,
        sizes: &[("tensor", 5), ("context", 5), ("expert", 5)],
        ranks: 5..=5,
    },
    Subject {
        name: "sevens",
        kind: "moe",
        model: SEVENS,
        data: TEXT,
        train: "",
        blocks: 2,
        sizes: &[("tensor", 7), ("context", 7), ("expert", 7)],
        ranks: 7..=7,
    },
];

/// The model whose tokens are counted.
pub(super) static COUNTED: Subject = Subject {
    name: "everybody",
    kind: "everybody",
    model: EVERYBODY,
    data: TEXT,
    train: "",
    blocks: 2,
    sizes: &[],
    ranks: 2..=8,
};

/// The subject called `name`.
pub(super) fn subject(name: &str) -> &'static Subject {
    SUBJECTS.iter().find(|subject| subject.name == name).expect("a known name")
}
