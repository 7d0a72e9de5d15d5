use super::*;
use crate::checkpoint::TensorReader;
use dtrain_protocol::checkpoint::{FORMAT, merge};
use dtrain_protocol::{AttemptId, Layout, Manifest, SavedFile, Slice, StepId, TensorKind, TrialId};
use dtrain_recipes::{Activation, Decoder, Model, Norm, Positions};
use serde_json::Value;
use std::fs;

fn gpt2() -> Decoder {
    Decoder {
        layers: 2,
        hidden: 8,
        heads: 2,
        kv_heads: 2,
        ffn: 12,
        vocab: 11,
        context: 5,
        activation: Activation::GeluTanh,
        ..Decoder::small_gpt2()
    }
}

fn llama() -> Decoder {
    Decoder {
        kv_heads: 1,
        positions: Positions::Rotary,
        norm: Norm::Rms,
        activation: Activation::Swiglu,
        tied: false,
        bias: false,
        rotary_base: Some(500_000),
        ..gpt2()
    }
}

fn qwen2() -> Decoder {
    Decoder { qkv_bias: Some(true), norm_epsilon: Some(1e-6), tied: true, ..llama() }
}

/// Commits the files of a written folder.
fn committed(at: &std::path::Path, saved: Vec<SavedFile>) -> TensorReader {
    let (tensors, files) = merge(saved).expect("every element once");
    let manifest = Manifest {
        format: FORMAT,
        trial: TrialId("t".into()),
        attempt: AttemptId(0),
        step: StepId(0),
        layout: Layout::SINGLE,
        program: "test".into(),
        cursor: 0,
        seed: None,
        tensors,
        files,
    };
    let text = serde_json::to_string(&manifest).expect("json");
    fs::write(at.join("manifest.json"), &text).expect("written");
    fs::write(at.join("COMMIT"), blake3::hash(text.as_bytes()).to_hex().as_str()).expect("written");
    TensorReader::open(at).expect("it was committed")
}

/// Writes a checkpoint with every parameter of `model`, each value different.
fn checkpoint(model: &Decoder, at: &std::path::Path) -> TensorReader {
    let mut next = 0.0;
    let specs: Vec<_> = super::hugging_face_folder::parameters(model).into_iter().flatten().collect();
    let values = |length: usize, next: &mut f32| {
        (0..length)
            .map(|_| {
                *next += 1.0;
                *next
            })
            .collect::<Vec<f32>>()
    };
    let held: Vec<_> = specs
        .iter()
        .map(|spec| {
            let shape: Vec<u64> = spec.shape.iter().map(|side| *side as u64).collect();
            let region = dtrain_protocol::sharding::Region::whole(&shape);
            let all = 0..region.elements();
            (Slice::of(region, all), values(spec.shape.iter().product(), &mut next))
        })
        .collect();
    let pieces: Vec<_> = specs
        .iter()
        .zip(&held)
        .map(|(spec, (slice, values))| crate::checkpoint::NamedPiece {
            name: &spec.name,
            kind: TensorKind::Parameter,
            slice,
            values,
        })
        .collect();
    let saved = crate::checkpoint::save(at, dtrain_protocol::Rank(0), &pieces).expect("saved");
    committed(at, vec![saved])
}

fn values(reader: &TensorReader, name: &str, shape: &[u64]) -> Vec<f32> {
    let region = dtrain_protocol::sharding::Region::whole(shape);
    let mut values = vec![0.0; usize::try_from(region.elements()).expect("small")];
    let all = 0..region.elements();
    reader.read(name, TensorKind::Parameter, &Slice::of(region, all), &mut values).expect("it is there");
    values
}

#[test]
fn what_goes_out_comes_in_again() {
    for model in [gpt2(), Decoder { tied: false, activation: Activation::Gelu, ..gpt2() }, llama(), qwen2()] {
        let root = tempfile::tempdir().expect("a folder");
        let [saved, folder, again] = ["saved", "folder", "again"].map(|name| root.path().join(name));
        let before = checkpoint(&model, &saved);
        export(&before, &Model::Decoder(model.clone()), WeightFormat::HuggingFace, &folder)
            .expect("exported");
        let opened = ModelFolder::open(&folder).expect("it was written");
        assert_eq!(opened.pretrained().model, model);
        let after = committed(&again, opened.write(&model, &again).expect("written"));
        assert_eq!(before.manifest().tensors.len(), after.manifest().tensors.len());
        for tensor in &before.manifest().tensors {
            let [wanted, found] = [&before, &after].map(|one| values(one, &tensor.name, &tensor.shape));
            assert_eq!(wanted, found, "{}", tensor.name);
        }
    }
}

#[test]
fn tensors_lie_as_transformers_have_them() {
    let root = tempfile::tempdir().expect("a folder");
    let reader = checkpoint(&gpt2(), &root.path().join("saved"));
    let folder = root.path().join("folder");
    export(&reader, &Model::Decoder(gpt2()), WeightFormat::HuggingFace, &folder).expect("exported");
    let bytes = fs::read(folder.join("model.safetensors")).expect("it was written");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("valid");
    let packed = file.tensor("transformer.h.1.attn.c_attn.weight").expect("it is there");
    assert_eq!(packed.shape(), [8, 24]);
    let packed: Vec<f32> = packed.data().as_chunks().0.iter().copied().map(f32::from_le_bytes).collect();
    let key = values(&reader, "blocks.1.attention.k.weight", &[8, 8]);
    assert_eq!(packed[24 + 8..24 + 16], key[8..16], "the second row of the keys");
}

#[test]
fn every_weight_goes_out_under_its_own_name() {
    let root = tempfile::tempdir().expect("a folder");
    let reader = checkpoint(&llama(), &root.path().join("saved"));
    let folder = root.path().join("folder");
    let files =
        export(&reader, &Model::Decoder(llama()), WeightFormat::Safetensors, &folder).expect("exported");
    assert_eq!(files.files, [std::path::PathBuf::from("model.safetensors")]);
    let bytes = fs::read(folder.join("model.safetensors")).expect("it was written");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("valid");
    assert_eq!(file.tensor("blocks.0.attention.q.weight").expect("it is there").shape(), [8, 8]);
    assert_eq!(file.names().len(), reader.manifest().tensors.len());
}

#[test]
fn tensors_of_another_shape_are_refused_by_name() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("folder");
    let reader = checkpoint(&llama(), &root.path().join("saved"));
    export(&reader, &Model::Decoder(llama()), WeightFormat::HuggingFace, &folder).expect("exported");
    let opened = ModelFolder::open(&folder).expect("it was written");
    let error = opened.check(&Decoder { ffn: 13, layers: 1, ..llama() }).expect_err("it is another model");
    let reasons = error.reasons();
    assert!(
        reasons.contains(&"model.layers.0.mlp.up_proj.weight has shape [12, 8], expected [13, 8]".to_owned()),
        "{reasons:?}"
    );
    assert!(
        reasons.contains(&"model.layers.1.mlp.up_proj.weight is not of this model".to_owned()),
        "{reasons:?}"
    );
}

/// Models of `tests/data/interop.py`.
const FIXTURES: [&str; 12] = [
    "llama",
    "mistral",
    "qwen2",
    "gpt2",
    "llama3",
    "qwen3",
    "gemma3",
    "gemma3-scaled",
    "mistral-window",
    "mixtral",
    "qwen2moe",
    "qwen3moe",
];

fn fixture(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/interop").join(name)
}

#[test]
fn scores_are_those_of_transformers() {
    for name in FIXTURES {
        let root = tempfile::tempdir().expect("a folder");
        let folder = ModelFolder::open(&fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let model = folder.pretrained().model.clone();
        let reader = committed(root.path(), folder.write(&model, root.path()).expect("written"));
        let (blocks, model) = (0..model.layers, Model::Decoder(model));
        let device = burn::tensor::Device::flex();
        let (precision, recompute) = (dtrain_recipes::Precision::F32, dtrain_recipes::Recompute::None);
        let mut stage =
            crate::stage::Stage::build(&model, blocks, 7, precision, recompute, &device).expect("built");
        crate::session::weights(&reader, &mut stage).expect("loaded");
        let text = fs::read(fixture(name).join("logits.json")).expect("it is there");
        let wanted: Value = serde_json::from_slice(&text).expect("json");
        let tokens: Vec<u32> = serde_json::from_value(wanted["tokens"].clone()).expect("tokens");
        let wanted: Vec<Vec<f32>> = serde_json::from_value(wanted["logits"].clone()).expect("logits");
        for (index, wanted) in wanted.iter().enumerate() {
            let found = stage.logits_last(&tokens[..=index]);
            let apart = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-4, "{name}, token {index}: the scores differ by {apart:.1e}");
        }
    }
}

#[test]
fn models_of_transformers_go_out_with_the_same_tensors() {
    for name in FIXTURES {
        let root = tempfile::tempdir().expect("a folder");
        let [saved, again] = ["saved", "again"].map(|name| root.path().join(name));
        let folder = ModelFolder::open(&fixture(name)).expect("it is there");
        let model = folder.pretrained().model.clone();
        let reader = committed(&saved, folder.write(&model, &saved).expect("written"));
        export(&reader, &Model::Decoder(model.clone()), WeightFormat::HuggingFace, &again).expect("exported");
        let back = ModelFolder::open(&again).expect("it was written");
        assert_eq!(folder.names(), back.names(), "{name}");
        assert_eq!(back.pretrained().model, model, "{name}");
        for spec in super::hugging_face_folder::parameters(&model).into_iter().flatten() {
            let [wanted, found] = [&folder, &back].map(|one| one.values(&spec).expect("it is there"));
            assert_eq!(wanted, found, "{name}: {}", spec.name);
        }
    }
}

#[test]
fn a_weight_that_is_not_finite_is_refused_with_its_tensor_and_file() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let root = tempfile::tempdir().expect("a folder");
        let [saved, folder, again] = ["saved", "folder", "again"].map(|name| root.path().join(name));
        let before = checkpoint(&llama(), &saved);
        export(&before, &Model::Decoder(llama()), WeightFormat::HuggingFace, &folder).expect("exported");
        let file = folder.join("model.safetensors");
        let mut bytes = fs::read(&file).expect("it was written");
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&odd.to_le_bytes());
        fs::write(&file, bytes).expect("written");
        let opened = ModelFolder::open(&folder).expect("its header is whole");
        fs::create_dir_all(&again).expect("a folder");
        let error = opened.write(&llama(), &again).expect_err("a weight is not finite").to_string();
        assert!(error.contains("model.safetensors") && error.contains("not finite"), "{error}");
        assert!(error.contains(".weight"), "{error}");
    }
}
