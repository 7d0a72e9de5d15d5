//! Parses names of GPUs as people and tools write them, such as `NVIDIA H100 80GB HBM3`.
//!
//! Every word must be known, so that a typo never becomes another GPU.

use super::{GpuSpec, gpus};

/// A GPU, with the power limit and the memory that its name states.
#[derive(Clone, Copy, Debug)]
pub struct ParsedGpuName {
    /// Data sheet of the GPU.
    pub gpu: &'static GpuSpec,
    /// Power limit in watts, as in `H100 500W`; `None` if the name states none.
    pub watts: Option<f64>,
    /// Bytes of memory of one device.
    pub memory: f64,
}

/// Reasons why a name does not identify a GPU.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuNameError {
    /// No known GPU; holds the word that was not understood if all others were.
    Unknown(Option<String>),
    /// The GPU is not sold with the stated memory (GB); the list has the sizes that it is sold with.
    Memory(u32, Vec<u32>),
    /// The name states a power limit, but the table has no usual power to compare it with.
    NoPower,
    /// The power limit is out of range: the stated limit, the lowest and the highest, in watts.
    Power(f64, f64, f64),
}

/// Length limit of a GPU's name, in bytes.
const LONGEST: usize = 100;

/// Lowest and highest power limit, as shares of the GPU's usual power.
const POWER: (f64, f64) = (0.25, 1.25);

/// Names of GPUs that the table does not list.
const ALIASES: &[&str] =
    &["mi250x", "mi300x", "mi325x", "mi350x", "mi355x", "v5e", "v5lite", "v5litepod", "v6e", "rtxa6000"];

/// Words that may accompany the name of a GPU: makers, series, form factors, kinds of memory.
const BESIDE: &[&str] = &[
    "nvidia",
    "amd",
    "intel",
    "google",
    "cloud",
    "habana",
    "instinct",
    "tesla",
    "geforce",
    "quadro",
    "rtx",
    "radeon",
    "hgx",
    "dgx",
    "superchip",
    "grace",
    "hopper",
    "blackwell",
    "gpu",
    "sxm",
    "sxm2",
    "sxm3",
    "sxm4",
    "sxm5",
    "sxm6",
    "pcie",
    "nvl",
    "nvl72",
    "nvlink",
    "oam",
    "tpu",
    "pod",
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
];

/// One token of a GPU's name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NameToken {
    /// A word that names a GPU, by its index in the list of such words.
    Part(usize),
    /// A word that may accompany the name of a GPU, by its index in the list of such words.
    Word(usize),
    /// A memory size in GB.
    Gigabytes(u32),
    /// A power limit in watts.
    Watts(u32),
}

/// A name without case and separators, with the byte offset of each character and a mark if a separator
/// precedes it.
struct NormalizedName {
    text: String,
    places: Vec<(bool, usize)>,
}

impl NormalizedName {
    fn of(name: &str) -> Self {
        let (mut text, mut places, mut is_apart) = (String::new(), Vec::new(), true);
        for (place, c) in name.char_indices() {
            if matches!(c, ' ' | '-' | '_' | '/' | '(' | ')' | ',') {
                is_apart = true;
            } else if c.is_ascii_alphanumeric() {
                text.push(c.to_ascii_lowercase());
                places.push((is_apart, place));
                is_apart = false;
            } else {
                // A sentinel that no word contains.
                text.push('?');
                places.push((is_apart, place));
                is_apart = false;
            }
        }
        Self { text, places }
    }

    /// Returns `true` if the characters before and at `at` are digits that a separator keeps apart.
    fn has_seam(&self, at: usize) -> bool {
        let is_digit = |at: usize| self.text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        at > 0 && is_digit(at - 1) && is_digit(at)
    }

    /// Returns `true` if `length` bytes at `at` can be one word, which neither splits a number nor joins two.
    fn is_whole(&self, at: usize, length: usize) -> bool {
        let is_apart = |at: usize| self.places.get(at).is_none_or(|(is_apart, _)| *is_apart);
        let end = at + length;
        let inside = (at + 1..end).all(|at| !is_apart(at) || !self.has_seam(at));
        let begins = is_apart(at) || !self.has_seam(at);
        let ends = is_apart(end) || !self.has_seam(end);
        inside && begins && ends
    }

    /// Returns the word of `name` that contains the character at `at`.
    fn word_at<'n>(&self, name: &'n str, at: usize) -> &'n str {
        let place = self.places.get(at).map_or(name.len(), |(_, place)| *place);
        let begin = name[..place]
            .char_indices()
            .rfind(|(_, c)| c.is_whitespace())
            .map_or(0, |(at, c)| at + c.len_utf8());
        let end = name[place..].find(char::is_whitespace).map_or(name.len(), |found| place + found);
        &name[begin..end]
    }
}

/// Returns all words that name a GPU.
fn parts() -> Vec<&'static str> {
    let main = |gpu: &'static GpuSpec| match gpu.words.as_slice() {
        [first, second] if first == "tpu" => second.as_str(),
        words => words[0].as_str(),
    };
    let mut parts: Vec<&str> = gpus().iter().map(main).chain(ALIASES.iter().copied()).collect();
    parts.sort_by_key(|word| std::cmp::Reverse(word.len()));
    parts.dedup();
    parts
}

/// Splits a name from `at` on into tokens with exactly one GPU; sets `far` to the furthest character read.
fn pieces(
    letters: &NormalizedName,
    parts: &[&str],
    at: usize,
    has_part: bool,
    far: &mut usize,
) -> Option<Vec<NameToken>> {
    *far = at.max(*far);
    let rest = &letters.text[at..];
    if rest.is_empty() {
        return has_part.then(Vec::new);
    }
    let mut found = Vec::new();
    let fits = |word: &&str| rest.starts_with(*word) && letters.is_whole(at, word.len());
    if !has_part {
        found.extend(
            (0..parts.len()).filter(|n| fits(&parts[*n])).map(|n| (NameToken::Part(n), parts[n].len())),
        );
    }
    let beside = (0..BESIDE.len()).filter(|n| fits(&BESIDE[*n]));
    found.extend(beside.map(|n| (NameToken::Word(n), BESIDE[n].len())));
    found.extend(numbers(rest).into_iter().filter(|(_, length)| letters.is_whole(at, *length)));
    // Tries `sxm5` before `sxm` and a number.
    found.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
    found.into_iter().find_map(|(piece, length)| {
        let is_part = has_part || matches!(piece, NameToken::Part(_));
        let after = pieces(letters, parts, at + length, is_part, far)?;
        Some(std::iter::once(piece).chain(after).collect())
    })
}

/// Returns the tokens that a number at the start of `text` can be, as in `80`, `80g`, `80gb` or `500w`, with
/// their lengths.
fn numbers(text: &str) -> Vec<(NameToken, usize)> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let Some(number) = text[..digits].parse::<u32>().ok().filter(|number| *number > 0) else {
        return Vec::new();
    };
    let unit = &text[digits..];
    let gigabytes = ["gib", "gb", "g", ""].into_iter().filter(|word| unit.starts_with(word));
    let mut found: Vec<_> =
        gigabytes.map(|word| (NameToken::Gigabytes(number), digits + word.len())).collect();
    if unit.starts_with('w') {
        found.push((NameToken::Watts(number), digits + 1));
    }
    found
}

/// Parses the name of a GPU, with the memory and the power limit that it states.
pub fn parse_gpu_name(name: &str) -> Result<ParsedGpuName, GpuNameError> {
    let (letters, parts, mut far) = (NormalizedName::of(name), parts(), 0);
    let pieces = (name.len() <= LONGEST).then(|| pieces(&letters, &parts, 0, false, &mut far)).flatten();
    let Some(pieces) = pieces else {
        let is_known = parts.iter().any(|part| letters.text.contains(part));
        let odd = (is_known && name.len() <= LONGEST).then(|| letters.word_at(name, far).to_owned());
        return Err(GpuNameError::Unknown(odd.filter(|odd| !odd.is_empty() && *odd != name.trim())));
    };
    let words: String = pieces
        .iter()
        .map(|piece| match piece {
            NameToken::Part(number) => parts[*number],
            NameToken::Word(number) => BESIDE[*number],
            NameToken::Gigabytes(_) | NameToken::Watts(_) => "",
        })
        .collect();
    let sizes: Vec<u32> = pieces
        .iter()
        .filter_map(|piece| match piece {
            NameToken::Gigabytes(size) => Some(*size),
            _ => None,
        })
        .collect();
    let has = |word: &String| {
        words.contains(word.as_str()) || word.parse().is_ok_and(|size: u32| sizes.contains(&size))
    };
    let gpu = gpus().iter().find(|gpu| gpu.words.iter().all(has) && !gpu.unless.iter().any(has));
    let gpu = gpu.ok_or(GpuNameError::Unknown(None))?;
    let limits: Vec<f64> = pieces
        .iter()
        .filter_map(|piece| match piece {
            NameToken::Watts(watts) => Some(f64::from(*watts)),
            _ => None,
        })
        .collect();
    Ok(ParsedGpuName { gpu, watts: watts(gpu, &limits)?, memory: memory(gpu, &sizes)? })
}

/// Returns the first power limit in a name, checked against the range of `gpu`; `None` if there is none.
fn watts(gpu: &GpuSpec, limits: &[f64]) -> Result<Option<f64>, GpuNameError> {
    let Some(limit) = limits.first() else { return Ok(None) };
    let usual = gpu.watts.ok_or(GpuNameError::NoPower)?;
    let (low, high) = (POWER.0 * usual, POWER.1 * usual);
    match limits.iter().find(|limit| !(low..=high).contains(*limit)) {
        Some(odd) => Err(GpuNameError::Power(*odd, low, high)),
        None => Ok(Some(*limit)),
    }
}

/// Returns the bytes of memory of the variant of `gpu` that the `sizes` in its name select.
fn memory(gpu: &GpuSpec, sizes: &[u32]) -> Result<f64, GpuNameError> {
    let usual = gpu.gibibytes * 1024f64.powi(3);
    let sizes: Vec<u32> = sizes.iter().copied().filter(|size| !gpu.beside.contains(size)).collect();
    match (sizes.as_slice(), sizes.iter().find(|size| !gpu.sold.contains(size))) {
        ([], _) => Ok(usual),
        (_, Some(odd)) => Err(GpuNameError::Memory(*odd, gpu.sold.clone())),
        ([first, others @ ..], None) => match others.iter().find(|size| *size != first) {
            Some(other) => Err(GpuNameError::Memory(*other, vec![*first])),
            None => Ok(usual * f64::from(*first) / f64::from(gpu.sold[0])),
        },
    }
}

#[cfg(test)]
mod tests;
