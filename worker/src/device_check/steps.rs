//! Training steps of a known model, with the memory that is used after each.

use super::training::{SingleRankTraining, llama, sizes};
use crate::median::median;
use crate::probe::synthetic::SyntheticSamples;
use burn::tensor::Device;
use dtrain_protocol::device_check::{MeasuredStep, StepSeries, StepsModel, StepsRequest};
use dtrain_protocol::{DeviceKind, Failure};
use dtrain_recipes::{Activation, Decoder, Model, Norm, Positions, Precision};

/// Returns the decoder that `model` names, and the number of sequences in a step: the shapes of the
/// library's `gpt2-124m` and `llama-1b`, or a tiny one.
fn decoder(model: StepsModel) -> (Decoder, u32) {
    match model {
        StepsModel::Tiny => sizes()[0].clone(),
        StepsModel::Gpt2 => {
            let gpt = Decoder {
                positions: Positions::Learned,
                norm: Norm::Layer,
                activation: Activation::Gelu,
                tied: true,
                bias: true,
                ..llama(12, 768, 12, 3072, 50_257, 1024)
            };
            (gpt, 8)
        }
        StepsModel::Llama1b => (Decoder { kv_heads: 4, ..llama(22, 2048, 32, 5632, 32_000, 2048) }, 4),
    }
}

/// Runs the requested steps, and reports the series to `tell` after each. The last step is shown to a
/// profiler if `profiled` names the device.
pub(super) fn run_steps(
    request: &StepsRequest,
    precision: Precision,
    device: &Device,
    profiled: Option<(DeviceKind, u32)>,
    tell: &mut dyn FnMut(&StepSeries),
) -> Result<(), Failure> {
    let (decoder, usual) = decoder(request.model);
    let batch = request.batch.unwrap_or(usual);
    let model = Model::Decoder(decoder.clone());
    let mut rank = SingleRankTraining::build(&model, precision, device)?;
    let samples = SyntheticSamples::of(&model, batch);
    let mut series = StepSeries {
        model: request.model,
        parameters: decoder.parameters(),
        batch,
        precision,
        series: Vec::new(),
        tokens_per_second: 0.0,
        decoder,
    };
    let tokens = f64::from(batch) * f64::from(series.decoder.context);
    for step in 1..=request.count {
        let profiled = profiled.filter(|_| step == request.count);
        let (loss, seconds) = shown(profiled, || rank.step(&samples))??;
        let memory = device.memory_pool_usage();
        series.series.push(MeasuredStep {
            loss: super::finite(loss),
            seconds,
            memory_used_bytes: memory.as_ref().map(|usage| usage.bytes_in_use),
            memory_reserved_bytes: memory.as_ref().map(|usage| usage.bytes_reserved),
        });
        let seconds: Vec<f64> = series.series.iter().map(|step| step.seconds).collect();
        series.tokens_per_second = tokens / median(&seconds[seconds.len() / 2..]);
        tell(&series);
    }
    Ok(())
}

/// Runs `work` between `cudaProfilerStart` and `cudaProfilerStop`; devices other than CUDA have no
/// profiler.
fn shown<T>(device: Option<(DeviceKind, u32)>, work: impl FnOnce() -> T) -> Result<T, Failure> {
    #[cfg(feature = "cuda")]
    if let Some((DeviceKind::Cuda, index)) = device {
        use cudarc::driver::{CudaContext, Profiler};
        let failed = |error| Failure::Other(format!("the profiler could not be told: {error}"));
        let context = CudaContext::new(index as usize).map_err(failed)?;
        context.bind_to_thread().map_err(failed)?;
        let _shown = Profiler::new().map_err(failed)?;
        return Ok(work());
    }
    #[cfg(not(feature = "cuda"))]
    let _ = device;
    Ok(work())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_the_parameters_of_those_they_are_named_after() {
        let parameters = |model| decoder(model).0.parameters();
        assert_eq!(parameters(StepsModel::Gpt2), 124_439_808);
        assert_eq!(parameters(StepsModel::Llama1b), 1_100_048_384);
    }

    #[test]
    fn losses_fall_and_the_host_tells_no_memory() {
        let request = StepsRequest {
            model: StepsModel::Tiny,
            precision: None,
            batch: Some(2),
            count: 4,
            is_profiled: false,
        };
        let mut told = Vec::new();
        let mut tell = |series: &StepSeries| told.push(series.clone());
        run_steps(&request, Precision::F32, &Device::flex(), None, &mut tell).unwrap();
        assert_eq!(told.iter().map(|series| series.series.len()).collect::<Vec<_>>(), [1, 2, 3, 4]);
        let last = told.last().unwrap();
        assert!(last.series[3].loss < last.series[0].loss, "{last:?}");
        assert!(last.tokens_per_second > 0.0 && last.batch == 2, "{last:?}");
        assert_eq!(last.series[3].memory_used_bytes, None);
    }
}
