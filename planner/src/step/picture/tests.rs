use super::*;
use crate::planning::plan;
use crate::sample;
use dtrain_recipes::{LayoutPins, PipelineSchedule, Recipe};

const SCHEDULES: [(PipelineSchedule, Option<u32>); 4] = [
    (PipelineSchedule::Gpipe, None),
    (PipelineSchedule::OneForwardOneBackward, None),
    (PipelineSchedule::Interleaved, Some(2)),
    (PipelineSchedule::ZeroBubble, None),
];

/// The plan of the sample in `stages` stages on two replicas, and its picture.
fn drawn(stages: u32, schedule: PipelineSchedule, chunks: Option<u32>) -> (Plan, Picture) {
    let mut recipe: Recipe = sample::recipe();
    recipe.layout = LayoutPins {
        pipeline: Some(stages),
        data: Some(2),
        schedule: (stages > 1).then_some(schedule),
        chunks: chunks.filter(|_| stages > 1),
        ..LayoutPins::default()
    };
    let (host, rates) = (sample::host(4), sample::rates(4));
    let plan = plan(&sample::request(&recipe, &host, Some(&rates))).expect("the sample fits");
    let picture = picture(&plan, &plan.best().candidate, Some(&rates)).expect("it ends");
    (plan, picture)
}

#[test]
fn lanes_have_no_gap_and_end_with_the_step_that_is_priced() {
    for stages in [1, 2] {
        for (schedule, chunks) in SCHEDULES {
            let (plan, picture) = drawn(stages, schedule, chunks);
            let step = plan.best().price().step.0;
            let Timeline { step_seconds, lanes } = &picture.timeline;
            assert!((step_seconds / step - 1.0).abs() < 1e-9, "{schedule:?}: {step_seconds} and {step}");
            assert_eq!((lanes.len(), picture.memory.len()), (stages as usize, stages as usize));
            for lane in lanes {
                let mut now = 0.0;
                for span in &lane.spans {
                    assert!(
                        (span.begin - now).abs() < 1e-9 * step && span.seconds > 0.0,
                        "{span:?} at {now}"
                    );
                    now = span.begin + span.seconds;
                }
                assert!((now / step - 1.0).abs() < 1e-9, "{schedule:?}: a lane ends at {now} of {step}");
            }
        }
    }
}

#[test]
fn the_busiest_lane_stands_still_for_the_bubble_and_does_what_the_step_is_said_to_take() {
    for (schedule, chunks) in SCHEDULES {
        let (plan, picture) = drawn(2, schedule, chunks);
        let time = plan.best().price().breakdown;
        let busy = |lane: &Lane| {
            [Doing::Forward, Doing::Backward, Doing::Weights].map(|doing| lane.of(doing)).iter().sum::<f64>()
        };
        let busiest = picture.timeline.lanes.iter().max_by(|a, b| busy(a).total_cmp(&busy(b)));
        let busiest = busiest.expect("there are lanes");
        let computed = time.forward + time.backward;
        assert!((busy(busiest) / computed - 1.0).abs() < 1e-9, "{schedule:?}");
        assert!(busiest.of(Doing::Idle) + 1e-9 * computed >= time.bubble, "{schedule:?}: {}", time.bubble);
        assert_eq!(busiest.of(Doing::Weights) > 0.0, schedule == PipelineSchedule::ZeroBubble);
        let micros = plan.best().candidate.split.micro_batches().get() as usize;
        let forwards = busiest.spans.iter().filter(|span| span.doing == Doing::Forward).count();
        assert_eq!(forwards, micros * chunks.unwrap_or(1) as usize);
    }
}

#[test]
fn the_heaviest_stage_is_the_peak_that_is_told() {
    let (plan, picture) = drawn(2, PipelineSchedule::OneForwardOneBackward, None);
    let heaviest = picture.memory.iter().map(Memory::total).max();
    assert_eq!(heaviest, Some(plan.best().price().memory_peak));
}
