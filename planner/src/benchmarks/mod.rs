//! Published or planned trainings, one a row of a table: what each of them will cost, and how near that is to what was measured.
//!
//! Reads the columns that `docs/estimate.md` lists. A blank cell is taken as the row's engine does it by default, is named
//! among the row's assumptions, and widens the interval. What was measured is read after everything is priced.

mod bounds;
pub mod estimate;
pub mod families;
mod gpu_cell;
pub mod measured;
pub mod read;
pub mod score;
mod sharding;
pub mod software;
pub mod table;
pub mod training;

pub use estimate::{RowEstimate, estimate_rows};
pub use score::{AccuracyScores, scores};
pub use table::{TableError, TableRow, read_table};
pub use training::ResolvedTraining;

#[cfg(test)]
mod tests;
