//! A Slurm of its own: munged, slurmctld and a slurmd for each node, on this machine.
//!
//! All of it lives in a process namespace whose first process reads a pipe of the test: when the test ends, even by a kill, the
//! kernel ends every daemon and every job.

use dtrain_skip::skip;
use dtrain_tests::TestEnv;
use rustix::process::{Pid, Signal, getuid, kill_process};
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Programs that a farm needs.
const PROGRAMS: [&str; 6] = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare"];

/// A variable of the user's shell that no job may have.
const SECRET: (&str, &str) = ("HF_TOKEN", "canary-5d1e8");

/// A Slurm that is up. Dropping it ends all that runs in it.
pub(crate) struct Farm {
    folder: tempfile::TempDir,
    daemons: Child,
}

impl Farm {
    /// A farm of `nodes` nodes, n1 and so on, with the partitions `low` (the default) and `high`, whose jobs push those of `low` back
    /// into the queue. `None`, the test being skipped, where the machine has no Slurm.
    pub(crate) fn start(nodes: usize) -> Option<Self> {
        let missing: Vec<_> = PROGRAMS.iter().filter(|program| !is_there(program)).collect();
        if !missing.is_empty() || !getuid().is_root() {
            skip(format_args!("it needs root and {PROGRAMS:?}; missing: {missing:?}"));
            return None;
        }
        let folder = tempfile::Builder::new().prefix("farm").tempdir().expect("a folder");
        let root = folder.path();
        for name in ["state", "log", "bin"] {
            fs::create_dir(root.join(name)).expect("a folder");
        }
        fs::write(root.join("munge.key"), [7; 1024]).expect("room on disk");
        fs::set_permissions(root.join("munge.key"), fs::Permissions::from_mode(0o600)).expect("ours");
        fs::write(root.join("slurm.conf"), configuration(root, nodes)).expect("room on disk");
        let log = fs::File::create(root.join("log/daemons")).expect("room on disk");
        let daemons = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-c", &script(root, nodes)])
            .env("SLURM_CONF", root.join("slurm.conf"))
            .env("PATH", path())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("unshare is there");
        let farm = Self { folder, daemons };
        farm.until("all nodes are idle", || {
            let nodes_idle = farm.ask("sinfo", &["--noheader", "--Node", "--format=%T", "--partition=low"]);
            nodes_idle.lines().filter(|line| *line == "idle").count() == nodes
        });
        Some(farm)
    }

    /// A command that finds this Slurm.
    pub(crate) fn on(&self, mut command: Command) -> Command {
        command.env("SLURM_CONF", self.folder.path().join("slurm.conf")).env("PATH", path());
        command
    }

    /// `dtrain` with these arguments, in a house.
    pub(crate) fn dtrain(&self, house: &TestEnv, arguments: &[&str]) -> Command {
        let mut command = self.on(house.dtrain(arguments));
        command.env(SECRET.0, SECRET.1);
        command
    }

    /// What a program of Slurm says.
    pub(crate) fn ask(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(arguments);
        let output = self.on(command).output().expect("it was looked for");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until something is so.
    pub(crate) fn until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.wait_for(what, PATIENCE, is_so);
    }

    /// The same, with a patience of the caller's.
    pub(crate) fn wait_for(&self, what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + patience;
        while !is_so() {
            assert!(Instant::now() < until, "not within {patience:?}: {what}\n{}", self.logs());
            sleep(Duration::from_millis(50));
        }
    }

    /// Kills the daemon of a node and all that it runs, at once.
    pub(crate) fn kill_node(&self, node: &str) {
        let is_daemon = |process: &Path| {
            let line = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
            line.contains(&format!("slurmd\0-D\0-N\0{node}\0"))
        };
        let marks = [format!("SLURMD_NODENAME={node}"), format!("SLURM_CONF={}", self.configuration())];
        let is_of_a_job = |process: &Path| {
            let environment = fs::read_to_string(process.join("environ")).unwrap_or_default();
            marks.iter().all(|mark| environment.split('\0').any(|variable| variable == mark))
        };
        for process in fs::read_dir("/proc").expect("there is one").flatten() {
            let path = process.path();
            let id = process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            if let Some(id) = id.filter(|_| is_daemon(&path) || is_of_a_job(&path)) {
                let _ = kill_process(id, Signal::KILL);
            }
        }
    }

    /// Programs of this test that still run on any node, in words.
    pub(crate) fn programs(&self) -> Vec<String> {
        let mark = format!("SLURM_CONF={}", self.configuration());
        let mut found = Vec::new();
        for process in fs::read_dir("/proc").expect("there is one").flatten() {
            let environment = fs::read_to_string(process.path().join("environ")).unwrap_or_default();
            let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            let is_ours = environment.split('\0').any(|variable| variable == mark);
            if is_ours && line.split('\0').next().is_some_and(|program| program.ends_with("/dtrain")) {
                found.push(line.replace('\0', " "));
            }
        }
        found
    }

    /// Programs of jobs that have the secret of the shell which submitted them.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let marks = [format!("SLURM_CONF={}", self.configuration()), format!("{}={}", SECRET.0, SECRET.1)];
        let mut found = Vec::new();
        for process in fs::read_dir("/proc").expect("there is one").flatten() {
            let environment = fs::read_to_string(process.path().join("environ")).unwrap_or_default();
            let has = |mark: &str| environment.split('\0').any(|variable| variable == mark);
            let is_of_a_job = environment.split('\0').any(|variable| variable.starts_with("SLURM_JOB_ID="));
            if is_of_a_job && marks.iter().all(|mark| has(mark)) {
                found.push(fs::read_to_string(process.path().join("cmdline")).unwrap_or_default());
            }
        }
        found
    }

    /// Output of the daemons, to explain a failed test.
    pub(crate) fn logs(&self) -> String {
        let mut all = self.ask("squeue", &[]);
        for file in fs::read_dir(self.folder.path().join("log")).expect("a folder").flatten() {
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            let last: Vec<&str> = text.lines().rev().take(25).collect();
            writeln!(all, "== {}", file.path().display()).expect("a string takes everything");
            last.iter().rev().for_each(|line| {
                writeln!(all, "{line}").expect("a string takes everything");
            });
        }
        all
    }

    fn configuration(&self) -> String {
        self.folder.path().join("slurm.conf").display().to_string()
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        drop(self.daemons.stdin.take());
        drop(self.daemons.kill());
        drop(self.daemons.wait());
    }
}

fn path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

fn is_there(program: &str) -> bool {
    path().split(':').any(|folder| Path::new(folder).join(program).is_file())
}

/// Starts all daemons, and ends when standard input does.
fn script(root: &Path, nodes: usize) -> String {
    let at = |name: &str| root.join(name).display().to_string();
    let mut script = format!(
        "munged --force --foreground --key-file={} --socket={} --pid-file={} --log-file={} --seed-file={} &\n",
        at("munge.key"),
        at("munge.sock"),
        at("munge.pid"),
        at("log/munged"),
        at("munge.seed"),
    );
    script
        .push_str(&format!("while [ ! -S {} ]; do sleep 0.02; done\nslurmctld -D -c &\n", at("munge.sock")));
    for node in 1..=nodes {
        script.push_str(&format!("slurmd -D -N n{node} &\n"));
    }
    script + "cat >/dev/null"
}

fn configuration(root: &Path, nodes: usize) -> String {
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").expect("a machine has a name");
    let hostname = hostname.trim();
    let ports: Vec<TcpListener> =
        (0..=nodes).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    let port = |index: usize| ports[index].local_addr().expect("it is bound").port();
    let root: PathBuf = root.to_owned();
    let root = root.display();
    let mut text = format!(
        "ClusterName=farm\nSlurmctldHost={hostname}(127.0.0.1)\nSlurmctldPort={}\nSlurmUser=root\n\
         AuthInfo=socket={root}/munge.sock\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
         MpiDefault=none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nReturnToService=2\n\
         StateSaveLocation={root}/state\nSlurmdSpoolDir={root}/spool-%n\nSlurmdPidFile={root}/slurmd-%n.pid\n\
         SlurmctldPidFile={root}/slurmctld.pid\nSlurmctldLogFile={root}/log/slurmctld\n\
         SlurmdLogFile={root}/log/slurmd-%n\nSlurmdParameters=config_overrides\nSlurmdTimeout=10\nKillWait=10\n\
         SchedulerParameters=bf_interval=1,sched_interval=1\nPreemptType=preempt/partition_prio\n\
         PreemptMode=REQUEUE\nSwitchType=switch/none\nJobAcctGatherType=jobacct_gather/none\n",
        port(0)
    );
    for node in 1..=nodes {
        writeln!(
            text,
            "NodeName=n{node} NodeHostname={hostname} NodeAddr=127.0.0.1 Port={} CPUs=2 RealMemory=2000",
            port(node)
        )
        .expect("a string takes everything");
    }
    text + "PartitionName=low Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE State=UP\n\
            PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP\n"
}
