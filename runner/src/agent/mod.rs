//! The process that owns the ranks of one attempt on one host, and outlives the controller.

mod order;

pub use order::{
    AgentCard, AgentOrder, AgentReply, AgentRequest, LinkChoice, Log, Process, Program, SpoolRecord,
};

/// The entry of `dtrain agent`: reads an [`AgentOrder`] from standard input and makes it come true.
pub fn run() -> std::process::ExitCode {
    todo!()
}
