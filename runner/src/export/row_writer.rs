//! Interface of the writers of exported tables: CSV, JSON Lines and Parquet.

use crate::ledger::{MetricSample, TrialOutline};
use dtrain_protocol::{AttemptId, Rank};
use std::io;

/// Writer of the rows of an exported table in one format.
pub(super) trait RowWriter {
    /// Begins the rows of a trial; those of the trial before are complete.
    fn begin(&mut self, trial: &TrialOutline) -> io::Result<()>;
    /// Writes rows of one series of the trial that was begun last.
    fn rows(&mut self, key: &str, rank: Rank, points: &[(AttemptId, MetricSample)]) -> io::Result<()>;
    /// Ends the output, after the rows of all trials.
    fn finish(&mut self) -> io::Result<()>;
}
