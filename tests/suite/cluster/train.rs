//! Training on hosts that are reached through a bastion, and that fail.

use crate::lab::Lab;
use dtrain_recipes::number_format::thousands;
use dtrain_tests::{SHORT_TRAINING, numbered_lines, root};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(150);

const HOSTS: &str = r#"
[cluster]
launcher = "ssh"
hosts = ["node[1-4]"]
"#;

/// A run of `dtrain` on the controller, and what it says.
pub(crate) struct Run {
    process: Child,
    lines: Receiver<(Instant, String)>,
    said: Vec<(Instant, String)>,
}

impl Run {
    /// Puts recipe and data in place, and starts.
    fn start(lab: &Lab, recipe: &str, settings: &[&str]) -> Self {
        let text = numbered_lines();
        let files = [("text.txt", text.as_str()), ("recipe.toml", recipe), ("hosts.toml", HOSTS)];
        for machine in ["controller", "node1", "node2", "node3", "node4"] {
            files.iter().for_each(|(name, text)| lab.put(machine, name, text));
        }
        Self::of(lab, settings)
    }

    /// Starts with the recipe and the hosts that are in place.
    pub(crate) fn of(lab: &Lab, settings: &[&str]) -> Self {
        let mut command = lab.command("dtrain");
        command.args(["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample"]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let from = process.stderr.take().expect("it is piped");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                drop(sender.send((Instant::now(), line)));
            }
        });
        Self { process, lines, said: Vec::new() }
    }

    /// Waits for a line with `word`, and gives it with the moment it came.
    pub(crate) fn hears(&mut self, word: &str) -> (Instant, String) {
        self.hears_any(&[word])
    }

    /// The same for one of several words.
    pub(crate) fn hears_any(&mut self, words: &[&str]) -> (Instant, String) {
        let until = Instant::now() + PATIENCE;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.said.push(line.clone());
            if words.iter().any(|word| line.1.contains(word)) {
                return line;
            }
        }
        panic!("none of {words:?} was said: {:#?}", self.words())
    }

    /// Kills the program.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it is our child");
        self.process.wait().expect("it is our child");
    }

    /// Sends it a signal.
    pub(crate) fn signal(&mut self, signal: rustix::process::Signal) {
        crate::lab::signal(&mut self.process, signal);
    }

    /// Waits for its end, and gives its exit code.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().expect("it is our child") {
                return status.code();
            }
            assert!(Instant::now() < until, "it never ends: {:#?}", self.words());
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn words(&self) -> Vec<&str> {
        self.said.iter().map(|(_, line)| line.as_str()).collect()
    }

    /// Waits for the end, which is a good one.
    pub(crate) fn completes(&mut self, steps: u32) {
        let steps = thousands(steps.into());
        self.hears(&format!("completed after {steps} of {steps} steps"));
        let status = self.process.wait().expect("it is our child");
        assert!(status.success(), "{status}: {:#?}", self.words());
    }
}

/// Nothing of dtrain runs on any host, 15 seconds from now at the latest.
pub(crate) fn nothing_is_left(lab: &Lab, hosts: &[&str]) {
    let until = Instant::now() + Duration::from_secs(15);
    for host in hosts {
        while !lab.processes(host).is_empty() {
            assert!(Instant::now() < until, "left on {host}: {:?}", lab.processes(host));
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn four_hosts_train_the_quickstart_through_a_bastion() {
    let Some(lab) = Lab::start(4) else { return };
    let quickstart = fs::read_to_string(root().join("examples/quickstart/recipe.toml")).expect("it is there");
    let settings = [
        "data.train=['text.txt']",
        "data.tokenizer=bytes",
        "objective.stop={ steps = 10 }",
        "cluster.ranks=4",
    ];
    let mut run = Run::start(&lab, &quickstart, &settings);
    for host in ["node1", "node2", "node3", "node4"] {
        println!("{}", run.hears(&format!("{host}: connected in")).1);
    }
    run.completes(10);
    for host in ["node1", "node2", "node3", "node4"] {
        let words = format!("{host}: connected in");
        let times = run.words().iter().filter(|line| line.contains(&words)).count();
        assert_eq!(times, 1, "the training uses the connection of the plan: {:#?}", run.words());
    }
    nothing_is_left(&lab, &["node1", "node2", "node3", "node4"]);
    let logs = lab.command("dtrain").args(["logs", "quickstart-1"]).output().expect("the program starts");
    assert!(logs.status.success(), "{}", String::from_utf8_lossy(&logs.stderr));
    let kept = |host: &str| {
        let trials = lab.trials(host);
        let trial = fs::read_dir(trials).expect("a trial").flatten().next().expect("a trial").path();
        fs::read_dir(trial.join("checkpoints")).expect("a folder").count()
    };
    assert!(["node1", "node2", "node3", "node4"].iter().all(|host| kept(host) > 0), "each keeps its part");
    checkpoints_of_hosts(&lab);
}

/// The way to the hosts is one that only the program `ssh` can go.
#[test]
fn hosts_train_over_the_program_ssh_through_a_proxy_command() {
    let Some(lab) = Lab::start(4) else { return };
    let config = "Host node*\n    ProxyCommand ssh -W %h:%p bastion\n";
    lab.put("controller", ".ssh/config", config);
    let settings = ["objective.stop={ steps = 10 }", "cluster.ranks=4", "cluster.transport=openssh"];
    let mut run = Run::start(&lab, &format!("name = \"proxied\"\n{SHORT_TRAINING}"), &settings);
    for host in ["node1", "node2", "node3", "node4"] {
        println!("{}", run.hears(&format!("{host}: connected in")).1);
    }
    run.completes(10);
    nothing_is_left(&lab, &["node1", "node2", "node3", "node4"]);
    let refused = lab
        .command("dtrain")
        .args(["run", "recipe.toml", "--cluster", "hosts.toml", "--no-sample"])
        .output()
        .expect("the program starts");
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && words.contains("transport = \"openssh\""), "{words}");
}

/// The checkpoints of the quickstart are listed, read and copied from the controller; what one host lost another has.
fn checkpoints_of_hosts(lab: &Lab) {
    let says = |arguments: &[&str]| {
        let output = lab.command("dtrain").args(arguments).output().expect("the program starts");
        let [out, error] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(output.status.success(), "{arguments:?}: {out}{error}");
        out
    };
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&says(arguments)).expect("one document")
    };
    let listed = json(&["checkpoint", "ls", "quickstart-1", "--json"]);
    let newest = listed["checkpoints"].as_array().and_then(|all| all.last()).expect("a checkpoint");
    assert_eq!((&newest["step"], &newest["state"]), (&10.into(), &"committed".into()), "{listed}");
    let holders: Vec<_> = newest["places"].as_array().into_iter().flatten().map(|p| &p["holder"]).collect();
    assert_eq!(holders, ["node1", "node2", "node3", "node4"]);

    let verified = json(&["checkpoint", "verify", "quickstart-1", "--json"]);
    assert_eq!(verified["checkpoints"][0]["damaged"], serde_json::json!([]), "{verified}");
    let trials = lab.trials("node2");
    let trial = fs::read_dir(trials).expect("a trial").flatten().next().expect("a trial").path();
    let folder = trial.join("checkpoints").join(newest["name"].as_str().expect("a name"));
    let file = folder.join("rank-00001.safetensors");
    let mut bytes = fs::read(&file).expect("its own rank's file");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).expect("room on disk");
    let said = says(&["checkpoint", "verify", "quickstart-1"]);
    assert!(said.contains("but some copies are damaged") && said.contains("node2: tensor"), "{said}");

    says(&["checkpoint", "pull", "quickstart-1", "--to", "pulled"]);
    let pulled = lab.home("controller").join("pulled");
    let files = fs::read_dir(&pulled).expect("a checkpoint").count();
    assert_eq!(files, 7, "four ranks, the table of contents, the inputs and COMMIT");
    assert_ne!(fs::read(&file).ok(), fs::read(pulled.join("rank-00001.safetensors")).ok(), "of another host");
    dtrain_runner::checkpoints::verify(&pulled).expect("it is a checkpoint");
}

/// Runs for a while, disturbs, and waits for the end; prints how long it took to notice and to go on.
#[expect(clippy::print_stdout, reason = "the log of the tests tells how long it took")]
fn disturbed(fault: &str, disturb: impl Fn(&Lab), (word, name): (&str, &str), left: &[&str]) {
    let Some(lab) = Lab::start(4) else { return };
    let mut run = Run::start(&lab, &format!("name = \"lab\"\n{SHORT_TRAINING}"), &[]);
    run.hears("step ");
    run.hears("step ");
    let began = Instant::now();
    disturb(&lab);
    let (noticed, words) = run.hears(word);
    assert!(words.contains(name), "{words}");
    run.hears("starting");
    let (next, _) = run.hears("step ");
    let seconds = |moment: Instant| moment.duration_since(began).as_secs_f64();
    println!(
        "{fault}: noticed after {:.1} s, next step shown after {:.1} s",
        seconds(noticed),
        seconds(next)
    );
    run.completes(150);
    nothing_is_left(&lab, left);
}

#[test]
fn the_others_go_on_when_a_host_dies() {
    disturbed(
        "a host dies",
        |lab| lab.kill_host("node3"),
        ("lost host", "node3"),
        &["node1", "node2", "node4"],
    );
}

#[test]
fn the_others_go_on_when_a_host_is_cut_off() {
    disturbed(
        "a host is cut off",
        |lab| lab.cut("node2"),
        ("lost host", "node2"),
        &["node1", "node3", "node4"],
    );
}

#[test]
fn the_others_go_on_when_the_host_that_leads_is_cut_off() {
    disturbed(
        "the leader is cut off",
        |lab| lab.cut("node1"),
        ("lost host", "node1"),
        &["node2", "node3", "node4"],
    );
}

/// Three hosts, the disk of one of which becomes full: checkpoints need each part, so the others continue without it.
#[test]
fn the_others_go_on_when_a_disk_is_full() {
    for host in ["node2", "node1"] {
        let Some((lab, mut run)) = three_hosts() else { return };
        lab.fill_disk(host);
        let (_, words) = run.hears("cannot save checkpoints");
        // Room is looked for before a save, and may end during one.
        let is_full =
            ["bytes free", "no storage space", "No space left"].iter().any(|part| words.contains(part));
        assert!(words.contains(host) && is_full, "{words}");
        run.hears("starting");
        let failed = run
            .words()
            .iter()
            .filter(|line| line.contains("checkpoint") && line.contains("not saved"))
            .count();
        assert!(failed <= 4, "two checkpoints, each told once: {:#?}", run.words());
        run.completes(150);
        let others: Vec<&str> = ["node1", "node2", "node3"].into_iter().filter(|one| *one != host).collect();
        nothing_is_left(&lab, &others);
    }
}

/// Starts a training on three hosts, and waits until it has taken steps; `None` where there can be no lab.
fn three_hosts() -> Option<(Lab, Run)> {
    let lab = Lab::start(3)?;
    let hosts = HOSTS.replace("[1-4]", "[1-3]");
    let text = numbered_lines();
    let recipe = format!("name = \"lab\"\n{SHORT_TRAINING}");
    for (name, text) in [("text.txt", text.as_str()), ("recipe.toml", &recipe), ("hosts.toml", &hosts)] {
        ["controller", "node1", "node2", "node3"].iter().for_each(|machine| lab.put(machine, name, text));
    }
    let mut run = Run::of(&lab, &[]);
    run.hears("step ");
    run.hears("step ");
    Some((lab, run))
}

/// Three hosts, one of which is shut down while they train: the others continue with its last step.
#[test]
fn the_others_go_on_when_a_host_is_shut_down() {
    for host in ["node3", "node1"] {
        let Some((lab, mut run)) = three_hosts() else { return };
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| lab.shut_down(host));
            run.hears(&format!("{host} leaves"));
            run.hears("starting");
            let (next, _) = run.hears("step ");
            let seconds = next.duration_since(began).as_secs_f64();
            println!("{host} is shut down: next step shown after {seconds:.1} s");
        });
        run.completes(150);
        let left: Vec<&str> = ["node1", "node2", "node3"].into_iter().filter(|one| *one != host).collect();
        nothing_is_left(&lab, &left);
        let struck = lab.command("dtrain").args(["hosts", "--json"]).output().expect("the program starts");
        let struck = String::from_utf8_lossy(&struck.stdout).into_owned();
        assert!(struck.contains("node2") && !struck.contains("\"cause\""), "nobody is struck: {struck}");
    }
}
