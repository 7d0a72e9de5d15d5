//! `dtrain doctor` over SSH, with the keys and the known_hosts of a user.

use super::server::Server;
use dtrain_tests::TestEnv;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn doctor_examines_a_host_and_refuses_one_that_is_not_known() {
    let Some(server) = Server::start() else { return };
    let house = TestEnv::default();
    let target = server.good();
    let keys = fs::read(&target.keys[0]).expect("a key");
    let key = house.file(".ssh/id_ed25519", keys);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("ours");
    let known = house.file(".ssh/known_hosts", fs::read(&target.known_hosts[0]).expect("lines"));
    let home = key.ancestors().nth(2).expect("a home").to_owned();
    let host = format!("root@127.0.0.1:{}", server.port);
    let mut command = house.dtrain(["doctor", &host, "--json"]);
    let output = command.env("HOME", &home).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let checks = report["hosts"][0]["checks"].as_array().unwrap_or_else(|| panic!("no checks: {text}"));
    assert!(checks.iter().any(|check| check["name"] == "cores" && check["verdict"] == "good"), "{text}");
    fs::remove_file(known).expect("it is ours");
    let output = house.dtrain(["doctor", &host]).env("HOME", &home).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("not in known_hosts") && text.contains("SHA256:"), "{text}");
}
