//! Ranks that are somebody else's program: the environment they expect, and the figures they may report.
//!
//! A foreign program is not given a frame. It may write lines of JSON such as `{"step": 10, "loss": 2.31}` to the
//! file whose number is in `DTRAIN_EVENTS_FD`; everything else it writes goes to its log.

use super::rank::Ground;
use crate::process::bind_to_this_thread;
use dtrain_protocol::frame::FrameError;
use dtrain_protocol::{Assignment, Event, PhaseTimes, StepFigures, StepId};
use dtrain_recipes::model;
use rustix::fd::{AsRawFd, OwnedFd};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Where foreign ranks meet: rank 0 binds the port itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Rendezvous {
    address: String,
    port: u16,
}

impl Rendezvous {
    /// A port that is free now on an address of this host.
    pub(super) fn on_a_free_port_of(address: &str) -> io::Result<Self> {
        let port = TcpListener::bind((address, 0))?.local_addr()?.port();
        Ok(Self { address: address.into(), port })
    }
}

/// The command of one rank, and the pipe its figures come through.
pub(super) fn command(
    foreign: &model::Command,
    assignment: &Assignment,
    ground: &Ground<'_>,
    log: File,
) -> io::Result<(Command, PipeReader)> {
    let Some((program, arguments)) = foreign.argv.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command has no program"));
    };
    let (reader, writer) = io::pipe()?;
    let writer = Arc::new(OwnedFd::from(writer));
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(&assignment.data_root)
        .stdin(Stdio::null())
        .stdout(Stdio::from(log.try_clone()?))
        .stderr(Stdio::from(log))
        .process_group(0);
    let (rank, world) = (assignment.rank.to_string(), assignment.arrangement.layout.world().to_string());
    for (name, value) in [
        ("RANK", rank),
        ("WORLD_SIZE", world),
        ("LOCAL_RANK", (assignment.rank.0 - ground.first.0).to_string()),
        ("LOCAL_WORLD_SIZE", ground.ranks.to_string()),
        ("MASTER_ADDR", ground.rendezvous.address.clone()),
        ("MASTER_PORT", ground.rendezvous.port.to_string()),
        ("OMP_NUM_THREADS", assignment.placement.threads.to_string()),
        ("DTRAIN_EVENTS_FD", writer.as_raw_fd().to_string()),
    ] {
        command.env(name, value);
    }
    bind_to_this_thread(&mut command, Some(writer));
    Ok((command, reader))
}

/// Figures of one step, as a foreign program reports them.
#[derive(Deserialize)]
struct Line {
    step: u64,
    loss: Option<f64>,
    #[serde(default)]
    learning_rate: f64,
    gradient_norm: Option<f64>,
    #[serde(default)]
    tokens: u64,
    #[serde(default)]
    seconds: f64,
    valid_loss: Option<f64>,
    #[serde(default)]
    valid_accuracy: f64,
}

/// Reads reported figures until the program ends. A line that is not understood is skipped: it is the
/// program's own business.
pub(super) fn read(from: impl Read, say: &mut dyn FnMut(Event)) -> Result<(), FrameError> {
    for line in BufReader::new(from).lines() {
        let Ok(line) = serde_json::from_str::<Line>(&line?) else { continue };
        let step = StepId(line.step);
        if let Some(loss) = line.loss {
            say(Event::Step(StepFigures {
                step,
                loss,
                gradient_norm: line.gradient_norm,
                learning_rate: line.learning_rate,
                noise: None,
                tokens: line.tokens,
                times: PhaseTimes { step: line.seconds, ..PhaseTimes::default() },
                memory_bytes: 0,
                sent_bytes: 0,
                held: dtrain_protocol::HeldBytes::default(),
            }));
        }
        if let Some(loss) = line.valid_loss {
            say(Event::Validated { step, loss, accuracy: line.valid_accuracy });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_events_and_others_are_skipped() {
        let text =
            "hello\n{\"step\": 3, \"loss\": 0.5, \"tokens\": 8}\n{\"step\": 4, \"valid_loss\": 0.25}\n";
        let mut said = Vec::new();
        read(text.as_bytes(), &mut |event| said.push(event)).expect("text can be read");
        assert!(matches!(&said[0], Event::Step(f) if f.step == StepId(3) && f.tokens == 8));
        assert!(matches!(said[1], Event::Validated { step: StepId(4), loss, .. } if loss == 0.25));
        assert_eq!(said.len(), 2);
    }
}
