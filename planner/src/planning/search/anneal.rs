//! Simulated annealing, for spaces too large to be searched whole.

use super::Ranking;
use crate::layout::space::{Place, Space};
use crate::planning::random::Stream;
use crate::price::judge::{Judge, Verdict};
use argmin::core::{CostFunction, Error, Executor};
use argmin::solver::simulatedannealing::{Anneal, SATempFunc, SimulatedAnnealing};
use dtrain_protocol::order::mix;
use std::cell::{Cell, RefCell};

/// Candidates that are tried in one search.
pub const ITERATIONS: u64 = 200_000;

/// Ranks what annealing comes across in `iterations` steps. The same seed finds the same.
pub fn rank(judge: &Judge<'_>, seed: u64, keep: usize, iterations: u64) -> Ranking {
    let landscape = Landscape {
        judge,
        ranking: RefCell::new(Ranking::new(judge.space(), keep)),
        stream: Cell::new(Stream::new(mix(seed, 1))),
    };
    if judge.space().is_empty() {
        return landscape.ranking.into_inner();
    }
    let cooling = 1e-4f64.powf(1.0 / f64::from(u32::try_from(iterations.max(2)).unwrap_or(u32::MAX)));
    let solver = SimulatedAnnealing::new_with_rng(1.0, Stream::new(mix(seed, 2)))
        .expect("the temperature is positive")
        .with_temp_func(SATempFunc::Exponential(cooling));
    let start = Place { way: 0, micro: 0 };
    let mut result = Executor::new(landscape, solver)
        .configure(|state| state.param(start).max_iters(iterations))
        .ctrlc(false)
        .run()
        .expect("pricing has no error to return");
    let landscape = result.problem.take_problem().expect("the executor gives the problem back");
    landscape.ranking.into_inner()
}

/// The judge as a surface: the logarithm of the time of a step, and high ground where memory does not suffice.
struct Landscape<'a> {
    judge: &'a Judge<'a>,
    ranking: RefCell<Ranking>,
    stream: Cell<Stream>,
}

impl CostFunction for Landscape<'_> {
    type Param = Place;
    type Output = f64;

    fn cost(&self, place: &Place) -> Result<f64, Error> {
        let verdict = self.judge.verdict(*place);
        self.ranking.borrow_mut().note(*place, verdict);
        Ok(match verdict {
            Verdict::Fits(cost) => cost.step_seconds.max(1e-12).ln(),
            // Above any time a step can take, and lower the less is missing.
            #[expect(clippy::cast_precision_loss, reason = "only an order of magnitude")]
            Verdict::TooMuch(missing) => 30.0 + (missing.0.max(1) as f64).ln(),
        })
    }
}

impl Anneal for Landscape<'_> {
    type Param = Place;
    type Output = Place;
    type Float = f64;

    fn anneal(&self, place: &Place, _: f64) -> Result<Place, Error> {
        let mut stream = self.stream.get();
        let next = neighbour(self.judge.space(), *place, &mut stream);
        self.stream.set(stream);
        Ok(next)
    }
}

/// A place near `place`: one step along the micro-batches, a few ways on, or (one time in eight) anywhere.
fn neighbour(space: &Space, place: Place, stream: &mut Stream) -> Place {
    let ways = u64::try_from(space.ways.len()).expect("counts fit");
    let way = match stream.below(8) {
        0 => stream.below(ways),
        1..=3 => {
            let reach = 1 + stream.below(8);
            let at = u64::from(place.way);
            if stream.below(2) == 0 { at.saturating_sub(reach) } else { (at + reach).min(ways - 1) }
        }
        _ => u64::from(place.way),
    };
    let way = u32::try_from(way).expect("ways are counted in 32 bits");
    let micros = u32::try_from(space.micros(&space.ways[way as usize]).len()).expect("divisors are few");
    let stay = place.micro.min(micros - 1);
    let micro = match stream.below(3) {
        0 => stay.saturating_sub(1),
        1 => (stay + 1).min(micros - 1),
        _ => stay,
    };
    Place { way, micro }
}
