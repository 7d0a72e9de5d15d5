//! Layouts train as one rank does.
//!
//! A case goes the whole way of a value: a recipe with its layout pinned, the plan, one assignment for each rank. Here the ranks
//! are threads of this process, so that there can be many cases; in `processes` they are processes that an agent started.

mod bubble;
mod cases;
mod device;
mod parted;
mod processes;
mod relay;
mod subjects;
mod sync;
mod world;

pub(crate) use cases::Case;
pub(crate) use world::{assignments, checkpoint, run_from};

use dtrain_tests::is_named;
use parted::{Parted, Trained, words};
use std::fmt::Write;
use world::{sent, trained};

/// Steps that are compared.
const STEPS: u64 = 20;

/// Layouts from one line about the progress to the next.
const TOLD: usize = 50;

/// Largest relative difference of a loss, and of a gradient norm: what the order of additions in f32 may do.
const LOSS: f64 = 1e-5;
const NORM: f64 = 1e-4;

/// The largest relative difference.
fn farthest(expected: &[f64], found: &[f64]) -> f64 {
    assert_eq!(expected.len(), found.len(), "as many steps");
    let difference =
        |(a, b): (&f64, &f64)| Some(((a - b) / a).abs()).filter(|difference| !difference.is_nan());
    expected.iter().zip(found).map(|pair| difference(pair).unwrap_or(f64::INFINITY)).fold(0.0, f64::max)
}

/// Trains every case and compares it with one rank, with a word to `tell` from time to time; panics with all that part, and
/// returns how far the worst does.
fn compare(cases: &[Case], tell: &dyn Fn(&str)) -> String {
    let mut wrong = String::new();
    let mut worst = [0.0f64; 5];
    let mut alone: Vec<(String, Trained)> = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        if number > 0 && number.is_multiple_of(TOLD) {
            tell(&format!("{number} of {}: {}{wrong}", cases.len(), words(worst)));
        }
        let one = case.on_one_rank();
        if !alone.iter().any(|(known, _)| *known == one.text()) {
            alone.push((one.text(), trained(&one, STEPS)));
        }
        let expected = &alone.iter().find(|(known, _)| *known == one.text()).expect("it was trained").1;
        let parted = Parted::of(expected, &trained(case, STEPS));
        worst.iter_mut().zip(parted.largest()).for_each(|(worst, found)| *worst = worst.max(found));
        if !parted.is_close() {
            writeln!(wrong, "{case}: {parted}").expect("a string takes everything");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    format!("{} layouts: {}", cases.len(), words(worst))
}

/// Every second of the covering few, from number `first` on; all of them with `tests/run layouts`. `relay` has those that
/// [`layouts_train_as_one_rank_does`] leaves out.
fn every_second(first: usize) -> Vec<Case> {
    let step = if is_named("layouts") { 1 } else { 2 };
    cases::some().into_iter().skip(first % step).step_by(step).collect()
}

/// What `otherwise` says, mostly a covering few; with `DTRAIN_LAYOUTS=all` every layout of up to eight ranks, or with a beginning of
/// their names those: `llama`, `llama, data 4`.
fn chosen(otherwise: impl FnOnce() -> Vec<Case>) -> Vec<Case> {
    match std::env::var("DTRAIN_LAYOUTS").as_deref() {
        Ok("all") => cases::all(),
        Ok(name) => {
            let cases: Vec<_> = cases::all().into_iter().filter(|case| case.begins(name)).collect();
            assert!(
                !cases.is_empty(),
                "DTRAIN_LAYOUTS={name} is neither `all` nor what a layout begins with"
            );
            cases
        }
        Err(_) => otherwise(),
    }
}

#[test]
fn layouts_train_as_one_rank_does() {
    println!("{}", compare(&chosen(|| every_second(0)), &|line| println!("{line}")));
}

#[test]
fn the_same_layout_gives_the_same_bits() {
    let step = if is_named("layouts") { 3 } else { 9 };
    for case in cases::some().iter().step_by(step) {
        let other = trained(case, 5).other_bits(&trained(case, 5));
        assert!(other.is_none(), "{case}: {other:?}");
    }
}

/// Bytes on the wire, counted on every rank, are those of the planner's table.
#[test]
fn every_rank_sends_what_the_planner_says() {
    let mut wrong = String::new();
    for case in &chosen(cases::some) {
        for sent in sent(case) {
            writeln!(wrong, "{case}: {sent}").expect("a string takes everything");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Where every token passes all experts, it is known how many go where.
#[test]
fn tokens_that_go_everywhere_are_as_many_as_the_planner_says() {
    let mut wrong = String::new();
    for pins in [
        &[("expert", "2")][..],
        &[("expert", "4")],
        &[("expert", "2"), ("data", "2"), ("zero", "2")],
        &[("expert", "2"), ("tensor", "2"), ("sequence", "true")],
        &[("expert", "2"), ("pipeline", "2"), ("schedule", "\"zero_bubble\"")],
        &[("expert", "2"), ("context", "2"), ("recompute", "\"full\"")],
    ] {
        let case = Case::with_everybody(pins);
        for sent in sent(&case) {
            writeln!(wrong, "{case}: {sent}").expect("a string takes everything");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
