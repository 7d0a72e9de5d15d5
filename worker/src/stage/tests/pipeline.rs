//! Stages of a pipeline, and the order of their passes.

use super::*;

#[test]
fn a_pipeline_of_two_stages_is_one_stage() {
    for model in models().into_iter().filter(|model| model.blocks() > 1) {
        let batch = Batch::new(&model, 2);
        let mut one = whole(&model);
        let (loss, wanted) = learn(&mut one, &batch.samples());
        let mut first = stage(&model, 0..1, Recompute::None);
        let mut last = stage(&model, 1..model.blocks(), Recompute::Full);
        let ForwardOutput::Activation(x) = first.forward(at(3), None, &batch.samples()) else {
            panic!("no activation")
        };
        assert_eq!(mean(last.forward(at(3), Some(x), &batch.samples())), loss);
        let upstream = last.backward(at(3), None, 1.0, &mut |_, _| {});
        assert!(upstream.is_some());
        assert!(first.backward(at(3), upstream, 1.0, &mut |_, _| {}).is_none());
        let tied = [first.tied_across_stages(), last.tied_across_stages()];
        assert_eq!(tied[0].is_some(), matches!(&model, Model::Decoder(d) if d.tied));
        for (index, parameter) in one.parameters().iter().enumerate() {
            let mut found = vec![0.0; parameter.range.len()];
            let mut holders = 0;
            for stage in [&mut first, &mut last] {
                let Some(own) = stage.parameters().iter().position(|p| p.name == parameter.name) else {
                    continue;
                };
                assert_eq!(stage.values(own), one.values(index), "every layout starts alike");
                let range = stage.parameters()[own].range.clone();
                let gradient = &stage.gradients().values()[range];
                found.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
                holders += 1;
            }
            assert_eq!(holders, if Some(index) == tied[0] { 2 } else { 1 }, "{}", parameter.name);
            close(&found, &wanted[parameter.range.clone()], 1e-6);
        }
    }
}

/// Builds a stage of a schedule that defers weight gradients.
fn splitting(model: &Model, blocks: Range<u32>, recompute: Recompute, by: Implementation) -> Stage {
    let schedule = PipelineSchedule::ZeroBubble;
    let arrangement = Arrangement { recompute, schedule, ..Arrangement::SINGLE };
    let forgets_scores = recompute == Recompute::Selective;
    let arithmetic = Arithmetic { by, precision: Precision::F32, forgets_scores };
    let (rank, partners) = (Rank(0), ModelParallelGroups::none());
    let holding = ModelShard { model, chunks: &[blocks], seed: 7, arrangement, rank, partners };
    Stage::with_arithmetic(&holding, arithmetic, &Device::flex()).unwrap()
}

#[test]
fn a_backward_in_two_parts_is_one_to_the_last_bit() {
    // Burn modules defer nothing.
    for model in models().into_iter().filter(|model| !matches!(model, Model::Custom(_))) {
        let batch = Batch::new(&model, 4);
        for (by, recompute) in [
            (Implementation::Host, Recompute::None),
            (Implementation::Host, Recompute::Full),
            (Implementation::Reference, Recompute::None),
            (Implementation::Reference, Recompute::Selective),
        ] {
            let of = |micro: u32| batch.slice(2 * micro as usize..2 * micro as usize + 2);
            // The last blocks, like a late stage of a pipeline; and two micro-batches in flight.
            let mut one = splitting(&model, 1..model.blocks(), recompute, by);
            one.splits = false;
            let mut two = splitting(&model, 1..model.blocks(), recompute, by);
            let [rows, width] = model.activation_at(1).map(|side| side as usize);
            let input = |micro: u32| {
                let values = (0..2 * rows * width).map(|i| ((i + micro as usize) % 7) as f32 / 7.0 - 0.4);
                let data = burn::tensor::TensorData::new(values.collect::<Vec<_>>(), [2, rows, width]);
                Tensor::<3>::from_data(data, &Device::flex())
            };
            let values = |tensor: Option<Tensor<3>>| tensor.unwrap().into_data().try_to_vec::<f32>().unwrap();
            for micro in 0..2 {
                one.forward(at(micro), Some(input(micro)), &of(micro));
                two.forward(at(micro), Some(input(micro)), &of(micro));
            }
            let whole = [0, 1].map(|micro| values(one.backward(at(micro), None, 0.5, &mut |_, _| {})));
            let inputs = [0, 1].map(|micro| values(two.backward_input(at(micro), None, 0.5)));
            assert_eq!(inputs, whole, "gradients of the input");
            let early = two.gradients().values().to_vec();
            assert_ne!(early, one.gradients().values(), "gradients of weights wait");
            for micro in 0..2 {
                let mut seen = Vec::new();
                two.backward_weights(at(micro), &mut |unit, _| seen.push(unit));
                assert_eq!(seen, (0..two.units()).rev().collect::<Vec<_>>());
            }
            assert_eq!(two.gradients().values(), one.gradients().values(), "{by:?}, {recompute:?}");
        }
    }
}

#[test]
fn parts_are_done_last_to_first_with_their_gradients_final() {
    for model in models() {
        let mut stage = whole(&model);
        let batch = Batch::new(&model, 2);
        let (_, wanted) = learn(&mut stage, &batch.samples());
        let parameters = stage.parameters().to_vec();
        stage.gradients().clear();
        stage.forward(at(0), None, &batch.samples());
        let mut seen = Vec::new();
        stage.backward(at(0), None, 1.0, &mut |unit, gradients| {
            for parameter in parameters.iter().filter(|p| p.unit == unit) {
                assert_eq!(gradients.values()[parameter.range.clone()], wanted[parameter.range.clone()]);
            }
            seen.push(unit);
        });
        assert_eq!(seen, (0..stage.units()).rev().collect::<Vec<_>>());
    }
}
