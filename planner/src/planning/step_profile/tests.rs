use super::*;
use crate::fixtures;
use crate::planning::plan;
use crate::price::memory::MemoryBreakdown;
use crate::step::timeline::{Activity, StageTrack, Timeline};
use dtrain_recipes::{LayoutPins, PipelineSchedule, Recipe};

const SCHEDULES: [(PipelineSchedule, Option<u32>); 4] = [
    (PipelineSchedule::Gpipe, None),
    (PipelineSchedule::OneForwardOneBackward, None),
    (PipelineSchedule::Interleaved, Some(2)),
    (PipelineSchedule::ZeroBubble, None),
];

/// Returns the plan of the sample recipe in `stages` stages on two replicas, and its profile.
fn drawn(stages: u32, schedule: PipelineSchedule, chunks: Option<u32>) -> (Plan, StepProfile) {
    let mut recipe: Recipe = fixtures::recipe();
    recipe.layout = LayoutPins {
        pipeline: Some(stages),
        data: Some(2),
        schedule: (stages > 1).then_some(schedule),
        chunks: chunks.filter(|_| stages > 1),
        ..LayoutPins::default()
    };
    let (host, rates) = (fixtures::host(4), fixtures::rates(4));
    let plan = plan(&fixtures::request(&recipe, &host, Some(&rates))).expect("the sample fits");
    let profile = step_profile(&plan, &plan.best().candidate, Some(&rates)).expect("it ends");
    (plan, profile)
}

#[test]
fn lanes_have_no_gap_and_end_with_the_step_that_is_priced() {
    for stages in [1, 2] {
        for (schedule, chunks) in SCHEDULES {
            let (plan, profile) = drawn(stages, schedule, chunks);
            let step = plan.best().price().step.0;
            let Timeline { step_seconds, lanes } = &profile.timeline;
            assert!((step_seconds / step - 1.0).abs() < 1e-9, "{schedule:?}: {step_seconds} and {step}");
            assert_eq!((lanes.len(), profile.memory.len()), (stages as usize, stages as usize));
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
        let (plan, profile) = drawn(2, schedule, chunks);
        let time = plan.best().price().breakdown;
        let busy = |lane: &StageTrack| {
            [Activity::Forward, Activity::Backward, Activity::Weights]
                .map(|doing| lane.of(doing))
                .iter()
                .sum::<f64>()
        };
        let busiest = profile.timeline.lanes.iter().max_by(|a, b| busy(a).total_cmp(&busy(b)));
        let busiest = busiest.expect("there are lanes");
        let computed = time.forward + time.backward;
        assert!((busy(busiest) / computed - 1.0).abs() < 1e-9, "{schedule:?}");
        assert!(busiest.of(Activity::Idle) + 1e-9 * computed >= time.bubble, "{schedule:?}: {}", time.bubble);
        assert_eq!(busiest.of(Activity::Weights) > 0.0, schedule == PipelineSchedule::ZeroBubble);
        let micros = plan.best().candidate.split.micro_batches().get() as usize;
        let forwards = busiest.spans.iter().filter(|span| span.doing == Activity::Forward).count();
        assert_eq!(forwards, micros * chunks.unwrap_or(1) as usize);
    }
}

#[test]
fn the_heaviest_stage_is_the_peak_that_is_told() {
    let (plan, profile) = drawn(2, PipelineSchedule::OneForwardOneBackward, None);
    let heaviest = profile.memory.iter().map(MemoryBreakdown::total).max();
    assert_eq!(heaviest, Some(plan.best().price().memory_peak));
}
