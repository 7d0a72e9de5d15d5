//! Residual convolutional networks with group norm: no statistic crosses samples, so results do not depend on
//! how a batch is cut into micro-batches.
// Shapes in this file: b samples · c channels · h rows · w columns; between parts an image is `[b, c, h·w]`

use super::{Initializer, LayerContext, ModelPart, NeuralNetwork, ParameterSpec, Weights, mlp};
use crate::network::ModelInput;
use burn::tensor::{Tensor, activation, module, ops::ConvOptions};
use dtrain_recipes::Cnn;

/// Number added to the variance of a group in group norm.
pub(crate) const EPSILON: f64 = 1e-5;

/// The position of a residual block, and the size of its input.
pub(crate) struct BlockShape {
    pub(crate) stage: usize,
    /// Index of the block within its stage.
    pub(crate) block: usize,
    /// Number of channels before and after the block.
    pub(crate) channels: [usize; 2],
    /// Number of rows in the block's input.
    pub(crate) height: usize,
    /// Number of columns in the block's input.
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

/// Returns `true` if the shortcut of a block needs a projection, because the block changes the channels
/// or the size.
pub(crate) fn projects(place: &BlockShape) -> bool {
    place.stride > 1 || place.channels[0] != place.channels[1]
}

/// Returns the position and input size of the block with this index among all blocks.
pub(crate) fn block_shape(cnn: &Cnn, index: u32) -> BlockShape {
    let (stage, block) = ((index / cnn.blocks) as usize, (index % cnn.blocks) as usize);
    let enters = stage > 0 && block == 0;
    // Every stage after the first halves the image, rounding up as a padded 3×3 convolution does.
    let halved = |mut length: u32| {
        let halvings = if enters { stage - 1 } else { stage };
        (0..halvings).for_each(|_| length = length.div_ceil(2));
        length as usize
    };
    let before = if enters { stage - 1 } else { stage };
    BlockShape {
        stage,
        block,
        channels: [cnn.stages[before] as usize, cnn.stages[stage] as usize],
        height: halved(cnn.height),
        width: halved(cnn.width),
        stride: if enters { 2 } else { 1 },
    }
}

impl NeuralNetwork for Cnn {
    fn blocks(&self) -> u32 {
        u32::try_from(self.stages.len()).expect("a list in a recipe is short") * self.blocks
    }

    fn parameters(&self, part: ModelPart) -> Vec<ParameterSpec> {
        match part {
            ModelPart::First => {
                let mut specs =
                    vec![conv("stem.", "conv", self.channels as usize, self.stages[0] as usize, 3)];
                specs.extend(norm_specs("stem.", "norm", self.stages[0] as usize));
                specs
            }
            ModelPart::Block(index) => block_specs(&block_shape(self, index)),
            ModelPart::Head => {
                let last = *self.stages.last().expect("a checked cnn has a stage") as usize;
                let classes = self.classes as usize;
                let deviation = (1.0 / last as f64).sqrt();
                vec![
                    ParameterSpec::new("head.", "weight", &[last, classes], Initializer::Normal(deviation)),
                    ParameterSpec::new("head.", "bias", &[classes], Initializer::Zeros),
                ]
            }
        }
    }

    /// Computes the first convolution of the images. `[b, 1, channels·h·w]` → `[b, c, h·w]`
    fn first(&self, layers: &LayerContext, weights: &Weights<'_>, samples: &ModelInput<'_>) -> Tensor<3> {
        let x = layers.rows(samples);
        let [b, ..] = x.dims();
        let image = x.reshape([b, self.channels as usize, self.height as usize, self.width as usize]);
        let y = convolve(image, weights.get("conv.weight"), 1);
        activation::relu(group_norm(y, weights, "norm")).flatten(2, 3)
    }

    /// Computes a residual block. `[b, in, h·w]` → `[b, out, h'·w']`
    fn block(
        &self,
        _: &LayerContext,
        index: u32,
        weights: &Weights<'_>,
        x: Tensor<3>,
    ) -> (Tensor<3>, Option<Tensor<1>>) {
        let place = block_shape(self, index);
        let [b, c, _] = x.dims();
        let image = x.reshape([b, c, place.height, place.width]);
        let y = convolve(image.clone(), weights.get("conv1.weight"), place.stride);
        let y = activation::relu(group_norm(y, weights, "norm1"));
        let y = group_norm(convolve(y, weights.get("conv2.weight"), 1), weights, "norm2");
        let short = match weights.find("project.weight") {
            Some(project) => convolve(image, project, place.stride),
            None => image,
        };
        (activation::relu(y + short).flatten(2, 3), None)
    }

    /// Computes the scores of the classes: the mean over the image, then a linear layer. `[b, c, h·w]` →
    /// `[b, classes]`
    fn scores(&self, layers: &LayerContext, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<2> {
        let [b, c, _] = x.dims();
        mlp::linear(layers, weights, x.mean_dim(2).reshape([b, 1, c])).flatten(0, 1)
    }
}

fn block_specs(place: &BlockShape) -> Vec<ParameterSpec> {
    let prefix = format!("stages.{}.{}.", place.stage, place.block);
    let [input, output] = place.channels;
    let mut specs = vec![conv(&prefix, "conv1", input, output, 3)];
    specs.extend(norm_specs(&prefix, "norm1", output));
    specs.push(conv(&prefix, "conv2", output, output, 3));
    specs.extend(norm_specs(&prefix, "norm2", output));
    if projects(place) {
        specs.push(conv(&prefix, "project", input, output, 1));
    }
    specs
}

/// Returns the specification of a convolution's weight, `[out, in, size, size]`, initialized as in He et
/// al. 2015.
fn conv(prefix: &str, name: &str, input: usize, output: usize, size: usize) -> ParameterSpec {
    let deviation = (2.0 / (input * size * size) as f64).sqrt();
    let shape = [output, input, size, size];
    ParameterSpec::new(prefix, &format!("{name}.weight"), &shape, Initializer::Normal(deviation))
}

fn norm_specs(prefix: &str, name: &str, channels: usize) -> Vec<ParameterSpec> {
    vec![
        ParameterSpec::new(prefix, &format!("{name}.weight"), &[channels], Initializer::Ones),
        ParameterSpec::new(prefix, &format!("{name}.bias"), &[channels], Initializer::Zeros),
    ]
}

fn convolve(x: Tensor<4>, weight: Tensor<4>, stride: usize) -> Tensor<4> {
    let padding = weight.dims()[2] / 2;
    let options = ConvOptions::new([stride, stride], [padding, padding], [1, 1], 1);
    module::conv2d(x, weight, None, options)
}

/// Normalizes each sample over groups of channels (group norm).
fn group_norm(x: Tensor<4>, weights: &Weights<'_>, name: &str) -> Tensor<4> {
    let [b, c, h, w] = x.dims();
    let groups = groups(c);
    let x: Tensor<3> = x.reshape([b, groups, c / groups * h * w]);
    let centred = x.clone() - x.mean_dim(2);
    let variance = (centred.clone() * centred.clone()).mean_dim(2);
    let normed = (centred / (variance + EPSILON).sqrt()).reshape([b, c, h, w]);
    let per_channel = |suffix: &str| weights.get::<1>(&format!("{name}.{suffix}")).reshape([1, c, 1, 1]);
    normed * per_channel("weight") + per_channel("bias")
}

/// Returns the number of groups in a group norm: the largest divisor of eight that divides the channels
/// evenly.
pub(crate) fn groups(channels: usize) -> usize {
    gcd(channels, 8)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
