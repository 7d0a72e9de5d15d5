//! Parameter counts of published models, from their published configurations.

use super::*;

fn llama(layers: u32, hidden: u32, [heads, kv_heads, width]: [u32; 3], ffn: u32, vocab: u32) -> Decoder {
    Decoder {
        layers,
        hidden,
        heads,
        kv_heads,
        ffn,
        vocab,
        context: 4096,
        head_width: Some(width),
        ..Decoder::small_llama()
    }
}

/// config.json of huggingface.co/deepseek-ai/DeepSeek-V3.
fn deepseek_v3() -> Decoder {
    let experts = Experts {
        shared_ffn: Some(2048),
        dense: Some(DenseLayers { layers: 3, ffn: 18_432 }),
        ..Experts::new(256, 8)
    };
    Decoder {
        experts: Some(experts),
        latent: Some(LatentAttention { query: 1536, key_value: 512, rotary: 64, value: 128 }),
        ..llama(61, 7168, [128, 128, 128], 2048, 129_280)
    }
}

#[track_caller]
fn is_billions(parameters: u64, billions: f64) {
    #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
    let found = parameters as f64 / 1e9;
    let places = if billions.fract() == 0.0 { 0.5 } else { 0.05 };
    assert!((found - billions).abs() <= places, "{found} B are not {billions} B");
}

/// Asserts that a count matches a published number of two digits, which may exclude embeddings and small
/// parts.
#[track_caller]
fn is_about_billions(parameters: u64, billions: f64) {
    #[expect(clippy::cast_precision_loss, reason = "a count far below 2^52")]
    let found = parameters as f64 / 1e9;
    assert!((found / billions - 1.0).abs() < 0.02, "{found} B are not about {billions} B");
}

#[test]
fn deepseek_v3_has_671_billion_of_which_37_are_active() {
    let model = deepseek_v3();
    // arXiv 2412.19437, abstract; README_WEIGHTS.md of huggingface.co/deepseek-ai/DeepSeek-V3-Base: 36.6 B
    // active with 0.9 B of the head, and 11.5 B of the multi-token-prediction module (without the projection
    // that joins its inputs).
    is_billions(model.parameters(), 671.0);
    let embedding = 129_280 * 7168;
    is_billions(model.active_parameters() - embedding, 36.6);
    let further = Decoder { mtp_layers: 1, ..model.clone() };
    assert_eq!(further.parameters() - model.parameters(), model.mtp_parameters());
    is_billions(model.block_parameters(), 11.5);
    assert_eq!(further.active_parameters(), model.active_parameters());
}

#[test]
fn gpt_oss_has_117_billion_of_which_5_are_active() {
    // Model card, arXiv 2508.10925, table 1: 116.83 B, of which 0.04 B are biases of experts; active 5.13 B
    // without the embedding.
    let model = Decoder {
        experts: Some(Experts::new(128, 4)),
        bias: true,
        ..llama(36, 2880, [64, 8, 64], 2880, 201_088)
    };
    is_billions(model.parameters(), 116.8);
    is_about_billions(model.active_parameters() - 201_088 * 2880, 5.13);
}

#[test]
fn mixtures_without_shared_experts_have_as_many_as_published() {
    // config.json of huggingface.co/Qwen/Qwen3-30B-A3B; its card: 30.5 B, 3.3 B activated.
    let qwen = Decoder { experts: Some(Experts::new(128, 8)), ..llama(48, 2048, [32, 4, 128], 768, 151_936) };
    is_billions(qwen.parameters(), 30.5);
    is_about_billions(qwen.active_parameters(), 3.3);
    // arXiv 2401.04088: 47 B, 13 B active.
    let mixtral =
        Decoder { experts: Some(Experts::new(8, 2)), ..llama(32, 4096, [32, 8, 128], 14_336, 32_000) };
    is_billions(mixtral.parameters(), 46.7);
    is_about_billions(mixtral.active_parameters(), 13.0);
}

#[test]
fn heads_wider_than_the_hidden_size_count() {
    // Gemma 7B: 16 heads of 256 over a hidden size of 3072 (arXiv 2403.08295, tables 1 and 2: 786,825,216
    // embedding and 7,751,248,896 other parameters).
    let gemma = Decoder { tied: true, ..llama(28, 3072, [16, 16, 256], 24_576, 256_128) };
    assert_eq!(gemma.parameters(), 786_825_216 + 7_751_248_896);
    let narrow = Decoder { head_width: None, ..gemma.clone() };
    assert_eq!(narrow.head_width(), 192);
    assert!(narrow.parameters() < gemma.parameters());
}
