//! Parses names of GPUs as people and tools write them, such as `NVIDIA H100 80GB HBM3`.
//!
//! Every word must be known, so that a typo never becomes another GPU.

use super::{GpuSpec, gpus};
use std::sync::LazyLock;

/// A GPU, with the power limit that its name states.
#[derive(Clone, Copy, Debug)]
pub struct ParsedGpuName {
    /// Data sheet of the GPU.
    pub gpu: &'static GpuSpec,
    /// Power limit in watts, as in `H100 500W`; `None` if the name states none.
    pub watts: Option<f64>,
}

/// Reasons why a name does not identify a GPU.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuNameError {
    /// No known GPU; holds the word that was not understood if all others were.
    Unknown(Option<String>),
    /// The GPU is not sold with the stated memory (GB); the list has the sizes that it is sold with.
    Memory(u32, Vec<u32>),
    /// The GPU is not sold in the stated form; the list has the variants of the table.
    Form(String, Vec<&'static str>),
    /// The name states a power limit, but the table has no usual power to compare it with.
    NoPower,
    /// The power limit is out of range: the stated limit, the lowest and the highest, in watts.
    Power(f64, f64, f64),
}

/// Length limit of a GPU's name, in bytes.
const LONGEST: usize = 100;

/// Lowest and highest power limit, as shares of the GPU's usual power.
const POWER: (f64, f64) = (0.25, 1.25);

/// Words that may accompany the name of a GPU: makers, series, kinds of memory.
const BESIDE: &[&str] = &[
    "nvidia",
    "amd",
    "intel",
    "google",
    "aws",
    "cloud",
    "habana",
    "instinct",
    "tesla",
    "geforce",
    "gtx",
    "quadro",
    "rtx",
    "radeon",
    "rx",
    "pro",
    "arc",
    "hgx",
    "dgx",
    "superchip",
    "grace",
    "hopper",
    "blackwell",
    "ampere",
    "generation",
    "edition",
    "gpu",
    "data",
    "center",
    "graphics",
    "tpu",
    "pod",
    "tensorcore",
    "hbm2",
    "hbm3",
    "hbm3e",
    "gddr6",
    "developerkit",
    "developer",
    "kit",
    "system",
    "module",
    "active",
    "jetson",
    "series",
    "nvl72",
    "nvl4",
    "vf",
    "ac",
];

/// Words for the form of a GPU. One that a name states must be among those of the variant.
const FORMS: &[&str] = &[
    "sxm",
    "sxm2",
    "sxm3",
    "sxm4",
    "sxm5",
    "sxm6",
    "pcie",
    "nvl",
    "nvlink",
    "oam",
    "laptop",
    "mobile",
    "maxq",
    "workstation",
    "server",
    "hbm2e",
];

/// Forms that are meant only where a name states them.
const STATED_FORMS: &[&str] = &["laptop", "maxq", "hbm2e"];

/// One token of a GPU's name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NameToken {
    /// A word that names a GPU, by its index in the list of such words.
    Part(usize),
    /// A word that may accompany the name of a GPU.
    Word,
    /// A word for the form of a GPU, by its index in the list of such words.
    Form(usize),
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

/// Name of one variant of a GPU, taken apart.
#[derive(Debug)]
struct PartName {
    /// Data sheet of the variant.
    gpu: &'static GpuSpec,
    /// Names of the model without form and memory, such as `a100`.
    models: Vec<String>,
    /// Forms by which the variant may be called.
    forms: Vec<&'static str>,
}

impl PartName {
    fn of(gpu: &'static GpuSpec) -> Self {
        let lower = gpu.name.to_lowercase().replace('-', "");
        let (mut model, mut forms) = (String::new(), Vec::new());
        for word in lower.split_whitespace() {
            if let Some(form) = FORMS.iter().find(|form| **form == word) {
                forms.push(*form);
                forms.extend(synonyms(form));
            } else if !(is_size(word) || BESIDE.contains(&word) && word != "pro") {
                model.push_str(word);
            }
        }
        let also = gpu.also.split(';').map(str::trim).filter(|name| !name.is_empty());
        let models = std::iter::once(model).chain(also.map(str::to_owned)).collect();
        Self { gpu, models, forms }
    }

    /// Returns `true` if a name with these `forms` can mean the variant.
    fn has(&self, forms: &[&str]) -> bool {
        let is_meant = |form: &&&str| STATED_FORMS.contains(*form) && !forms.contains(*form);
        // A part that is sold in one form is not always named by it.
        let is_open = |form: &&str| self.forms.is_empty() && !STATED_FORMS.contains(form);
        forms.iter().all(|form| self.forms.contains(form) || is_open(form))
            && !self.forms.iter().any(|form| is_meant(&form))
    }
}

/// Returns other words for a form.
fn synonyms(form: &str) -> &'static [&'static str] {
    // Names of forms come from the table.
    match form {
        "maxq" => &["workstation"],
        "sxm2" | "sxm4" | "sxm5" => &["sxm", "nvlink"],
        "sxm" => &["sxm5", "sxm6", "nvlink"],
        _ => &[],
    }
}

/// Returns `true` if `word` is a size of memory, such as `80gb`.
fn is_size(word: &str) -> bool {
    word.strip_suffix("gb")
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()))
}

static PARTS: LazyLock<Vec<PartName>> = LazyLock::new(|| gpus().iter().map(PartName::of).collect());

/// Returns all words that name a model, the longest first.
pub fn models() -> Vec<&'static str> {
    let mut models: Vec<&str> =
        PARTS.iter().flat_map(|part| part.models.iter().map(String::as_str)).collect();
    models.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
    models.dedup();
    models
}

/// Splits a name from `at` on into tokens with exactly one GPU; sets `far` to the furthest character read.
fn pieces(
    letters: &NormalizedName,
    models: &[&str],
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
            (0..models.len()).filter(|n| fits(&models[*n])).map(|n| (NameToken::Part(n), models[n].len())),
        );
    }
    let beside = BESIDE.iter().filter(|word| fits(word));
    found.extend(beside.map(|word| (NameToken::Word, word.len())));
    let forms = (0..FORMS.len()).filter(|n| fits(&FORMS[*n]));
    found.extend(forms.map(|n| (NameToken::Form(n), FORMS[n].len())));
    found.extend(numbers(rest).into_iter().filter(|(_, length)| letters.is_whole(at, *length)));
    // Tries `sxm5` before `sxm` and a number.
    found.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
    found.into_iter().find_map(|(piece, length)| {
        let is_part = has_part || matches!(piece, NameToken::Part(_));
        let after = pieces(letters, models, at + length, is_part, far)?;
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

/// Parses the name of a GPU, with the form, the memory and the power limit that it states. Of several variants
/// that remain, the first of the table is meant.
pub fn parse_gpu_name(name: &str) -> Result<ParsedGpuName, GpuNameError> {
    let (letters, models, mut far) = (NormalizedName::of(name), models(), 0);
    let pieces = (name.len() <= LONGEST).then(|| pieces(&letters, &models, 0, false, &mut far)).flatten();
    let Some(pieces) = pieces else {
        let is_known = models.iter().any(|model| letters.text.contains(model));
        let odd = (is_known && name.len() <= LONGEST).then(|| letters.word_at(name, far).to_owned());
        return Err(GpuNameError::Unknown(odd.filter(|odd| !odd.is_empty() && *odd != name.trim())));
    };
    let (mut model, mut forms, mut sizes, mut limits) = ("", Vec::new(), Vec::new(), Vec::new());
    for piece in &pieces {
        match piece {
            NameToken::Part(number) => model = models[*number],
            NameToken::Form(number) => {
                forms.push(if FORMS[*number] == "mobile" { "laptop" } else { FORMS[*number] });
            }
            NameToken::Gigabytes(size) => sizes.push(*size),
            NameToken::Watts(watts) => limits.push(f64::from(*watts)),
            NameToken::Word => {}
        }
    }
    let gpu = variant(model, &forms, &sizes)?;
    Ok(ParsedGpuName { gpu, watts: watts(gpu, &limits)? })
}

/// Returns the first variant of `model` that has the stated forms and sizes of memory.
fn variant(model: &str, forms: &[&str], sizes: &[u32]) -> Result<&'static GpuSpec, GpuNameError> {
    let all: Vec<&PartName> =
        PARTS.iter().filter(|part| part.models.iter().any(|name| name == model)).collect();
    let formed: Vec<&&PartName> = all.iter().filter(|part| part.has(forms)).collect();
    if formed.is_empty() {
        let known = all.iter().map(|part| part.gpu.name.as_str()).collect();
        return Err(GpuNameError::Form(forms.join(" "), known));
    }
    let has_sizes = |part: &&&&PartName| sizes.iter().all(|size| part.gpu.is_sold_with(*size));
    if let Some(part) = formed.iter().find(has_sizes) {
        return Ok(part.gpu);
    }
    let mut sold: Vec<u32> = formed.iter().map(|part| part.gpu.sold_gb).collect();
    sold.sort_unstable();
    sold.dedup();
    let odd = sizes.iter().find(|size| !sold.contains(size)).or(sizes.last()).copied().unwrap_or_default();
    Err(GpuNameError::Memory(odd, sold))
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

#[cfg(test)]
mod tests;
