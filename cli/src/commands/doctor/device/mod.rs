//! `dtrain doctor --device`: compares a device with the host, measures it, and writes a report file for
//! sharing.
//!
//! Only a child process opens the device, as in training: if the driver crashes the process, earlier findings
//! survive.

mod columns;
mod device_request;
mod page;
mod probe_process;
mod series;

use super::gpu;
use crate::args::{DeviceChoice, DoctorArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::{document, shell_quoted};
use crate::plan_file::save;
use crate::render::number::counted;
use crate::this_host::PROGRAM;
use dtrain_protocol::{DeviceFindings, DeviceKind, DeviceRequest, HostFacts, Placement};
use dtrain_runner::probe::host_facts;
use dtrain_worker::device::{self, DeviceError};
use probe_process::ProbeOutput;
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Report on a device, for the report file and `--json`. Contains no host or user name.
#[derive(Serialize)]
struct HardwareReport<'a> {
    /// Date and time of the report in UTC, such as `2026-11-25T16:30:00Z`.
    date: String,
    program: &'static str,
    system: String,
    processor: &'a str,
    cores: u32,
    host_memory_bytes: u64,
    /// True if the device's results match the host's and every measurement succeeded.
    agrees: bool,
    /// Reason why the examination ended early; `None` if it was completed.
    failure: Option<&'a str>,
    #[serde(flatten)]
    findings: &'a DeviceFindings,
    /// Findings of `dtrain doctor` about GPUs and drivers.
    checks: Value,
}

/// Examines a device and writes the report file.
pub(super) fn run(context: &Context, choice: DeviceChoice, args: &DoctorArgs) -> CommandResult {
    let (parts, steps) = (device_request::parts(&args.only), device_request::steps(args)?);
    let (kind, index) = (kind(choice)?, args.index);
    device::find(kind, index).map_err(|error| refusal(&error))?;
    let file = args
        .output
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("dtrain-device-{}-{index}.json", kind.word())));
    let is_new = !file.exists();
    // Reported now rather than after minutes.
    let opened = File::options().append(true).create(true).open(&file);
    opened.map_err(|error| {
        CommandError::new(ExitReason::Usage, format!("cannot write {}", file.display()))
            .cause(error.to_string())
    })?;
    let host = host_facts(Vec::new());
    let placement = Placement { host: 0, device: kind, index, threads: host.cores };
    let ProbeOutput { findings, failure, is_interrupted } =
        probe_process::probe_device(context.out, &DeviceRequest { placement, parts, steps })?;
    let Some(findings) = findings else {
        if is_new {
            // The file is empty.
            drop(std::fs::remove_file(&file));
        }
        return Err(ended_early(failure, is_interrupted, None));
    };
    let failure = if is_interrupted { Some("interrupted".to_owned()) } else { failure };
    let text = write_report(context, &host, &findings, failure.as_deref())?;
    save(&file, &text)?;
    if context.out.json {
        context.out.bytes(text.as_bytes())?;
    } else {
        context.out.data(&page::page(&findings, context.out.style()))?;
    }
    context.out.say(&format!("everything is in {}, to keep or to send", file.display()));
    if failure.is_some() {
        return Err(ended_early(failure, is_interrupted, Some(&file)));
    }
    findings_result(&findings, &file)
}

/// Returns the backend that `--device` selects; `Err` if it asks for any GPU and this program can use none.
fn kind(choice: DeviceChoice) -> Result<DeviceKind, CommandError> {
    match choice {
        DeviceChoice::Cuda => Ok(DeviceKind::Cuda),
        DeviceChoice::Wgpu => Ok(DeviceKind::Wgpu),
        DeviceChoice::Cpu => Ok(DeviceKind::Cpu),
        DeviceChoice::Gpu => device::gpus().first().map(|gpu| gpu.device).ok_or_else(|| {
            CommandError::new(ExitReason::Preflight, "this program can use no GPU here").hint(
                "`dtrain doctor` says what is missing; `dtrain doctor --device cpu` examines the processor",
            )
        }),
    }
}

/// Builds the error for a device that cannot be opened, with advice.
fn refusal(error: &DeviceError) -> CommandError {
    match error {
        DeviceError::NotBuilt { device } => CommandError::new(
            ExitReason::Preflight,
            format!("this program was built without the backend {device}"),
        )
        .hint(format!("`cargo build --release --features {device}`")),
        DeviceError::Absent { device, wanted, found: 0 } => CommandError::new(
            ExitReason::Preflight,
            format!("there is no {device} device {wanted}: {device} shows none"),
        )
        .hint("`dtrain doctor` says what is missing; `dtrain doctor --device cpu` examines the processor"),
        DeviceError::Absent { device, wanted, found } => {
            let devices = counted(*found as u64, "device");
            let what = format!("there is no {device} device {wanted}: {device} shows {devices}");
            CommandError::new(ExitReason::Preflight, what).hint(format!("--index is at most {}", found - 1))
        }
    }
}

fn write_report(
    context: &Context,
    host: &HostFacts,
    findings: &DeviceFindings,
    failure: Option<&str>,
) -> Result<String, CommandError> {
    let now_ms = context.out.style().now_ms;
    let seconds = now_ms / 1000;
    let system = rustix::system::uname();
    let words = [system.sysname(), system.release(), system.machine()].map(|word| word.to_string_lossy());
    let document_of_this = HardwareReport {
        date: format!(
            "{}T{:02}:{:02}:{:02}Z",
            dtrain_planner::format_day(now_ms),
            seconds / 3600 % 24,
            seconds / 60 % 60,
            seconds % 60
        ),
        program: PROGRAM,
        system: words.join(" "),
        processor: &host.processor,
        cores: host.cores,
        host_memory_bytes: host.memory_bytes,
        agrees: failure.is_none() && findings.agrees(),
        failure,
        findings,
        checks: without_home(serde_json::to_value(gpu::checks()).unwrap_or_default(), &home_folder()),
    };
    Ok(document("device", &document_of_this, true)? + "\n")
}

/// Returns the path of the user's home folder, to be replaced in the report; empty if unknown.
fn home_folder() -> String {
    let home = std::env::var("HOME").unwrap_or_default();
    let home = home.trim_end_matches('/');
    if home.is_empty() { String::new() } else { format!("{home}/") }
}

/// Replaces the path of the home folder, which contains the user's name, in all texts of a JSON value.
fn without_home(value: Value, home: &str) -> Value {
    match value {
        Value::String(text) if !home.is_empty() => Value::String(text.replace(home, "~/")),
        Value::Array(all) => all.into_iter().map(|one| without_home(one, home)).collect(),
        Value::Object(all) => all.into_iter().map(|(key, one)| (key, without_home(one, home))).collect(),
        other => other,
    }
}

fn ended_early(failure: Option<String>, is_interrupted: bool, file: Option<&Path>) -> CommandError {
    let so_far = file.map(|file| format!("{} has what was found until then", shell_quoted(file.display())));
    let ended = if is_interrupted {
        CommandError::new(ExitReason::Interrupted, "interrupted")
    } else {
        let ended =
            CommandError::new(ExitReason::WorkerFailed, "the device could not be examined to the end");
        failure.into_iter().fold(ended, CommandError::cause)
    };
    so_far.into_iter().fold(ended, CommandError::hint)
}

/// Returns success if the device's results match the host's and every measurement succeeded.
fn findings_result(findings: &DeviceFindings, file: &Path) -> CommandResult {
    let device = format!("{}:{}", findings.device.word(), findings.index);
    let wrong = findings.parity.iter().filter(|parity| !parity.is_within()).map(page::difference);
    let wrong: Vec<String> = wrong.collect();
    let hint = format!("please report it with {}", shell_quoted(file.display()));
    if !wrong.is_empty() {
        let failure = CommandError::new(
            ExitReason::Preflight,
            format!("{device} does not compute what the host computes"),
        );
        return Err(wrong.into_iter().fold(failure, CommandError::cause).hint(hint));
    }
    if !findings.faults.is_empty() {
        let failed = counted(findings.faults.len() as u64, "part");
        let failure = CommandError::new(
            ExitReason::Preflight,
            format!("{failed} of the examination of {device} failed"),
        );
        let causes = findings.faults.iter().map(|fault| format!("{}: {}", fault.part, fault.reason));
        return Err(causes.fold(failure, CommandError::cause).hint(hint));
    }
    let wrong: Vec<String> =
        findings.nccl.iter().filter(|call| !call.agrees).map(series::difference).collect();
    if !wrong.is_empty() {
        let failure =
            CommandError::new(ExitReason::Preflight, format!("NCCL with one rank is wrong on {device}"));
        return Err(wrong.into_iter().fold(failure, CommandError::cause).hint(hint));
    }
    if !findings.is_compared() {
        return Err(
            CommandError::new(ExitReason::Preflight, format!("nothing was compared on {device}")).hint(hint)
        );
    }
    Ok(ExitReason::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::ColorMode;
    use dtrain_protocol::device_check::{DeviceTest, MeasurementError, NcclCall, Parity};
    use dtrain_recipes::Precision;

    #[test]
    fn a_device_that_computes_something_else_or_not_everything_is_no_success() {
        let file = Path::new("found.json");
        let found = page::tests::findings();
        assert_eq!(findings_result(&found, file).map_err(|failure| failure.exit()), Ok(ExitReason::Done));
        let told = |found: &DeviceFindings| {
            let failure = findings_result(found, file).expect_err("it is refused");
            (failure.exit(), failure.render(ColorMode::plain()))
        };
        let mut wrong = found.clone();
        wrong.parity[0] = Parity { gradient_difference: 0.5, ..wrong.parity[0].clone() };
        let (exit, words) = told(&wrong);
        assert_eq!(exit, ExitReason::Preflight);
        assert!(words.contains("wgpu:0 does not compute what the host computes"), "{words}");
        assert!(words.contains("gpt in f32") && words.contains("found.json"), "{words}");
        let mut failed = found.clone();
        failed
            .faults
            .push(MeasurementError { part: "attention in f16".into(), reason: "no such kernel".into() });
        let (exit, words) = told(&failed);
        assert!(
            exit == ExitReason::Preflight && words.contains("attention in f16: no such kernel"),
            "{words}"
        );
        let refused = NcclCall {
            call: "all-gather".into(),
            values: 3,
            seconds: 0.1,
            agrees: false,
            detail: Some("value 1 is 0, not 1".into()),
        };
        let (exit, words) = told(&DeviceFindings { nccl: vec![refused], ..found.clone() });
        assert!(
            exit == ExitReason::Preflight && words.contains("all-gather: value 1 is 0, not 1"),
            "{words}"
        );
        let nothing = DeviceFindings { parity: Vec::new(), ..found };
        assert_eq!(told(&nothing).0, ExitReason::Preflight, "who compared nothing knows nothing");
        assert!(!nothing.agrees());
        let elsewhere = DeviceFindings { parts: vec![DeviceTest::Products], ..nothing };
        assert_eq!(findings_result(&elsewhere, file).map_err(|failure| failure.exit()), Ok(ExitReason::Done));
        assert!(elsewhere.agrees(), "no comparison was requested");
        assert_eq!(Precision::Bf16.name(), "bf16");
    }

    #[test]
    fn paths_in_the_file_do_not_name_the_user() {
        let checks = serde_json::json!([{ "found": "/home/alice/env/lib, of /home/alicette", "taken": { "path": "/home/alice/x" } }]);
        let told = without_home(checks.clone(), "/home/alice/").to_string();
        assert!(
            told.contains("~/env/lib") && told.contains("\"~/x\"") && told.contains("/home/alicette"),
            "{told}"
        );
        assert_eq!(without_home(checks.clone(), ""), checks);
    }

    #[test]
    fn a_device_that_is_not_there_is_told_with_what_to_do() {
        let told = |error: &DeviceError| refusal(error).render(ColorMode::plain());
        let built = told(&DeviceError::NotBuilt { device: "cuda" });
        assert!(built.contains("cargo build --release --features cuda"), "{built}");
        let none = told(&DeviceError::Absent { device: "cuda", wanted: 0, found: 0 });
        assert!(none.contains("cuda shows none") && none.contains("--device cpu"), "{none}");
        let few = told(&DeviceError::Absent { device: "wgpu", wanted: 4, found: 2 });
        assert!(few.contains("shows 2 devices") && few.contains("at most 1"), "{few}");
    }
}
