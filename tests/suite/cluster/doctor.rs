//! `dtrain doctor` on a cluster.

use crate::lab::{Lab, Options};

#[test]
fn doctor_examines_hosts_by_their_names_and_tells_which_one_is_cut_off() {
    let Some(lab) = Lab::with(&Options { hosts: 3, direct: true, ..Options::default() }) else { return };
    let doctor = || {
        let output = lab.command("dtrain").args(["doctor", "node1", "node2", "node3", "--json"]).output();
        let output = output.expect("the program starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let report: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        let hosts = report["hosts"].as_array().unwrap_or_else(|| panic!("no hosts: {text}"));
        let reached = |name: &str| {
            let host =
                hosts.iter().find(|host| host["host"] == name).unwrap_or_else(|| panic!("{name}: {text}"));
            let checks = host["checks"].as_array().unwrap_or_else(|| panic!("no checks: {text}"));
            checks.iter().any(|check| check["name"] == "cores" && check["verdict"] == "good")
        };
        ["node1", "node2", "node3"].map(reached)
    };
    assert_eq!(doctor(), [true; 3]);
    lab.cut("node2");
    assert_eq!(doctor(), [true, false, true]);
    for host in ["node1", "node2", "node3"] {
        assert_eq!(lab.processes(host), [], "left on {host}");
    }
}
