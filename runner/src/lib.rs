//! Makes a plan come true on machines that fail: a pure machine inside a thin driver.

pub mod fact;
pub mod transport;

pub use fact::{Ended, Fact, Ledger, LedgerError, News, Verdict};
