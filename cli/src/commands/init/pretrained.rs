//! `dtrain init --from`: a recipe for a model in a folder of Hugging Face transformers, or of the Hub.

use super::{default_name, write};
use crate::args::InitArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::shell_quoted;
use crate::pretrained::{WeightsFolder, failure};
use dtrain_protocol::input_manifest::TOKENIZER;
use dtrain_recipes::{Decoder, Family, Positions, RotaryScaling};
use dtrain_worker::data::{holds_conversations, keep_as_downloaded};
use dtrain_worker::hub;
use std::path::Path;

/// Writes a recipe that starts from the model in the folder `from`, or from the model of the Hub of this name.
pub(super) fn run(context: &Context, path: &Path, from: &str, args: &InitArgs) -> CommandResult {
    let weights = match WeightsFolder::find(context.out, from)? {
        Some(weights) => weights,
        None => WeightsFolder::open(Path::new(from))?,
    };
    let name = args.name.clone().unwrap_or_else(|| default_name(path));
    let folder = weights.folder();
    let json = folder.tokenizer().map_err(|error| failure(&error))?;
    let tokenizer = json.map(|_| tokenizer_name(&weights)).transpose()?;
    let is_bytes = folder.pretrained().model.vocab == BYTES;
    if tokenizer.is_none() && !is_bytes {
        refuse_text(&weights, args.data.as_deref())?;
        context.out.say(&format!(
            "{}: {} has no {TOKENIZER}, so the recipe reads token numbers, not text",
            context.out.paint.yellow("note"),
            weights.source()
        ));
    }
    write(context, path, &name, &text(&weights, tokenizer.as_deref(), &name, args))?;
    for note in &folder.pretrained().notes {
        context.out.say(&format!("{}: {note}", context.out.paint.yellow("note")));
    }
    context.out.next(&format!("dtrain run {}", shell_quoted(path.display())));
    Ok(ExitReason::Done)
}

/// Returns the name of the tokenizer in the recipe: a path, or for a model of the Hub a URL with the checksum of the
/// file, which other hosts and users can download. It counts as downloaded to this host, with its chat template.
fn tokenizer_name(weights: &WeightsFolder) -> Result<String, CommandError> {
    let path = weights.path().join(TOKENIZER);
    let Some(model) = weights.model() else { return Ok(path.display().to_string()) };
    let digits = hub::sha256(&path).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot read {}", path.display()))
            .cause(error.to_string())
    })?;
    let name = format!("{}#sha256={digits}", hub::file_url(model, TOKENIZER)?);
    keep_as_downloaded(&name, weights.path())
        .map_err(|error| CommandError::of(ExitReason::Infrastructure, &error))?;
    Ok(name)
}

/// Size of a byte-level model's vocabulary.
const BYTES: u32 = 256;

/// Refuses to train on text a model without its tokenizer, which can use only shards of token ids.
fn refuse_text(weights: &WeightsFolder, data: Option<&str>) -> Result<(), CommandError> {
    let Some(data) = data.filter(|data| !data.ends_with(".bin")) else { return Ok(()) };
    let path = weights.source();
    let message =
        format!("{path} has no {TOKENIZER}, and {data:?} is text: nothing says which tokens it has");
    Err(CommandError::new(ExitReason::Usage, message).hint(format!(
        "write one with transformers: `AutoTokenizer.from_pretrained({0:?}).save_pretrained({0:?})`; or name shards of token \
         numbers (.bin)",
        weights.path().display().to_string()
    )))
}

/// Default maximum of the context length in tokens, since longer contexts need much memory.
const CONTEXT: u32 = 1024;

/// Returns the text of a recipe for a model, whose tokenizer is in the file or at the URL `tokenizer`.
fn text(weights: &WeightsFolder, tokenizer: Option<&str>, name: &str, args: &InitArgs) -> String {
    let data = args.data.as_deref();
    let pretrained = weights.folder().pretrained();
    let longest = pretrained.model.context;
    let model = pretrained.with_context(longest.min(CONTEXT));
    let (family, rotary) = match model.positions {
        Positions::Learned => (Family::Gpt2, String::new()),
        Positions::Rotary => (Family::Llama, format!("rotary_base = {}\n", model.rotary_base())),
    };
    let from = weights.source();
    let (path, place) = match weights.model() {
        Some(_) => (&from, "the weights of this commit"),
        None => (&from, "the weights in this folder"),
    };
    let notes: String = pretrained.notes.iter().map(|note| format!("# {note}\n")).collect();
    let data = match (tokenizer, data) {
        (Some(tokenizer), Some(data)) if holds_conversations(Path::new(data)) => format!(
            "train = {data:?}       # conversations; docs/fine-tuning.md has the keys for them\nvalid = \"5%\"\nformat = \"chat\"\ntokenizer = {tokenizer:?}\n"
        ),
        (Some(tokenizer), data) => format!(
            "train = {:?}       # text, or JSON lines with a text each\nvalid = \"5%\"\ntokenizer = {:?}\n",
            data.unwrap_or("data/*.txt"),
            tokenizer
        ),
        // dtrain exports byte-level models in this form.
        (None, data) if model.vocab == BYTES => format!(
            "train = {:?}\nvalid = \"5%\"\nformat = \"text\"\ntokenizer = \"bytes\"\n",
            data.unwrap_or("data/*.txt")
        ),
        (None, data) => format!(
            "train = {:?}         # shards of token numbers: the folder has no tokenizer.json\nvalid = \"5%\"\nformat = \"tokens\"\n",
            data.unwrap_or("tokens/*.bin")
        ),
    };
    let (lora, rate) = match args.lora {
        Some(rank) => {
            let lora = format!(
                "lora = {{ rank = {rank} }}       # adapters are trained, all other weights are frozen\n"
            );
            (lora, "2e-4      # adapters learn with larger steps than whole weights")
        }
        None => (String::new(), "2e-5      # small: the weights are good already"),
    };
    format!(
        r#"# The model of {path} ({kind}).
{notes}name = {name:?}

[model]
kind = "decoder"
family = "{family}"
layers = {layers}
hidden = {hidden}
heads = {heads}
kv_heads = {kv_heads}
head_width = {head_width}
ffn = {ffn}
vocab = {vocab}
context = {context}            # tokens of one sample; the model was made for {longest}
activation = "{activation}"
{rotary}norm_epsilon = {epsilon:e}
bias = {bias}
qkv_bias = {qkv_bias}
tied = {tied}
{parts}{lora}
[data]
{data}
[objective]
stop = {{ epochs = 1 }}

[train]
from = {from:?}       # training begins with {place}
learning_rate = {rate}
seed = 1
"#,
        kind = pretrained.family.model_type(),
        activation = model.activation,
        layers = model.layers,
        hidden = model.hidden,
        heads = model.heads,
        kv_heads = model.kv_heads,
        head_width = model.head_width(),
        ffn = model.ffn,
        vocab = model.vocab,
        context = model.context,
        epsilon = model.norm_epsilon(),
        bias = model.bias,
        qkv_bias = model.qkv_bias(),
        tied = model.tied,
        parts = parts(&model),
    )
}

/// Returns the lines of the parts of a model that not every family has.
fn parts(model: &Decoder) -> String {
    let mut lines = Vec::new();
    let mut flag = |key: &str, is_set: bool| {
        if is_set {
            lines.push(format!("{key} = true"));
        }
    };
    flag("qk_norm", model.qk_norm);
    flag("post_norm", model.post_norm);
    flag("scaled_embedding", model.scaled_embedding);
    if let Some(scale) = model.attention_scale {
        lines.push(format!("attention_scale = {scale:?}"));
    }
    match model.rotary_scaling {
        Some(RotaryScaling::Linear { factor }) => {
            lines.push(format!("rotary_scaling = {{ kind = \"linear\", factor = {factor:?} }}"));
        }
        Some(RotaryScaling::Llama3 { factor, low, high, original_context }) => lines.push(format!(
            "rotary_scaling = {{ kind = \"llama3\", factor = {factor:?}, low = {low:?}, high = {high:?}, \
             original_context = {original_context} }}"
        )),
        None => {}
    }
    if let Some(window) = model.window {
        lines.push(format!("window = {}", window.tokens));
        lines.extend(window.every.map(|every| format!("window_every = {every}")));
        lines.extend(window.rotary_base.map(|base| format!("window_rotary_base = {base}")));
    }
    if let Some(experts) = model.experts {
        lines.push(format!("experts = {}\nexperts_per_token = {}", experts.count, experts.per_token));
        lines.push(format!("balance = {:?}", experts.balance));
        lines.extend(experts.shared_ffn.map(|width| format!("shared_ffn = {width}")));
        if experts.shared_gate {
            lines.push("shared_gate = true".to_owned());
        }
        if experts.raw_gates {
            lines.push("raw_gates = true".to_owned());
        }
    }
    lines.into_iter().map(|line| line + "\n").collect()
}
