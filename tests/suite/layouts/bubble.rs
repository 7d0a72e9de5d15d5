//! A pipeline stands still as long as its schedule was simulated to.
//!
//! The passes do their work and then wait until a set time is over, so that the cores of this machine do not matter.

use super::Case;
use super::world::{assignments, events, write_data};
use dtrain_planner::pipeline_schedule::PipelineShape;
use dtrain_planner::pipeline_schedule::simulate::{PassCost, simulate_pipeline};
use dtrain_protocol::{Assignment, Event, PhaseTimes};
use dtrain_worker::Slowdown;
use std::time::Duration;

/// How long a stage takes for each of the three passes through all its chunks.
const PASS: Duration = Duration::from_millis(24);

/// Steps of which the fastest counts: nothing but the pipeline stood still in it.
const STEPS: u64 = 4;

/// `tests/run --ignored stages_stand_still`
#[test]
#[ignore = "on request: it measures time and needs an idle machine"]
fn stages_stand_still_as_the_schedule_says() {
    let compare = |(schedule, chunks, micros)| {
        let case = Case::of_four_stages(schedule, chunks, micros);
        let folder = tempfile::tempdir().expect("a folder for the case");
        write_data(folder.path());
        let assignments = assignments(&case, folder.path(), None, STEPS);
        let pass = PASS / chunks;
        let expected = simulated(&assignments, PipelineShape { stages: 4, chunks, micros }, pass);
        let found = measured(&case, assignments, pass);
        println!("{schedule}, {micros} micro-batches: {found:.3} of a step idle, {expected:.3} simulated");
        ((found / expected - 1.0).abs() > 0.15).then(|| format!("{case}: {found:.3} for {expected:.3}"))
    };
    // Ranks that wait do not disturb each other.
    let cases = [
        ("gpipe", 1, 8),
        ("1f1b", 1, 8),
        ("1f1b", 1, 16),
        ("interleaved", 2, 8),
        ("interleaved", 2, 16),
        ("zero_bubble", 1, 8),
        ("zero_bubble", 1, 16),
    ];
    let wrong: Vec<_> = std::thread::scope(|scope| {
        let threads = cases.map(|case| scope.spawn(move || compare(case)));
        threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Share of a step that the stages stand still, walked action by action.
fn simulated(assignments: &[Assignment], shape: PipelineShape, pass: Duration) -> f64 {
    let steps: Vec<_> = assignments.iter().map(|assignment| assignment.step.clone()).collect();
    let pass = pass.as_secs_f64();
    let costs = vec![PassCost { forward: pass, input: pass, weights: pass }; steps.len()];
    let walked = simulate_pipeline(&steps, shape, &costs, 0.0, |_, _, _| {}).expect("no stage waits forever");
    walked.bubble() / walked.seconds
}

/// The same share of the fastest step.
fn measured(case: &Case, assignments: Vec<Assignment>, pass: Duration) -> f64 {
    let slowdown = Slowdown { forward: pass, input: pass, weights: pass, ..Slowdown::default() };
    let ranks = events(case, assignments, slowdown);
    let times = |event: &Event| if let Event::Step(figures) = event { Some(figures.times) } else { None };
    let ranks: Vec<Vec<_>> = ranks.iter().map(|events| events.iter().filter_map(times).collect()).collect();
    let steps = (0..ranks[0].len()).map(|step| {
        let sum = |of: fn(&PhaseTimes) -> f64| ranks.iter().map(|times| of(&times[step])).sum::<f64>();
        let idle = sum(|times| times.bubble);
        (sum(|times| times.step), idle / (idle + sum(|times| times.forward + times.backward)))
    });
    steps.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there were steps").1
}
