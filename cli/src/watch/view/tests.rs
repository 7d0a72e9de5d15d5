use super::*;
use crate::render::figures::PlannedTraining;
use crate::render::history::tests::row;
use crate::watch::app::{AppRequest, Cursor, Pane, TrialViewState};
use crate::watch::model::list::{StudySummary, TrialList};
use crate::watch::model::study::{StudyModel, TrialLine};
use crate::watch::model::trial::TrialModel;
use dtrain_protocol::{
    AttemptId, Event, Failure, PhaseTimes, Rank, ResidentBytes, StampedEvent, StepFigures, StepId,
    StopReason, TrialId,
};
use dtrain_runner::ledger::{StudyTrialRow, TrialStatus};
use dtrain_runner::{AttemptEnd, ControllerStatus, Fact, TrialEvent};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};
use serde_json::json;

const START: u64 = 1_700_000_000_000;

fn ink() -> TerminalStyle {
    TerminalStyle { is_colored: true, is_ascii: false, now_ms: START + 100_000 }
}

fn said(rank: u32, step: u64, event: Event) -> TrialEvent {
    let at_ms = START + step * 370;
    TrialEvent::Event(StampedEvent { attempt: AttemptId(1), rank: Rank(rank), sequence: step, at_ms, event })
}

/// Returns a trial on two hosts at step 100 of 300; rank 2 computes 1.5 times as long as the others.
fn trial() -> TrialModel {
    let mut trial = TrialModel {
        id: TrialId("01J9ZQ6W3M0000000000000000".into()),
        label: "quickstart-1".into(),
        study: None,
        status: TrialStatus::Running,
        verdict: None,
        layout: "data 4".into(),
        hosts: 2,
        expected: PlannedTraining {
            steps: 300,
            limit: None,
            step_seconds: Some(0.156),
            unit: "tokens",
            metric: "valid.loss".into(),
        },
        rate: Some(26_300.0),
        memory: Some(109 << 20),
        objective: "valid.loss".into(),
        started_ms: Some(START),
        ..empty()
    };
    trial.places =
        [(0, "a"), (0, "a"), (0, "b"), (0, "b")].map(|(work, host)| (work, host.to_owned())).into();
    for step in 1..=100u64 {
        for rank in 0..4 {
            let slow = if rank == 2 { 1.5 } else { 1.0 };
            let times = PhaseTimes {
                step: 0.37,
                data: 0.004 * slow,
                forward: 0.06 * slow,
                backward: 0.12 * slow,
                communication: 0.18 - (slow - 1.0) * 0.18,
                bubble: 0.0,
                optimizer: 0.006 * slow,
            };
            let figures = StepFigures {
                step: StepId(step),
                loss: 2.0 + 3.0 / (1.0 + step as f64 / 12.0),
                gradient_norm: Some(1.0),
                learning_rate: 1e-3,
                elapsed: None,
                noise: None,
                tokens: 4096,
                times,
                memory_bytes: 214 << 20,
                sent_bytes: 1 << 20,
                held: ResidentBytes { weights: 40 << 20, gradients: 20 << 20, optimizer: 80 << 20 },
            };
            trial.apply(&said(rank, step, Event::Step(figures)));
        }
        if step % 25 == 0 {
            let loss = 2.1 + 3.0 / (1.0 + step as f64 / 12.0);
            trial.apply(&said(
                0,
                step,
                Event::Validated { step: StepId(step), loss, accuracy: Some(0.36), seconds: None },
            ));
        }
    }
    let (attempt, step) = (AttemptId(1), StepId(100));
    trial.apply(&TrialEvent::Record(Fact::CheckpointCommitted { attempt, step, folder: "f".into() }));
    let slow = ControllerStatus::Straggler { rank: Rank(2), seconds: 0.285, median: 0.19 };
    trial.apply(&TrialEvent::Status(slow));
    trial.apply(&TrialEvent::Status(ControllerStatus::LossSpike { step, loss: 9.0, median: 2.3 }));
    let failure = Failure::Infrastructure { host: Some("b".into()), detail: "no route to host".into() };
    trial.apply(&TrialEvent::Record(Fact::AttemptEnded { attempt, ended: AttemptEnd::Lost(failure) }));
    trial
}

/// Returns a trial without data.
fn empty() -> TrialModel {
    TrialModel::new("tiny-1", "valid.loss")
}

fn study() -> StudyModel {
    let kept = json!({
        "steps": 30,
        "base_recipe": { "objective": { "metric": "valid.loss" }, "cluster": { "slots": 2 } },
        "study": { "space": [{ "name": "train.learning_rate" }, { "name": "train.batch" }] },
    });
    let mut study = StudyModel::of("gpt-tune-1", &kept);
    let sources =
        [json!("given"), json!("sobol"), json!("sobol"), json!({ "model": { "improvement": 0.1729 } })];
    let status =
        [TrialStatus::Completed, TrialStatus::Pruned, TrialStatus::OutOfMemory, TrialStatus::Running];
    for (number, (source, status)) in (0u64..).zip(sources.into_iter().zip(status)) {
        let values = json!([0.0006 * (number + 1) as f64, 32]);
        let tried = StudyTrialRow {
            number,
            json: json!({ "values": values, "source": source }),
            trial: None,
            rejection: None,
        };
        let best = Some(4.7 - number as f64 / 10.0).filter(|_| status != TrialStatus::OutOfMemory);
        let known = dtrain_runner::ledger::TrialRow {
            best,
            step: 30,
            ..row(&format!("gpt-{}", number + 3), status, 60)
        };
        let mut row = TrialLine::tried(&tried, &study.searched, Some(known));
        row.curve = (1..=12).map(|x| Some(8.0 / f64::from(x))).collect();
        study.rows.push(row);
    }
    let refused = Some("error: no layout fits".to_owned());
    let tried = StudyTrialRow {
        number: 4,
        json: json!({ "values": [0.1, 64], "source": "random" }),
        trial: None,
        rejection: refused,
    };
    study.rows.push(TrialLine::tried(&tried, &study.searched, None));
    study.apply_events(&[json!({ "launched": { "trial": 1, "values": [], "source": "sobol" } })]);
    study
}

fn list() -> TrialList {
    let mut trials: Vec<TrialLine> =
        [row("gpt-small-12", TrialStatus::Running, 7300), row("mnist-cnn-3", TrialStatus::Running, 65)]
            .map(TrialLine::of)
            .into();
    trials[0].curve = (1..=12).map(|x| Some(8.0 / f64::from(x))).collect();
    let studies = vec![StudySummary { name: "gpt-tune-1".into(), tried: 5, running: 1, ended: 4 }];
    TrialList { trials, studies, is_running: true }
}

fn drawn(app: &App, (width, height): (u16, u16), ink: TerminalStyle) -> Buffer {
    let mut terminal =
        ratatui::Terminal::new(ratatui::backend::TestBackend::new(width, height)).expect("a buffer");
    terminal.draw(|frame| draw(app, ink, frame.buffer_mut())).expect("drawn");
    terminal.backend().buffer().clone()
}

/// Returns the text of a buffer.
fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let lines =
        buffer.content.chunks(width).map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>());
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Returns the text, followed by each line's styled parts.
fn with_styles(buffer: &Buffer) -> String {
    let mut page = text(buffer);
    for (y, line) in buffer.content.chunks(usize::from(buffer.area.width)).enumerate() {
        let mut from = 0;
        let mut runs = Vec::new();
        for x in 1..=line.len() {
            let style = |x: usize| (line[x].fg, line[x].modifier);
            if x == line.len() || style(x) != style(from) {
                let (color, modifier) = style(from);
                let is_plain = color == Color::Reset && modifier.is_empty();
                let is_blank = line[from..x].iter().all(|cell| cell.symbol() == " ")
                    && !modifier.contains(Modifier::REVERSED);
                if !is_plain && !is_blank {
                    runs.push(format!("{from}-{} {color:?} {modifier:?}", x - 1));
                }
                from = x;
            }
        }
        page += &format!("{y}: {}\n", runs.join(", "));
    }
    page
}

fn pages() -> [(&'static str, App); 4] {
    let mut help = App::new(OpenPage::Trial(Box::new(trial()), TrialViewState::default()));
    help.has_help = true;
    [
        ("trial", App::new(OpenPage::Trial(Box::new(trial()), TrialViewState::default()))),
        ("study", App::new(OpenPage::Study(Box::new(study()), Cursor { at: 3 }))),
        ("list", App::new(OpenPage::List(list(), Cursor::default()))),
        ("help", help),
    ]
}

#[test]
fn pages_are_drawn_for_small_and_large_terminals() {
    for (name, app) in pages() {
        for size in [(80, 24), (160, 48), (40, 12)] {
            let (width, height) = size;
            let plain = drawn(&app, size, TerminalStyle { is_colored: false, ..ink() });
            insta::assert_snapshot!(format!("{name}_{width}x{height}"), text(&plain));
            assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        }
        insta::assert_snapshot!(format!("{name}_color"), with_styles(&drawn(&app, (80, 24), ink())));
        let ascii = drawn(&app, (80, 24), TerminalStyle { is_ascii: true, is_colored: false, ..ink() });
        assert!(text(&ascii).is_ascii(), "{}", text(&ascii));
    }
}

#[test]
fn every_size_is_drawn_and_a_small_terminal_says_so() {
    for (_, app) in pages() {
        for size in [(1, 1), (39, 12), (40, 11), (41, 13), (109, 20), (110, 12), (300, 90)] {
            let page = text(&drawn(&app, size, ink()));
            assert_eq!(
                page.contains("dtrain watch needs 40x12"),
                size.0 == 39 || size.1 == 11,
                "{size:?}: {page}"
            );
        }
    }
}

#[test]
fn a_trial_of_which_nothing_is_known_yet_is_drawn() {
    let app = App::new(OpenPage::Trial(Box::new(empty()), TrialViewState::default()));
    let page = text(&drawn(&app, (80, 24), ink()));
    assert!(page.contains("tiny-1") && page.contains("no step yet"), "{page}");
}

#[test]
fn the_rank_that_the_others_wait_for_is_marked() {
    let trial = trial();
    let slow: Vec<u32> = trial
        .slowness()
        .into_iter()
        .filter(|(_, slow)| TrialModel::is_straggler(*slow))
        .map(|(rank, _)| rank)
        .collect();
    assert_eq!(slow, [2]);
    let done = TrialEvent::Record(Fact::AttemptEnded {
        attempt: AttemptId(2),
        ended: AttemptEnd::Finished(StopReason::Complete),
    });
    let mut again = trial.clone();
    again.apply(&done);
    again.apply(&done);
    assert_eq!(again.events.len(), trial.events.len() + 1, "what is told twice is shown once");
}

fn press(app: &mut App, code: KeyCode) -> Option<AppRequest> {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn keys_choose_metrics_panes_and_logs() {
    let mut app = App::new(OpenPage::Trial(Box::new(trial()), TrialViewState::default()));
    let page = |app: &App| text(&drawn(app, (80, 24), ink()));
    assert!(page(&app).contains("loss 2.32") && page(&app).contains("valid.loss 2.42"), "{}", page(&app));
    press(&mut app, KeyCode::Char('m'));
    assert!(page(&app).contains("gradient_norm"), "{}", page(&app));
    press(&mut app, KeyCode::Char('M'));
    assert!(page(&app).contains("valid.loss 2.42"));
    assert_eq!(press(&mut app, KeyCode::Char('l')), Some(AppRequest::Log));
    assert!(page(&app).contains("no log is on this machine"), "{}", page(&app));
    press(&mut app, KeyCode::Esc);
    assert!(page(&app).contains("EVENTS"));
    press(&mut app, KeyCode::Enter);
    assert!(!page(&app).contains("RANKS"), "a pane has the screen: {}", page(&app));
    press(&mut app, KeyCode::Esc);
    press(&mut app, KeyCode::Tab);
    let OpenPage::Trial(_, look) = app.page() else { panic!("a trial") };
    assert_eq!((look.pane, look.is_large), (Pane::Curves, false), "the pane after that of the log");
}

#[test]
fn only_yes_stops_a_trial_and_only_one_that_runs() {
    let mut app = App::new(OpenPage::Trial(Box::new(trial()), TrialViewState::default()));
    assert_eq!(press(&mut app, KeyCode::Char('s')), None);
    assert!(text(&drawn(&app, (80, 24), ink())).contains("stop quickstart-1"));
    assert_eq!(press(&mut app, KeyCode::Char('q')), None, "any other key");
    assert!(app.stop.is_none());
    press(&mut app, KeyCode::Char('s'));
    assert_eq!(press(&mut app, KeyCode::Char('y')), Some(AppRequest::Stop(trial().id)));
    let ended = TrialModel { status: TrialStatus::Completed, ..trial() };
    let mut app = App::new(OpenPage::Trial(Box::new(ended), TrialViewState::default()));
    press(&mut app, KeyCode::Char('s'));
    assert!(app.stop.is_none() && app.message.is_some());
    assert_eq!(press(&mut app, KeyCode::Char('q')), Some(AppRequest::Quit));
}

#[test]
fn enter_opens_what_is_selected() {
    let mut app = App::new(OpenPage::List(list(), Cursor::default()));
    assert_eq!(press(&mut app, KeyCode::Enter), Some(AppRequest::OpenStudy("gpt-tune-1".into())));
    press(&mut app, KeyCode::Char('j'));
    assert!(matches!(press(&mut app, KeyCode::Enter), Some(AppRequest::OpenTrial(_))));
    assert_eq!(press(&mut app, KeyCode::Esc), None, "there is no page before");
    app.pages.push(OpenPage::Study(Box::new(study()), Cursor { at: 4 }));
    assert_eq!(press(&mut app, KeyCode::Enter), None, "a refused trial has no page");
    assert_eq!(press(&mut app, KeyCode::Esc), Some(AppRequest::Back));
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    assert_eq!(app.key(control('c')), Some(AppRequest::Quit));
    assert_eq!(app.key(control('z')), Some(AppRequest::Suspend));
}
