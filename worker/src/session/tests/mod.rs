//! Sessions with ranks as threads of one process: properties of any layout, and across a stop.

mod half;
mod sync;
mod time;
mod validation;
pub(super) mod world;
mod zero;

use crate::step_timer::Slowdown;
use dtrain_protocol::{
    Event, Failure, Hyperparameters, MetricTarget, Order, ResidentBytes, SampleRequest, StepId, StopReason,
};
use dtrain_recipes::{Goal, Metric, OptimizerKind, ZeroStage};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::Duration;
use world::{Ended, World, commit, losses, norms};

/// Returns the largest relative difference.
fn farthest(expected: &[f64], found: &[f64]) -> f64 {
    expected.iter().zip(found).map(|(a, b)| ((a - b) / a).abs()).fold(0.0, f64::max)
}

#[test]
fn two_ranks_lose_as_one() {
    let (one, two) = (World::new(1).steps(200).run(), World::new(2).steps(200).run());
    // AdamW hides a gradient of the wrong length; its norm does not.
    let worst = farthest(&norms(&one)[..20], &norms(&two)[..20]);
    assert!(worst < 1e-4, "the gradient norms differ by {worst}");
    let (one, two) = (losses(&one), losses(&two));
    assert_eq!((one.len(), two.len()), (200, 200));
    let worst = farthest(&one, &two);
    assert!(worst < 1e-4, "the losses differ by {worst}");
    assert!(one[199] < 0.8 * one[0], "it learns: from {} to {}", one[0], one[199]);
}

#[test]
fn the_same_layout_gives_the_same_bits() {
    for ranks in [1, 2] {
        let first = World::new(ranks).steps(12).run();
        let second = World::new(ranks).steps(12).run();
        assert_eq!(losses(&first), losses(&second));
        assert_eq!(first[0].weights(), second[0].weights(), "{ranks} ranks");
    }
}

#[test]
fn what_lies_between_the_ranks_does_not_change_a_bit() {
    let threads = World::new(2).steps(10).run();
    let mapped = World::new(2).steps(10).share_memory().run();
    assert_eq!(losses(&threads), losses(&mapped));
    assert_eq!(threads[0].weights(), mapped[0].weights());
}

#[test]
fn a_run_that_was_stopped_and_resumed_ends_with_the_same_bits() {
    for kind in [OptimizerKind::Adamw, OptimizerKind::Sgd] {
        let whole = World::new(2).rule(kind).steps(11).run();
        let first = World::new(2).rule(kind).steps(11).stop_at(4).run();
        assert_eq!(first[0].finished(), (StepId(4), StopReason::Ordered));
        let saved = commit(&first, StepId(4));
        let second = World::new(2).rule(kind).steps(11).resume(&saved, StepId(4)).run();
        assert_eq!(second[0].finished(), (StepId(11), StopReason::Complete));
        assert_eq!(losses(&second), losses(&whole)[4..]);
        assert_eq!(second[0].weights(), whole[0].weights());
        assert_eq!(second[1].weights(), whole[1].weights());
    }
}

#[test]
fn a_checkpoint_of_one_layout_goes_on_under_another() {
    let whole = losses(&World::new(1).steps(8).run());
    let saved = commit(&World::new(2).steps(4).run(), StepId(4));
    let rest = losses(&World::new(1).steps(8).resume(&saved, StepId(4)).run());
    assert!(rest.len() == 4 && farthest(&whole[4..], &rest) < 1e-4, "{rest:?}");
}

#[test]
fn an_order_to_one_rank_stops_all_at_the_same_step() {
    let ended = World::new(3).steps(100).stop_at(5).run();
    for rank in &ended {
        assert_eq!(rank.finished(), (StepId(5), StopReason::Ordered));
        assert!(rank.events.iter().any(|event| matches!(event, Event::Saved { step: StepId(5), .. })));
    }
}

#[test]
fn time_and_target_end_a_run() {
    let ended = World::new(2).edit(|a| a.until.seconds = Some(0.0)).run();
    assert!(ended.iter().all(|rank| rank.finished() == (StepId(1), StopReason::Time)));
    let easy = Some(MetricTarget { metric: Metric::ValidLoss, goal: Goal::Min, value: 100.0 });
    let ended = World::new(2).edit(|a| (a.until.target, a.validate_every) = (easy.clone(), 3)).run();
    assert!(ended.iter().all(|rank| rank.finished() == (StepId(3), StopReason::Target)));
}

#[test]
fn all_ranks_tell_the_same_validation() {
    let validated = |ended: &Ended| -> Vec<_> {
        let figures = ended.events.iter().filter_map(|event| match event {
            Event::Validated { step, loss, accuracy, .. } => {
                Some((*step, *loss, accuracy.expect("it is told")))
            }
            _ => None,
        });
        figures.collect()
    };
    let one = World::new(1).steps(7).edit(|a| a.validate_every = 3).run();
    let two = World::new(2).steps(7).edit(|a| a.validate_every = 3).run();
    let (one, first, second) = (validated(&one[0]), validated(&two[0]), validated(&two[1]));
    assert_eq!(first, second);
    assert_eq!(first.iter().map(|(step, ..)| step.0).collect::<Vec<_>>(), [3, 6, 7]);
    assert!(one.iter().zip(&first).all(|(a, b)| ((a.1 - b.1) / a.1).abs() < 1e-4), "{one:?} {first:?}");
}

#[test]
fn every_step_that_is_due_is_saved_once() {
    let ended = World::new(2).steps(6).edit(|a| a.save_every = 2).run();
    for rank in &ended {
        let saved = rank.events.iter().filter_map(|event| match event {
            Event::Saved { step, .. } => Some(step.0),
            _ => None,
        });
        assert_eq!(saved.collect::<Vec<_>>(), [2, 4, 6]);
        assert!(
            matches!(rank.events.last(), Some(Event::Finished { .. })),
            "the end comes after the last save"
        );
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_does_not_end_training_and_the_last_state_waits_for_room() {
    let make_room = |_: &Sender<Order>, full: &Path| drop(std::fs::remove_file(full));
    let ended = World::new(1).steps(3).edit(|a| a.save_every = 2).without_room(make_room).run();
    for rank in &ended {
        let failed = |step, again| {
            let of = |event: &&Event| matches!(event, Event::SaveFailed { step: at, retries, .. } if *at == StepId(step) && *retries == again);
            rank.events.iter().filter(of).count()
        };
        assert_eq!((failed(2, false), failed(3, true)), (1, 1), "each is reported once: {:?}", rank.events);
        assert!(rank.events.iter().any(|event| matches!(event, Event::Saved { step: StepId(3), .. })));
        assert_eq!(rank.finished(), (StepId(3), StopReason::Complete));
    }
}

#[test]
fn a_last_state_that_cannot_be_saved_is_given_up_on_order_only() {
    let ended = World::new(2).steps(3).without_room(|orders, _| orders.send(Order::Stop).unwrap()).run();
    for rank in &ended {
        let Err(Failure::Unsaved { step, reason }) = &rank.result else { panic!("{:?}", rank.result) };
        assert!(*step == StepId(3) && reason.contains("full"), "{step}: {reason}");
    }
}

#[test]
fn a_loss_that_is_not_finite_ends_all_ranks_before_it_is_applied() {
    let ended = World::new(2).steps(50).edit(|a| a.training.learning_rate = 1e30).run();
    for rank in &ended {
        let Err(Failure::NotFinite { step, figure }) = &rank.result else { panic!("{:?}", rank.result) };
        assert!(step.0 > 1, "the first step is finite");
        assert!(figure.contains("loss") || figure.contains("gradient"), "{figure}");
    }
}

#[test]
fn replicas_that_are_no_longer_alike_are_told_and_not_saved() {
    for ranks in [2, 3] {
        let world = World::new(ranks).steps(130).edit(|a| a.save_every = 60);
        // As if bits of one rank's weights had flipped.
        let ended = world.edit(|a| a.training.seed += u64::from(a.rank.0 == 1)).run();
        let expected = if ranks == 2 { "ranks 0, 1 differ" } else { "rank 1 differs from the other 2" };
        for rank in &ended {
            let Err(Failure::Other(why)) = &rank.result else { panic!("{:?}", rank.result) };
            assert!(why.contains("after step 120") && why.contains(expected), "{why}");
            let saved = rank.events.iter().filter(|event| matches!(event, Event::Saved { .. })).count();
            assert_eq!(saved, 1, "that of step 60, which was not compared");
        }
    }
}

#[test]
fn a_trained_decoder_writes_the_same_text_for_the_same_seed() {
    let ended = World::new(1).steps(60).run();
    let saved = commit(&ended, StepId(60));
    let write = |seed, temperature| {
        let request = SampleRequest {
            model: ended[0].assignment.model.clone(),
            data: ended[0].assignment.data.clone().unwrap(),
            data_root: ended[0].assignment.data_root.clone(),
            checkpoint: saved.folder.clone(),
            prompt: "3 and ".into(),
            tokens: 24,
            temperature,
            top_k: Some(20),
            top_p: None,
            stop: Vec::new(),
            seed,
            threads: 1,
        };
        let mut text = String::new();
        crate::generate::generate(&request, &mut |more| text.push_str(&more)).unwrap();
        text
    };
    let text = write(1, 1.0);
    assert_eq!(text.len(), 24, "a byte for each token: {text:?}");
    assert_eq!(text, write(1, 1.0));
    assert_ne!(text, write(2, 1.0));
    assert_eq!(write(1, 0.0), write(2, 0.0), "nothing is left to chance");
}

#[test]
fn a_damaged_checkpoint_is_named() {
    let saved = commit(&World::new(1).steps(2).run(), StepId(2));
    let file = saved.folder.join("rank-00000.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let ended = World::new(1).steps(4).resume(&saved, StepId(2)).run();
    let Err(Failure::CorruptCheckpoint { folder: told, detail }) = &ended[0].result else {
        panic!("{:?}", ended[0].result)
    };
    assert_eq!(*told, saved.folder);
    assert!(detail.contains("rank-00000"), "{detail}");
}

#[test]
fn a_checkpoint_of_another_training_tells_what_differs() {
    let saved = commit(&World::new(1).steps(2).run(), StepId(2));
    let check = |change: fn(&mut Hyperparameters), expected: &str| {
        let world = World::new(1).steps(4).resume(&saved, StepId(2));
        let ended = world.edit(|a| change(&mut a.training)).run();
        let Err(Failure::OtherTraining { folder, detail }) = &ended[0].result else {
            panic!("{:?}", ended[0].result)
        };
        assert_eq!((folder, detail.as_str()), (&saved.folder, expected));
    };
    check(
        |training| training.seed = 7,
        "it has train.seed = 3, expected 7; resume with its settings, or start a new trial",
    );
    check(
        |training| (training.batch, training.seed) = (16, 7),
        "it has train.batch = 8, expected 16; it has train.seed = 3, expected 7; resume with its settings, \
        or start a new trial",
    );
}

#[test]
fn what_the_worker_cannot_do_is_refused_with_its_name() {
    let ended = World::new(1).edit(|a| a.arrangement.zero = ZeroStage::Zero3).share_memory().run();
    assert!(
        matches!(&ended[0].result, Err(Failure::Other(why)) if why.contains("zero")),
        "{:?}",
        ended[0].result
    );
}

#[test]
fn phases_add_up_to_the_step() {
    let ended = World::new(2).steps(5).run();
    for event in &ended[0].events {
        let Event::Step(figures) = event else { continue };
        let times = figures.times;
        assert!((times.parts() / times.step - 1.0).abs() < 1e-6, "{times:?}");
        assert!(times.forward > 0.0 && times.backward > 0.0 && times.optimizer > 0.0, "{times:?}");
        assert!(figures.memory_bytes > 1 << 20 && figures.tokens == 8 * 16);
        let weights = 4 * ended[0].assignment.model.parameters();
        let ResidentBytes { weights: held, gradients, optimizer } = figures.held;
        assert_eq!((held, gradients, optimizer), (weights, weights, 2 * weights));
    }
}

#[test]
fn whole_replicas_tell_how_much_of_a_gradient_is_chance() {
    let told = |ended: &[Ended]| -> Vec<_> {
        let steps = ended[0].events.iter().filter_map(|event| match event {
            Event::Step(figures) => {
                Some((figures.gradient_norm.expect("it is finite").powi(2), figures.noise))
            }
            _ => None,
        });
        steps.collect()
    };
    let steps = told(&World::new(4).steps(6).run());
    assert_eq!(steps[0].1, None, "there is no step before the first");
    for (before, after) in steps.iter().zip(&steps[1..]) {
        let noise = after.1.expect("replicas differ");
        assert!(noise.noise > 0.0, "they read unlike samples: {noise:?}");
        let whole = noise.signal + noise.noise / 8.0;
        assert!((whole / before.0 - 1.0).abs() < 1e-6, "the batch has the chance of 8 samples: {noise:?}");
    }
    // If all samples are alike there is no noise.
    let alike =
        World::new(4).steps(3).edit(|a| std::fs::write(a.data_root.join("text.txt"), "a".repeat(9000)));
    let noise = told(&alike.run())[2].1.expect("there are four replicas");
    assert!(noise.noise.abs() < 1e-5 * noise.signal, "{noise:?}");
    for other in [World::new(1), World::new(2).zero(ZeroStage::Zero1, 2)] {
        assert!(told(&other.steps(3).run()).iter().all(|(_, noise)| noise.is_none()));
    }
}

/// Returns the bytes of every checkpoint that the ranks wrote, and the time that each of them stalled for
/// it.
fn saved(ended: &[Ended]) -> Vec<(Vec<u8>, f64)> {
    let of = |event: &Event| match event {
        Event::Saved { folder, files, stall_seconds, .. } => {
            Some((std::fs::read(folder.join(&files[0].file.name)).unwrap(), *stall_seconds))
        }
        _ => None,
    };
    ended.iter().flat_map(|rank| rank.events.iter().filter_map(of)).collect()
}

#[test]
fn a_checkpoint_is_copied_while_the_next_step_computes() {
    let zeros = [ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero3];
    let world = |zero| World::new(2).zero(zero, 2).steps(3).edit(|a| a.save_every = 1);
    let copy = Duration::from_millis(200);
    for zero in zeros {
        let quick = saved(&world(zero).run());
        // If copying takes longer than the gradients, the weight update waits for it, and reports that it
        // did.
        let late = saved(&world(zero).slowdown(Slowdown { copy, ..Slowdown::default() }).run());
        // Each rank computes two micro-batches a step.
        let hidden =
            saved(&world(zero).slowdown(Slowdown { copy, forward: copy, ..Slowdown::default() }).run());
        assert_eq!((quick.len(), late.len(), hidden.len()), (6, 6, 6));
        for ((quick, late), hidden) in quick.iter().zip(&late).zip(&hidden) {
            assert!(quick.0 == late.0 && quick.0 == hidden.0, "the state is that of the step ({zero:?})");
            assert!(hidden.1 < copy.as_secs_f64() / 2.0, "stalled for {} s behind a longer step", hidden.1);
        }
        // Nothing waits for a rank's last checkpoint.
        for rank in late.chunks(3) {
            assert!(rank[..2].iter().all(|(_, stall)| *stall > copy.as_secs_f64() / 4.0), "{}", rank[0].1);
        }
    }
}
