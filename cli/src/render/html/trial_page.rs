//! Report page about one trial.

use super::chart::{Chart, HALF, POINTS_MOST, Trace, legend, line_class, reduced};
use super::document::{Cell, document, folded, header, moment, section, table};
use super::trial_timeline::{SegmentStatus, TimelineMark, TimelineSegment, elapsed, trial_timeline};
use super::unit::Unit;
use super::{bytes, ranks};
use crate::render::history::{figure, rate, status};
use crate::render::number::{count, seconds};
use crate::render::{param, show};
use dtrain_runner::AttemptEnd;
use dtrain_runner::ledger::{
    Attempt, MedianWithSpread, MetricSample, Summary, TrialDetails, TypicalStep, ValueSource,
};

/// Script that shows the values of curves under the pointer.
pub(super) const HOVER: &str = include_str!("hover.js");

/// One series of rank 0, by attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MetricCurve {
    /// Key of the series, such as `valid.loss`.
    pub(crate) key: String,
    /// Numbers of the attempts, each with its points, including steps that overlap.
    pub(crate) attempts: Vec<(u64, Vec<MetricSample>)>,
}

/// A trial with the data of its charts.
#[derive(Clone, Debug)]
pub(crate) struct ChartedTrial {
    /// All details of the trial except the points of its series.
    pub(crate) trial: TrialDetails,
    /// Typical step of each rank in the trial.
    pub(crate) typical: Vec<TypicalStep>,
    /// Curves of the trial, in the order of the page.
    pub(crate) curves: Vec<MetricCurve>,
    /// Current time in milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
}

/// Quantity on the x axis of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HorizontalAxis {
    Steps,
    Tokens,
    Time,
}

impl ChartedTrial {
    /// Returns the number of tokens, or samples, per step; `None` if unknown.
    pub(super) fn step_tokens(&self) -> Option<f64> {
        let of = |key: &str| {
            let curve = self.curves.iter().find(|curve| curve.key == key)?;
            MedianWithSpread::steady(&curve.attempts.last()?.1).map(|measured| measured.typical)
        };
        let tokens = of("tokens_per_second")? * of("step_seconds")?;
        (tokens.is_finite() && tokens >= 1.0).then(|| tokens.round())
    }

    /// Returns the unit that the trial counts: `tokens` for a decoder, otherwise `samples`.
    pub(super) fn counted(&self) -> &'static str {
        if self.trial.recipe["model"]["decoder"].is_object()
            || self.trial.recipe["model"]["kind"] == "decoder"
        {
            "tokens"
        } else {
            "samples"
        }
    }

    /// Returns the x coordinate of a point of the given attempt.
    pub(super) fn place(&self, attempt: u64, sample: &MetricSample, across: HorizontalAxis) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "it is drawn")]
        let step = sample.step as f64;
        match across {
            HorizontalAxis::Steps => step,
            HorizontalAxis::Tokens => step * self.step_tokens().unwrap_or(1.0),
            HorizontalAxis::Time => self.at_work(attempt, sample.at_ms),
        }
    }

    /// Returns the seconds of training until `at_ms` in attempt `number`, without pauses between attempts.
    fn at_work(&self, number: u64, at_ms: u64) -> f64 {
        let all = &self.trial.attempts;
        let before = all.iter().filter(|attempt| attempt.number.0 < number);
        let spent: f64 =
            before.map(|one| elapsed(one.started_ms, one.ended_ms.unwrap_or(one.started_ms))).sum();
        let began = all.iter().find(|attempt| attempt.number.0 == number).map(|attempt| attempt.started_ms);
        spent + began.map_or(0.0, |began| elapsed(began, at_ms))
    }
}

/// Builds the HTML page about a trial.
pub(crate) fn trial_page(shown: &ChartedTrial) -> String {
    let trial = &shown.trial;
    let row = &trial.row;
    let mut page = String::new();
    let how = match &trial.verdict {
        Some(verdict) => format!("{}: {}", status(row.status).text, show::verdict_text(verdict)),
        None => status(row.status).text,
    };
    let mut told = vec![format!("recipe {}, {}", row.recipe, row.layout), how];
    told.extend(show::begins_with(trial).lines().map(|line| line.trim().to_owned()));
    header(&mut page, &row.label, &told, &figures(shown));
    section(&mut page, "What it was", "", &table(&[], &facts(trial)));
    let told = "what the plan expected and what was measured";
    section(&mut page, "Plan against measured", told, &against(trial));
    let told = "a line for each attempt; where they overlap, the later one went on from a checkpoint";
    let told = if trial.attempts.len() > 1 { told } else { "" };
    section(&mut page, "Curves", told, &curves(shown));
    let told = "attempts, checkpoints and validations; what is wrong has a cross";
    section(&mut page, "Timeline", told, &timeline(shown));
    let told = "seconds of a typical step of each rank, below the plan; the numbers are of the slowest rank";
    section(&mut page, "Phases of a step by rank", told, &ranks::phases(trial, &shown.typical));
    section(
        &mut page,
        "Memory by rank",
        "the peak of each rank, below the plan; the numbers are of the heaviest rank",
        &ranks::memory(trial),
    );
    section(
        &mut page,
        "Bytes sent in a step",
        "by the busiest rank",
        &lines(&crate::render::phases::traffic(trial)),
    );
    section(&mut page, "Metrics", "of rank 0, over all attempts", &metrics(trial));
    section(&mut page, "Machine", "while it trained", &machine(shown));
    section(&mut page, "Params and settings", "set by the user, a search or the planner", &settings(trial));
    section(&mut page, "Notes", "", &notes(trial));
    page += &format!("<footer><p>made by dtrain {}</p></footer>\n", env!("CARGO_PKG_VERSION"));
    document(&row.label, &page, Some(HOVER))
}

fn figures(shown: &ChartedTrial) -> Vec<(String, String)> {
    let row = &shown.trial.row;
    let mut figures = Vec::new();
    let mut add = |name: &str, value: Option<String>| figures.extend(value.map(|one| (name.to_owned(), one)));
    add(&format!("best {}", row.objective), row.best.map(|best| figure(&row.objective, best)));
    add("last training loss", row.loss.map(super::unit::number));
    add("steps", Some(count_of(row.step)));
    let tokens = shown.step_tokens();
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    add(shown.counted(), tokens.map(|tokens| count(tokens * row.step as f64)));
    add("a step", row.step_seconds.filter(|step| *step > 0.0).map(seconds));
    let speed = row.tokens_per_second.filter(|speed| *speed > 0.0);
    add("throughput", speed.map(|speed| format!("{} {}/s", count(speed), shown.counted())));
    add("peak memory of a rank", show::peak(&shown.trial).map(bytes));
    let spent = shown.trial.attempts.iter();
    let spent: f64 = spent.map(|one| elapsed(one.started_ms, one.ended_ms.unwrap_or(shown.now_ms))).sum();
    add("time of all attempts", (spent > 0.0).then(|| seconds(spent)));
    figures
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn count_of(number: u64) -> String {
    if number < 10_000 { number.to_string() } else { count(number as f64) }
}

/// Returns table rows about the trial's model, data, program, hosts and times.
fn facts(trial: &TrialDetails) -> Vec<Vec<Cell>> {
    let row = &trial.row;
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut add = |name: &str, value: String| rows.push(vec![name.into(), value.into()]);
    add("trial", row.id.to_string());
    add("recipe", row.recipe.clone());
    if let Some(study) = &row.study {
        add("study", study.clone());
    }
    add("layout", row.layout.clone());
    if row.batch > 0 {
        add("batch", row.batch.to_string());
        add("learning rate", rate(row.learning_rate));
    }
    for param in trial.params.iter().filter(|param| param.path.starts_with("params.")) {
        add(&param.path, text(&param.value));
    }
    let hosts = trial.params.iter().filter(|param| param.path.starts_with("cluster.hosts."));
    let hosts: Vec<String> = hosts.map(|param| text(&param.value)).collect();
    if !hosts.is_empty() {
        add("hosts", hosts.join(", "));
    }
    for line in show::made_by(trial) {
        if let [name, value] = line.as_slice() {
            add(if name == "host" { "controller" } else { name }, value.clone());
        }
    }
    add("created", moment(row.created_ms));
    if let Some(ended) = row.ended_ms {
        add("ended", moment(ended));
    }
    if !trial.tags.is_empty() {
        let tags = trial.tags.iter().map(|(name, value)| format!("{name}={value}"));
        add("tags", tags.collect::<Vec<_>>().join(", "));
    }
    rows
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn against(trial: &TrialDetails) -> String {
    let rows = show::predicted(trial);
    let row = |line: &Vec<String>| line.iter().map(|cell| Cell::from(cell.as_str())).collect();
    let rows: Vec<Vec<Cell>> = rows.iter().skip(1).map(row).collect();
    table(&["", "plan", "measured", "difference"], &rows)
}

/// Converts a section of `dtrain show` to an HTML table; its first line is the header.
fn lines(lines: &[Vec<String>]) -> String {
    let Some((titles, rows)) = lines.split_first() else { return String::new() };
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    let row = |line: &Vec<String>| line.iter().map(|cell| Cell::from(cell.as_str())).collect();
    table(&titles, &rows.iter().map(row).collect::<Vec<_>>())
}

/// Returns `true` if a host samples the series by time, rather than a rank by step.
fn is_of_machine(key: &str) -> bool {
    key.starts_with("system.") || key.starts_with("gpu.")
}

fn curves(shown: &ChartedTrial) -> String {
    let attempts: Vec<u64> = shown.trial.attempts.iter().map(|attempt| attempt.number.0).collect();
    let class = |number: u64| {
        // The last attempt has the first style.
        let after = attempts.iter().filter(|other| **other > number).count();
        line_class(after)
    };
    let lines = |curve: &MetricCurve, across: HorizontalAxis| -> Vec<Trace> {
        let drawn = curve.attempts.iter().map(|(number, samples)| {
            let points: Vec<_> =
                samples.iter().map(|sample| (shown.place(*number, sample, across), sample.value)).collect();
            let mark = if curve.attempts.len() > 1 { number.to_string() } else { String::new() };
            let name = if attempts.len() > 1 { format!("attempt {number}") } else { curve.key.clone() };
            let points = reduced(&points, POINTS_MOST);
            Trace { name, mark, class: class(*number), trial: None, points }
        });
        // Dashes of an earlier attempt stay visible over the line of a later one.
        drawn.rev().collect()
    };
    let told: Vec<(String, String)> =
        attempts.iter().map(|number| (class(*number), format!("attempt {number}"))).collect();
    let curves: Vec<&MetricCurve> = shown.curves.iter().filter(|curve| !is_of_machine(&curve.key)).collect();
    let drawn = views(shown.step_tokens().map(|_| shown.counted()), |across, name| {
        curves.iter().map(|curve| chart(&curve.key, name, &lines(curve, across)).drawn()).collect()
    });
    if drawn.is_empty() { drawn } else { drawn + &legend(&told) }
}

/// Builds a chart that takes half the page's width.
pub(super) fn chart<'a>(title: &'a str, across: (&'a str, Unit), lines: &'a [Trace]) -> Chart<'a> {
    Chart { title, across, unit: Unit::of(title), lines, within: None, guides: &[], size: HALF }
}

/// Builds the same charts over steps, tokens and time, with a switch that needs no script. `tokens` names the
/// counted unit; `None` leaves out the charts over tokens.
pub(super) fn views(
    tokens: Option<&'static str>,
    drawn: impl Fn(HorizontalAxis, (&'static str, Unit)) -> String,
) -> String {
    let mut ways = vec![(HorizontalAxis::Steps, "steps", "steps", Unit::Count)];
    ways.extend(tokens.map(|counted| (HorizontalAxis::Tokens, "tokens", counted, Unit::Count)));
    ways.push((HorizontalAxis::Time, "time", "time of training", Unit::Seconds));
    let mut choices = String::new();
    let mut charts = String::new();
    for (place, (across, id, name, unit)) in ways.into_iter().enumerate() {
        let body = drawn(across, (name, unit));
        if body.is_empty() {
            return String::new();
        }
        let checked = if place == 0 { " checked=\"checked\"" } else { "" };
        choices += &format!(
            "<input type=\"radio\" name=\"across\" id=\"by-{id}\"{checked}/><label for=\"by-{id}\">{name}</label>\n"
        );
        charts += &format!("<div class=\"charts of-{id}\">\n{body}</div>\n");
    }
    format!("<div class=\"views\">\n<span class=\"told\">over</span>\n{choices}{charts}</div>\n")
}

fn machine(shown: &ChartedTrial) -> String {
    let of_machine = shown.curves.iter().filter(|curve| is_of_machine(&curve.key));
    let charts: String = of_machine
        .map(|curve| {
            let points = curve.attempts.iter().flat_map(|(number, samples)| {
                samples.iter().map(|sample| (shown.at_work(*number, sample.at_ms), sample.value))
            });
            let points = reduced(&points.collect::<Vec<_>>(), POINTS_MOST);
            let line = Trace { name: curve.key.clone(), class: line_class(0), points, ..Trace::default() };
            chart(&curve.key, ("time of training", Unit::Seconds), &[line]).drawn()
        })
        .collect();
    if charts.is_empty() {
        charts
    } else {
        folded("load of the controller's host", &format!("<div class=\"charts\">\n{charts}</div>\n"))
    }
}

fn timeline(shown: &ChartedTrial) -> String {
    let trial = &shown.trial;
    let attempts: Vec<_> = trial.attempts.iter().map(|attempt| segment(attempt, shown.now_ms)).collect();
    let checkpoints = trial.checkpoints.iter().map(|checkpoint| TimelineMark {
        at_ms: checkpoint.at_ms,
        end: if checkpoint.refused.is_some() { SegmentStatus::Badly } else { SegmentStatus::Well },
        words: match &checkpoint.refused {
            Some(why) => format!("checkpoint of step {} refused: {why}", checkpoint.step),
            None => format!("checkpoint of step {}, attempt {}", checkpoint.step, checkpoint.attempt),
        },
    });
    let valid = shown.curves.iter().find(|curve| curve.key == trial.row.objective);
    let valid = valid.into_iter().flat_map(|curve| &curve.attempts).flat_map(|(_, samples)| samples);
    let valid = valid.map(|sample| TimelineMark {
        at_ms: sample.at_ms,
        end: if sample.value.is_finite() { SegmentStatus::Well } else { SegmentStatus::Badly },
        words: format!(
            "{} {} at step {}",
            trial.row.objective,
            super::unit::number(sample.value),
            sample.step
        ),
    });
    let lanes = [("checkpoints", checkpoints.collect()), ("validations", valid.collect())];
    let rows: Vec<Vec<Cell>> = trial.attempts.iter().map(|attempt| cells_of(attempt, shown.now_ms)).collect();
    trial_timeline(&attempts, &lanes) + &table(&["attempt", "began", "from", "lasted", "ended"], &rows)
}

fn end_status(attempt: &Attempt) -> (SegmentStatus, String) {
    match &attempt.ended {
        None => (SegmentStatus::Open, "not ended".to_owned()),
        Some(AttemptEnd::Finished(reason)) => (SegmentStatus::Well, show::stopped(*reason).to_owned()),
        Some(AttemptEnd::Lost(failure)) => (SegmentStatus::Badly, format!("lost: {failure}")),
        Some(AttemptEnd::NotLaunched(failure)) => (SegmentStatus::Badly, format!("not launched: {failure}")),
    }
}

fn segment(attempt: &Attempt, now_ms: u64) -> TimelineSegment {
    let (end, words) = end_status(attempt);
    let name = format!("attempt {}", attempt.number);
    let end_ms = attempt.ended_ms.unwrap_or(now_ms).max(attempt.started_ms);
    TimelineSegment { name, begin_ms: attempt.started_ms, end_ms, end, words }
}

fn cells_of(attempt: &Attempt, now_ms: u64) -> Vec<Cell> {
    let (end, words) = end_status(attempt);
    let lasted = elapsed(attempt.started_ms, attempt.ended_ms.unwrap_or(now_ms));
    let from = attempt.from.map_or("the start".to_owned(), |step| format!("step {step}"));
    let words = if end == SegmentStatus::Badly { Cell::bad(words) } else { words.into() };
    vec![
        attempt.number.to_string().into(),
        moment(attempt.started_ms).into(),
        from.into(),
        seconds(lasted).into(),
        words,
    ]
}

fn metrics(trial: &TrialDetails) -> String {
    let is_lowest = |one: &Summary| trial.figure(&one.key).is_some_and(|lowest| lowest.rank == one.rank);
    let figures = trial.figures.iter().filter(|one| is_lowest(one) && !is_of_machine(&one.key));
    let rows: Vec<Vec<Cell>> = figures
        .map(|one| {
            let unit = Unit::of(&one.key);
            let told = |value: Option<f64>| value.map_or("-".to_owned(), |value| unit.format(value));
            let at = |value: Option<f64>, step: Option<u64>| match step {
                Some(step) => format!("{} at step {step}", told(value)),
                None => told(value),
            };
            let last = one.last.map_or("not a number".to_owned(), |last| unit.format(last));
            let cells = [
                one.key.clone(),
                one.points.to_string(),
                last,
                at(one.min, one.min_step),
                at(one.max, one.max_step),
                told(one.mean),
            ];
            cells.map(Cell::from).to_vec()
        })
        .collect();
    folded("all series", &table(&["metric", "points", "last", "least", "most", "mean"], &rows))
}

fn settings(trial: &TrialDetails) -> String {
    let row = |param: &&dtrain_runner::ledger::TrialParameter| param::row(param).map(Cell::from).to_vec();
    let is_chosen = |param: &&dtrain_runner::ledger::TrialParameter| {
        param.source != ValueSource::Default && !param.value.is_null()
    };
    let chosen: Vec<_> = trial.params.iter().filter(is_chosen).map(|param| row(&param)).collect();
    let others: Vec<_> =
        trial.params.iter().filter(|param| !is_chosen(param)).map(|param| row(&param)).collect();
    let titles = ["key", "value", "from"];
    table(&titles, &chosen) + &folded("what was left at its default", &table(&titles, &others))
}

fn notes(trial: &TrialDetails) -> String {
    let rows: Vec<Vec<Cell>> =
        trial.notes.iter().map(|note| vec![moment(note.at_ms).into(), note.text.as_str().into()]).collect();
    table(&[], &rows)
}
