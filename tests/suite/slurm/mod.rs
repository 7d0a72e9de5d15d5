//! Training as a Slurm job, in a real Slurm; `tests/run slurm` runs these alone.

mod farm;

use dtrain_runner::ledger::History;
use dtrain_runner::ledger::TrialActivity;
use dtrain_tests::{SHORT_STEPS, SHORT_TRAINING, TestEnv, numbered_lines};
pub(crate) use farm::Farm;
use std::fs;
use std::ops::RangeInclusive;
use std::process::{Child, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SLURM: &str = "[cluster]\nlauncher = \"slurm\"\nslurm.nodes = 2\n";

/// A farm, a house with the recipe, and the commands of a user.
struct User {
    farm: Farm,
    house: TestEnv,
    recipe: String,
}

impl User {
    fn of(nodes: usize) -> Option<Self> {
        let farm = Farm::start(nodes)?;
        let house = TestEnv::default();
        house.file("text.txt", numbered_lines());
        let recipe = house
            .file("recipe.toml", format!("name = \"farm\"\n{SHORT_TRAINING}\n{SLURM}"))
            .display()
            .to_string();
        Some(Self { farm, house, recipe })
    }

    fn says(&self, arguments: &[&str]) -> Output {
        self.farm.dtrain(&self.house, arguments).stdin(Stdio::null()).output().expect("the program starts")
    }

    /// Begins to train, and waits until another checkpoint is there.
    fn begins(&self) -> Child {
        let before = self.checkpoints();
        let mut command = self.farm.dtrain(&self.house, &["run", &self.recipe, "--no-sample"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().expect("the program starts");
        self.farm.until("a checkpoint is there", || self.checkpoints() > before + 1);
        assert_eq!(self.farm.leaks(), Vec::<String>::new(), "they have a secret of the shell");
        child
    }

    /// Committed checkpoints of all trials.
    fn checkpoints(&self) -> usize {
        let Ok(trials) = fs::read_dir(self.house.state().join("trials")) else { return 0 };
        let folders =
            trials.flatten().filter_map(|trial| fs::read_dir(trial.path().join("checkpoints")).ok());
        let names = folders
            .flat_map(|folder| folder.flatten().filter_map(|entry| entry.file_name().into_string().ok()));
        names.filter(|name| !name.ends_with(".partial")).count()
    }

    /// The job in the queue.
    fn job(&self) -> String {
        self.farm.ask("squeue", &["--noheader", "--format=%i", "--partition=low"]).trim().to_owned()
    }

    /// Waits for an end that is a good one: all steps of the trial, after `attempts` attempts. Gives what was said.
    fn completes(&self, trial: &str, child: Child, attempts: RangeInclusive<usize>) -> String {
        let output = child.wait_with_output().expect("it is our child");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}\n{said}\n{}", output.status, self.farm.logs());
        self.has_all_steps(trial, attempts);
        said
    }

    fn has_all_steps(&self, name: &str, attempts: RangeInclusive<usize>) {
        let history = History::open_read_only(&self.house.history()).expect("a history");
        let trial =
            history.trial(&history.find(name).expect("a trial"), &|_| TrialActivity::None).expect("a trial");
        assert_eq!((trial.row.step, trial.row.status.to_string().as_str()), (SHORT_STEPS, "completed"));
        assert!(attempts.contains(&trial.attempts.len()), "{} attempts", trial.attempts.len());
        assert_eq!(
            history.find("last").expect("a trial"),
            trial.row.id,
            "nothing else was trained meanwhile"
        );
        let until = Instant::now() + Duration::from_secs(15);
        while !self.farm.programs().is_empty() {
            assert!(Instant::now() < until, "left: {:#?}", self.farm.programs());
            sleep(Duration::from_millis(50));
        }
    }
}

/// One life after the other on one farm, which is measured once.
#[test]
fn a_job_goes_on_after_a_stop_preemption_the_end_of_its_time_and_the_death_of_a_node() {
    let Some(user) = User::of(2) else { return };
    stopped_and_resumed(&user);
    preempted(&user);
    out_of_time(&user);
    without_a_node(&user);
}

fn stopped_and_resumed(user: &User) {
    let mut child = user.begins();
    let logs = user.says(&["logs", "last"]);
    assert!(logs.status.success(), "{}", String::from_utf8_lossy(&logs.stderr));
    let stopped = user.says(&["stop", "last"]);
    let words = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert!(stopped.status.success(), "{words}\n{}", user.farm.logs());
    assert_eq!(child.wait().expect("it is our child").code(), Some(130), "the job was interrupted");
    let resumed = user.says(&["resume", "last"]);
    let words = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert!(resumed.status.success(), "{words}\n{}", user.farm.logs());
    assert!(words.contains("n1, n2"), "{words}");
    user.has_all_steps("farm-1", 2..=2);
}

/// A job of a partition that goes first takes the nodes for a second.
fn preempted(user: &User) {
    let child = user.begins();
    let other = ["--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"];
    user.farm.ask("sbatch", &other);
    let said = user.completes("farm-2", child, 2..=3);
    assert!(said.contains("is pending: "), "{said}");
}

/// What Slurm sends two minutes before the end of a job's time is sent now.
fn out_of_time(user: &User) {
    let child = user.begins();
    user.farm.ask("scancel", &["--batch", "--signal=USR1", &user.job()]);
    let said = user.completes("farm-3", child, 2..=2);
    assert!(said.contains("is pending: "), "{said}");
}

fn without_a_node(user: &User) {
    let child = user.begins();
    user.farm.kill_node("n2");
    let said = user.completes("farm-4", child, 2..=3);
    assert!(said.contains("lost host") && said.contains("n2"), "{said}");
}

#[test]
fn what_slurm_refuses_is_said_before_anything_is_queued() {
    let Some(user) = User::of(1) else { return };
    let refused = user.says(&["run", &user.recipe]);
    let words = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(6), "{words}");
    assert!(words.contains("sbatch") && words.contains("cluster.slurm"), "{words}");
    assert_eq!(user.job(), "");
}
