//! Child process that opens the device: start, messages, and exit.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use crate::output::Output;
use crate::signals;
use dtrain_protocol::{DeviceFindings, DeviceRequest, DeviceResponse, frame};
use dtrain_runner::{channel, cuda};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Interval between checks whether the user pressed Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// Results that the child process reported.
#[derive(Debug, Default)]
pub(super) struct ProbeOutput {
    /// Findings about the device; `None` if there was no device.
    pub(super) findings: Option<DeviceFindings>,
    /// Reason why the child process ended early; `None` if it completed the examination.
    pub(super) failure: Option<String>,
    /// True if the user stopped the examination.
    pub(super) is_interrupted: bool,
}

/// Starts the child process and reads its messages until it ends or the user presses Ctrl-C.
pub(super) fn probe_device(out: Output, request: &DeviceRequest) -> Result<ProbeOutput, CommandError> {
    let failed = |cause: String| {
        CommandError::new(ExitReason::Infrastructure, "the examination could not be started").cause(cause)
    };
    let interrupts = signals::listen()?;
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let (mut printed, writer) = io::pipe().map_err(|error| failed(error.to_string()))?;
    let again = writer.try_clone().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(["worker", "device"]).stdin(Stdio::piped()).stdout(again).stderr(writer);
    cuda::prepare(&mut command, request.placement.device).map_err(|error| failed(error.to_string()))?;
    let (mut child, mut messages) = channel::spawn(command).map_err(|error| failed(error.to_string()))?;
    let mut to = child.stdin.take().expect("it is piped");
    let said = thread::spawn(move || {
        let mut said = Vec::new();
        drop(printed.read_to_end(&mut said));
        String::from_utf8_lossy(&said).into_owned()
    });
    // A write error is ignored: the child has ended then, which the loop below detects.
    drop(frame::write(&mut to, request));
    let (tell, news) = mpsc::channel();
    thread::spawn(move || {
        while let Ok(one) = frame::read::<DeviceResponse>(&mut messages) {
            if tell.send(one).is_err() {
                break;
            }
        }
    });
    let mut heard = ProbeOutput::default();
    let progress = ProbeSpinner::new(out);
    let is_done = loop {
        if interrupts.count() > 0 {
            heard.is_interrupted = true;
            break false;
        }
        match news.recv_timeout(LOOK) {
            Ok(DeviceResponse::Doing(what)) => progress.say(&what),
            Ok(DeviceResponse::Found(findings)) => heard.findings = Some(*findings),
            Ok(DeviceResponse::Done) => break true,
            Ok(DeviceResponse::Failed(reason)) => {
                heard.failure = Some(reason);
                break true;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                // Ctrl-C reaches both processes; a child that has just started may end by it.
                heard.is_interrupted = interrupts.count() > 0;
                break false;
            }
        }
    };
    progress.finish();
    // The child ends when its input closes, unless it hangs.
    drop(to);
    let status = end(&mut child, is_done || heard.is_interrupted);
    if !is_done && !heard.is_interrupted {
        heard.failure = Some(exit_explanation(&said.join().unwrap_or_default(), status));
    }
    Ok(heard)
}

/// Waits for the child process; kills it first if it sent all results or its results are not wanted.
fn end(child: &mut Child, is_over: bool) -> Option<ExitStatus> {
    if is_over {
        // It may have ended already.
        drop(child.kill());
    }
    child.wait().ok()
}

/// Explains why the child process ended without its last message.
fn exit_explanation(complaint: &str, status: Option<ExitStatus>) -> String {
    let lines = complaint.lines().map(str::trim).take_while(|line| !line.starts_with("stack backtrace"));
    let last = lines.filter(|line| !line.is_empty() && !line.starts_with("note: run with")).last();
    let how = match (status.and_then(|status| status.signal()), status.and_then(|status| status.code())) {
        (Some(signal), _) => format!("its process was killed by signal {signal}"),
        (None, Some(code)) => format!("its process exited with {code}"),
        (None, None) => "its process ended".to_owned(),
    };
    last.map_or_else(|| how.clone(), |last| format!("{how}: {last}"))
}

/// Progress of the examination: on a terminal one line with the elapsed time, elsewhere one line per part.
struct ProbeSpinner {
    out: Output,
    spinner: Option<ProgressBar>,
}

impl ProbeSpinner {
    fn new(out: Output) -> Self {
        let spinner = out.draws().then(|| {
            let spinner = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {msg}: {elapsed}");
            spinner.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            spinner.enable_steady_tick(Duration::from_millis(100));
            spinner
        });
        Self { out, spinner }
    }

    fn say(&self, what: &str) {
        match &self.spinner {
            Some(spinner) => spinner.set_message(what.to_owned()),
            None => self.out.say(what),
        }
    }

    fn finish(self) {
        if let Some(spinner) = self.spinner {
            spinner.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_child_is_told_with_its_last_words() {
        let words = "thread 'x' panicked\nno driver\nnote: run with `RUST_BACKTRACE=1`\n";
        let killed = ExitStatus::from_raw(11);
        assert_eq!(exit_explanation(words, Some(killed)), "its process was killed by signal 11: no driver");
        assert_eq!(exit_explanation("", Some(ExitStatus::from_raw(256))), "its process exited with 1");
        assert_eq!(exit_explanation("", None), "its process ended");
    }
}
