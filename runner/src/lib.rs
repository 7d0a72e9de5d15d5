//! Executes a plan on machines that fail: a pure state machine inside a thin driver.

pub mod agent;
pub mod audit;
pub mod channel;
pub mod checkpoints;
pub mod compare;
pub mod control_protocol;
pub mod cuda;
mod descendants;
pub mod driver;
mod durable;
pub mod export;
pub mod fact;
pub mod files;
pub mod home;
pub mod host_monitor;
pub mod interrupts;
pub mod launch;
pub mod ledger;
pub mod machine;
pub mod open_file_limit;
pub mod probe;
pub mod process;
pub mod provenance;
pub mod reporters;
mod secrets;
pub mod store;
pub mod strikes;
pub mod transport;
pub mod trial_event;

pub use driver::{Drive, DriveError, DriveOutcome, LaunchContext, OnInterrupt, Options, Programs};
pub use fact::{AttemptEnd, Fact, HostUpdate, Ledger, LedgerError, MetricPoint, TrialUpdate, Verdict};
pub use home::{Home, TrialFolder};
pub use interrupts::Interrupts;
pub use ledger::History;
pub use trial_event::{ControllerStatus, Observer, TrialEvent};
