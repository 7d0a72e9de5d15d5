//! Published or planned trainings, one a row of a table: what each of them will cost, and how near that is to what was measured.
//!
//! Reads the columns that `docs/estimate.md` lists. A blank cell is taken as the row's engine does it by default, is named
//! among the row's assumptions, and widens the interval. What was measured is read after everything is priced.

mod bounds;
pub mod table;
pub mod families;
pub mod measured;
mod gpu_cell;
pub mod estimate;
pub mod read;
pub mod score;
mod sharding;
pub mod software;
pub mod training;

pub use table::{TableRow, TableError, read_table};
pub use estimate::{RowEstimate, estimate_rows};
pub use score::{AccuracyScores, scores};
pub use training::ResolvedTraining;

#[cfg(test)]
mod tests;
