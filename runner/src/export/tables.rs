//! Export as a table with one row per point: `trial, key, rank, attempt, step, at_ms, value`, sorted by
//! trial, key, rank, attempt and step.

use super::atomic_output::{self, write_error};
use super::csv::Csv;
use super::json_lines::JsonLines;
use super::parquet::ParquetWriter;
use super::row_writer::RowWriter;
use super::runs::ProgressCounter;
use super::{ExportError, OutputFormat, TrialSelection, WriteProgress, WrittenRun, as_u64};
use std::io::Write;
use std::path::Path;

/// Exports the selected points as a table to the file `to`.
pub(super) fn file(
    request: &TrialSelection<'_>,
    format: OutputFormat,
    to: &Path,
    watch: &mut dyn FnMut(WriteProgress),
) -> Result<Vec<WrittenRun>, ExportError> {
    atomic_output::file(to, request.force, |file| match format {
        OutputFormat::Parquet => {
            fill(request, &mut ParquetWriter::new(file, atomic_output::scratch(to)?), to, watch)
        }
        OutputFormat::JsonLines => fill(request, &mut JsonLines::new(file), to, watch),
        _ => fill(request, &mut Csv::new(file), to, watch),
    })
}

/// Writes the selected points as text to a stream.
pub(super) fn lines(
    request: &TrialSelection<'_>,
    format: OutputFormat,
    to: &mut dyn Write,
    watch: &mut dyn FnMut(WriteProgress),
) -> Result<Vec<WrittenRun>, ExportError> {
    let name = Path::new("stdout");
    match format {
        OutputFormat::Csv => fill(request, &mut Csv::new(to), name, watch),
        _ => fill(request, &mut JsonLines::new(to), name, watch),
    }
}

fn fill(
    request: &TrialSelection<'_>,
    table: &mut dyn RowWriter,
    to: &Path,
    watch: &mut dyn FnMut(WriteProgress),
) -> Result<Vec<WrittenRun>, ExportError> {
    let mut counter = ProgressCounter::of(request, watch)?;
    let mut written = Vec::new();
    for row in &request.trials {
        let trial = request.history.outline(row)?;
        table.begin(&trial).map_err(write_error(to))?;
        let names = request.names(row)?;
        let mut run = WrittenRun {
            trial: row.id.clone(),
            name: row.label.clone(),
            place: to.display().to_string(),
            series: as_u64(names.len()),
            points: 0,
        };
        for (key, rank) in names {
            let points = request.points(row, &key, rank)?;
            table.rows(&key, rank, &points).map_err(write_error(to))?;
            run.points += as_u64(points.len());
            counter.add(1, points.len());
        }
        written.push(run);
    }
    table.finish().map_err(write_error(to))?;
    Ok(written)
}
