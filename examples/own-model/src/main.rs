//! A gated convolutional language model (Dauphin et al. 2017), trained by dtrain.

use dtrain::burn::{self, module::Module, nn, tensor::Tensor, tensor::activation::sigmoid};
use dtrain::{BuildError, BurnNetwork, ModelSettings, ModuleInput, Program};

/// Embeds tokens as vectors.
#[derive(Module, Debug)]
struct Stem {
    embedding: nn::Embedding,
}

/// Gated causal convolution: one half of its channels gates the other half.
#[derive(Module, Debug)]
struct Gated {
    norm: nn::LayerNorm,
    convolution: nn::conv::Conv1d,
}

/// Maps vectors to a score (logit) for each token.
#[derive(Module, Debug)]
struct Head {
    norm: nn::LayerNorm,
    scores: nn::Linear,
}

impl Stem {
    /// `[samples, context]` → `[samples, context, width]`
    fn forward(&self, input: ModuleInput) -> Tensor<3> {
        self.embedding.forward(input.tokens())
    }
}

impl Gated {
    /// `[samples, context, width]` → `[samples, context, width]`
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let y = self.convolution.forward(self.norm.forward(x.clone()).swap_dims(1, 2));
        let [values, gates]: [_; 2] = y.swap_dims(1, 2).chunk(2, 2).try_into().expect("two halves");
        x + values * sigmoid(gates)
    }
}

impl Head {
    /// `[samples, context, width]` → `[samples · context, vocab]`
    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        self.scores.forward(self.norm.forward(x)).flatten(0, 1)
    }
}

/// Builds the network that `recipe.toml` describes.
fn build(settings: &ModelSettings<'_>) -> Result<BurnNetwork, BuildError> {
    let [_, vocab] = settings.tokens()?;
    let depth: usize = settings.get_or("depth", 4)?;
    let width = settings.get_or("width", 64)?;
    let kernel: usize = settings.get_or("kernel", 4)?;
    if kernel == 0 {
        return Err("`model.settings.kernel` must be at least 1".into());
    }
    let device = &settings.device();
    let stem = Stem { embedding: nn::EmbeddingConfig::new(vocab, width).init(device) };
    let gated = || Gated {
        norm: nn::LayerNormConfig::new(width).init(device),
        // Padded on the left only (causal): no token sees those after it.
        convolution: nn::conv::Conv1dConfig::new(width, 2 * width, kernel)
            .with_padding(nn::PaddingConfig1d::Explicit(kernel - 1, 0))
            .init(device),
    };
    let head = Head {
        norm: nn::LayerNormConfig::new(width).init(device),
        scores: nn::LinearConfig::new(width, vocab).init(device),
    };
    let blocks: Vec<_> = (0..depth).map(|_| gated()).collect();
    Ok(BurnNetwork::first(stem, Stem::forward).blocks(blocks, Gated::forward).head(head, Head::forward))
}

fn main() -> std::process::ExitCode {
    Program::new().network("gated-convolution", build).main()
}
