//! Entry points of the worker processes that other parts of the program start.
//!
//! Each reads a request, writes frames to its channel, always reports an end, and never outlives its
//! parent. The channel is a pipe of its own, because libraries, and networks of users, print to standard
//! output.

use crate::panic_failure::guarded;
use crate::session::{AgentOrders, EventSink};
use crate::{device_check, generate, inference, probe as measure, session};
use dtrain_protocol::frame::{self, FrameError};
use dtrain_protocol::{
    Assignment, DeviceRequest, DeviceResponse, EvaluateRequest, EvaluateResponse, Event, Failure, Order,
    PredictRequest, PredictResponse, ProbeRequest, SampleRequest, SampleResponse,
};
use serde::{Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

/// Trains as the first frame on standard input says, an [`Assignment`]; [`Order`]s may follow.
///
/// Writes [`Event`]s. Exits with 0 after `Finished` and with 1 after `Failed`. The end of standard input
/// means that the agent is gone; the process then ends at once.
pub fn run(channel: File) -> ExitCode {
    begin(channel);
    outlive_signals();
    let tell: EventSink = Arc::new(|event| send_message(&event));
    let finished = guarded(|| {
        let assignment: Assignment = first_frame()?;
        session::attempt(&assignment, &mut AgentOrders::of(listen()), &tell)
    });
    match finished {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tell(Event::Failed(failure));
            ExitCode::FAILURE
        }
    }
}

/// Measures speed as the first frame on standard input says, a [`ProbeRequest`]; writes one
/// [`dtrain_protocol::RankRates`]. Over TLS an [`Event::Listening`] comes first, which [`Order::Peers`]
/// answers. Exits with 1, and the reason on standard error, if it fails.
pub fn probe(channel: File) -> ExitCode {
    begin(channel);
    let measured = guarded(|| {
        let request: ProbeRequest = first_frame()?;
        let mut orders = AgentOrders::of(listen());
        measure::rates(&request, |address| {
            send_message(&Event::Listening(address.to_owned()));
            orders.peers()
        })
    });
    match measured {
        Ok(rates) => {
            send_message(&rates);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            complain(&failure.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Sends the answer to a request, made from its result: `done` for a value, `refused` for a mistake in
/// the user's data, or `failed` for any other reason.
fn ended<Found, Answer: Serialize>(
    result: Result<Found, Failure>,
    done: impl FnOnce(Found) -> Answer,
    refused: impl FnOnce(String) -> Answer,
    failed: impl FnOnce(String) -> Answer,
) -> ExitCode {
    match result {
        Ok(found) => {
            send_message(&done(found));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            send_message(&match failure {
                Failure::Data(reason) => refused(reason),
                failure => failed(failure.to_string()),
            });
            ExitCode::FAILURE
        }
    }
}

/// Examines a device as the first frame on standard input says, a [`DeviceRequest`]; writes
/// [`DeviceResponse`] frames, the last of which is `Done` (exit code 0) or `Failed` (exit code 1).
pub fn examine(channel: File) -> ExitCode {
    begin(channel);
    // The parent process handles Ctrl-C, and ends this process.
    outlive_signals();
    let examined = guarded(|| {
        let request: DeviceRequest = first_frame()?;
        let _orders = listen();
        device_check::examine(&request, &mut |news| send_message(&news))
    });
    ended(examined, |()| DeviceResponse::Done, DeviceResponse::Failed, DeviceResponse::Failed)
}

/// Continues a prompt as the first frame on standard input says, a [`SampleRequest`]; writes
/// [`SampleResponse`] frames, the last of which is `Done` (exit code 0), `Refused` or `Failed` (exit code
/// 1).
pub fn sample(channel: File) -> ExitCode {
    begin(channel);
    print_no_panics();
    let written = guarded(|| {
        let request: SampleRequest = first_frame()?;
        let _orders = listen();
        generate::generate(&request, &mut |more| send_message(&SampleResponse::Text(more)))
    });
    ended(written, SampleResponse::Done, SampleResponse::Refused, SampleResponse::Failed)
}

/// Classifies the samples that the first frame on standard input, a [`PredictRequest`], names; writes
/// [`PredictResponse`] frames, the last of which is `Done` (exit code 0), `Refused` or `Failed` (exit code
/// 1).
pub fn predict(channel: File) -> ExitCode {
    begin(channel);
    print_no_panics();
    let predicted = guarded(|| {
        let request: PredictRequest = first_frame()?;
        let _orders = listen();
        inference::predict(&request, &mut |rows| send_message(&PredictResponse::Rows(rows)))
    });
    ended(predicted, |()| PredictResponse::Done, PredictResponse::Refused, PredictResponse::Failed)
}

/// Evaluates a model as the first frame on standard input says, an [`EvaluateRequest`]; writes
/// [`EvaluateResponse`] frames, the last of which is `Done` (exit code 0), `Refused` or `Failed` (exit
/// code 1).
pub fn evaluate(channel: File) -> ExitCode {
    begin(channel);
    print_no_panics();
    let evaluated = guarded(|| {
        let request: EvaluateRequest = first_frame()?;
        let _orders = listen();
        inference::evaluate(&request, &mut |done, of| send_message(&EvaluateResponse::Progress { done, of }))
    });
    ended(evaluated, EvaluateResponse::Done, EvaluateResponse::Refused, EvaluateResponse::Failed)
}

/// Reads the first frame on standard input, which is the request.
fn first_frame<T: DeserializeOwned>() -> Result<T, Failure> {
    frame::read_within(&mut io::stdin().lock(), frame::MAX_IN_PIECES).map_err(|error| {
        Failure::Other(format!("the first message could not be read: {}", with_cause(&error)))
    })
}

/// Formats an error, followed by its cause if it has one.
fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// Reads the agent's orders in a thread of its own, for as long as the process lives.
fn listen() -> mpsc::Receiver<Order> {
    let (orders, inbox) = mpsc::channel();
    let read = move || {
        loop {
            match frame::read::<Order>(&mut io::stdin().lock()) {
                // The receiver may be gone: then the session is about to end.
                Ok(order) => drop(orders.send(order)),
                Err(FrameError::Closed | FrameError::Torn) => vanish(),
                Err(error) => {
                    complain(&format!("an order could not be read: {error}"));
                    vanish();
                }
            }
        }
    };
    std::thread::Builder::new().name("orders".into()).spawn(read).expect("a process may start a thread");
    inbox
}

/// Channel that all frames are written to.
static CHANNEL: OnceLock<Mutex<File>> = OnceLock::new();

/// Sets the channel that all frames are written to from now on.
fn begin(channel: File) {
    assert!(CHANNEL.set(Mutex::new(channel)).is_ok(), "a process has one entry");
}

/// Writes one frame to the channel. If its reader is gone, the process ends.
fn send_message<T: Serialize>(message: &T) {
    let channel = CHANNEL.get().expect("an entry begins with it");
    let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
    if frame::write(&mut *channel, message).is_err() {
        vanish();
    }
}

/// Ends this process at once: no unwinding, no flushing, nothing that could hang.
fn vanish() -> ! {
    let me = rustix::process::getpid();
    let killed = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    unreachable!("a process may kill itself: {killed:?}")
}

/// Turns off the printing of panics: [`guarded`] puts their messages into the answer, which a user reads.
fn print_no_panics() {
    std::panic::set_hook(Box::new(|_| ()));
}

/// Ignores Ctrl-C and a closed terminal, which reach every process of the terminal: the agent decides
/// when its ranks end.
fn outlive_signals() {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        // A flag that is never read is the safe way to ignore a signal.
        if let Err(error) = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))) {
            complain(&format!("signal {signal} is not ignored: {error}"));
        }
    }
}

/// Writes a line to the log of this rank, which is its standard error.
fn complain(words: &str) {
    use io::Write;
    drop(writeln!(io::stderr(), "{words}"));
}
