//! Makes a plan come true on machines that fail: a pure machine inside a thin driver.

pub mod agent;
pub mod audit;
pub mod channel;
pub mod checkpoints;
pub mod compare;
pub mod cuda;
mod descendants;
pub mod driver;
mod durable;
pub mod export;
pub mod fact;
pub mod files;
pub mod home;
pub mod interrupts;
pub mod launch;
pub mod ledger;
pub mod machine;
pub mod open_files;
pub mod probe;
mod process;
pub mod provenance;
pub mod reporters;
mod secrets;
pub mod seen;
pub mod store;
pub mod strikes;
pub mod system;
pub mod transport;

pub use driver::{Drive, DriveError, Launching, OnInterrupt, Options, Outcome, Programs};
pub use fact::{Ended, Fact, HostNews, Ledger, LedgerError, News, Point, Verdict};
pub use home::{Home, TrialFolder};
pub use interrupts::Interrupts;
pub use ledger::History;
pub use seen::{Observer, Seen, Status};
