//! List of trials as a table, CSV or JSON.

use super::number::{accuracy, count, loss, plain};
use super::sparkline::sparkline;
use super::table::{StyledText, TableColumn, TextRole, age, csv, table};
use crate::output::PageStyle;
use dtrain_recipes::Goal;
use dtrain_runner::ledger::{TrialRow, TrialStatus};
use serde::Serialize;
use std::borrow::Cow;

/// Version of the JSON format of the list.
const VERSION: u32 = 1;

/// Number of characters in an abbreviated commit.
const COMMIT: usize = 7;

const COLUMNS: [TableColumn; 10] = [
    column("TRIAL", false, 9, Some(8)),
    column("STATUS", false, 9, None),
    column("AGE", true, 5, None),
    column("LAYOUT", false, 6, Some(5)),
    column("BATCH", true, 4, None),
    column("RATE", true, 6, None),
    column("PER S", true, 7, None),
    column("BEST", true, 8, None),
    column("LOSS", false, 3, Some(5)),
    column("GIT", false, 2, None),
];

const fn column(title: &'static str, is_right: bool, rank: u8, least: Option<usize>) -> TableColumn {
    TableColumn { title: Cow::Borrowed(title), is_right, rank, least }
}

/// Formats the list of trials as a table; `curves[i]` is the loss curve of `rows[i]`, possibly empty.
pub(crate) fn history(rows: &[TrialRow], curves: &[Vec<Option<f64>>], style: PageStyle) -> String {
    let is_wide = style.width >= 110;
    let lines: Vec<_> = rows
        .iter()
        .enumerate()
        .map(|(i, row)| line(row, curves.get(i).map_or(&[], Vec::as_slice), is_wide, style))
        .collect();
    table(&COLUMNS, &lines, style)
}

fn line(row: &TrialRow, curve: &[Option<f64>], is_wide: bool, style: PageStyle) -> Vec<StyledText> {
    let layout = layout_text(&row.layout, if is_wide { str::to_owned } else { short });
    vec![
        StyledText::new(&row.label, TextRole::Bold),
        status(row.status),
        StyledText::new(age(row.created_ms, style.now_ms), TextRole::Dim),
        layout.into(),
        // Unknown for a foreign command.
        if row.batch == 0 { String::new() } else { row.batch.to_string() }.into(),
        if row.batch == 0 { String::new() } else { rate(row.learning_rate) }.into(),
        row.tokens_per_second
            .filter(|speed| *speed > 0.0)
            .map(|speed| count(speed).replace(' ', ""))
            .unwrap_or_default()
            .into(),
        row.best.map(|best| figure(&row.objective, best)).unwrap_or_default().into(),
        sparkline(curve, style).into(),
        StyledText::new(commit(row), TextRole::Dim),
    ]
}

/// Returns the word for a trial's status, with the color of its meaning.
pub(crate) fn status(status: TrialStatus) -> StyledText {
    let (word, tone) = match status {
        TrialStatus::Created => ("created", TextRole::Dim),
        TrialStatus::Running => ("running", TextRole::Notice),
        TrialStatus::Waiting => ("waiting", TextRole::Notice),
        TrialStatus::Unattended => ("unattended", TextRole::Bad),
        TrialStatus::Lost => ("lost", TextRole::Bad),
        TrialStatus::Completed => ("done", TextRole::Good),
        TrialStatus::Pruned => ("pruned", TextRole::Dim),
        TrialStatus::OutOfMemory => ("no memory", TextRole::Bad),
        TrialStatus::Diverged => ("diverged", TextRole::Bad),
        TrialStatus::Failed => ("failed", TextRole::Bad),
        TrialStatus::Stopped => ("stopped", TextRole::Notice),
    };
    StyledText::new(word, tone)
}

/// Formats a trial's layout, its axes abbreviated by `axes`; approximate training (`[sync]`) ends with `≈`.
fn layout_text(layout: &str, axes: fn(&str) -> String) -> String {
    match layout.split_once(" (approximate") {
        Some((layout, _)) => format!("{} ≈", axes(layout)),
        None => axes(layout),
    }
}

/// Abbreviates a layout: `data 2 × tensor 4` as `d2 t4`, and `one rank` as `1`.
fn short(layout: &str) -> String {
    if layout == "one rank" {
        return "1".to_owned();
    }
    let axes = layout.split(" × ").map(|axis| match axis.split_once(' ') {
        Some((name, degree)) => format!("{}{degree}", name.chars().next().unwrap_or('?')),
        None => axis.to_owned(),
    });
    axes.collect::<Vec<_>>().join(" ")
}

/// Formats a learning rate in exponential form: `1.0e-3`.
pub(crate) fn rate(value: f64) -> String {
    format!("{value:.1e}")
}

/// Formats a value of the metric `objective`: accuracy in percent, loss in nats.
pub(crate) fn figure(objective: &str, value: f64) -> String {
    match objective {
        "valid.accuracy" => accuracy(value, 2),
        "valid.loss" | "loss" => loss(value),
        _ => plain(value),
    }
}

/// Formats the abbreviated commit of a trial, with `+` for uncommitted changes.
fn commit(row: &TrialRow) -> String {
    let digits: String = row.git_revision.iter().flat_map(|commit| commit.chars()).take(COMMIT).collect();
    if row.is_dirty { format!("{digits}+") } else { digits }
}

/// Formats the list of trials as CSV with a header line; unknown values are empty fields.
pub(crate) fn history_csv(rows: &[TrialRow]) -> String {
    let header = "id,label,recipe,study,status,layout,batch,learning_rate,objective,goal,best,loss,step,\
        tokens_per_second,step_seconds,predicted_step_seconds,created_ms,started_ms,ended_ms,git_revision,is_dirty";
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let whole = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let lines = rows.iter().map(|row| {
        let fields = [
            row.id.to_string(),
            row.label.clone(),
            row.recipe.clone(),
            row.study.clone().unwrap_or_default(),
            row.status.to_string(),
            row.layout.clone(),
            row.batch.to_string(),
            row.learning_rate.to_string(),
            row.objective.clone(),
            if row.goal == Goal::Max { "max" } else { "min" }.to_owned(),
            number(row.best),
            number(row.loss),
            row.step.to_string(),
            number(row.tokens_per_second),
            number(row.step_seconds),
            number(row.predicted_step_seconds),
            row.created_ms.to_string(),
            whole(row.started_ms),
            whole(row.ended_ms),
            row.git_revision.clone().unwrap_or_default(),
            row.is_dirty.to_string(),
        ];
        fields.into_iter().map(Into::into).collect()
    });
    format!("{header}\n{}", csv(lines))
}

/// JSON document with the list of trials.
#[derive(Serialize)]
pub(crate) struct HistoryJson<'a> {
    version: u32,
    trials: &'a [TrialRow],
}

/// Builds the JSON document with the list of trials: `{"version": 1, "trials": […]}`.
pub(crate) fn history_json(rows: &[TrialRow]) -> HistoryJson<'_> {
    HistoryJson { version: VERSION, trials: rows }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::render::table::tests::plain;
    use crate::render::truncate::width;
    use dtrain_protocol::TrialId;

    /// Returns a trial that ended well, `age` seconds ago.
    pub(crate) fn row(label: &str, status: TrialStatus, age: u64) -> TrialRow {
        TrialRow {
            id: TrialId("01J9ZQ6W3M0000000000000000".into()),
            label: label.into(),
            recipe: "gpt".into(),
            study: None,
            status,
            layout: "data 2 × tensor 2".into(),
            batch: 256,
            learning_rate: 6e-4,
            objective: "valid.loss".into(),
            goal: Goal::Min,
            best: Some(3.118),
            loss: Some(3.2),
            step: 900,
            tokens_per_second: Some(39_140.0),
            step_seconds: Some(0.204),
            predicted_step_seconds: Some(0.2),
            created_ms: 1_700_000_000_000 - age * 1000,
            started_ms: Some(1_700_000_000_000 - age * 1000),
            ended_ms: None,
            git_revision: Some("a1b2c3d4e5f6".into()),
            is_dirty: true,
            imported_from: None,
        }
    }

    fn rows() -> Vec<TrialRow> {
        let nothing = TrialRow {
            layout: "one rank".into(),
            best: None,
            loss: None,
            step: 0,
            tokens_per_second: None,
            step_seconds: None,
            is_dirty: false,
            ..row("mnist-cnn-3", TrialStatus::OutOfMemory, 400_000)
        };
        let accurate = TrialRow {
            objective: "valid.accuracy".into(),
            goal: Goal::Max,
            best: Some(0.9876),
            git_revision: None,
            is_dirty: false,
            ..row("mnist-cnn-4", TrialStatus::Running, 65)
        };
        vec![row("gpt-small-with-a-long-name-12", TrialStatus::Completed, 7300), nothing, accurate]
    }

    fn curves() -> Vec<Vec<Option<f64>>> {
        let falling = (1..=8).map(|x| Some(8.0 / f64::from(x))).collect();
        vec![falling, Vec::new(), vec![Some(2.0), Some(1.0)]]
    }

    #[test]
    fn a_list_fits_the_width_it_is_given() {
        for wide in [40, 80, 120] {
            let page = history(&rows(), &curves(), plain(wide));
            assert!(page.lines().all(|line| width(line) <= wide), "at {wide}:\n{page}");
        }
        insta::assert_snapshot!("history_80", history(&rows(), &curves(), plain(80)));
        insta::assert_snapshot!("history_120", history(&rows(), &curves(), plain(120)));
    }

    #[test]
    fn the_list_as_csv_and_json_names_every_field() {
        let page = history_csv(&rows());
        let fields: Vec<_> = page.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(fields, [21, 21, 21, 21]);
        let json = serde_json::to_value(history_json(&rows())).expect("plain data");
        assert_eq!(json["version"], 1);
        let names = json["trials"][0].as_object().expect("a trial").len();
        assert_eq!(names, 21, "CSV and JSON say the same");
    }
}
