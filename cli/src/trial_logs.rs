//! Logs of a trial's processes, on this machine or on the trial's hosts.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::hosts;
use dtrain_protocol::{AttemptId, Rank, TrialId};
use dtrain_runner::files;
use dtrain_runner::launch::relay::RemoteHost;
use dtrain_runner::launch::slurm;
use dtrain_runner::ledger::TrialDetails;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Number of bytes at the end of a log in which template matches are searched.
const PRINTED: u64 = 1 << 20;

/// Place where a log is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LogLocation {
    Here(PathBuf),
    /// On the trial's host with this index.
    There(usize),
}

/// Reader of a log, with the position up to which it was read.
pub(crate) struct LogReader {
    /// Attempt and rank whose log it is; `None` for an agent's log.
    pub(crate) of: Option<(AttemptId, Rank)>,
    place: LogLocation,
    /// Label of the log for display.
    pub(crate) name: String,
    offset: u64,
    /// Bytes of the last line, which is not complete yet.
    tail: Vec<u8>,
}

/// Output of one rank in the newest attempt of a trial.
pub(crate) struct PrintedOutput {
    /// Path of the log; `None` if it is not on this machine.
    pub(crate) path: Option<PathBuf>,
    /// Last bytes of the rank's log.
    pub(crate) bytes: Vec<u8>,
}

/// Returns the output of the first rank that printed anything; `None` if there is none, or logs are
/// unreadable.
pub(crate) fn printed(context: &Context, trial: &TrialDetails) -> Option<PrintedOutput> {
    let newest = trial.attempts.last()?.number;
    let mut hosts = hosts::connect_hosts_of_trial(context, trial).ok()?;
    let id = &trial.row.id;
    let mut readers = find_logs(context, id, &mut hosts).ok()?;
    readers.retain(|reader| reader.of.is_some_and(|(attempt, _)| attempt == newest));
    readers.sort_by_key(|reader| reader.of);
    readers.into_iter().find_map(|mut reader| {
        let path = match &reader.place {
            LogLocation::Here(path) => Some(path.clone()),
            LogLocation::There(_) => None,
        };
        let length = path.as_ref().and_then(|path| Some(path.metadata().ok()?.len()));
        reader.offset = length.unwrap_or(0).saturating_sub(PRINTED);
        let bytes = reader.bytes(id, &mut hosts).ok()?;
        (!bytes.is_empty()).then_some(PrintedOutput { path, bytes })
    })
}

/// Returns the paths of the logs of all ranks and attempts; `None` if some are on other machines or cannot be
/// found.
pub(crate) fn files_here(context: &Context, trial: &TrialDetails) -> Option<Vec<PathBuf>> {
    let mut hosts = hosts::connect_hosts_of_trial(context, trial).ok()?;
    let readers = find_logs(context, &trial.row.id, &mut hosts).ok()?;
    let of_ranks = readers.into_iter().filter(|reader| reader.of.is_some());
    let paths = of_ranks.map(|reader| match reader.place {
        LogLocation::Here(path) => Some(path),
        LogLocation::There(_) => None,
    });
    paths.collect()
}

/// Lists the existing logs of a trial, on this machine or on the trial's hosts.
pub(crate) fn find_logs(
    context: &Context,
    trial: &TrialId,
    hosts: &mut [RemoteHost],
) -> Result<Vec<LogReader>, CommandError> {
    let reader = |of, place, name| LogReader { of, place, name, offset: 0, tail: Vec::new() };
    if hosts.is_empty() {
        // The nodes of a Slurm job write into this state folder.
        let nodes = slurm::nodes(&context.home).into_iter().map(|(_, home)| home);
        let homes = nodes.filter(|home| home.trial(trial).logs().exists());
        let logs = std::iter::once(context.home.clone())
            .chain(homes)
            .map(|home| dtrain_runner::logs::logs(&home, trial))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| unreadable("the logs", &error.to_string()))?;
        return Ok(logs
            .into_iter()
            .flatten()
            .map(|log| reader(log.of, LogLocation::Here(log.path.clone()), log.path.display().to_string()))
            .collect());
    }
    let own = context.home.trial(trial).controller_log();
    let mut readers: Vec<LogReader> = Vec::new();
    if own.exists() {
        readers.push(reader(None, LogLocation::Here(own.clone()), own.display().to_string()));
    }
    for (index, host) in hosts.iter_mut().enumerate() {
        // A host that does not answer is asked again later.
        for of in host.logs(trial).unwrap_or_default() {
            let name = format!("{}, {}", host.name, log_title(of));
            readers.push(reader(of, LogLocation::There(index), name));
        }
    }
    Ok(readers)
}

pub(crate) fn unreadable(what: &str, reason: &str) -> CommandError {
    CommandError::new(ExitReason::Infrastructure, format!("cannot read {what}")).cause(reason.to_owned())
}

fn log_title(of: Option<(AttemptId, Rank)>) -> String {
    of.map_or_else(|| "agents".to_owned(), |(attempt, rank)| format!("attempt {attempt}, rank {rank}"))
}

/// Returns the title of a log on this machine.
fn title_here(of: Option<(AttemptId, Rank)>, path: &Path) -> String {
    let is_of_controller = path.file_name().is_some_and(|name| name == "controller.log");
    if is_of_controller { "controller".to_owned() } else { log_title(of) }
}

impl LogReader {
    pub(crate) fn title(&self) -> String {
        match &self.place {
            LogLocation::Here(path) => format!("{} ({})", title_here(self.of, path), self.name),
            LogLocation::There(_) => self.name.clone(),
        }
    }

    /// Reads the bytes that were written since the last call.
    fn bytes(&mut self, trial: &TrialId, hosts: &mut [RemoteHost]) -> Result<Vec<u8>, CommandError> {
        let read = match &self.place {
            LogLocation::There(host) => {
                return Ok(hosts[*host].log(trial, self.of, self.offset).unwrap_or_default());
            }
            LogLocation::Here(path) => files::open(path).and_then(|mut file| {
                file.seek(SeekFrom::Start(self.offset))?;
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                Ok(bytes)
            }),
        };
        match read {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read.map_err(|error| unreadable(&self.name, &error.to_string())),
        }
    }

    /// Reads the lines that were written since the last call; with `all`, also an incomplete last line.
    pub(crate) fn read_new_lines(
        &mut self,
        trial: &TrialId,
        hosts: &mut [RemoteHost],
        all: bool,
    ) -> Result<Vec<String>, CommandError> {
        let mut bytes = self.bytes(trial, hosts)?;
        self.offset += bytes.len() as u64;
        while all && !bytes.is_empty() {
            self.tail.append(&mut bytes);
            bytes = self.bytes(trial, hosts)?;
            self.offset += bytes.len() as u64;
        }
        self.tail.extend(bytes);
        let end = if all { self.tail.len() } else { complete_lines_length(&self.tail) };
        let whole: Vec<u8> = self.tail.drain(..end).collect();
        Ok(lines(&String::from_utf8_lossy(&whole)))
    }
}

/// Returns the length of all complete lines in bytes. A final carriage return is left for later: a newline
/// may follow.
fn complete_lines_length(bytes: &[u8]) -> usize {
    let is_end = |at: usize| bytes[at] == b'\n' || (bytes[at] == b'\r' && at + 1 < bytes.len());
    (0..bytes.len()).rev().find(|at| is_end(*at)).map_or(0, |at| at + 1)
}

/// Splits text into lines. A carriage return also ends a line, since progress bars use it to overwrite
/// theirs.
fn lines(text: &str) -> Vec<String> {
    let text = text.replace("\r\n", "\n");
    let lines = text.split_inclusive(['\n', '\r']).filter(|line| *line != "\r");
    lines.map(|line| line.trim_end_matches(['\n', '\r']).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_bar_end_with_a_carriage_return() {
        assert_eq!(lines("\rstep 1\rstep 2\r\n\nend"), ["step 1", "step 2", "", "end"]);
        assert_eq!(
            [
                complete_lines_length(b"a\rb"),
                complete_lines_length(b"a\r"),
                complete_lines_length(b"a\r\n"),
                complete_lines_length(b"ab")
            ],
            [2, 0, 3, 0]
        );
    }
}
