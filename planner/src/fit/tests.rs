//! Checks that the shipped constants are the minimum that the fit benchmark finds.

use super::*;
use crate::analytic::Constants;
use crate::benchmarks::read_table;

const TABLES: [&str; 2] = [
    include_str!("../../benches/data/measured_layouts.csv"),
    include_str!("../../benches/data/small_trainings.csv"),
];
const PRIORS: &str = include_str!("../../benches/data/priors.toml");

#[test]
fn the_shipped_constants_are_the_minimum() {
    let rows = TABLES.map(|table| read_table(table.as_bytes()).expect("the table is whole")).concat();
    let priors = ConstantPriors::read(PRIORS).expect("the page is whole");
    let shipped = Constants::shipped();
    let observed = measured_runs(&rows, shipped);
    let objective = CalibrationLoss { observed: &observed, priors: &priors, constants: shipped };
    let fit = fit(&objective, &priors.z_scores(shipped)).expect("there is a minimum");
    for prior in &priors.0 {
        let (before, after) = (prior.constant.of(shipped), prior.constant.of(&fit.constants));
        assert!(
            (after / before - 1.0).abs() < 0.01,
            "{}: shipped {before:e}, refitted {after:e}",
            prior.constant.name
        );
    }
}
