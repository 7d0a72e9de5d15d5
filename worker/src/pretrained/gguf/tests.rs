//! Tests of GGUF files: what is written for small models, read back byte by byte.

use super::metadata::{Architecture, describe};
use super::tokenizer::keys;
use super::writer::{Encoding, MetadataValue, OutTensor, write};
use super::{GgufError, GgufType, TensorSource, Vocabulary, pre_tokenizer, tensors, write_model};
use half::f16;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Tensors whose values count up from 0, a thousandth a step.
struct Counting(BTreeMap<String, Vec<usize>>);

impl Counting {
    fn new(tensors: &[(&str, &[usize])]) -> Self {
        Self(tensors.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect())
    }
}

impl TensorSource for Counting {
    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.get(name).cloned()
    }

    fn values(&self, name: &str) -> Result<Vec<f32>, GgufError> {
        let count: usize = self.0[name].iter().product();
        Ok((0..count).map(|at| at as f32 / 1000.0).collect())
    }
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("dtrain-gguf-{name}-{}.gguf", std::process::id()))
}

/// A model of one layer with 2 heads of 4, and experts if `kind` has them.
fn config(kind: &str) -> Value {
    json!({
        "model_type": kind, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 4, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 5e5, "num_local_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "norm_topk_prob": kind == "qwen3_moe",
        "head_dim": 4, "query_pre_attn_scalar": 4, "sliding_window": 8, "use_sliding_window": false,
    })
}

const LLAMA: [(&str, &[usize]); 12] = [
    ("model.embed_tokens.weight", &[4, 8]),
    ("model.norm.weight", &[8]),
    ("lm_head.weight", &[4, 8]),
    ("model.layers.0.input_layernorm.weight", &[8]),
    ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
    ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
    ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
    ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
    ("model.layers.0.post_attention_layernorm.weight", &[8]),
    ("model.layers.0.mlp.gate_proj.weight", &[16, 8]),
    ("model.layers.0.mlp.up_proj.weight", &[16, 8]),
    ("model.layers.0.mlp.down_proj.weight", &[8, 16]),
];

fn tensor<'a>(shape: &[usize], encoding: Encoding, values: &'a [f32]) -> OutTensor<'a> {
    OutTensor {
        name: "t".into(),
        shape: shape.to_vec(),
        encoding,
        parts: vec![Box::new(|| Ok(values.to_vec()))],
    }
}

#[test]
fn a_file_has_its_header_keys_and_aligned_tensors() {
    let path = file("header");
    let keys = [("a.b".to_owned(), MetadataValue::Texts(vec!["x".into(), "yz".into()]))];
    let tensors =
        [tensor(&[3, 1], Encoding::F32, &[1.0, 2.0, 3.0]), tensor(&[2], Encoding::F16, &[0.5, -2.0])];
    write(&path, &keys, &tensors).expect("it is written");
    let bytes = std::fs::read(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it is removed");
    let mut wanted = b"GGUF".to_vec();
    let number = |value: u64| value.to_le_bytes();
    let short = |value: u32| value.to_le_bytes();
    wanted.extend(short(3));
    wanted.extend([number(2), number(1), number(3)].concat());
    wanted.extend(b"a.b");
    wanted.extend([short(9), short(8)].concat());
    wanted.extend([number(2), number(1)].concat());
    wanted.extend(b"x");
    wanted.extend(number(2));
    wanted.extend(b"yz");
    // The dimensions are in reverse order, and the second tensor begins 32 bytes after the first.
    for (sides, kind, offset) in [(&[1, 3][..], 0, 0), (&[2][..], 1, 32)] {
        wanted.extend(number(1));
        wanted.extend(b"t");
        wanted.extend(short(u32::try_from(sides.len()).expect("few")));
        sides.iter().for_each(|side| wanted.extend(number(*side)));
        wanted.extend(short(kind));
        wanted.extend(number(offset));
    }
    wanted.resize(wanted.len().next_multiple_of(32), 0);
    [1.0_f32, 2.0, 3.0].iter().for_each(|value| wanted.extend(value.to_le_bytes()));
    wanted.resize(wanted.len().next_multiple_of(32), 0);
    [0.5, -2.0].iter().for_each(|value| wanted.extend(f16::from_f32(*value).to_le_bytes()));
    wanted.resize(wanted.len().next_multiple_of(32), 0);
    assert_eq!(bytes, wanted);
}

#[test]
fn q8_rounds_halves_away_from_zero() {
    let path = file("halves");
    let mut values = [0.0_f32; 64];
    (values[0], values[1], values[2], values[3]) = (127.0, 0.5, -0.5, 1.5);
    write(&path, &[], &[tensor(&[2, 32], Encoding::Q8, &values)]).expect("it is written");
    let bytes = std::fs::read(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it is removed");
    let data = &bytes[bytes.len() - 96..];
    assert_eq!(data[..2], f16::from_f32(1.0).to_le_bytes());
    assert_eq!(data[2..6], [127, 1, 255, 2]);
    assert_eq!(data[34..], [0; 62], "a block of zeros, and the end of the file");
}

#[test]
fn a_value_beyond_f16_is_an_error_with_the_tensors_name() {
    let path = file("overflow");
    for (encoding, value) in [(Encoding::F16, 65520.0), (Encoding::Q8, 1e7), (Encoding::Q8, f32::NAN)] {
        let mut values = [0.0_f32; 32];
        values[5] = value;
        let error = write(&path, &[], &[tensor(&[1, 32], encoding, &values)]).expect_err("it is too large");
        assert!(matches!(&error, GgufError::Tensor { name, .. } if name == "t"), "{error}");
    }
    std::fs::remove_file(&path).expect("it is removed");
}

/// Returns the values of the tensor `name` of a model, in order of its parts.
fn values(source: &Counting, config: &Value, name: &str) -> Vec<f32> {
    let model = describe(config).expect("it is supported");
    let (tensors, _) = tensors::tensors(&model, source, GgufType::F32).expect("the tensors fit");
    let tensor = tensors.iter().find(|tensor| tensor.name == name).expect("it is there");
    tensor.parts.iter().flat_map(|part| part().expect("it is read")).collect()
}

#[test]
fn rows_of_llamas_heads_are_interleaved() {
    let source = Counting::new(&LLAMA);
    let rows = |kind: &str| -> Vec<f32> {
        let all = values(&source, &config(kind), "blk.0.attn_q.weight");
        all.chunks_exact(8).map(|row| row[0] * 125.0).map(f32::round).collect()
    };
    assert_eq!(rows("llama"), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    assert_eq!(rows("qwen2"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
}

#[test]
fn experts_are_one_tensor_in_the_order_of_their_numbers() {
    let mut tensors: Vec<(&str, &[usize])> = LLAMA[..9].to_vec();
    let names: Vec<String> = (0..2)
        .flat_map(|expert| {
            ["w1", "w2", "w3"]
                .map(|name| format!("model.layers.0.block_sparse_moe.experts.{expert}.{name}.weight"))
        })
        .collect();
    for name in &names {
        tensors.push((name, if name.contains("w2") { &[8, 16] } else { &[16, 8] }));
    }
    tensors.push(("model.layers.0.block_sparse_moe.gate.weight", &[2, 8]));
    let source = Counting::new(&tensors);
    let model = describe(&config("mixtral")).expect("it is supported");
    let (out, _) = tensors::tensors(&model, &source, GgufType::F16).expect("the tensors fit");
    let find = |name: &str| out.iter().find(|tensor| tensor.name == name).expect("it is there");
    assert_eq!(find("blk.0.ffn_down_exps.weight").shape, [2, 8, 16]);
    assert_eq!(find("blk.0.ffn_gate_inp.weight").encoding, Encoding::F32, "a router stays precise");
    assert_eq!(values(&source, &config("mixtral"), "blk.0.ffn_up_exps.weight").len(), 2 * 16 * 8);
    let one_less =
        Counting::new(&tensors.iter().copied().filter(|(name, _)| *name != names[5]).collect::<Vec<_>>());
    assert!(tensors::tensors(&model, &one_less, GgufType::F16).is_err(), "an expert is missing");
}

#[test]
fn a_tensor_too_much_or_missing_is_an_error() {
    let model = describe(&config("llama")).expect("it is supported");
    let mut more = LLAMA.to_vec();
    more.push(("model.layers.0.self_attn.q_norm.weight", &[4]));
    for (given, wanted) in [(&more[..], "q_norm"), (&LLAMA[..11], "ffn_down"), (&LLAMA[1..], "token_embd")] {
        let source = Counting::new(given);
        let error = tensors::tensors(&model, &source, GgufType::F32).err().expect("it is noticed");
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

#[test]
fn rows_without_whole_blocks_are_f16_in_a_file_of_q8() {
    let source = Counting::new(&LLAMA);
    let path = file("uneven");
    let notes = write_model(&path, "m", &config("llama"), &source, &Vocabulary::Numbers, GgufType::Q8);
    std::fs::remove_file(&path).expect("it is removed");
    let notes = notes.expect("it is written");
    assert!(notes.iter().any(|note| note.contains("stored as f16")), "{notes:?}");
}

#[test]
fn a_model_that_llama_cpp_computes_otherwise_is_refused() {
    for (kind, key, value) in [
        ("qwen2", "head_dim", json!(8)),
        ("qwen2_moe", "norm_topk_prob", json!(true)),
        ("qwen3_moe", "mlp_only_layers", json!([0])),
        ("gemma3_text", "query_pre_attn_scalar", json!(16)),
        ("llama", "rope_scaling", json!({ "rope_type": "yarn", "factor": 4.0 })),
        ("llama", "hidden_act", json!("relu")),
        ("bert", "hidden_act", json!("silu")),
    ] {
        let mut config = config(kind);
        config[key] = value;
        assert!(matches!(describe(&config), Err(GgufError::Unsupported(_))), "{kind} {key}");
    }
    assert_eq!(describe(&config("qwen2_moe")).expect("it is supported").architecture, Architecture::Qwen2Moe);
}

#[test]
fn slow_frequencies_of_llama_3_are_divided() {
    let mut config = config("llama");
    config["head_dim"] = json!(8);
    config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    let divisors = describe(&config).expect("it is supported").rotary_divisors.expect("it is scaled");
    assert_eq!(divisors.len(), 4);
    assert_eq!([divisors[0], divisors[3]], [1.0, 8.0]);
}

/// Returns the value of a key of the tokenizer.
fn of<'a>(keys: &'a [(String, MetadataValue)], name: &str) -> Option<&'a MetadataValue> {
    let name = format!("tokenizer.ggml.{name}");
    keys.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn byte_level(pattern: Option<&str>, ignore_merges: bool) -> Value {
    let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": pattern.is_none() });
    let split =
        json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let steps = if pattern.is_some() { json!([split, level]) } else { json!([level]) };
    json!({
        "model": { "type": "BPE", "vocab": { "a": 0, "b": 1, "ab": 2 }, "merges": [["a", "b"]],
                   "ignore_merges": ignore_merges },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
        "added_tokens": [{ "id": 3, "content": "<|endoftext|>", "special": true }],
    })
}

#[test]
fn the_pre_tokenizer_is_known_by_its_expression() {
    const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let qwen2 = LLAMA3.replace("{1,3}", "");
    for (pattern, ignore_merges, wanted) in [
        (None, false, Some("gpt-2")),
        (Some(LLAMA3), true, Some("llama-bpe")),
        (Some(LLAMA3), false, Some("smaug-bpe")),
        (Some(qwen2.as_str()), false, Some("qwen2")),
        (Some(r"\w+"), false, None),
    ] {
        assert_eq!(pre_tokenizer::name(&byte_level(pattern, ignore_merges)), wanted);
    }
}

#[test]
fn a_byte_level_tokenizer_has_its_tokens_merges_and_end() {
    let files =
        Vocabulary::Files { tokenizer: byte_level(None, false), config: Value::Null, chat_template: None };
    let mut notes = Vec::new();
    let keys = keys(&files, &json!({ "eos_token_id": null }), 6, &mut notes).expect("it is whole");
    let texts = |all: &[&str]| MetadataValue::Texts(all.iter().map(|text| (*text).to_owned()).collect());
    assert_eq!(of(&keys, "tokens"), Some(&texts(&["a", "b", "ab", "<|endoftext|>", "[PAD4]", "[PAD5]"])));
    assert_eq!(of(&keys, "token_type"), Some(&MetadataValue::I32s(vec![1, 1, 1, 3, 5, 5])));
    assert_eq!(of(&keys, "merges"), Some(&texts(&["a b"])));
    assert_eq!(of(&keys, "eos_token_id"), Some(&MetadataValue::U32(3)));
    assert_eq!(of(&keys, "add_bos_token"), Some(&MetadataValue::Bool(false)));
    assert_eq!(notes, Vec::<String>::new());
}

#[test]
fn scores_of_pieces_follow_the_merges() {
    let tokenizer = json!({
        "model": { "type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
                   "vocab": { "<unk>": 0, "<0x41>": 1, "▁": 2, "a": 3, "▁a": 4, "aa": 5 },
                   "merges": ["a a", "▁ a"] },
        "normalizer": { "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }] },
        "post_processor": { "type": "TemplateProcessing",
                            "single": [{ "SpecialToken": { "id": "<unk>" } }, { "Sequence": { "id": "A" } }] },
        "added_tokens": [{ "id": 0, "content": "<unk>", "special": true }],
    });
    let files = Vocabulary::Files { tokenizer, config: Value::Null, chat_template: Some("{{ x }}".into()) };
    let keys = keys(&files, &Value::Null, 6, &mut Vec::new()).expect("it is whole");
    assert_eq!(of(&keys, "model"), Some(&MetadataValue::Text("llama".into())));
    assert_eq!(of(&keys, "token_type"), Some(&MetadataValue::I32s(vec![2, 6, 1, 1, 1, 1])));
    let Some(MetadataValue::F32s(scores)) = of(&keys, "scores") else { panic!("it has scores") };
    assert_eq!(scores[4..], [-1.0, 0.0]);
    assert_eq!(of(&keys, "add_space_prefix"), Some(&MetadataValue::Bool(true)));
    assert_eq!(of(&keys, "add_bos_token"), Some(&MetadataValue::Bool(true)));
    assert!(keys.iter().any(|(key, _)| key == "tokenizer.chat_template"));
}

#[test]
fn a_model_of_bytes_or_of_numbers_needs_no_tokenizer() {
    let keys = |vocabulary| keys(&vocabulary, &Value::Null, 300, &mut Vec::new()).expect("it is whole");
    let bytes = keys(Vocabulary::Bytes);
    let Some(MetadataValue::Texts(tokens)) = of(&bytes, "tokens") else { panic!("it has tokens") };
    assert_eq!(
        (tokens.len(), tokens[65].as_str(), tokens[32].as_str(), tokens[299].as_str()),
        (300, "A", "Ġ", "[PAD299]")
    );
    assert_eq!(of(&keys(Vocabulary::Numbers), "model"), Some(&MetadataValue::Text("no_vocab".into())));
}
