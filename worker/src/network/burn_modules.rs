//! Networks built from burn modules.
//!
//! A module is a template: its parameters are taken out when it is built, and at every forward a copy of it
//! is filled with the current tensors of the stage. Those may be leaves of a graph, gathered shards, or
//! values of a checkpoint; the module cannot tell. All are tensors with autodiff, tracked or not: some
//! operations of burn give other bits without it, and recomputation must give the same bits.

use super::{Initializer, LayerContext, ModelInput, ModelPart, NeuralNetwork, ParameterSpec, Weights};
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::Identity;
use burn::tensor::{Device, Int, Tensor, TensorData};
use dtrain_recipes::InputSignature;
use std::sync::{Arc, OnceLock};

/// The samples given to the first module of a network.
#[derive(Clone, Debug)]
pub enum ModuleInput {
    /// Token sequences, `[samples, context]`.
    Tokens(Tensor<2, Int>),
    /// Rows of numbers, `[samples, inputs]`.
    Rows(Tensor<2>),
}

impl ModuleInput {
    /// Returns the samples as tokens, `[samples, context]`; panics if the recipe declares rows.
    pub fn tokens(self) -> Tensor<2, Int> {
        match self {
            Self::Tokens(tokens) => tokens,
            Self::Rows(_) => panic!("this network reads tokens, and its recipe says rows"),
        }
    }

    /// Returns the samples as rows, `[samples, inputs]`; panics if the recipe declares tokens.
    pub fn rows(self) -> Tensor<2> {
        match self {
            Self::Rows(rows) => rows,
            Self::Tokens(_) => panic!("this network reads rows, and its recipe says tokens"),
        }
    }
}

/// A network of burn modules: one before the blocks, one for each block, and one for the head.
pub struct BurnNetwork {
    first: StatelessModule<ModuleInput, Tensor<3>>,
    blocks: Vec<StatelessModule<Tensor<3>, Tensor<3>>>,
    head: StatelessModule<Tensor<3>, Tensor<2>>,
}

/// A network of burn modules that lacks its head; [`BurnNetwork::first`] starts one.
pub struct HeadlessNetwork {
    first: StatelessModule<ModuleInput, Tensor<3>>,
    blocks: Vec<StatelessModule<Tensor<3>, Tensor<3>>>,
}

impl BurnNetwork {
    /// Starts a network with the module that computes the first activation from samples, `[samples, rows,
    /// width]`.
    pub fn first<M: Module + 'static>(
        module: M,
        forward: impl Fn(&M, ModuleInput) -> Tensor<3> + Send + 'static,
    ) -> HeadlessNetwork {
        HeadlessNetwork { first: StatelessModule::of(module, forward), blocks: Vec::new() }
    }

    /// Creates a network of one module, which reads samples and returns a row of scores for each
    /// prediction, `[samples, classes]` or `[samples · context, vocab]`. It is a single block, which a
    /// pipeline cannot cut.
    pub fn whole<M: Module + 'static>(
        reads: InputSignature,
        module: M,
        forward: impl Fn(&M, ModuleInput) -> Tensor<2> + Send + 'static,
    ) -> Self {
        let as_activation = |_: &Identity, input: ModuleInput| match input {
            ModuleInput::Tokens(tokens) => tokens.float().unsqueeze_dim(2),
            ModuleInput::Rows(rows) => rows.unsqueeze_dim(1),
        };
        let all = move |module: &M, x: Tensor<3>| {
            let samples = x.dims()[0];
            let input = match reads {
                InputSignature::Tokens { .. } => ModuleInput::Tokens(x.squeeze_dim::<2>(2).int()),
                InputSignature::Rows { .. } => ModuleInput::Rows(x.squeeze_dim(1)),
            };
            let scores = forward(module, input);
            let [predictions, classes] = scores.dims();
            scores.reshape([samples, predictions / samples, classes])
        };
        let as_scores = |_: &Identity, x: Tensor<3>| x.flatten(0, 1);
        Self {
            first: StatelessModule::of(Identity::new(), as_activation),
            blocks: vec![StatelessModule::of(module, all)],
            head: StatelessModule::of(Identity::new(), as_scores),
        }
    }
}

impl HeadlessNetwork {
    /// Adds a block for each of `modules`; a pipeline cuts between blocks, and recomputation drops the
    /// activations inside them.
    #[must_use]
    pub fn blocks<M: Module + 'static>(
        mut self,
        modules: impl IntoIterator<Item = M>,
        forward: impl Fn(&M, Tensor<3>) -> Tensor<3> + Clone + Send + 'static,
    ) -> Self {
        self.blocks.extend(modules.into_iter().map(|module| StatelessModule::of(module, forward.clone())));
        self
    }

    /// Completes the network with the module that computes a row of scores for each prediction from the
    /// last activation: `[samples, classes]` of rows, `[samples · context, vocab]` of tokens, sample by
    /// sample.
    pub fn head<M: Module + 'static>(
        self,
        module: M,
        forward: impl Fn(&M, Tensor<3>) -> Tensor<2> + Send + 'static,
    ) -> BurnNetwork {
        let Self { first, blocks } = self;
        BurnNetwork { first, blocks, head: StatelessModule::of(module, forward) }
    }
}

impl NeuralNetwork for BurnNetwork {
    fn blocks(&self) -> u32 {
        u32::try_from(self.blocks.len()).expect("each block was built")
    }

    fn parameters(&self, part: ModelPart) -> Vec<ParameterSpec> {
        match part {
            ModelPart::First => self.first.specs(part),
            ModelPart::Block(index) => self.blocks[index as usize].specs(part),
            ModelPart::Head => self.head.specs(part),
        }
    }

    fn first(&self, layers: &LayerContext, weights: &Weights<'_>, samples: &ModelInput<'_>) -> Tensor<3> {
        let output = self.first.forward(layers, weights, input(layers, samples));
        if is_recorded(weights) { output } else { output.inner() }
    }

    fn block(
        &self,
        layers: &LayerContext,
        index: u32,
        weights: &Weights<'_>,
        x: Tensor<3>,
    ) -> (Tensor<3>, Option<Tensor<1>>) {
        let keeps = is_recorded(weights) || x.is_autodiff();
        let output = self.blocks[index as usize].forward(layers, weights, x.autodiff());
        (if keeps { output } else { output.inner() }, None)
    }

    fn scores(&self, layers: &LayerContext, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<2> {
        let keeps = is_recorded(weights) || x.is_autodiff();
        let output = self.head.forward(layers, weights, x.autodiff());
        if keeps { output } else { output.inner() }
    }

    fn drop_initial_values(&mut self) {
        self.first.values.clear();
        self.blocks.iter_mut().for_each(|block| block.values.clear());
        self.head.values.clear();
    }
}

/// Returns `true` if the part with these weights is computed for its gradients.
fn is_recorded(weights: &Weights<'_>) -> bool {
    weights.entries.first().is_some_and(|(.., flat)| flat.is_autodiff())
}

/// Converts samples to the input of the first module.
fn input(layers: &LayerContext, samples: &ModelInput<'_>) -> ModuleInput {
    let device = layers.device().clone().autodiff();
    match samples {
        ModelInput::Tokens { inputs, samples, length, .. } => {
            let data = TensorData::new(inputs.to_vec(), [*samples, *length]);
            ModuleInput::Tokens(Tensor::from_data(data, &device))
        }
        ModelInput::Rows { values, samples, width, .. } => ModuleInput::Rows(Tensor::from_data(
            TensorData::new(values.to_vec(), [*samples, *width]),
            &device,
        )),
    }
}

/// A module without weights of its own: its parameters are filled in at every forward.
struct StatelessModule<I, O> {
    forward: Box<ForwardFn<I, O>>,
    /// Path and shape of each parameter, in the order in which burn visits them.
    parameters: Vec<(String, Vec<usize>)>,
    /// Initial values of the parameters, in the same order; empty once they are dropped.
    values: Vec<Arc<[f32]>>,
}

type ForwardFn<I, O> = dyn Fn(&Device, &Weights<'_>, I) -> O + Send;

impl<I: 'static, O: 'static> StatelessModule<I, O> {
    fn of<M: Module + 'static>(module: M, forward: impl Fn(&M, I) -> O + Send + 'static) -> Self {
        let mut taken = ParameterExtractor::default();
        let template = module.map(&mut taken);
        let placed = OnceLock::new();
        let forward = move |device: &Device, weights: &Weights<'_>, input| {
            // With autodiff, like all tensors of a part: also constants, such as a mask.
            let template = placed.get_or_init(|| template.clone().to_device(device).train());
            let mut filling = ParameterLoader { weights, place: 0 };
            forward(&template.clone().map(&mut filling), input)
        };
        Self { forward: Box::new(forward), parameters: taken.parameters, values: taken.values }
    }

    fn forward(&self, layers: &LayerContext, weights: &Weights<'_>, input: I) -> O {
        (self.forward)(layers.device(), weights, input)
    }

    fn specs(&self, part: ModelPart) -> Vec<ParameterSpec> {
        assert_eq!(
            self.parameters.len(),
            self.values.len(),
            "parameters are asked for before they are dropped"
        );
        let all = self.parameters.iter().zip(&self.values);
        all.map(|((path, shape), values)| {
            ParameterSpec::of(part, path, shape, Initializer::Values(Arc::clone(values)))
        })
        .collect()
    }
}

/// A module visitor that takes the parameters out and leaves a single zero in place of each.
#[derive(Default)]
struct ParameterExtractor {
    path: Vec<String>,
    parameters: Vec<(String, Vec<usize>)>,
    values: Vec<Arc<[f32]>>,
}

impl ModuleMapper for ParameterExtractor {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, _) = parameter.consume();
        let value = value.inner();
        self.parameters.push((self.path.join("."), value.dims().to_vec()));
        let rest = Tensor::zeros([1; D], &value.device());
        let values: Vec<f32> = value.into_data().convert::<f32>().try_to_vec().expect("it was converted");
        self.values.push(values.into());
        Param::initialized(id, rest)
    }
}

/// A module mapper that fills the weights of a part into a module.
struct ParameterLoader<'a> {
    weights: &'a Weights<'a>,
    place: usize,
}

impl ModuleMapper for ParameterLoader<'_> {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.weights.nth::<D>(self.place).autodiff();
        self.place += 1;
        Param::initialized(parameter.id, value)
    }
}
