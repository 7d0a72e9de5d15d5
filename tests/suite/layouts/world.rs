//! Plans a case and trains it with ranks as threads.

use super::parted::Trained;
use super::relay::commit;
use super::{Case, farthest};
use dtrain_planner::step::traffic::Traffic;
use dtrain_planner::{AttemptSpec, Plan, PlanRequest, lower, plan};
use dtrain_protocol::checkpoint::merge;
use dtrain_protocol::{
    Assignment, AttemptId, DeviceKind, Event, Gpu, HostFacts, ResumePoint, SavedFile, StepId, TrialId,
};
use dtrain_recipes::check::{CheckContext, check};
use dtrain_recipes::document::Document;
use dtrain_recipes::source::{ConfigLayer, Source};
use dtrain_recipes::{Decoder, Model};
use dtrain_tests::{Tensors, assembled};
use dtrain_worker::Slowdown;
use dtrain_worker::comm::loopback;
use dtrain_worker::session::{AgentOrders, EventSink, attempt_slowed};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a rank waits for the others: the full set may run beside other work.
const DEADLINE: Duration = Duration::from_secs(600);

/// What training told, step by step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Trace {
    pub(super) losses: Vec<f64>,
    pub(super) norms: Vec<f64>,
    pub(super) validations: Vec<f64>,
}

/// The ranks that send something else in the first step of `case` than the planner says, in words.
pub(super) fn sent(case: &Case) -> Vec<String> {
    let (assignments, events) = run(case, 1);
    let ranks = assignments.iter().zip(events).filter_map(|(assignment, events)| {
        let Assignment { model, arrangement, training, rank, .. } = assignment;
        let split = (training.micro_batch, training.micro_batches);
        let counted =
            |event: &Event| if let Event::Step(step) = event { Some(step.sent_bytes) } else { None };
        let counted = events.iter().find_map(counted).expect("there was a step");
        let planned = Traffic::of_rank(model, arrangement, split, *rank);
        // Routed tokens go to the ranks of their experts, so their number varies unless all go everywhere.
        // The rest must be exact; tokens go in whole rows, there and back, and no rank gets none or all of
        // them.
        let (rest, tokens) = (planned.total().0 - planned.expert.0, planned.expert.0);
        let is_right = match model {
            Model::Decoder(Decoder { experts: Some(e), .. }) if e.per_token < e.count && tokens > 0 => {
                (rest + tokens / 4..rest + 3 * tokens).contains(&counted)
            }
            _ => counted == rest + tokens,
        };
        (!is_right)
            .then(|| format!("rank {rank} sent {counted} bytes, not {}: {planned:?}", planned.total().0))
    });
    ranks.collect()
}

/// Trains `case` for `steps` steps; all ranks must tell the same.
pub(super) fn train(case: &Case, steps: u64) -> Trace {
    let (_, events) = run(case, steps);
    trace(case, steps, &events)
}

/// Trains `case` for one step and, from the beginning again, for `steps` steps; the first step must come to the same bits, on a
/// device to the same but for the order of additions, which may change from run to run.
pub(super) fn trained(case: &Case, steps: u64) -> Trained {
    let (began, first, _) = train_and_save(case, 1);
    let (trace, last, one) = train_and_save(case, steps);
    let limit = if case.is_on_gpu { 1e-6 } else { 0.0 };
    let is_same = farthest(&began.losses[..1], &trace.losses[..1]) <= limit
        && farthest(&began.norms[..1], &trace.norms[..1]) <= limit;
    assert!(is_same, "{case}: the first step came to {began:?}, then to {trace:?}");
    Trained::of(&one, trace, first, last)
}

/// Trains `case` for `steps` steps: what the ranks told, what they saved at the end, and the assignment of the first.
fn train_and_save(case: &Case, steps: u64) -> (Trace, Tensors, Assignment) {
    let folder = tempfile::tempdir().expect("a folder for the case");
    let (mut assignments, events) = run_from(case, None, steps, folder.path());
    let (saved_in, files) = saved(case, StepId(steps), &events);
    let (tensors, files) = merge(files).unwrap_or_else(|error| panic!("{case}: {error}"));
    (trace(case, steps, &events), assembled(&saved_in, &tensors, &files), assignments.swap_remove(0))
}

/// The folder that the ranks saved to after `step`, and their files.
pub(super) fn saved(case: &Case, step: StepId, events: &[Vec<Event>]) -> (PathBuf, Vec<SavedFile>) {
    let saved = events.iter().flatten().filter_map(|event| match event {
        Event::Saved { step: at, folder, files, .. } if *at == step => Some((folder.clone(), files.clone())),
        _ => None,
    });
    let (mut folders, files): (Vec<_>, Vec<_>) = saved.unzip();
    assert_eq!(files.len(), events.len(), "{case}: every rank saves after step {}", step.0);
    (folders.swap_remove(0), files.concat())
}

/// Trains `case` for `steps` steps: what each rank was told, and what it told.
fn run(case: &Case, steps: u64) -> (Vec<Assignment>, Vec<Vec<Event>>) {
    let folder = tempfile::tempdir().expect("a folder for the case");
    run_from(case, None, steps, folder.path())
}

/// The same from a checkpoint, or from the beginning, to the end of step `last`, with data and checkpoints in
/// `folder`.
pub(crate) fn run_from(
    case: &Case,
    from: Option<&ResumePoint>,
    last: u64,
    folder: &Path,
) -> (Vec<Assignment>, Vec<Vec<Event>>) {
    write_data(folder);
    let assignments = assignments(case, folder, from, last);
    let events = events(case, assignments.clone(), Slowdown::default());
    (assignments, events)
}

/// What all ranks tell until their ends.
pub(super) fn events(case: &Case, assignments: Vec<Assignment>, slowdown: Slowdown) -> Vec<Vec<Event>> {
    std::thread::scope(|scope| {
        let ranks = scope.spawn(|| {
            // A rank on a device spins while it waits for the thread that gives the device its work, which needs a core too.
            if !case.is_on_gpu {
                share_one_core();
            }
            events_of(case, assignments, slowdown)
        });
        ranks.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Keeps this thread, and those it will start, on one of the cores it may use.
///
/// Ranks of so small a model mostly wake each other, and across cores that takes several times as long as the work itself.
fn share_one_core() {
    let allowed = sched_getaffinity(None).expect("the kernel tells where a thread may run");
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let mut one = CpuSet::new();
    // Tests that are processes of their own are spread over the cores.
    one.set(cores[std::process::id() as usize % cores.len()]);
    sched_setaffinity(None, &one).expect("a core that the thread may use");
}

fn events_of(case: &Case, assignments: Vec<Assignment>, slowdown: Slowdown) -> Vec<Vec<Event>> {
    let ranks = u32::try_from(assignments.len()).expect("ranks are few");
    let groups = loopback::threads(ranks, DEADLINE);
    let threads = assignments.into_iter().zip(groups).map(|(assignment, group)| {
        std::thread::spawn(move || {
            let events = Arc::new(Mutex::new(Vec::new()));
            let told = Arc::clone(&events);
            let tell: EventSink = Arc::new(move |event| told.lock().expect("no panic inside").push(event));
            let (_orders, inbox) = channel();
            let mut orders = AgentOrders::of(inbox);
            let result = attempt_slowed(&assignment, Box::new(group), slowdown, &mut orders, &tell);
            let events = events.lock().expect("no panic inside").clone();
            (result, events)
        })
    });
    let threads: Vec<_> = threads.collect();
    let ended = threads.into_iter().map(|thread| thread.join().expect("a rank does not panic"));
    let (results, events): (Vec<_>, Vec<_>) = ended.unzip();
    // One that fails takes the others with it, so all are shown.
    let failures: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{case}: {failures:#?}");
    events
}

/// What all ranks told of `steps` steps; they must tell the same.
pub(super) fn trace(case: &Case, steps: u64, events: &[Vec<Event>]) -> Trace {
    let traces: Vec<_> = events.iter().map(|events| of_rank(events)).collect();
    assert!(traces.iter().all(|trace| *trace == traces[0]), "{case}: all ranks tell the same");
    assert_eq!(traces[0].losses.len() as u64, steps, "{case}");
    traces[0].clone()
}

fn of_rank(events: &[Event]) -> Trace {
    let steps =
        || events.iter().filter_map(|event| if let Event::Step(step) = event { Some(step) } else { None });
    let validation =
        |event: &Event| if let Event::Validated { loss, .. } = event { Some(*loss) } else { None };
    Trace {
        losses: steps().map(|step| step.loss).collect(),
        norms: steps().map(|step| step.gradient_norm.expect("it is finite")).collect(),
        validations: events.iter().filter_map(validation).collect(),
    }
}

/// Trains `case` for `last` steps and commits what it saved; its folder below `folder`.
pub(crate) fn checkpoint(case: &Case, last: u64, folder: &Path) -> PathBuf {
    let (assignments, events) = run_from(case, None, last, folder);
    commit(case, &assignments[0], StepId(last), &events)
}

/// What every rank is to do until the end of step `last`, from a checkpoint or from the beginning.
pub(crate) fn assignments(
    case: &Case,
    folder: &Path,
    from: Option<&ResumePoint>,
    last: u64,
) -> Vec<Assignment> {
    let launch = AttemptSpec {
        trial: TrialId("01TEST".into()),
        attempt: AttemptId(1),
        checkpoints: folder.join("trials/01TEST/checkpoints"),
        resume: from.cloned(),
        spent_seconds: 0.0,
    };
    lowered(&planned(case, folder), &launch, last)
}

/// The plan for `case`, with its data in `folder`.
pub(super) fn planned(case: &Case, folder: &Path) -> Plan {
    let source = Source::new("case.toml", ConfigLayer::Recipe, case.text());
    let document = Document::parse(&source).unwrap_or_else(|problems| panic!("{case}: {problems:?}"));
    let context = CheckContext { folder: folder.to_owned(), name: "case".into() };
    let checked = check(&document, &context).unwrap_or_else(|problems| panic!("{case}: {problems:?}"));
    let recipe = checked.recipe;
    let host = HostFacts {
        // One thread for each rank: so small a model is computed before others have woken up.
        cores: case.ranks(),
        memory_bytes: 64 << 30,
        gpus: if case.is_on_gpu { vec![gpu(); case.ranks() as usize] } else { Vec::new() },
        ..HostFacts::example()
    };
    let request = PlanRequest {
        data_root: folder.to_owned(),
        seed: 1,
        program: "test",
        ..PlanRequest::new(&recipe, &host)
    };
    plan(&request).unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// A GPU of wgpu.
fn gpu() -> Gpu {
    Gpu { device: DeviceKind::Wgpu, name: "a software device".into(), memory_bytes: 8 << 30 }
}

/// What every rank of `launch` is to do until the end of step `last`: it validates every seventh step, and saves at the end.
pub(super) fn lowered(plan: &Plan, launch: &AttemptSpec, last: u64) -> Vec<Assignment> {
    let mut assignments = lower(plan, plan.best(), launch);
    for assignment in &mut assignments {
        assignment.until.steps = Some(StepId(last));
        assignment.validate_every = 7;
        assignment.save_every = 0;
    }
    assignments
}

/// Text, a table and images that can be learned.
pub(super) fn write_data(folder: &Path) {
    let text: String =
        (0..400).map(|i| format!("{} and {} are {}\n", i % 13, i % 7, i % 13 + i % 7)).collect();
    let table = |columns: usize| {
        let names: Vec<_> = (0..columns).map(|column| format!("x{column}")).collect();
        let mut table = format!("{},class\n", names.join(","));
        for row in 0..300usize {
            let value = |column: usize| ((row * 7 + column * 13) % 29) as f64 / 29.0 - 0.5;
            let values: Vec<_> = (0..columns).map(|column| format!("{:.4}", value(column))).collect();
            writeln!(table, "{},{}", values.join(","), row % 3).expect("a string takes everything");
        }
        table
    };
    for (name, content) in [("text.txt", text), ("table.csv", table(6)), ("images.csv", table(16))] {
        std::fs::write(folder.join(name), content).expect("a file");
    }
}
