//! Conversations in sequences of equal length: several in one, apart from each other, or each alone.

use super::super::files::DataFile;
use super::super::{Batch, DataError, IGNORED, PackedDocuments, SampleSource, Sequences, split};
use super::MaskedTokens;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

/// The bit of a stored token that says that it counts in the loss.
const COUNTED: u32 = 1 << 31;

/// A cached file of tokenized conversations: the tokens of all as `u32`, with [`COUNTED`]; the number of tokens of
/// each as `u32`; and the number of conversations as `u64`. All are little-endian.
#[derive(Debug)]
pub(super) struct ChatFile {
    file: Arc<DataFile>,
    /// Number of tokens of each conversation.
    lengths: Vec<u32>,
}

impl ChatFile {
    /// Writes the tokens of a conversation; returns their number.
    pub(super) fn write(tokens: &MaskedTokens, to: &mut dyn Write) -> io::Result<u32> {
        for (id, counts) in tokens.ids.iter().zip(&tokens.counted) {
            to.write_all(&(id | if *counts { COUNTED } else { 0 }).to_le_bytes())?;
        }
        u32::try_from(tokens.ids.len()).map_err(|_| io::Error::other("a conversation of 2^32 tokens"))
    }

    /// Writes the end of a file, from what [`ChatFile::write`] returned for each conversation.
    pub(super) fn finish(lengths: &[u32], to: &mut dyn Write) -> io::Result<()> {
        for length in lengths {
            to.write_all(&length.to_le_bytes())?;
        }
        to.write_all(&(lengths.len() as u64).to_le_bytes())
    }

    /// Opens a whole file, and reads the lengths of its conversations.
    pub(super) fn open(file: Arc<DataFile>) -> Result<Self, DataError> {
        let damaged =
            || DataError::content(&file.name, "the end", "this is no file of conversations; remove it");
        let begin = file.bytes.checked_sub(8).ok_or_else(damaged)?;
        let count = file.read_up_to(begin, 8)?;
        let count = count.try_into().map(u64::from_le_bytes).map_err(|_| damaged())?;
        let index = count.checked_mul(4).and_then(|bytes| begin.checked_sub(bytes)).ok_or_else(damaged)?;
        let lengths = file.read_up_to(index, 4 * count)?;
        let lengths = lengths.as_chunks().0.iter().map(|length| u32::from_le_bytes(*length)).collect();
        Ok(Self { file, lengths })
    }

    /// Splits the fraction `valid` of the conversations off the end for validation.
    pub(super) fn split(self, valid: f64) -> Result<(Conversations, Conversations), DataError> {
        let all = Conversations::all(self);
        let cut = split::train_samples(all.count() as u64, valid)?;
        let cut = usize::try_from(cut).expect("an entry for each lies in memory");
        let valid = Conversations { file: Arc::clone(&all.file), range: cut..all.range.end };
        Ok((Conversations { range: 0..cut, ..all }, valid))
    }
}

/// A range of the conversations in a file.
#[derive(Clone, Debug)]
pub(super) struct Conversations {
    file: Arc<ChatFile>,
    range: std::ops::Range<usize>,
}

impl Conversations {
    /// Returns all conversations in a file.
    pub(super) fn all(file: ChatFile) -> Self {
        let range = 0..file.lengths.len();
        Self { file: Arc::new(file), range }
    }

    /// Returns the share `fraction` of the conversations that is used, from the first on.
    pub(super) fn used(self, fraction: f64) -> Self {
        let used = split::used(self.count() as u64, fraction);
        let used = usize::try_from(used).expect("an entry for each lies in memory");
        Self { range: self.range.start..self.range.start + used, ..self }
    }

    fn count(&self) -> usize {
        self.range.len()
    }
}

/// A conversation in the file, cut to the length of a sequence.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// Index of its first token in the file.
    begin: u64,
    /// Number of tokens that the model reads: all but the last, which is a target only.
    length: u32,
    /// Number of targets that count.
    counted: u32,
}

/// Sequences of conversations.
#[derive(Debug)]
pub(super) struct ChatWindows {
    file: Arc<ChatFile>,
    placed: Vec<Placed>,
    /// The conversations in each sequence, as indices of `placed`.
    windows: Vec<Vec<u32>>,
    context: usize,
    vocab: u32,
    /// Number of conversations that are longer than a sequence, and are cut.
    cut: usize,
    /// Number of conversations without a target that counts, which are left out.
    empty: usize,
}

impl ChatWindows {
    /// Puts conversations into sequences: several in one if `packs`, otherwise each into one of its own.
    pub(super) fn pack(of: Conversations, model: Sequences, packs: bool) -> Result<Self, DataError> {
        let Conversations { file, range } = of;
        let context = model.context as usize;
        let (mut placed, mut cut, mut empty) = (Vec::new(), 0, 0);
        let mut begin = file.lengths[..range.start].iter().map(|length| u64::from(*length)).sum::<u64>();
        for length in &file.lengths[range] {
            let held = length.saturating_sub(1).min(model.context);
            cut += usize::from(length.saturating_sub(1) > model.context);
            let counted = file.tokens(begin, u64::from(held) + 1)?;
            let counted = counted.iter().skip(1).filter(|token| **token & COUNTED != 0).count();
            match u32::try_from(counted).unwrap_or(u32::MAX) {
                0 => empty += 1,
                counted => placed.push(Placed { begin, length: held, counted }),
            }
            begin += u64::from(*length);
        }
        let lengths: Vec<u32> = placed.iter().map(|one| one.length).collect();
        let windows = if packs { best_fit(&lengths, model.context) } else { alone(lengths.len()) };
        Ok(Self { file, placed, windows, context, vocab: model.vocab, cut, empty })
    }

    /// Fails if there is no sequence; `deed` is what it is for.
    pub(super) fn at_least_one(&self, deed: &str) -> Result<(), DataError> {
        if !self.windows.is_empty() {
            return Ok(());
        }
        let what = format!("no conversation to {deed} on has a token that counts in the loss");
        Err(DataError::TooFew { what, hint: "name files with answers, or a longer `model.context`" })
    }

    /// Returns warnings about conversations that are cut or left out; `deed` is what they are for.
    pub(super) fn warnings(&self, deed: &str) -> Vec<String> {
        let all = self.placed.len() + self.empty;
        let mut warnings = Vec::new();
        if self.cut > 0 {
            let (cut, context) = (self.cut, self.context);
            warnings.push(format!(
                "{cut} of {all} conversations {deed} are longer than `model.context` = {context} tokens, and are cut"
            ));
        }
        if self.empty > 0 {
            warnings.push(format!(
                "{} of {all} conversations {deed} have no token that counts in the loss, and are left out",
                self.empty
            ));
        }
        warnings
    }
}

impl ChatFile {
    /// Returns stored tokens from index `begin` on.
    fn tokens(&self, begin: u64, count: u64) -> Result<Vec<u32>, DataError> {
        let bytes = self.file.read_up_to(4 * begin, 4 * count)?;
        Ok(bytes.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token)).collect())
    }
}

impl SampleSource for ChatWindows {
    fn len(&self) -> u64 {
        self.windows.len() as u64
    }

    fn counted_targets(&self, index: u64) -> Option<u64> {
        let window = &self.windows[usize::try_from(index).expect("an entry for each lies in memory")];
        Some(window.iter().map(|one| u64::from(self.placed[*one as usize].counted)).sum())
    }

    #[expect(clippy::cast_possible_truncation, reason = "positions of a context, a u32")]
    fn read(&self, indices: &[u64]) -> Result<Batch, DataError> {
        let all = indices.len() * self.context;
        let (mut inputs, mut targets, mut starts) =
            (Vec::with_capacity(all), Vec::with_capacity(all), Vec::with_capacity(all));
        for (sample, index) in indices.iter().enumerate() {
            let window = &self.windows[usize::try_from(*index).expect("an entry for each lies in memory")];
            for one in window {
                let Placed { begin, length, .. } = self.placed[*one as usize];
                let tokens = self.file.tokens(begin, u64::from(length) + 1)?;
                let start = inputs.len() - sample * self.context;
                let (read, wanted) = (&tokens[..length as usize], &tokens[1..]);
                inputs.extend(read.iter().map(|token| token & !COUNTED));
                targets.extend(wanted.iter().map(|token| match token & COUNTED {
                    0 => IGNORED,
                    _ => token & !COUNTED,
                }));
                starts.resize(inputs.len(), start as u32);
            }
            // Each token of the padding sees itself alone, and counts nowhere.
            let end = (sample + 1) * self.context;
            starts.extend((starts.len()..end).map(|place| (place - sample * self.context) as u32));
            inputs.resize(end, 0);
            targets.resize(end, IGNORED);
        }
        if let Some(bad) = inputs.iter().find(|token| **token >= self.vocab) {
            let detail = format!("token {bad} is outside of the model's vocabulary of {}", self.vocab);
            return Err(DataError::Unfit(detail));
        }
        let packed = PackedDocuments { starts: starts.into(), length: self.context, step_targets: 0 };
        Ok(Batch::Tokens {
            inputs,
            targets,
            samples: indices.len(),
            length: self.context,
            packed: Some(packed),
        })
    }
}

/// Returns sequences of one conversation each.
fn alone(count: usize) -> Vec<Vec<u32>> {
    (0..u32::try_from(count).unwrap_or(u32::MAX)).map(|one| vec![one]).collect()
}

/// Packs conversations of these lengths into sequences of `context` tokens: the longest first, each into the
/// sequence in which the least room is left behind it (best fit decreasing).
fn best_fit(lengths: &[u32], context: u32) -> Vec<Vec<u32>> {
    let mut order = (0u32..).zip(lengths).collect::<Vec<_>>();
    order.sort_by_key(|(index, length)| (std::cmp::Reverse(**length), *index));
    let mut windows: Vec<Vec<u32>> = Vec::new();
    // Sequences by the room in them.
    let mut room: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (index, length) in order {
        let found = room
            .range_mut(*length..)
            .next()
            .map(|(left, windows)| (*left, windows.pop(), windows.is_empty()));
        let (left, window) = match found {
            Some((left, Some(window), is_empty)) => {
                if is_empty {
                    room.remove(&left);
                }
                (left, window)
            }
            _ => {
                windows.push(Vec::new());
                (context, windows.len() - 1)
            }
        };
        windows[window].push(index);
        if left > *length {
            room.entry(left - length).or_default().push(window);
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_conversation_is_in_one_sequence_and_fits() {
        let lengths: Vec<u32> = (0..200u32).map(|i| 1 + i * i % 97).collect();
        let windows = best_fit(&lengths, 100);
        let mut seen: Vec<u32> = windows.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        let filled = |window: &Vec<u32>| window.iter().map(|one| lengths[*one as usize]).sum::<u32>();
        assert!(windows.iter().all(|window| filled(window) <= 100));
        let least = lengths.iter().sum::<u32>().div_ceil(100) as usize;
        assert!(windows.len() <= least + 2, "{} sequences for at least {least}", windows.len());
    }
}
