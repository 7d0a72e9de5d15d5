//! Outline of a network: its sizes for the planner, found by building it and running its parts once.

use super::registry::{build_refused, built, shapes};
use super::{
    ForwardMode, LayerContext, ModelBuildError, ModelInput, ModelParameter, ModelPart, NeuralNetwork,
    ParameterSpec, Weights, initializer,
};
use crate::data::Batch;
use crate::mesh::ModelParallelGroups;
use crate::ops::{Arithmetic, Implementation};
use burn::tensor::{Device, Tensor, TensorData};
use dtrain_protocol::Region;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_recipes::{CustomModel, InputSignature, Outline, PartOutline, Precision};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Tolerated difference between two computations of an activation, alone and with other samples, or once
/// and again, relative to its largest value.
const TOLERANCE: f32 = 1e-3;

/// Builds the network of `own` and returns its outline. Runs its parts forward, twice and with one more
/// sample, to check that every layout and recomputation gives the same values. `Err` names the mistake in
/// the network or in the recipe.
pub fn outline(own: &CustomModel) -> Result<Outline, ModelBuildError> {
    let network = built(&CustomModel { outline: Outline::default(), ..own.clone() }, 0)?;
    if network.blocks() == 0 {
        return Err(build_refused(
            own,
            "it has no block; `BurnNetwork::whole` makes one of a module that has no parts".into(),
        ));
    }
    let run = AssertUnwindSafe(|| trial(&*network, own.reads));
    let found = catch_unwind(run).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
    });
    found
        .map_err(|panic| build_refused(own, format!("its forward panicked: {panic}")))?
        .map_err(|reason| build_refused(own, reason))
}

/// Runs the parts of a network and returns its outline; `Err` names the mistake in the network.
fn trial(network: &dyn NeuralNetwork, reads: InputSignature) -> Result<Outline, String> {
    let arithmetic =
        Arithmetic { by: Implementation::Host, precision: Precision::F32, forgets_scores: false };
    let layers = LayerContext::new(arithmetic, ModelParallelGroups::none(), Device::flex());
    let parts: Vec<_> = [ModelPart::First]
        .into_iter()
        .chain((0..network.blocks()).map(ModelPart::Block))
        .chain([ModelPart::Head])
        .collect();
    let weights: Vec<_> = parts.iter().map(|part| InitialValues::of(&network.parameters(*part))).collect();
    let run = |samples| forward(network, &layers, &weights, &made_up(reads, samples));
    let (alone, both, again) = (run(1), run(2), run(2));
    let mut outlines = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let (shape, values) = &both[index];
        let output = match part {
            ModelPart::First | ModelPart::Block(_) => activation(shape),
            ModelPart::Head => scores(shape, reads),
        };
        let output = output.map_err(|wrong| format!("{} {wrong}", describe_part(part)))?;
        if !alike(values, &again[index].1) {
            let why = "random operations, such as dropout, are not supported";
            return Err(format!(
                "{} gives other values when it is computed again: {why}",
                describe_part(part)
            ));
        }
        if !alike(&values[..values.len() / 2], &alone[index].1) {
            let why = "a part may not mix samples, as batch normalisation does";
            return Err(format!(
                "{} gives a sample other values beside another one: {why}",
                describe_part(part)
            ));
        }
        outlines.push(PartOutline { parameters: shapes(part, network), output });
    }
    let (first, head) = (outlines.remove(0), outlines.pop().unwrap_or_default());
    Ok(Outline { first, blocks: outlines, head })
}

/// Returns the rows and the width of an activation of two samples; `Err` if its shape is wrong.
fn activation(shape: &[usize]) -> Result<[u64; 2], String> {
    match shape {
        [2, rows, width] => Ok([*rows as u64, *width as u64]),
        _ => Err(format!("gives {shape:?} for two samples; the first dimension must be samples")),
    }
}

/// Returns the rows and the width of the scores of two samples; `Err` if they do not match the
/// predictions.
fn scores(shape: &[usize], reads: InputSignature) -> Result<[u64; 2], String> {
    let (rows, classes, what) = match reads {
        InputSignature::Tokens { context, vocab } => (context, vocab, "samples · context, vocab"),
        InputSignature::Rows { classes, .. } => (1, classes, "samples, classes"),
    };
    let wanted = [2 * rows as usize, classes as usize];
    if shape == wanted {
        return Ok([rows.into(), classes.into()]);
    }
    Err(format!("gives scores {shape:?} for two samples, and {wanted:?} are wanted: [{what}]"))
}

/// Runs the parts of a network on `batch` as in a training step; returns the shape and values of each
/// part's output.
fn forward(
    network: &dyn NeuralNetwork,
    layers: &LayerContext,
    weights: &[InitialValues],
    batch: &Batch,
) -> Vec<(Vec<usize>, Vec<f32>)> {
    let (last, before) = weights.split_last().expect("a network has a head");
    let mut x: Option<Tensor<3>> = None;
    let mut found = Vec::new();
    for (place, weights) in (0u32..).zip(before) {
        let weights = weights.view();
        let y = match x {
            Some(x) => network.block(layers, place - 1, &weights, x.autodiff()).0,
            None => network.first(layers, &weights, &ModelInput::of(batch)),
        };
        let y = y.inner();
        found.push((y.dims().to_vec(), flat(y.clone())));
        x = Some(y);
    }
    let x = x.expect("a network has a first part").autodiff();
    let scores = network.scores(layers, &last.view(), x).inner();
    found.push((scores.dims().to_vec(), flat(scores)));
    found
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_to_vec().expect("it was converted")
}

fn alike(a: &[f32], b: &[f32]) -> bool {
    let largest = a.iter().fold(0f32, |most, value| most.max(value.abs()));
    let apart = a.iter().zip(b).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    a.len() == b.len() && apart <= TOLERANCE * largest
}

fn describe_part(part: ModelPart) -> String {
    match part {
        ModelPart::First => "the first part".to_owned(),
        ModelPart::Block(index) => format!("block {index}"),
        ModelPart::Head => "the head".to_owned(),
    }
}

/// The parameters of a part, none of which is cut, with their initial values.
struct InitialValues(Vec<(ParameterSpec, ModelParameter, Tensor<1>)>);

impl InitialValues {
    fn of(specs: &[ParameterSpec]) -> Self {
        let one = |spec: &ParameterSpec| {
            let sides: Vec<_> = spec.shape.iter().map(|side| *side as u64).collect();
            let region = Region::whole(&sides);
            let values = initializer::values(&spec.initial, 0, &spec.name, &region);
            let parameter = ModelParameter {
                name: spec.name.clone(),
                shape: spec.shape.clone(),
                region,
                has_weight_decay: false,
                unit: 0,
                range: 0..values.len(),
            };
            let length = values.len();
            let flat = Tensor::from_data(TensorData::new(values, [length]), &Device::flex());
            (spec.clone(), parameter, flat)
        };
        Self(specs.iter().map(one).collect())
    }

    fn view(&self) -> Weights<'_> {
        let entries = self
            .0
            .iter()
            .map(|(spec, parameter, flat)| (spec.short(), parameter, flat.clone().autodiff().require_grad()));
        let mode = ForwardMode::Train;
        Weights { mode, entries: entries.collect(), trained: self.0.len(), later: None }
    }
}

/// Creates a batch of samples with pseudo-random values.
fn made_up(reads: InputSignature, samples: usize) -> Batch {
    let word = |place: usize, below: u32| splitmix64(3, place as u64) % u64::from(below);
    match reads {
        InputSignature::Tokens { context, vocab } => {
            let length = context as usize;
            #[expect(clippy::cast_possible_truncation, reason = "below the vocabulary, a u32")]
            let inputs = (0..samples * length).map(|place| word(place, vocab) as u32).collect();
            Batch::Tokens { inputs, targets: Vec::new(), samples, length, packed: None }
        }
        InputSignature::Rows { inputs, .. } => {
            let width = inputs as usize;
            let values = (0..samples * width).map(|place| word(place, 2000) as f32 / 1000.0 - 1.0).collect();
            Batch::Rows { values, classes: Vec::new(), samples, width }
        }
    }
}
