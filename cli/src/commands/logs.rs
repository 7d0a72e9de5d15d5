//! `dtrain logs`.

use crate::args::LogsArgs;
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::trials;
use dtrain_protocol::Rank;
use dtrain_runner::agent::Log;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

/// One line of a log as JSON.
#[derive(Serialize)]
struct Line<'a> {
    attempt: Option<u64>,
    rank: Option<u32>,
    line: &'a str,
}

/// A log and how far it was printed.
struct Reader {
    log: Log,
    offset: u64,
    /// Bytes of a line that has not ended.
    tail: Vec<u8>,
}

/// Prints the logs of a trial.
pub(crate) fn run(context: &Context, args: &LogsArgs) -> Outcome {
    let history = trials::read_history(context)?;
    let trial = trials::find(&history, &args.trial.trial)?;
    let mut readers: Vec<Reader> = Vec::new();
    let mut shown: Option<PathBuf> = None;
    let mut has_any = false;
    loop {
        // Asked before reading, so that what was written last is still printed.
        let goes_on = args.follow && trials::is_alive(context, &trial);
        for log in dtrain_runner::driver::logs(&context.home, &trial).map_err(|error| {
            Failure::new(Exit::Infrastructure, "cannot read the logs").cause(error.to_string())
        })? {
            let is_wanted = args.rank.is_none_or(|rank| log.of.is_some_and(|(_, of)| of == Rank(rank)));
            if is_wanted && readers.iter().all(|reader| reader.log.path != log.path) {
                readers.push(Reader { log, offset: 0, tail: Vec::new() });
            }
        }
        for reader in &mut readers {
            for line in reader.news(!goes_on)? {
                has_any = true;
                print(context, reader, &line, &mut shown)?;
            }
        }
        if !goes_on {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    if let (Some(rank), true) = (args.rank, readers.is_empty()) {
        return Err(Failure::new(Exit::Usage, format!("the trial has no log of rank {rank}")));
    }
    if !has_any {
        context.out.say("the logs are empty: no process complained");
    }
    Ok(Exit::Done)
}

impl Reader {
    /// The lines written since the last call; with `all`, also one that has not ended.
    fn news(&mut self, all: bool) -> Result<Vec<String>, Failure> {
        let mut read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.log.path)?;
            file.seek(SeekFrom::Start(self.offset))?;
            let mut bytes = Vec::new();
            self.offset += file.read_to_end(&mut bytes)? as u64;
            Ok(bytes)
        };
        let bytes = match read() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                let path = self.log.path.display();
                return Err(Failure::new(Exit::Infrastructure, format!("cannot read {path}"))
                    .cause(error.to_string()));
            }
        };
        self.tail.extend(bytes);
        let end = if all {
            self.tail.len()
        } else {
            self.tail.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1)
        };
        let whole: Vec<u8> = self.tail.drain(..end).collect();
        Ok(String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect())
    }
}

fn print(context: &Context, reader: &Reader, line: &str, shown: &mut Option<PathBuf>) -> Result<(), Failure> {
    let of = reader.log.of;
    if context.out.json {
        let line = Line { attempt: of.map(|(attempt, _)| attempt.0), rank: of.map(|(_, rank)| rank.0), line };
        return context.out.json_line("log", &line);
    }
    if shown.as_ref() != Some(&reader.log.path) {
        *shown = Some(reader.log.path.clone());
        let title =
            of.map_or("agents".to_owned(), |(attempt, rank)| format!("attempt {attempt}, rank {rank}"));
        context
            .out
            .data(&context.out.paint_data.bold(&format!("{title} ({})", reader.log.path.display())))?;
    }
    context.out.data(&super::model::visible(line))
}
