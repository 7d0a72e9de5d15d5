//! The part of the emitted script that makes the data of Megatron-LM, and the arguments that read it.

use super::{Argument, DecoderPlan};
use dtrain_recipes::{DataFormat, Tokenizer};

/// Program that gives each training file a line of JSON, after the list of the files.
const LINES: &str = r#"
names = [name for pattern in FILES for name in sorted(glob.glob(pattern))]
if not names:
    sys.exit(f"no file is named {FILES}")
with open(sys.argv[1] + ".jsonl", "w", encoding="utf-8") as lines:
    for name in names:
        with open(name, encoding="utf-8", newline="") as text:
            lines.write(json.dumps({"text": text.read()}) + "\n")
"#;

/// Program that writes a tokenizer of bytes. A document ends with the token of the byte 0, which no text has.
const BYTES: &str = r#"
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
hidden = [byte for byte in range(256) if byte not in shown]
letters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}
vocabulary = {letters[byte]: byte for byte in range(1, 256)} | {END: 0}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.decoder = decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(sys.argv[2])
"#;

/// Returns the notes about data that the tools of Megatron-LM do not read.
pub(super) fn notes(source: &DecoderPlan) -> Option<String> {
    matches!(source.data().format, DataFormat::Tokens { .. }).then(|| {
        "Megatron-LM's tools read text: name the files that the shards of tokens were made from".into()
    })
}

/// Returns the shell variables for data and tokenizer.
pub(super) fn settings(source: &DecoderPlan) -> String {
    let tokenizer = if has_bytes(source) {
        "# The tokenizer, which the argument `data` makes.\n".into()
    } else {
        format!(
            "# SET: a folder with a tokenizer for transformers, of at most {} tokens, one of which ends a text.\n",
            source.model.vocab
        )
    };
    format!(
        "# The data that the argument `data` makes, without its ending.\n\
         DATA=${{DATA:-corpus_text_document}}\n{tokenizer}TOKENIZER=${{TOKENIZER:-tokenizer}}\n"
    )
}

/// Returns the shell commands that make the data when the script is given the argument `data`.
pub(super) fn preparation(source: &DecoderPlan) -> String {
    // A JSON string is a Python string.
    let files = serde_json::to_string(&source.train_files()).expect("a list of texts");
    let bytes = if has_bytes(source) { BYTES } else { "" };
    format!(
        "\n# `data` as the argument makes the data, once on each host or in a folder that all share.\n\
         if [[ ${{1:-}} == data ]]; then\n\
         CORPUS=${{DATA%_text_document}}\n\
         python3 - \"$CORPUS\" \"$TOKENIZER\" <<'END_OF_PROGRAM'\nimport glob\nimport json\nimport sys\n\n\
         # SET: the training text; each file is a document.\nFILES = {files}\n{LINES}{bytes}END_OF_PROGRAM\n\
         exec python3 tools/preprocess_data.py --input \"$CORPUS.jsonl\" --output-prefix \"$CORPUS\" --append-eod \\\n    \
         --tokenizer-type HuggingFaceTokenizer --tokenizer-model \"$TOKENIZER\" --workers \"$(nproc)\"\nfi\n"
    )
}

/// Returns `true` if the bytes of the text are the tokens.
fn has_bytes(source: &DecoderPlan) -> bool {
    matches!(source.data().format, DataFormat::Text { tokenizer: Tokenizer::Bytes, .. })
}

/// Returns the arguments for data, checkpoints and output.
pub(super) fn arguments(source: &DecoderPlan) -> Vec<Argument> {
    let pace = &source.choice.run_length;
    let validations = pace.validate_samples.div_ceil(source.split.global()).max(1);
    // In percent, rounded to hide binary fractions.
    let valid = (1e8 * source.valid_fraction().unwrap_or(0.0)).round() / 1e6;
    vec![
        "--data-path \"$DATA\"".into(),
        format!("--split {:?},{valid:?},0", 100.0 - valid),
        "--tokenizer-type HuggingFaceTokenizer".into(),
        "--tokenizer-model \"$TOKENIZER\"".into(),
        "--save \"$CHECKPOINTS\"".into(),
        "--load \"$CHECKPOINTS\"".into(),
        format!("--save-interval {}", pace.save_every),
        format!("--eval-interval {}", pace.validate_every),
        format!("--eval-iters {validations}"),
        "--log-interval 10".into(),
    ]
}
