use super::*;
use std::cell::RefCell;

/// Returns a number with decimals if it has a fraction.
fn number(value: f64) -> Number {
    Number { value, has_decimals: value.fract() != 0.0 }
}

/// Returns the steps at which lines of each kind report losses, and the notices.
fn steps(lines: &[(usize, f64)]) -> (Vec<u64>, Vec<String>) {
    let events = RefCell::new(Vec::new());
    let mut tracker = StepTracker::default();
    for (kind, step) in lines {
        tracker.report(ReportedLine::of([("step", number(*step)), ("loss", number(0.5))]), *kind, &|event| {
            events.borrow_mut().push(event);
        });
    }
    let (mut steps, mut remarks) = (Vec::new(), Vec::new());
    for event in events.into_inner() {
        match event {
            Event::Step(figures) => steps.push(figures.step.0),
            Event::Notice(words) => remarks.push(words),
            other => panic!("{other:?}"),
        }
    }
    (steps, remarks)
}

fn of_one_kind(values: &[f64]) -> (Vec<u64>, Vec<String>) {
    steps(&values.iter().map(|value| (0, *value)).collect::<Vec<_>>())
}

#[test]
fn fractions_of_an_epoch_are_steps_of_their_own() {
    let (steps, remarks) = of_one_kind(&[0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]);
    assert_eq!(steps, [250, 500, 750, 1000, 1250, 1500, 1750, 2000]);
    assert_eq!(
        remarks,
        ["`step` is 0.25, not a whole number: it is counted in thousandths, 0.25 as step 250"]
    );
    assert_eq!(of_one_kind(&[0.01, 0.01, 0.01, 0.02]).0, [10, 11, 12, 20], "none is lost to rounding");
    assert_eq!(of_one_kind(&[0.001, 0.001, 0.001, 0.002]).0, [1, 2, 3, 4]);
    assert_eq!(of_one_kind(&[1.0, 2.0]).0, [1, 2]);
}

#[test]
fn a_counter_that_begins_again_is_continued_and_said_once() {
    let (steps, remarks) = of_one_kind(&[1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]);
    assert_eq!(steps, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(remarks, ["`step` began again at 1 after 3: it is continued, 1 as 4"]);
    assert_eq!(of_one_kind(&[0.0, 1.0, 2.0, 0.0, 1.0]).0, [0, 1, 2, 3, 4]);
    assert_eq!(of_one_kind(&[50.0, 100.0, 50.0, 100.0]).0, [50, 100, 150, 200]);
    assert_eq!(of_one_kind(&[0.5, 1.0, 0.5, 1.0]).0, [500, 1000, 1500, 2000]);
    let (steps, remarks) = of_one_kind(&[98.0, 100.0, 99.0, 101.0]);
    assert_eq!((steps, remarks), (vec![98, 100, 99, 101], Vec::new()), "lines that overtake each other");
}

#[test]
fn counters_of_several_templates_do_not_mix() {
    // Steps, and epochs with a counter of their own.
    let (of_epochs, remarks) = steps(&[(0, 50.0), (0, 100.0), (1, 1.0), (0, 150.0), (0, 200.0), (1, 2.0)]);
    assert_eq!((of_epochs, remarks), (vec![50, 100, 1, 150, 200, 2], Vec::new()));
    // A validation at the end of each epoch belongs to its last step.
    let of_steps = steps(&[(0, 1.0), (0, 9.0), (1, 9.0), (0, 1.0), (0, 9.0), (1, 9.0)]).0;
    assert_eq!(of_steps, [1, 9, 9, 10, 18, 18]);
}

#[test]
fn what_is_no_step_is_ignored_and_said_once() {
    for absurd in [-1.0, f64::NAN, f64::INFINITY, 1.844e19] {
        let (steps, remarks) = of_one_kind(&[7.0, absurd, absurd, 8.0]);
        assert_eq!(steps, [7, 7, 7, 8], "{absurd}");
        assert!(remarks.len() == 1 && remarks[0].contains("is ignored"), "{absurd}: {remarks:?}");
    }
    assert_eq!(of_one_kind(&[-1.0, -1.0]).0, [1, 2], "lines are counted");
}

#[test]
fn tokens_and_seconds_that_are_none_are_not_believed() {
    let told = |name: &str, value: f64| {
        let events = RefCell::new(Vec::new());
        StepTracker::default().report(
            ReportedLine::of([("loss", number(1.0)), (name, number(value))]),
            0,
            &|event| {
                events.borrow_mut().push(event);
            },
        );
        let events = events.into_inner();
        let Some(Event::Step(figures)) = events.last() else { panic!("{events:?}") };
        (figures.tokens, figures.times.step, events.len() - 1)
    };
    assert_eq!(told("tokens", 1003.7), (1004, 0.0, 1));
    assert_eq!(told("tokens", -3.0), (0, 0.0, 1));
    assert_eq!(told("tokens", 512.0), (512, 0.0, 0));
    assert_eq!(told("seconds", -3.0), (0, 0.0, 1));
    assert_eq!(told("seconds", 0.5), (0, 0.5, 0));
}

/// Returns the events of lines of templates.
fn events(lines: &[(usize, &[(&str, f64)])]) -> Vec<Event> {
    let events = RefCell::new(Vec::new());
    let mut tracker = StepTracker::default();
    for (kind, figures) in lines {
        let line = ReportedLine::of(figures.iter().map(|(name, value)| (*name, number(*value))));
        tracker.report(line, *kind, &|event| events.borrow_mut().push(event));
    }
    events.into_inner()
}

fn notices(events: &[Event]) -> Vec<&str> {
    let mut notices = Vec::new();
    for event in events {
        if let Event::Notice(words) = event {
            notices.push(words.as_str());
        }
    }
    notices
}

#[test]
fn epochs_are_no_steps_of_the_lines_between_them() {
    for of_an_epoch in [2u32, 3, 5] {
        let (mut lines, mut expected, mut reached) = (Vec::new(), Vec::new(), 0);
        for epoch in 1..=8u32 {
            for step in 1..=of_an_epoch {
                reached += 1;
                lines.push((0, f64::from(step)));
                expected.push(reached);
            }
            lines.push((1, f64::from(epoch)));
            expected.push(u64::from(epoch));
        }
        assert_eq!(steps(&lines).0, expected, "{of_an_epoch} steps in an epoch");
    }
}

#[test]
fn an_evaluation_that_is_late_does_not_begin_again() {
    let mut lines = Vec::new();
    for step in (10..=100u32).step_by(10) {
        lines.push((0, f64::from(step)));
        if step > 50 {
            lines.push((1, f64::from(step - 50)));
        }
    }
    let expected: Vec<u64> = lines.iter().map(|(_, step)| whole(*step)).collect();
    assert_eq!(steps(&lines), (expected, Vec::new()));
}

#[test]
fn fractions_of_one_template_are_none_of_another() {
    let lines = [(0, 10.0), (1, 0.5), (0, 20.0), (1, 1.5), (0, 30.0)];
    assert_eq!(steps(&lines).0, [10, 500, 20, 1500, 30]);
}

#[test]
fn first_fractions_that_are_rounded_to_zero_are_steps() {
    let events = RefCell::new(Vec::new());
    let mut tracker = StepTracker::default();
    for step in [0.0, 0.0, 0.0, 0.01, 0.01, 1.0] {
        let step = Number { value: step, has_decimals: true };
        tracker.report(ReportedLine::of([("step", step), ("loss", number(step.value))]), 0, &|event| {
            events.borrow_mut().push(event);
        });
    }
    let events = events.into_inner();
    let of = |event: &Event| if let Event::Step(figures) = event { Some(figures.step.0) } else { None };
    assert_eq!(events.iter().filter_map(of).collect::<Vec<_>>(), [0, 1, 2, 10, 11, 1000]);
    assert_eq!(notices(&events).len(), 1, "{events:?}");
}

#[test]
fn lines_without_a_step_are_counted_for_each_template() {
    let train = |loss| [("loss", loss)];
    let valid = |acc| [("acc", acc)];
    let all = events(&[(0, &train(1.0)), (1, &valid(0.1)), (0, &train(0.5)), (1, &valid(0.2))]);
    let step = |event: &Event| match event {
        Event::Step(figures) => figures.step.0,
        Event::Metrics { step, .. } => step.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(all.iter().map(step).collect::<Vec<_>>(), [1, 1, 2, 2]);
}

#[test]
fn a_result_that_replaces_another_is_said_once() {
    let line = |loss| [("step", 2.0), ("loss", loss)];
    let said = events(&[(0, &line(4.0)), (0, &line(3.0)), (0, &line(2.0))]);
    assert_eq!(notices(&said), ["`loss` has several values at `step` 2: the last one counts"]);
    assert!(notices(&events(&[(0, &line(4.0)), (0, &line(4.0))])).is_empty(), "a bar that is drawn again");
}

#[test]
fn only_times_that_are_known_are_told() {
    let told = |values: &[f64]| {
        let (mut times, mut tracker) = (Vec::new(), StepTracker::default());
        for value in values {
            let heard = RefCell::new(Vec::new());
            tracker.report(
                ReportedLine::of([("step", number(*value)), ("loss", number(0.5))]),
                0,
                &|event| {
                    heard.borrow_mut().push(event);
                },
            );
            for event in heard.into_inner() {
                if let Event::Step(figures) = event {
                    times.push(figures.times.step > 0.0);
                }
            }
        }
        times
    };
    assert_eq!(told(&[1.0, 2.0, 2.0, 3.0, 3.0]), [false, true, false, true, false]);
    assert_eq!(told(&[0.25, 0.5, 1.0]), [false; 3], "how many steps these are is not known");
}
