use super::*;
use crate::comm::loopback;
use crate::train_step;
use burn::tensor::Device;
use dtrain_protocol::{DeviceKind, Layout, Placement, Rank, RankTransport};
use dtrain_recipes::{Decoder, Mlp, MlpActivation, Model, Precision};
use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

fn request(model: Model, micro_batches: Vec<u32>, budget_seconds: f64) -> ProbeRequest {
    let one = NonZeroU32::MIN;
    ProbeRequest {
        model,
        placement: Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads: 1 },
        layout: Layout { tensor: one, context: one, expert: one, data: one, pipeline: one },
        rank: Rank(0),
        link: RankTransport::Alone,
        micro_batches,
        precision: Precision::F32,
        budget_seconds,
    }
}

fn decoder() -> Model {
    Model::Decoder(Decoder {
        layers: 2,
        hidden: 32,
        heads: 2,
        kv_heads: 2,
        ffn: 64,
        vocab: 64,
        context: 32,
        ..Decoder::small_gpt2()
    })
}

#[test]
fn one_rank_measures_every_part_and_no_collective() {
    let begun = std::time::Instant::now();
    let rates = rates(&request(decoder(), vec![1, 64], 30.0), |_| unreachable!("it is alone")).unwrap();
    let whole = begun.elapsed().as_secs_f64();
    assert_eq!(rates.profile.iter().map(|point| point.micro_batch).collect::<Vec<_>>(), [1, 64]);
    for point in &rates.profile {
        let parts = [point.block_forward, point.block_backward, point.outer_forward, point.outer_backward];
        assert!(parts.iter().all(|seconds| *seconds > 0.0), "{point:?}");
        assert!(parts.iter().sum::<f64>() < whole, "each was done at least once in {whole} s: {point:?}");
    }
    let both = |p: &ProfilePoint| p.block_forward + p.block_backward;
    assert!(both(&rates.profile[1]) > both(&rates.profile[0]), "64 samples take longer than one");
    assert!(rates.optimizer_seconds_per_parameter > 0.0 && rates.baseline_bytes > 0);
    assert!(rates.all_reduce.is_empty());
    assert_eq!((rates.precision, rates.first_step_seconds), (Precision::F32, None), "nothing is compiled");
}

/// Uses the clock of a device that needs five milliseconds for any work between two waits.
#[test]
fn each_part_of_a_pass_ends_when_the_device_has_done_it() {
    const NEEDED: f64 = 0.005;
    let model =
        Model::Mlp(Mlp { inputs: 4, hidden: vec![5, 6, 7], classes: 3, activation: MlpActivation::Relu });
    let (training, until, arrangement) = (full_step::training(), RunUntil::default(), Arrangement::SINGLE);
    let device = Device::flex();
    let stage = Stage::build(&model, 0..model.blocks(), 7, Precision::F32, Recompute::None, &device).unwrap();
    let units = stage.units();
    let mesh = Mesh::of(Box::new(loopback::SingleRank), &arrangement, Rank(0)).unwrap();
    let mut replica = train_step::tests::replica(stage, mesh, &arrangement, (&training, &until), None);
    let waits = Rc::new(Cell::new(0));
    let counter = Rc::clone(&waits);
    replica.clock = DeviceClock::with(Some(Box::new(move || {
        counter.set(counter.get() + 1);
        std::thread::sleep(Duration::from_secs_f64(NEEDED));
    })));
    let mut bench = PassBench { replica, blocks: model.blocks(), steps: 0 };
    let pass = bench.pass(&SyntheticSamples::of(&model, 2));
    // Before the pass, and after clearing, forward, backward as a whole and the optimizer; and after each
    // unit.
    assert_eq!(waits.get(), 5 + units);
    assert!(pass.forward >= NEEDED && pass.optimizer >= 2.0 * NEEDED, "{pass:?}");
    assert!(pass.backward[0] >= (units - 2) as f64 * NEEDED && pass.backward[1] >= 3.0 * NEEDED, "{pass:?}");
}

/// Mesa's device computes on other threads than the calling one: without a wait, forward took only the time
/// of a few launches, thousandths of backward.
#[test]
fn the_forward_of_a_device_takes_as_long_as_the_device_computes() {
    if crate::ops::tests::gpu().is_none() {
        return;
    }
    let model =
        Model::Mlp(Mlp { inputs: 1024, hidden: vec![1024; 3], classes: 16, activation: MlpActivation::Relu });
    let mut request = request(model, vec![128], 4.0);
    request.placement.device = DeviceKind::Wgpu;
    let rates = rates(&request, |_| unreachable!("it is alone")).unwrap();
    let ProfilePoint { block_forward, block_backward, outer_forward, outer_backward, .. } = rates.profile[0];
    let [forward, backward] = [(block_forward, outer_forward), (block_backward, outer_backward)]
        .map(|(block, outer)| 3.0 * block + outer);
    assert!(forward > 0.1 * backward, "both do the same products: {forward} and {backward} s");
    assert!(block_backward > 0.05 * backward, "blocks are most of it: {block_backward} of {backward} s");
    // Another test may have compiled the kernels.
    assert!(rates.first_step_seconds.is_some_and(|seconds| seconds >= 0.0), "{rates:?}");
}

#[test]
fn two_ranks_measure_side_by_side_and_their_collectives() {
    let file = rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let bytes = dtrain_protocol::shared_memory_layout::mapping_bytes(2);
    rustix::fs::ftruncate(&file, bytes).unwrap();
    let rank = |rank| {
        let descriptor = std::os::fd::IntoRawFd::into_raw_fd(file.try_clone().unwrap());
        let mut request = request(decoder(), vec![1, 2], 5.0);
        request.layout.data = NonZeroU32::new(2).unwrap();
        request.rank = Rank(rank);
        request.link = RankTransport::SharedMemory { descriptor, bytes };
        std::thread::spawn(move || rates(&request, |_| unreachable!("nothing listens")).unwrap())
    };
    for thread in [rank(0), rank(1)] {
        let rates = thread.join().unwrap();
        assert_eq!((rates.ranks, rates.profile.len()), (2, 2));
        assert_eq!(rates.all_reduce.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>(), ALL_REDUCE_BYTES);
        let (small, large) = (rates.all_reduce[0].1, rates.all_reduce[6].1);
        assert!(0.0 < small && small < large, "16 MiB take longer than 4 KiB: {small} {large}");
    }
}

#[test]
fn larger_micro_batches_are_left_out_when_there_is_no_time() {
    let model =
        Model::Mlp(Mlp { inputs: 8, hidden: vec![16, 16], classes: 3, activation: MlpActivation::Relu });
    let rates = rates(&request(model, vec![2, 1 << 20], 0.05), |_| unreachable!("it is alone")).unwrap();
    assert_eq!(rates.profile.len(), 1, "a million samples do not fit into 50 ms");
}
