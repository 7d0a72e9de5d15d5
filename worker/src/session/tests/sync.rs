//! Approximately equal replicas learn as much for fewer bytes, and resume after a stop without a
//! difference.

use super::world::{Ended, World, commit, losses};
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{Assignment, Event, StepId, StopReason};
use dtrain_recipes::{Compression, DiLoCo, Model, Synchronisation};

/// Compared steps; the mean loss is over the `LAST` of them.
const STEPS: u64 = 200;
const LAST: usize = 16;

const fn compressed(compress: Compression) -> Synchronisation {
    Synchronisation { compress, ..Synchronisation::EXACT }
}

/// Returns local training with an outer step every `every` steps.
const fn apart(compress: Compression, every: u64) -> Synchronisation {
    let local = DiLoCo { every, outer_learning_rate: 0.7, outer_momentum: 0.9 };
    Synchronisation { compress, local: Some(local), staleness: 0 }
}

/// Returns training with a staleness of `staleness` steps.
const fn stale(compress: Compression, staleness: u32) -> Synchronisation {
    Synchronisation { compress, local: None, staleness }
}

const TOP: Compression = Compression::TopK { keep: 0.01 };
const FACTORS: Compression = Compression::PowerSgd { rank: 4 };

/// Each method with its largest share of the bytes of exact training between two replicas.
const WAYS: [(Synchronisation, f64); 6] = [
    (compressed(Compression::F16), 0.51),
    (compressed(Compression::Bf16), 0.51),
    (compressed(TOP), 0.021),
    (compressed(FACTORS), 0.19),
    (apart(Compression::None, 8), 0.127),
    (apart(Compression::Bf16, 8), 0.065),
];

/// Returns letters, each followed by one of two at random: after a short training only ln 2 is left.
fn walk() -> String {
    let step = |at: &mut u64, index: u64| {
        *at = (*at + 1 + 2 * (splitmix64(5, index) & 1)) % 8;
        Some(char::from(b'a' + *at as u8))
    };
    (0..60_000).scan(0, step).collect()
}

fn world(ranks: u32, sync: Synchronisation) -> World {
    let text = walk();
    World::new(ranks).edit(|assignment| {
        assignment.arrangement.sync = sync;
        assignment.training.learning_rate = 1e-2;
        if let Model::Decoder(decoder) = &mut assignment.model {
            decoder.tied = false;
        }
        std::fs::write(assignment.data_root.join("text.txt"), &text).unwrap();
    })
}

/// Returns the mean loss of the last steps, and the bytes that the first rank sent.
fn result(ended: &[Ended]) -> (f64, u64) {
    let losses = losses(ended);
    let last = &losses[losses.len() - LAST..];
    let sent = ended[0].events.iter().map(|event| match event {
        Event::Step(figures) => figures.sent_bytes,
        _ => 0,
    });
    (last.iter().sum::<f64>() / LAST as f64, sent.sum())
}

#[test]
fn replicas_that_send_less_learn_as_much() {
    let mut wrong = Vec::new();
    for ranks in [2, 4] {
        let (exact, all) = result(&world(ranks, Synchronisation::EXACT).steps(STEPS).run());
        assert!((exact / 2f64.ln() - 1.0).abs() < 0.05, "it is learned: {exact}");
        for (sync, most) in WAYS {
            let (loss, sent) = result(&world(ranks, sync).steps(STEPS).run());
            let (worse, share) = (loss / exact - 1.0, sent as f64 / all as f64);
            let percent = |share: f64| 100.0 * share;
            let told = format!(
                "{ranks} replicas, {sync}: loss {loss:.4} ({:+.2} %), {:.1} % of the bytes",
                percent(worse),
                percent(share)
            );
            println!("{told}");
            // All-gathered bytes grow with the number of ranks.
            let most = if sync.local.is_some() { most } else { (most * f64::from(ranks) / 2.0).min(0.51) };
            if worse > 0.02 || share > most {
                wrong.push(told);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_same_replicas_give_the_same_bits() {
    for sync in WAYS.map(|(sync, _)| sync).into_iter().chain([stale(Compression::Bf16, 2)]) {
        let (first, second) = (world(3, sync).steps(10).run(), world(3, sync).steps(10).run());
        assert_eq!(losses(&first), losses(&second));
        assert!(first.iter().zip(&second).all(|(a, b)| a.weights() == b.weights()), "{sync}");
    }
}

#[test]
fn a_stop_between_two_meetings_changes_nothing() {
    for sync in WAYS.map(|(sync, _)| sync).into_iter().chain([apart(FACTORS, 3), apart(TOP, 3)]) {
        let whole = world(2, sync).steps(11).run();
        let first = world(2, sync).steps(11).stop_at(4).run();
        assert_eq!(first[0].finished(), (StepId(4), StopReason::Ordered));
        let saved = commit(&first, StepId(4));
        let second = world(2, sync).steps(11).resume(&saved, StepId(4)).run();
        assert_eq!(losses(&second), losses(&whole)[4..], "{sync}");
        for (second, whole) in second.iter().zip(&whole) {
            assert_eq!(notice(second), None);
            assert!(second.weights() == whole.weights(), "{sync}");
        }
    }
}

/// Returns the rank's notice about state that was reset.
fn notice(ended: &Ended) -> Option<String> {
    let told =
        |event: &Event| if let Event::Ready { notice, .. } = event { Some(notice.clone()) } else { None };
    ended.events.iter().find_map(told).expect("it was ready")
}

#[test]
fn other_replicas_go_on_and_say_what_begins_afresh() {
    let (exact, _) = result(&world(2, Synchronisation::EXACT).steps(80).run());
    for sync in [compressed(TOP), compressed(FACTORS), apart(Compression::None, 8)] {
        let saved = commit(&world(4, sync).steps(80).stop_at(40).run(), StepId(40));
        let ended = world(2, sync).steps(80).resume(&saved, StepId(40)).run();
        let told = notice(&ended[0]).expect("something begins afresh");
        assert!(told.contains("it has 4 replicas, this run has 2"), "{told}");
        let (loss, _) = result(&ended);
        assert!(loss < 1.1 * exact, "{sync}: {loss}, not {exact}");
        let ended = world(2, Synchronisation::EXACT).steps(44).resume(&saved, StepId(40)).run();
        assert_eq!((notice(&ended[0]), ended[0].finished()), (None, (StepId(44), StopReason::Complete)));
    }
    let saved = commit(&world(2, Synchronisation::EXACT).steps(5).run(), StepId(5));
    let ended = world(2, compressed(TOP)).steps(6).resume(&saved, StepId(5)).run();
    assert!(notice(&ended[0]).is_some_and(|told| told.contains("in another way")));
}

/// Between two outer steps the shared weights do not change, and neither does their validation loss.
#[test]
fn validation_sees_the_weights_of_the_last_meeting() {
    let run = |every| {
        let sync = apart(Compression::None, every);
        let ended =
            world(2, sync).steps(10).edit(|a| (a.validate_every, a.until.steps) = (2, Some(StepId(9)))).run();
        let figures = |ended: &Ended| -> Vec<f64> {
            let told = ended.events.iter().filter_map(|event| match event {
                Event::Validated { loss, .. } => Some(*loss),
                _ => None,
            });
            told.collect()
        };
        assert_eq!(figures(&ended[0]), figures(&ended[1]));
        figures(&ended[0])
    };
    let [two, four, six, eight, last] = run(4)[..] else { panic!("five validations") };
    assert!(two > four && four == six && six > eight && eight > last, "{:?}", run(4));
    // Training that ends between two outer steps makes another one.
    assert_ne!(run(100)[0], run(100)[4]);
}

/// Stale gradients need a lower learning rate, and more steps.
#[test]
fn stale_gradients_learn_as_much_with_shorter_steps() {
    let run = |sync| {
        let slower =
            |a: &mut Assignment| (a.training.learning_rate, a.training.schedule_steps) = (2e-3, 2 * STEPS);
        result(&world(2, sync).steps(2 * STEPS).edit(slower).run())
    };
    let (exact, all) = run(Synchronisation::EXACT);
    assert!((exact / 2f64.ln() - 1.0).abs() < 0.05, "it is learned: {exact}");
    for (sync, bytes) in [(stale(Compression::None, 2), all), (stale(Compression::Bf16, 4), all / 2)] {
        let (loss, sent) = run(sync);
        println!("{sync}: loss {loss:.4} ({:+.2} %), {sent} bytes of {all}", 100.0 * (loss / exact - 1.0));
        assert!(loss < 1.02 * exact, "{sync}: {loss}, not {exact}");
        assert!(sent.abs_diff(bytes) < all / 500, "{sync}: {sent} bytes, not {bytes}");
    }
}

/// Gradients are of weights that are some steps behind: the first few batches all use the initial weights.
#[test]
fn stale_gradients_are_as_old_as_was_asked_for() {
    let still = |sync| world(2, sync).steps(7).edit(|a| a.training.learning_rate = 0.0).run();
    let first = losses(&still(Synchronisation::EXACT));
    for staleness in [1, 3] {
        let told = losses(&world(2, stale(Compression::None, staleness)).steps(7).run());
        let known = 1 + staleness as usize;
        assert_eq!(told[..known], first[..known], "no update was made");
        assert!((told[known] / first[known] - 1.0).abs() > 1e-6, "one was made: {told:?}, {first:?}");
    }
}

#[test]
fn where_every_step_is_looked_at_nothing_is_stale() {
    let run = |sync| world(2, sync).steps(6).edit(|a| a.save_every = 1).run();
    let (exact, stale) = (run(Synchronisation::EXACT), run(stale(Compression::None, 3)));
    assert_eq!(losses(&stale), losses(&exact));
    assert!(stale[0].weights() == exact[0].weights());
}

/// At the last checkpoint before a kill nothing is in flight; an order to stop is obeyed once all updates
/// are made.
#[test]
fn stale_training_goes_on_from_a_checkpoint_as_if_it_had_never_stopped() {
    let of = |steps| world(2, stale(Compression::None, 2)).steps(steps).edit(|a| a.save_every = 5);
    let whole = of(12).run();
    let saved = commit(&whole, StepId(5));
    let rest = of(12).resume(&saved, StepId(5)).run();
    assert_eq!(losses(&rest), losses(&whole)[5..]);
    assert!(rest.iter().zip(&whole).all(|(rest, whole)| rest.weights() == whole.weights()));
    let stopped = of(100).stop_at(7).run();
    let (step, reason) = stopped[0].finished();
    assert_eq!(reason, StopReason::Ordered);
    assert!((7..=10).contains(&step.0), "{step}");
    assert_eq!(notice(&of(12).resume(&commit(&stopped, step), step).run()[0]), None);
}
