//! What a fleet costs: the table in `docs/several-hosts.md`, and the figures that a test on real hosts compares with.

use super::controller::RANKS;
use super::cost::{ResourceUsage, THREADS_OF_A_LINK, THREADS_OF_A_RANK, THREADS_OF_AN_AGENT};
use super::reports::Reporting;
use super::tests::fleet;
use super::{Coverage, Setup, World};
use crate::machine::TrialInput;
use dtrain_recipes::number_format::{count, thousands};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Numbers of hosts in the table.
const FLEETS: [u64; 3] = [4, 100, 1_000];

/// What is measured, in the order of [`costs`].
const PARTS: [&str; 4] = ["launch", "step", "validation", "checkpoint"];

/// Marks of the table in the page.
const MARK: &str = "<!-- costs -->\n";

/// Returns the cost of each of [`PARTS`].
fn costs(machines: u64) -> [ResourceUsage; 4] {
    let machines = usize::try_from(machines).expect("a number of hosts");
    let setup = Setup { every: 86_400, crash: u64::MAX, reporting: Reporting::Full, ..fleet(machines) };
    let mut reached = Coverage::default();
    let mut world = World::new(1, setup, &mut reached);
    world.cost = Some(ResourceUsage::default());
    world.user(TrialInput::Resume);
    let mut until = |done: &dyn Fn(&World) -> bool| {
        let end = world.now + 600_000;
        while !done(&world) {
            world.beat();
            assert!(world.now < end && world.broken.is_none(), "{:?}", world.broken);
        }
        world.cost.replace(ResourceUsage::default()).expect("it is counted")
    };
    // Nothing that was sent in a step is under way any more.
    let is_after = |world: &World, step: u64| {
        world.training.values().next().is_some_and(|training| training.step == step)
            && world.connections.iter().all(|(_, connection)| connection.is_idle())
    };
    // By the third step all ranks have sent their one-time events.
    let launch = until(&|world| is_after(world, 3));
    let each = until(&|world| is_after(world, 23)).mean(20);
    until(&|world| is_after(world, setup.validate_every - 1));
    let validation = until(&|world| is_after(world, setup.validate_every + 1));
    until(&|world| is_after(world, setup.save_every - 1));
    let checkpoint = until(&|world| is_after(world, setup.save_every + 1) && !world.committed.is_empty());
    [launch.without(3, each), each, validation.without(2, each), checkpoint.without(2, each)]
}

/// Returns the costs of every fleet, with its number of hosts.
fn all_costs() -> Vec<(u64, [ResourceUsage; 4])> {
    FLEETS.iter().map(|machines| (*machines, costs(*machines))).collect()
}

/// Returns the table of the page.
fn table(fleets: &[(u64, [ResourceUsage; 4])]) -> String {
    let mut text = String::from("| | |");
    let cells = |text: &mut String, cell: &dyn Fn(u64, &[ResourceUsage; 4]) -> String| {
        fleets.iter().for_each(|(machines, costs)| {
            write!(text, " {} |", cell(*machines, costs)).expect("memory");
        });
        text.push('\n');
    };
    cells(&mut text, &|machines, _| format!("{} hosts", thousands(machines)));
    text.push_str(&format!("|---|---|{}\n", "---|".repeat(fleets.len())));
    let mut row = |what: &str, figure: &str, cell: &dyn Fn(u64, &[ResourceUsage; 4]) -> String| {
        write!(text, "| {what} | {figure} |").expect("memory");
        cells(&mut text, cell);
    };
    for (index, part) in PARTS.into_iter().enumerate() {
        row(part, "the leader sends", &|_, costs| messages(costs[index].asked));
        row("", "the leader receives", &|_, costs| messages(costs[index].told));
        row("", "records in the spool", &|_, costs| messages(costs[index].spooled));
        row("", "flushes of the spool", &|_, costs| costs[index].spool_fsyncs.to_string());
        if part == "checkpoint" {
            row("", "flushes of the disk of each host", &|machines, costs| {
                (costs[index].disk_fsyncs / machines).to_string()
            });
        }
    }
    row("all the time", "connections of the leader", &|machines, _| thousands(machines - 1));
    row("", "threads of the leader", &|machines, _| thousands(threads_of_leader(machines)));
    text
}

/// Returns the words for a number of messages and their bytes.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn messages((number, bytes): (u64, u64)) -> String {
    let bytes = match bytes {
        0..1_000 => format!("{bytes} B"),
        _ => format!("{}B", count(bytes as f64)),
    };
    format!("{}: {bytes}", thousands(number))
}

fn threads_of_leader(machines: u64) -> u64 {
    THREADS_OF_AN_AGENT + u64::from(RANKS) * THREADS_OF_A_RANK + (machines - 1) * THREADS_OF_A_LINK
}

/// Returns the figures of the table as lines of comma-separated values.
fn figures(fleets: &[(u64, [ResourceUsage; 4])]) -> String {
    let mut text = String::from(
        "hosts,part,sent,sent_bytes,received,received_bytes,records,record_bytes,spool_flushes,disk_flushes\n",
    );
    for (machines, costs) in fleets {
        for (part, cost) in PARTS.iter().zip(costs) {
            let ResourceUsage { asked, told, spooled, spool_fsyncs, disk_fsyncs } = cost;
            writeln!(
                text,
                "{machines},{part},{},{},{},{},{},{},{spool_fsyncs},{disk_fsyncs}",
                asked.0, asked.1, told.0, told.1, spooled.0, spooled.1
            )
            .expect("memory");
        }
    }
    text
}

#[test]
fn what_a_fleet_costs_is_told_by_the_page() {
    let fleets = all_costs();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (page, golden) =
        (folder.join("../docs/several-hosts.md"), folder.join("src/agent/simulate/costs.csv"));
    let text = fs::read_to_string(&page).expect("the page");
    let parts: Vec<&str> = text.split(MARK).collect();
    let [before, known, after] = parts[..] else { panic!("the table stands between two marks") };
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::write(&golden, figures(&fleets)).expect("the figures can be written");
        let new = [before, table(&fleets).as_str(), after].join(MARK);
        fs::write(&page, new).expect("the page can be written");
        return;
    }
    let update = "`INSTA_UPDATE=always tests/run what_a_fleet_costs` writes it";
    assert!(known == table(&fleets), "docs/several-hosts.md is old; {update}");
    assert!(
        fs::read_to_string(&golden).is_ok_and(|known| known == figures(&fleets)),
        "{} is old; {update}",
        golden.display()
    );
}

#[test]
fn what_a_fleet_costs_grows_with_its_hosts_and_no_faster() {
    let [few, many] = [100, 1_000].map(costs);
    for (few, many) in few.iter().zip(&many) {
        let messages = |cost: &ResourceUsage| cost.asked.0 + cost.told.0 + cost.spooled.0 + cost.disk_fsyncs;
        assert!(messages(many) <= 11 * messages(few), "{few:?}, {many:?}");
        assert!(many.spool_fsyncs <= few.spool_fsyncs + 4, "{few:?}, {many:?}");
    }
    let [_, step, ..] = many;
    assert!(step.asked.0 <= 3, "a step takes words to the host that mirrors the spool only: {step:?}");
    assert_eq!(step.spooled.0, 1_000 * u64::from(RANKS), "every rank reports every step");
}
