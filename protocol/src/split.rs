//! The table of cuts: which tensor of a block is cut along which dimension under tensor parallelism.
//!
//! One truth, three readers: the worker cuts by it, the checkpoint names ranges by it, the planner counts bytes.

/// How a tensor is cut among the ranks of a tensor-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every rank holds all of it.
    Whole,
    /// Cut along the output dimension (the last of a weight `[in, out]`, the only one of a bias).
    Column,
    /// Cut along the input dimension (the first of a weight `[in, out]`); results are partial sums.
    Row,
    /// Cut along the vocabulary (the first dimension of an embedding `[vocab, hidden]`).
    Vocabulary,
}

/// The cuts of a decoder, by the last parts of a parameter's name.
pub const DECODER: &[(&str, Split)] = &[
    ("embedding.weight", Split::Vocabulary),
    ("positions.weight", Split::Whole),
    ("attention.q.weight", Split::Column),
    ("attention.k.weight", Split::Column),
    ("attention.v.weight", Split::Column),
    ("attention.q.bias", Split::Column),
    ("attention.k.bias", Split::Column),
    ("attention.v.bias", Split::Column),
    ("attention.out.weight", Split::Row),
    ("attention.out.bias", Split::Whole),
    ("ffn.gate.weight", Split::Column),
    ("ffn.gate.bias", Split::Column),
    ("ffn.up.weight", Split::Column),
    ("ffn.up.bias", Split::Column),
    ("ffn.down.weight", Split::Row),
    ("ffn.down.bias", Split::Whole),
    ("norm.weight", Split::Whole),
    ("norm.bias", Split::Whole),
    ("head.weight", Split::Column),
];

/// How the parameter called `name` (such as `blocks.3.ffn.up.weight`) is cut.
pub fn split(name: &str) -> Split {
    let whole_words = |suffix: &str| name == suffix || name.ends_with(&format!(".{suffix}"));
    DECODER.iter().find(|(suffix, _)| whole_words(suffix)).map_or(Split::Whole, |(_, split)| *split)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_matched_by_whole_words() {
        assert_eq!(split("blocks.3.ffn.up.weight"), Split::Column);
        assert_eq!(split("blocks.0.ffn.down.weight"), Split::Row);
        assert_eq!(split("blocks.0.ffn_norm.weight"), Split::Whole);
        assert_eq!(split("embedding.weight"), Split::Vocabulary);
    }
}
