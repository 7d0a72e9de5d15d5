//! One row for each point: `trial, key, rank, attempt, step, at_ms, value`, by trial, key, rank, attempt and step.

use super::parquet::Parquet;
use super::place::{self, at};
use super::runs::Counter;
use super::text::{Csv, JsonLines};
use super::{Advance, ExportError, Format, Request, WrittenRun, counted};
use crate::ledger::{Sample, TrialOutline};
use dtrain_protocol::{AttemptId, Rank};
use std::io::{self, Write};
use std::path::Path;

/// Somebody who writes rows.
pub(super) trait Table {
    /// The rows of a trial follow.
    fn begin(&mut self, trial: &TrialOutline) -> io::Result<()>;
    /// Rows of one series of the trial.
    fn rows(&mut self, key: &str, rank: Rank, points: &[(AttemptId, Sample)]) -> io::Result<()>;
    /// There are no more.
    fn finish(&mut self) -> io::Result<()>;
}

/// Writes the file `to`.
pub(super) fn file(
    request: &Request<'_>,
    format: Format,
    to: &Path,
    watch: &mut dyn FnMut(Advance),
) -> Result<Vec<WrittenRun>, ExportError> {
    place::file(to, request.force, |file| match format {
        Format::Parquet => fill(request, &mut Parquet::new(file, place::scratch(to)?), to, watch),
        Format::JsonLines => fill(request, &mut JsonLines::new(file), to, watch),
        _ => fill(request, &mut Csv::new(file), to, watch),
    })
}

/// Writes lines.
pub(super) fn lines(
    request: &Request<'_>,
    format: Format,
    to: &mut dyn Write,
    watch: &mut dyn FnMut(Advance),
) -> Result<Vec<WrittenRun>, ExportError> {
    let name = Path::new("stdout");
    match format {
        Format::Csv => fill(request, &mut Csv::new(to), name, watch),
        _ => fill(request, &mut JsonLines::new(to), name, watch),
    }
}

fn fill(
    request: &Request<'_>,
    table: &mut dyn Table,
    to: &Path,
    watch: &mut dyn FnMut(Advance),
) -> Result<Vec<WrittenRun>, ExportError> {
    let mut counter = Counter::of(request, watch)?;
    let mut written = Vec::new();
    for row in &request.trials {
        let trial = request.history.outline(row)?;
        table.begin(&trial).map_err(at(to))?;
        let names = request.names(row)?;
        let mut run = WrittenRun {
            trial: row.id.clone(),
            name: row.label.clone(),
            place: to.display().to_string(),
            series: counted(names.len()),
            points: 0,
        };
        for (key, rank) in names {
            let points = request.points(row, &key, rank)?;
            table.rows(&key, rank, &points).map_err(at(to))?;
            run.points += counted(points.len());
            counter.add(1, points.len());
        }
        written.push(run);
    }
    table.finish().map_err(at(to))?;
    Ok(written)
}
