//! List pages: the trials of a study, and everything that runs.

use super::canvas::{Canvas, TerminalStyle};
use super::chart::figure;
use crate::render::history::status;
use crate::render::number::{count, counted};
use crate::render::sparkline::sparkline;
use crate::render::table::{StyledText, TableColumn, TextRole, age, layout_table};
use crate::render::truncate::truncate;
use crate::watch::app::Cursor;
use crate::watch::model::list::{ListEntry, TrialList};
use crate::watch::model::study::{StudyModel, TrialLine};
use dtrain_runner::ledger::TrialStatus;
use ratatui::layout::Rect;
use std::borrow::Cow;

fn column(
    title: impl Into<Cow<'static, str>>,
    is_right: bool,
    rank: u8,
    least: Option<usize>,
) -> TableColumn {
    TableColumn { title: title.into(), is_right, rank, least }
}

/// Draws the page about a study.
pub(super) fn study(canvas: &mut Canvas<'_>, area: Rect, study: &StudyModel, cursor: Cursor) {
    let running = study.running();
    let slots = study.slots.map_or(String::new(), |slots| format!(" of {}", counted(slots, "slot")));
    let head = [
        StyledText::new(format!("{}  ", study.name), TextRole::Bold),
        counted(study.rows.len() as u64, "trial").into(),
        StyledText::new(
            format!("  {running} running{slots}"),
            if running > 0 { TextRole::Notice } else { TextRole::Dim },
        ),
        StyledText::new(
            study.steps.map_or(String::new(), |steps| format!("  {steps} steps each")),
            TextRole::Dim,
        ),
    ];
    canvas.line(area, 0, &head);
    let best = study.best();
    let found = best.map_or_else(
        || vec![StyledText::new(format!("best {}: none yet", study.metric), TextRole::Dim)],
        |(row, value)| {
            let values = study.searched.iter().zip(&row.values);
            let values: Vec<String> =
                values.map(|(name, value)| format!("{} {value}", last_word(name))).collect();
            vec![
                format!("best {} ", study.metric).into(),
                StyledText::new(figure(&study.metric, value), TextRole::Good),
                format!("  {}  {}", name(row), values.join("  ")).into(),
            ]
        },
    );
    canvas.line(area, 1, &found);
    if let Some(row) = study.rows.iter().rev().find(|row| is_open(row)) {
        let why = if row.source.is_empty() { String::new() } else { format!(": {}", row.source) };
        let text = format!("newest proposal: {}{why}", name(row));
        canvas.write(area, (0, 2), &text, canvas.ink.tone(TextRole::Dim));
    }
    let best = best.and_then(|(row, _)| row.number);
    let lines: Vec<Vec<StyledText>> =
        study.rows.iter().map(|row| line(study, row, best, canvas.ink)).collect();
    let mut columns = vec![
        column("", false, 9, None),
        column("#", true, 9, None),
        column("TRIAL", false, 8, Some(10)),
        column("STATUS", false, 9, None),
        column("STEP", true, 3, None),
        column("NEWEST", true, 5, None),
        column("BEST", true, 8, None),
        column("CURVE", false, 4, None),
        column("WHY", false, 1, None),
    ];
    let searched = study.searched.iter().map(|name| column(short(name), true, 7, None));
    columns.splice(4..4, searched);
    let body = Rect { y: area.y + 3, height: area.height.saturating_sub(3), ..area };
    table(canvas, body, &columns, &lines, cursor);
}

fn line(study: &StudyModel, row: &TrialLine, best: Option<u64>, ink: TerminalStyle) -> Vec<StyledText> {
    let is_best = row.number.is_some() && row.number == best;
    let word = match (&row.refused, row.status()) {
        (Some(_), _) => StyledText::new("refused", TextRole::Bad),
        (None, Some(_)) if row.is_paused => StyledText::new("paused", TextRole::Dim),
        (None, Some(word)) => status(word),
        (None, None) => StyledText::new("deleted", TextRole::Dim),
    };
    let value = |value: Option<f64>| value.map_or(String::new(), |value| figure(&study.metric, value));
    let step = row.trial.as_ref().map(|trial| trial.step).filter(|step| *step > 0);
    let mut line = vec![
        StyledText::new(if is_best { "*" } else { "" }, TextRole::Good),
        row.number.map_or(String::new(), |number| number.to_string()).into(),
        row.trial.as_ref().map_or(String::new(), |trial| trial.label.clone()).into(),
        word,
    ];
    line.extend(
        (0..study.searched.len())
            .map(|index| StyledText::from(row.values.get(index).cloned().unwrap_or_default())),
    );
    line.extend([
        step.map_or(String::new(), |step| step.to_string()).into(),
        value(row.newest).into(),
        StyledText::new(value(row.best), if is_best { TextRole::Good } else { TextRole::Plain }),
        sparkline(&row.curve, ink.page(0)).into(),
        StyledText::new(
            truncate(row.refused.as_ref().unwrap_or(&row.source), WHY, ink.page(0)),
            TextRole::Dim,
        ),
    ]);
    line
}

/// Maximum number of characters of the reason why a trial was not trained.
const WHY: usize = 40;

/// Number of lines up to which all lines determine the widths of the columns.
const ALL: usize = 500;

/// Lays out a table and draws the lines around the selected one.
fn table(
    canvas: &mut Canvas<'_>,
    area: Rect,
    columns: &[TableColumn],
    lines: &[Vec<StyledText>],
    cursor: Cursor,
) {
    let height = usize::from(area.height.saturating_sub(1));
    let cursor = cursor.at.min(lines.len().saturating_sub(1));
    let first = (cursor + 1).saturating_sub(height);
    let shown = &lines[first..lines.len().min(first + height)];
    let (measured, skipped) = if lines.len() > ALL { (shown, 0) } else { (lines, first) };
    let laid_out = layout_table(columns, measured, canvas.ink.page(area.width));
    canvas.line(area, 0, &laid_out[0]);
    for (y, cells) in (1u16..).zip(laid_out.iter().skip(1 + skipped).take(height)) {
        canvas.line(area, y, cells);
        if usize::from(y) + first == cursor + 1 {
            canvas.buffer.set_style(Rect { y: area.y + y, height: 1, ..area }, canvas.ink.selected());
        }
    }
}

/// Draws the page that lists all running trials and studies.
pub(super) fn list(canvas: &mut Canvas<'_>, area: Rect, list: &TrialList, cursor: Cursor) {
    let running =
        list.trials.iter().filter(|row| row.status().is_some_and(TrialStatus::is_live)).count() as u64;
    let title = if list.is_running {
        format!("{} running", counted(running, "trial"))
    } else {
        "nothing is running; the newest".to_owned()
    };
    canvas.write(area, (0, 0), &title, canvas.ink.tone(TextRole::Bold));
    let columns = [
        column("NAME", false, 9, Some(8)),
        column("STATUS", false, 9, None),
        column("AGE", true, 5, None),
        column("LAYOUT", false, 4, Some(5)),
        column("STEP", true, 6, None),
        column("LOSS", true, 7, None),
        column("BEST", true, 8, None),
        column("PER S", true, 6, None),
        column("CURVE", false, 3, Some(5)),
    ];
    let lines: Vec<Vec<StyledText>> = list
        .entries()
        .map(|entry| match entry {
            ListEntry::Study(study) => {
                let (word, tone) =
                    if study.running > 0 { ("running", TextRole::Notice) } else { ("study", TextRole::Dim) };
                let tried = format!("{} of {}", study.ended, counted(study.tried as u64, "trial"));
                let mut line: Vec<StyledText> = vec![
                    StyledText::new(&study.name, TextRole::Bold),
                    StyledText::new(word, tone),
                    "".into(),
                    tried.into(),
                ];
                line.resize_with(columns.len(), StyledText::default);
                line
            }
            ListEntry::Trial(row) => trial(row, canvas.ink),
        })
        .collect();
    let body = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    table(canvas, body, &columns, &lines, cursor);
    if lines.is_empty() {
        canvas.write(body, (0, 1), "no trial yet", canvas.ink.tone(TextRole::Dim));
    }
}

fn trial(row: &TrialLine, ink: TerminalStyle) -> Vec<StyledText> {
    let Some(trial) = &row.trial else { return vec![StyledText::default(); 9] };
    let value = |key: &str, value: Option<f64>| value.map_or(String::new(), |value| figure(key, value));
    vec![
        StyledText::new(&trial.label, TextRole::Bold),
        status(trial.status),
        StyledText::new(age(trial.created_ms, ink.now_ms), TextRole::Dim),
        trial.layout.clone().into(),
        (if trial.step > 0 { trial.step.to_string() } else { String::new() }).into(),
        value("loss", trial.loss).into(),
        value(&trial.objective, trial.best).into(),
        trial
            .tokens_per_second
            .filter(|rate| *rate > 0.0)
            .map_or(String::new(), |rate| count(rate).replace(' ', ""))
            .into(),
        sparkline(&row.curve, ink.page(0)).into(),
    ]
}

/// Returns `true` if a trial of a study was proposed and has not ended.
fn is_open(row: &TrialLine) -> bool {
    row.refused.is_none()
        && row.status().is_some_and(|status| {
            status.is_live() || matches!(status, TrialStatus::Created | TrialStatus::Lost)
        })
}

fn name(row: &TrialLine) -> String {
    row.number.map_or(String::new(), |number| format!("trial {number}"))
}

fn last_word(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Returns the title of the column for a searched setting.
fn short(name: &str) -> String {
    match last_word(name) {
        "learning_rate" => "RATE".to_owned(),
        word => word.to_uppercase(),
    }
}
