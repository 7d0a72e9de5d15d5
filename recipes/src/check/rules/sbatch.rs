//! The allow-list of sbatch options in a recipe: those that request resources and time for a job, and none
//! that change the program it runs or the files it writes. Unlisted options are refused, since sites and new
//! versions of Slurm add more.

use crate::check::suggestion;

/// Allowed long options that require a value, without `--`.
const WITH_VALUE: [&str; 46] = [
    "account",
    "begin",
    "comment",
    "constraint",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "cpus-per-gpu",
    "cpus-per-task",
    "deadline",
    "delay-boot",
    "dependency",
    "distribution",
    "exclude",
    "extra-node-info",
    "gpu-bind",
    "gpu-freq",
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "hint",
    "job-name",
    "licenses",
    "mail-type",
    "mail-user",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "nodelist",
    "partition",
    "prefer",
    "priority",
    "qos",
    "reservation",
    "sockets-per-node",
    "switches",
    "thread-spec",
    "threads-per-core",
    "time",
    "time-min",
    "tmp",
    "wckey",
];

/// Allowed long options whose value is optional, without `--`.
const WITHOUT: [&str; 8] =
    ["contiguous", "exclusive", "hold", "nice", "overcommit", "oversubscribe", "spread-job", "use-min-nodes"];

/// Allowed short options that require a value, one letter each.
const SHORT_WITH_VALUE: &str = "ABbCcdGJLmpqStwx";

/// Allowed short flags. Each must be a word of its own, since further letters in the word would be another
/// option.
const SHORT: [&str; 3] = ["-H", "-O", "-s"];

/// Returns the reason why an sbatch option is refused; `None` if it is allowed.
pub(super) fn refused(option: &str) -> Option<String> {
    if option.chars().any(char::is_control) {
        return Some("holds a control character".to_owned());
    }
    if let Some(long) = option.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        return match (WITH_VALUE.contains(&name), value) {
            (true, Some("") | None) => Some(format!("has no value: write `--{name}=…` in one text")),
            // Slurm checks the value itself.
            (true, Some(_)) => None,
            (false, _) if WITHOUT.contains(&name) => None,
            // Any other long option is refused, with or without a value.
            (false, _) => Some(unknown(name)),
        };
    }
    let mut rest = option.strip_prefix('-').unwrap_or("").chars();
    match rest.next() {
        Some(_) if SHORT.contains(&option) => None,
        Some(short) if SHORT_WITH_VALUE.contains(short) => {
            rest.as_str().trim().is_empty().then(|| format!("has no value: write `-{short}…` in one text"))
        }
        Some(short) if short.is_ascii_alphabetic() => Some(unknown("")),
        _ => Some(
            "is not an option of sbatch: options begin with `-` and a letter, or `--` and a name".to_owned(),
        ),
    }
}

/// Returns the message for an option that is not on the allow-list, with the closest option that is.
fn unknown(name: &str) -> String {
    let long = || WITH_VALUE.into_iter().chain(WITHOUT);
    let why = "is not an option that a recipe may give to sbatch";
    match suggestion::closest_suggestion(name, long()) {
        Some(near) => format!("{why}; did you mean `--{near}`?"),
        None => {
            let all: Vec<String> = long().map(|name| format!("--{name}")).collect();
            format!("{why}; it may give {}", all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_say_what_a_job_gets_and_not_what_it_runs() {
        for fine in [
            "--gpus-per-node=8",
            "--constraint=a100&nvme",
            "-C a100",
            "-pgpu",
            "--mem=0",
            "--qos=high",
            "-x n1",
            "--exclusive",
            "--exclusive=user",
            "--mail-type=END",
            "--comment=a b",
            "-s",
            "-c8",
        ] {
            assert_eq!(refused(fine), None, "{fine}");
        }
        for bad in [
            "--wrap=touch x",
            "--wra=touch x",
            "--export=ALL,LD_PRELOAD=/tmp/x.so",
            "--output=/home/me/.bashrc",
            "-o/home/me/.bashrc",
            "--chdir=/tmp",
            "-D/tmp",
            "-e x",
            "--",
            "-",
            "-/tmp/x.sh",
            "/tmp/x.sh",
            "x.sh",
            "",
            "--=x",
            "--mem=0\n--wrap=x",
            "--$(x)",
            "-$(x)",
            // Options that would run another program, or write to another place.
            "--container-image=/tmp/x",
            "--container-mounts=/etc:/etc",
            "--container=/tmp/x",
            "--bbf=/tmp/x",
            "--wait",
            "--version",
            "--task-prolog=/tmp/x",
            // Flags joined into one word.
            "-so/home/me/.bashrc",
            "-HD/tmp",
            // An option without its value would take the next word as its value, which is the script.
            "--comment",
            "--constraint",
            "-C",
            "-x",
        ] {
            assert!(refused(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn the_nearest_option_is_named_or_else_all_are() {
        let why = refused("--gpu-per-node=8").expect("there is no such option");
        assert!(why.ends_with("did you mean `--gpus-per-node`?"), "{why}");
        let why = refused("--wrap=x").expect("it runs something");
        assert!(why.contains("--account, ") && why.contains("--wckey, "), "{why}");
        let why = refused("--time").expect("it has no value");
        assert!(why.contains("`--time=…`"), "{why}");
    }

    #[test]
    fn options_are_sorted_so_that_one_is_found() {
        assert!(WITH_VALUE.is_sorted(), "{WITH_VALUE:?}");
    }
}
