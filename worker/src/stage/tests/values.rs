//! Parameters and their values.

use super::*;

#[test]
fn parameters_are_counted_as_the_recipe_counts_them() {
    let mut models = models();
    models.push(Model::Decoder(Decoder { kv_heads: 1, tied: true, ..llama() }));
    models.push(Model::Decoder(Decoder { tied: false, bias: false, ..gpt() }));
    for model in models {
        let stage = whole(&model);
        let counted: usize = stage.parameters().iter().map(|p| p.range.len()).sum();
        assert_eq!(counted as u64, model.trained_parameters(), "{model:?}");
        let frozen: usize = stage.frozen_parameters().iter().map(|p| p.range.len()).sum();
        assert_eq!(frozen as u64, if model.has_frozen_weights() { model.parameters() } else { 0 });
        assert_eq!(stage.parameters().last().unwrap().range.end, counted);
    }
}

#[test]
fn flat_ranges_of_values_are_copied_across_parameters() {
    let stage = whole(&Model::Mlp(mlp()));
    let len = stage.parameters().last().unwrap().range.end;
    let mut all = vec![0.0; len];
    stage.copy_values(0..len, &mut all);
    let each = (0..stage.parameters().len()).flat_map(|index| stage.values(index));
    assert_eq!(all, each.collect::<Vec<_>>());
    let mut part = vec![0.0; 9];
    stage.copy_values(41..50, &mut part);
    assert_eq!(part, all[41..50]);
}

#[test]
fn a_stage_of_no_blocks_of_the_model_is_refused() {
    let build = |model: &Model, blocks| {
        let device = Device::flex();
        Stage::build(model, blocks, 1, Precision::F32, Recompute::None, &device).err().map(|e| e.to_string())
    };
    let found = build(&Model::Decoder(gpt()), 1..9).unwrap();
    assert_eq!(found, "blocks 1..9 were assigned, but the model has 2");
    let command = Model::Command(dtrain_recipes::ForeignCommand {
        argv: vec!["true".into()],
        framework: dtrain_recipes::Framework::Pytorch,
        progress: Vec::new(),
        env: std::collections::BTreeMap::new(),
    });
    assert!(build(&command, 0..0).unwrap().contains("foreign command"));
}
