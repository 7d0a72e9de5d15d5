//! Networks of burn modules: checks before training, and refused networks.

use super::*;
use crate::model::build;
use burn::module::Module;
use burn::nn;
use burn::tensor::{Tensor, activation};
use dtrain_recipes::{CustomModel, InputSignature, Model, Outline, ParamValue};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

#[derive(Module, Debug)]
struct Stem {
    table: nn::Embedding,
    /// No parameter, but a tensor that must be where the others are.
    fading: Tensor<3>,
}

#[derive(Module, Debug)]
struct Mix {
    norm: nn::LayerNorm,
    both: Vec<nn::Linear>,
    dropout: nn::Dropout,
}

#[derive(Module, Debug)]
struct Table {
    hidden: nn::Linear,
    scores: nn::Linear,
}

impl Mix {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let y = activation::gelu(self.both[0].forward(self.norm.forward(x.clone())));
        x + self.both[1].forward(self.dropout.forward(y))
    }
}

/// Builds a network of parts over tokens; the settings have a probability of dropping values, and whether
/// samples are mixed.
fn parts(settings: &ModelSettings<'_>) -> Result<Box<dyn NeuralNetwork>, Box<dyn Error + Send + Sync>> {
    let device = &settings.device();
    let [context, vocab] = settings.tokens()?;
    let dropped: f64 = settings.get_or("dropped", 0.0)?;
    let mixes: bool = settings.get_or("mixes", false)?;
    let scores: usize = settings.get_or("scores", vocab)?;
    // Each token sees those before it, distant ones less.
    let seen = |at: usize| {
        let (token, other) = (at / context, at % context);
        if other > token { 0.0 } else { 0.7f32.powf((token - other) as f32) }
    };
    let fading = (0..context * context).map(seen).collect::<Vec<_>>();
    let stem = Stem {
        table: nn::EmbeddingConfig::new(vocab, 12).init(device),
        fading: Tensor::<1>::from_floats(fading.as_slice(), device).reshape([1, context, context]),
    };
    let mix = |_| Mix {
        norm: nn::LayerNormConfig::new(12).init(device),
        both: [[12, 20], [20, 12]].map(|[a, b]| nn::LinearConfig::new(a, b).init(device)).to_vec(),
        dropout: nn::DropoutConfig { prob: dropped }.init(),
    };
    let blocks = (0..2).map(mix);
    let head = nn::LinearConfig::new(12, scores).init(device);
    let network = BurnNetwork::first(stem, |stem: &Stem, input| {
        stem.fading.clone().matmul(stem.table.forward(input.tokens()))
    })
    .blocks(blocks, move |mix: &Mix, x| {
        let y = mix.forward(x);
        if mixes { y.clone() - y.mean_dim(0) } else { y }
    })
    .head(head, |head: &nn::Linear, x| head.forward(x).flatten(0, 1));
    Ok(Box::new(network))
}

/// Builds a network of one module over rows.
fn whole(settings: &ModelSettings<'_>) -> Result<Box<dyn NeuralNetwork>, Box<dyn Error + Send + Sync>> {
    let [inputs, classes] = settings.rows()?;
    let device = &settings.device();
    let table = Table {
        hidden: nn::LinearConfig::new(inputs, 8).init(device),
        scores: nn::LinearConfig::new(8, classes).init(device),
    };
    let network = BurnNetwork::whole(settings.reads(), table, |table: &Table, input| {
        table.scores.forward(activation::tanh(table.hidden.forward(input.rows())))
    });
    Ok(Box::new(network))
}

fn own(network: &str, reads: InputSignature, with: &[(&str, ParamValue)]) -> CustomModel {
    register("parts", Arc::new(parts));
    register("whole", Arc::new(whole));
    let settings = with.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    CustomModel { network: network.to_owned(), settings, reads, outline: Outline::default() }
}

const TOKENS: InputSignature = InputSignature::Tokens { context: 9, vocab: 17 };
const ROWS: InputSignature = InputSignature::Rows { inputs: 5, classes: 3 };

/// Returns networks that can be trained: one in parts over tokens, and a whole one over rows.
pub(crate) fn models() -> [Model; 2] {
    [own("parts", TOKENS, &[]), own("whole", ROWS, &[])].map(|own| {
        let outline = outline(&own).expect("it can be trained");
        Model::Custom(CustomModel { outline, ..own })
    })
}

fn refusal(own: &CustomModel) -> String {
    outline(own).expect_err("it cannot be trained").to_string()
}

#[test]
fn an_outline_has_the_shapes_of_all_parts() {
    let [Model::Custom(parts), Model::Custom(whole)] = models() else { unreachable!("both are such models") };
    let Outline { first, blocks, head } = &parts.outline;
    assert_eq!((first.parameters.as_slice(), first.output), ([vec![17, 12]].as_slice(), [9, 12]));
    assert_eq!(blocks[1].parameters, [vec![12], vec![12], vec![12, 20], vec![20], vec![20, 12], vec![12]]);
    assert_eq!((blocks.len(), head.output), (2, [9, 17]));
    assert_eq!(parts.parameters(), 17 * 12 + 2 * (24 + 260 + 252) + 13 * 17);
    assert_eq!((whole.parameters(), whole.outline.blocks.len()), (5 * 8 + 8 + 8 * 3 + 3, 1));
}

#[test]
fn initial_values_follow_from_the_seed_alone() {
    let [model, _] = models();
    let drawn = |seed| {
        let network = build(&model, seed).expect("it was described");
        let all = [ModelPart::First, ModelPart::Block(0), ModelPart::Block(1), ModelPart::Head]
            .map(|part| network.parameters(part));
        all.concat()
            .into_iter()
            .map(|spec| (spec.name, spec.initial))
            .collect::<BTreeMap<_, _>>()
            .into_iter()
            .collect::<Vec<_>>()
    };
    let (one, other) = (drawn(1), drawn(2));
    assert_eq!(one, drawn(1));
    let same = one.iter().zip(&other).filter(|(a, b)| a == b).map(|((name, _), _)| name.as_str());
    let norms = [
        "own.blocks.0.norm.beta",
        "own.blocks.0.norm.gamma",
        "own.blocks.1.norm.beta",
        "own.blocks.1.norm.gamma",
    ];
    assert_eq!(same.collect::<Vec<_>>(), norms, "everything else is drawn");
}

#[test]
fn what_the_worker_cannot_promise_is_refused_with_the_part() {
    let real = ParamValue::Real(0.5);
    let said = refusal(&own("parts", TOKENS, &[("dropped", real)]));
    assert!(said.contains("block 0 gives other values when it is computed again"), "{said}");
    let said = refusal(&own("parts", TOKENS, &[("mixes", ParamValue::Flag(true))]));
    assert!(said.contains("block 0 gives a sample other values beside another one"), "{said}");
    let said = refusal(&own("parts", TOKENS, &[("scores", ParamValue::Whole(16))]));
    assert!(
        said.contains("the head gives scores [18, 16] for two samples, and [18, 17] are wanted"),
        "{said}"
    );
    let said = refusal(&own("parts", TOKENS, &[("scores", ParamValue::Whole(0))]));
    assert!(said.contains("its forward panicked: "), "{said}");
}

#[test]
fn what_a_recipe_says_wrongly_is_told() {
    let said = refusal(&own("parst", TOKENS, &[]));
    assert!(
        said.contains("no network \"parst\"; it has ") && said.contains("\"parts\", \"whole\""),
        "{said}"
    );
    let said = refusal(&own("parts", ROWS, &[]));
    assert!(said.contains("it reads tokens: set `model.context`"), "{said}");
    let said = refusal(&own("parts", TOKENS, &[("droped", ParamValue::Real(0.1))]));
    assert!(
        said.contains("no setting `model.settings.droped`; it has `dropped`, `mixes`, `scores`"),
        "{said}"
    );
    let said = refusal(&own("parts", TOKENS, &[("scores", ParamValue::Whole(-1))]));
    assert!(said.contains("`model.settings.scores` must be a whole number from 0, found -1"), "{said}");
}

#[test]
fn a_program_that_makes_another_network_than_was_planned_is_refused() {
    let [Model::Custom(mut planned), _] = models() else { unreachable!("both are such models") };
    planned.outline.blocks[1].parameters[2] = vec![12, 21];
    let said = build(&Model::Custom(planned.clone()), 1).err().expect("it differs").to_string();
    assert!(said.contains("`own.blocks.1` was planned with") && said.contains("plan again"), "{said}");
    planned.outline.blocks.pop();
    let said = build(&Model::Custom(planned), 1).err().expect("it differs").to_string();
    assert!(said.contains("planned with 1 blocks, and this program makes 2"), "{said}");
}
