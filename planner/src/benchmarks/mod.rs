//! Estimates published or planned trainings, one per row of a table, and scores the estimates against
//! measurements.
//!
//! Reads the columns that `docs/estimate.md` lists. A blank cell gets the default of the row's engine, is
//! listed among the row's assumptions, and widens the interval. Measurements are read only after everything
//! is priced.

mod bounds;
mod cells;
mod columns;
pub mod estimate;
mod gpu_cell;
pub mod measured;
pub mod read;
mod row_degrees;
pub mod score;
mod sharding;
mod state_cells;
pub mod table;
pub mod training;
mod words;

pub use estimate::{RowEstimate, estimate_rows};
pub use score::{AccuracyScores, scores};
pub use table::{TableError, TableRow, read_table};
pub use training::ResolvedTraining;

#[cfg(test)]
mod tests;
