use super::*;
use dtrain_protocol::{DeviceKind, Layout, Link, Placement, Rank};
use dtrain_recipes::{Activation, Decoder, Mlp, Model, Norm, Positions};
use std::num::NonZeroU32;

fn request(model: Model, micro_batches: Vec<u32>, budget_seconds: f64) -> ProbeRequest {
    let one = NonZeroU32::MIN;
    ProbeRequest {
        model,
        placement: Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads: 1 },
        layout: Layout { tensor: one, context: one, expert: one, data: one, pipeline: one },
        rank: Rank(0),
        link: Link::Alone,
        micro_batches,
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
        positions: Positions::Learned,
        norm: Norm::Layer,
        activation: Activation::Gelu,
        tied: true,
        bias: true,
        experts: None,
        head_width: None,
        rotary_base: None,
        norm_epsilon: None,
        qkv_bias: None,
        latent: None,
        window: None,
        mtp_layers: 0,
        lora: None,
    })
}

#[test]
fn one_rank_measures_every_part_and_no_collective() {
    let rates = rates(&request(decoder(), vec![1, 64], 30.0), |_| unreachable!("it is alone")).unwrap();
    assert_eq!(rates.profile.iter().map(|point| point.micro_batch).collect::<Vec<_>>(), [1, 64]);
    for point in &rates.profile {
        let parts = [point.block_forward, point.block_backward, point.outer_forward, point.outer_backward];
        assert!(parts.iter().all(|seconds| *seconds > 0.0 && *seconds < 1.0), "{point:?}");
    }
    let both = |p: &ProfilePoint| p.block_forward + p.block_backward;
    assert!(both(&rates.profile[1]) > both(&rates.profile[0]), "64 samples take longer than one");
    assert!(rates.optimizer_seconds_per_parameter > 0.0 && rates.baseline_bytes > 0);
    assert!(rates.all_reduce.is_empty());
}

#[test]
fn two_ranks_measure_side_by_side_and_their_collectives() {
    let file = rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let bytes = dtrain_protocol::mapping::bytes(2);
    rustix::fs::ftruncate(&file, bytes).unwrap();
    let rank = |rank| {
        let descriptor = std::os::fd::IntoRawFd::into_raw_fd(file.try_clone().unwrap());
        let mut request = request(decoder(), vec![1, 2], 5.0);
        request.layout.data = NonZeroU32::new(2).unwrap();
        request.rank = Rank(rank);
        request.link = Link::SharedMemory { descriptor, bytes };
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
    let model = Model::Mlp(Mlp { inputs: 8, hidden: vec![16, 16], classes: 3, activation: Activation::Relu });
    let rates = rates(&request(model, vec![2, 1 << 20], 0.05), |_| unreachable!("it is alone")).unwrap();
    assert_eq!(rates.profile.len(), 1, "a million samples do not fit into 50 ms");
}

#[test]
fn the_middle_is_the_middle() {
    assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
    assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
    assert!((spread(&[1.0, 2.0, 3.0]) - 0.5).abs() < 1e-12);
}
