//! A bad cable to a machine: packets arrive late, spoilt, or not at all. Where Linux was built with `netem` it does that;
//! this works anywhere, at the price of a process that carries every frame.

use super::Lab;
use super::net::Port;
use dtrain_skip::skip;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// What carries the frames.
const CARRIER: &str = include_str!("cable.py");

/// What is wrong with a cable, each way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cable {
    /// How late every packet is; packets keep their order.
    pub(crate) delay: Duration,
    /// The share of packets that is lost.
    pub(crate) lost: f64,
    /// The share of packets whose TCP data arrives altered in a way that TCP does not notice.
    pub(crate) spoilt: f64,
}

/// The process that carries the frames of one port of a machine; it ends with this value.
pub(super) struct Carrier {
    host: String,
    process: Child,
}

impl Drop for Carrier {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Lab {
    /// Connects a machine by a bad cable. `false`, the test being skipped, where there is no Python.
    ///
    /// [`Lab::heal`] undoes it. The same packets in the same order meet the same fate.
    pub(crate) fn bad_cable(&self, host: &str, cable: &Cable) -> bool {
        if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
            skip("bad cables need python3");
            return false;
        }
        self.good_cable(host);
        let machine = self.machine(host);
        for port in &machine.ports {
            let (end, bridge) = (port.in_switch(host), port.net.bridge());
            self.space.run(&format!(
                "ip link add {end}a type veth peer name {end}b\nip link set {end} nomaster\n\
                 ip link set {end}a up\nip link set {end}b up\nip link set {end}b master {bridge}"
            ));
            self.plain(host, port, true);
            let mut process = self
                .space
                .command(&["--pid"])
                .args(["setpriv", "--pdeathsig", "KILL", "--", "python3", "-c", CARRIER])
                .args(["carry", &end, &format!("{end}a")])
                .args([cable.delay.as_secs_f64(), cable.lost, cable.spoilt].map(|share| share.to_string()))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .expect("nsenter starts");
            let mut line = String::new();
            let told = BufReader::new(process.stdout.take().expect("it is piped")).read_line(&mut line);
            assert!(
                told.is_ok() && line == "ready\n",
                "the cable of {host} does not carry; stderr tells why"
            );
            self.carriers().push(Carrier { host: host.to_owned(), process });
        }
        true
    }

    /// Takes the bad cable of a machine away.
    pub(super) fn good_cable(&self, host: &str) {
        if self.carriers().extract_if(.., |carrier| carrier.host == host).count() == 0 {
            return;
        }
        for port in &self.machine(host).ports {
            let (end, bridge) = (port.in_switch(host), port.net.bridge());
            self.space.run(&format!("ip link del {end}a\nip link set {end} master {bridge}"));
            self.plain(host, port, false);
        }
    }

    fn carriers(&self) -> MutexGuard<'_, Vec<Carrier>> {
        self.carriers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has both ends of the bad cable send what a real cable carries, or has the machine's own send as before.
    fn plain(&self, host: &str, port: &Port, is_plain: bool) {
        let flag = if is_plain { "1" } else { "0" };
        let network = format!("--net=/run/netns/{host}");
        let mut own = self.space.command(&[]);
        own.args(["nsenter", &network, "--", "python3", "-c", CARRIER, "plain", port.interface, flag]);
        let mut all = vec![own];
        if is_plain {
            let mut far = self.space.command(&[]);
            far.args(["python3", "-c", CARRIER, "plain", &format!("{}b", port.in_switch(host)), flag]);
            all.push(far);
        }
        for mut command in all {
            let output = command.output().expect("nsenter starts");
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
