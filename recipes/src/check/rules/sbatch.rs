//! Options of sbatch that a recipe may give: those that say what a job gets, and none that says what it runs or where it writes.

/// Long names that a recipe may not give: dtrain says them itself, or they would run, read or write something else.
const LONG: [&str; 24] = [
    "array",
    "batch",
    "bcast",
    "chdir",
    "clusters",
    "error",
    "export",
    "export-file",
    "get-user-env",
    "gid",
    "help",
    "ignore-pbs",
    "input",
    "job-name",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "open-mode",
    "output",
    "parsable",
    "signal",
    "test-only",
    "uid",
    "wrap",
];

/// Short names that stand for some of these.
const SHORT: &str = "aDehiJMnNoV";

/// Why an option cannot be given; `None` when it can.
pub(super) fn refused(option: &str) -> Option<&'static str> {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let own =
        "is an option of sbatch that dtrain gives itself, or that changes what runs and where it writes";
    let name = option.split('=').next().unwrap_or(option);
    if option.chars().any(char::is_control) {
        return Some("holds a control character");
    }
    match name.strip_prefix("--") {
        // sbatch takes the begin of a name for the name.
        Some(long) if is_name(long) && LONG.iter().any(|ours| ours.starts_with(long)) => Some(own),
        Some(long) if is_name(long) => None,
        _ => match option.strip_prefix('-').and_then(|rest| rest.chars().next()) {
            Some(short) if SHORT.contains(short) => Some(own),
            Some(short) if short.is_ascii_alphabetic() => None,
            _ => Some("is not an option of sbatch: options begin with `-` and a letter, or `--` and a name"),
        },
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
        ] {
            assert!(refused(bad).is_some(), "{bad}");
        }
    }
}
