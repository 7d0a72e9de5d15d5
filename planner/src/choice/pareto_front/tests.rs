use super::*;
use proptest::prelude::*;

/// Generates points of a coarse grid, so that many have equal costs.
fn costs() -> impl Strategy<Value = CandidateCost> {
    (1u32..6, 1u32..6, 1u32..6).prop_map(|(step, full, devices)| CandidateCost {
        step_seconds: step.into(),
        memory_fraction: f64::from(full) / 6.0,
        device_seconds: devices.into(),
    })
}

/// Returns `true` by definition: no other point dominates it or equals it and was inserted earlier.
fn is_on_front(all: &[CandidateCost], at: usize) -> bool {
    (0..all.len()).all(|other| {
        let is_better = all[other].is_no_worse_than(&all[at]) && (all[other] != all[at] || other < at);
        other == at || !is_better
    })
}

fn noted(all: &[CandidateCost]) -> Vec<ParetoPoint<usize>> {
    pareto_front(all.iter().enumerate().map(|(index, cost)| (*cost, index)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn a_front_is_what_its_definition_says(all in prop::collection::vec(costs(), 0..80)) {
        let mut found: Vec<usize> = noted(&all).into_iter().map(|point| point.what).collect();
        found.sort_unstable();
        let defined: Vec<usize> = (0..all.len()).filter(|at| is_on_front(&all, *at)).collect();
        prop_assert_eq!(found, defined);
    }

    #[test]
    fn the_order_of_points_changes_no_front(all in prop::collection::vec(costs(), 0..40)) {
        let of = |all: &[CandidateCost]| noted(all).into_iter().map(|point| point.cost).collect::<Vec<_>>();
        let reversed: Vec<CandidateCost> = all.iter().rev().copied().collect();
        prop_assert_eq!(of(&all), of(&reversed));
    }

    #[test]
    fn what_is_named_stands_apart_and_is_not_much(all in prop::collection::vec(costs(), 1..80)) {
        let front: Vec<CandidateCost> = noted(&all).into_iter().map(|point| point.cost).collect();
        let named = notable_points(&front[0], &front, 0.01);
        prop_assert!(named.len() <= NAMED);
        for (place, index) in named.iter().enumerate() {
            let before = named[..place].iter().map(|other| &front[*other]).chain([&front[0]]);
            for other in before {
                prop_assert!(front[*index].differs_enough(other, LEAST));
            }
        }
    }
}

#[test]
fn what_saves_nothing_worth_speaking_of_is_not_named() {
    let choice = CandidateCost::of(1.0, 0.5, 8);
    let alike = CandidateCost::of(0.99, 0.45, 8);
    let cheap = CandidateCost::of(1.6, 0.5, 4);
    let roomy = CandidateCost::of(1.1, 0.2, 8);
    assert_eq!(notable_points(&choice, &[alike, roomy, cheap], 0.01), [1, 2]);
    assert_eq!(notable_points(&choice, &[alike, cheap], 0.3), [] as [usize; 0]);
}
