//! Hosts that will be taken away say so, are drained, or belong to two controllers.

use crate::cluster::detached::{Detached, WITHOUT_END, dtrain};
use crate::cluster::train::nothing_is_left;
use crate::lab::Lab;
use dtrain_tests::SHORT_TRAINING;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the older of two controllers may take to end.
const YIELDS_WITHIN: Duration = Duration::from_secs(60);

/// A training without end on three hosts.
fn start<'a>(lab: &'a Lab, more: &str) -> Detached<'a> {
    let recipe = format!("name = \"lab\"\n{SHORT_TRAINING}\n{more}");
    Detached::start(lab, 3, &recipe, &WITHOUT_END)
}

fn nobody_is_struck(lab: &Lab) {
    let hosts = dtrain(lab, &["hosts", "--json"]);
    assert!(!String::from_utf8_lossy(&hosts.stdout).contains("\"cause\""), "nobody is struck");
}

fn stops(lab: &Lab, hosts: &[&str]) {
    let stopped = dtrain(lab, &["stop"]);
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    nothing_is_left(lab, hosts);
}

/// A command that begins to succeed, and a URL that begins to answer: the host leaves with a checkpoint, and the others
/// train within ten seconds.
#[test]
fn the_others_go_on_when_a_machine_gives_notice() {
    let ways = [
        ("command", "command = [\"sh\", \"-c\", \"test -e $HOME/notice\"]"),
        ("URL", "url = \"http://127.0.0.1:8169/notice\""),
    ];
    for (way, key) in ways {
        let Some(lab) = Lab::start(3) else { return };
        // The metadata service of each machine.
        let mut services: Vec<_> = ["node1", "node2", "node3"]
            .into_iter()
            .map(|host| {
                let mut service = lab.on(host, "python3");
                service.args([
                    "-m",
                    "http.server",
                    "--bind",
                    "127.0.0.1",
                    "--directory",
                    "/run/dtlab",
                    "8169",
                ]);
                service.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                service.spawn().expect("it starts")
            })
            .collect();
        let run = start(&lab, &format!("[cluster.notice]\n{key}\nevery = \"1 s\"\n"));
        run.wait_for_hosts(3, 0);
        let saved = run.checkpoints();
        lab.put("node2", "notice", "it will be taken away");
        let seconds = run.wait_for_hosts(2, 1);
        println!("{way}: next step after {seconds:.1} s");
        assert!(run.checkpoints() > saved, "it left a checkpoint");
        assert!(run.log().contains("node2 leaves: it gave notice"), "{}", run.log());
        nobody_is_struck(&lab);
        for service in &mut services {
            service.kill().expect("it is ours");
            service.wait().expect("it is ours");
        }
        stops(&lab, &["node1", "node3", "controller"]);
    }
}

#[test]
fn a_drained_host_is_free_when_the_command_ends_and_offered_again_when_it_is_lifted() {
    let Some(lab) = Lab::start(3) else { return };
    let run = start(&lab, "");
    run.wait_for_hosts(3, 0);
    let saved = run.checkpoints();
    let begun = Instant::now();
    let drained = dtrain(&lab, &["drain", "node1"]);
    let said = String::from_utf8_lossy(&drained.stderr).into_owned();
    assert!(drained.status.success() && said.contains("node1 is drained: no trial uses it"), "{said}");
    println!("drained after {:.1} s", begun.elapsed().as_secs_f64());
    let seconds = run.wait_for_hosts(2, 1);
    println!("next step {seconds:.1} s later");
    assert!(run.checkpoints() > saved, "it left a checkpoint");
    assert!(dtrain(&lab, &["drain", "node1", "--lift"]).status.success());
    let seconds = run.wait_for_hosts(3, 2);
    println!("lifted: next step on three hosts after {seconds:.1} s");
    println!("{}", run.log());
    nobody_is_struck(&lab);
    stops(&lab, &["node1", "node2", "node3", "controller"]);
}

/// A copy of the state folder, as of a backup that was restored on another machine.
#[test]
fn of_two_controllers_with_copies_of_a_history_the_older_one_ends() {
    let Some(lab) = Lab::start(3) else { return };
    let run = start(&lab, "");
    run.wait_for_hosts(3, 0);
    let controller = run.controller();
    let copy = format!("kill -STOP {controller}; cp -a .local/state/dtrain copy; kill -CONT {controller}");
    assert!(lab.command("sh").args(["-c", &copy]).status().expect("it starts").success());
    let begun = Instant::now();
    let taken = dtrain(&lab, &["--state", "copy", "resume", "last", "--detach"]);
    assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
    while !run.log().contains("took over") {
        assert!(begun.elapsed() < YIELDS_WITHIN, "{}", run.log());
        sleep(Duration::from_millis(50));
    }
    // Its process ends too, and does not take the trial back.
    let controllers =
        || lab.processes("controller").iter().filter(|one| one.is_hidden_command("supervise")).count();
    while controllers() > 1 {
        assert!(begun.elapsed() < YIELDS_WITHIN, "{}", run.log());
        sleep(Duration::from_millis(50));
    }
    println!("the older controller ended after {:.1} s", begun.elapsed().as_secs_f64());
    nobody_is_struck(&lab);
    let hosts = dtrain(&lab, &["--state", "copy", "hosts", "--json"]);
    assert!(!String::from_utf8_lossy(&hosts.stdout).contains("\"cause\""), "nobody is struck");
    let stopped = dtrain(&lab, &["--state", "copy", "stop"]);
    let said = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert!(stopped.status.success() && said.contains("stopped after"), "{said}");
    nothing_is_left(&lab, &["node1", "node2", "node3", "controller"]);
}
