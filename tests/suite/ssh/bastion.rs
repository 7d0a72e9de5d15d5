//! Hosts behind a bastion.

use super::server::Server;
use dtrain_runner::transport::known_hosts::HostKeyError;
use dtrain_runner::transport::{Bastions, FACTS, Ssh, SshTarget, Transport, TransportError, connect_all};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn twenty_hosts_behind_a_bastion_cost_it_one_session() {
    let Some(bastion) = Server::start() else { return };
    let Some(host) = Server::with("MaxStartups 100", "") else { return };
    let targets = vec![host.behind(&bastion); 20];
    let since = Instant::now();
    let results = connect_all(&targets, &Bastions::default());
    let mut slowest = Duration::ZERO;
    let mut hosts: Vec<_> = results
        .into_iter()
        .map(|result| {
            let (host, took) = result.unwrap_or_else(|error| panic!("{error:?}"));
            slowest = slowest.max(took);
            host
        })
        .collect();
    println!("20 hosts behind a bastion: {:?}, the slowest {slowest:?}", since.elapsed());
    for host in &mut hosts {
        let output = host.run(FACTS).expect("it answers");
        assert!(output.stdout.contains("system=Linux"), "{output:?}");
    }
    assert_eq!((bastion.logins(), host.logins()), (1, 20));
}

#[test]
fn the_keys_of_both_bastion_and_host_are_checked() {
    let Some(bastion) = Server::start() else { return };
    let Some(host) = Server::start() else { return };
    let good = host.behind(&bastion);
    let unknown = SshTarget { known_hosts: Vec::new(), ..good.clone() };
    let is_unknown = |error: &TransportError| {
        matches!(error, TransportError::HostKey { problem: HostKeyError::Unknown, .. })
    };
    let refused = Ssh::connect(&unknown).err().expect("the host is unknown");
    assert!(is_unknown(&refused), "{refused:?}");
    let via = SshTarget { known_hosts: Vec::new(), ..bastion.good() };
    let refused = Ssh::connect(&SshTarget { via: Some(Box::new(via)), ..good.clone() }).err();
    match &refused {
        Some(TransportError::Bastion { source, .. }) if is_unknown(source) => {}
        other => panic!("{other:?}"),
    }
    let closed = SshTarget { port: 1, ..good };
    let refused = Ssh::connect(&closed).err();
    assert!(matches!(&refused, Some(TransportError::Tunnel { .. })), "{refused:?}");
}

#[test]
fn a_bastion_that_went_away_is_connected_to_again() {
    let Some(bastion) = Server::start() else { return };
    let Some(host) = Server::start() else { return };
    let (target, bastions) = (host.behind(&bastion), Bastions::default());
    let mut ssh = Ssh::through(&target, &bastions).expect("it connects");
    bastion.hang_up();
    let lost = ssh.run(FACTS).expect_err("its connection is gone");
    assert!(matches!(lost, TransportError::Stream { .. } | TransportError::Ssh { .. }), "{lost:?}");
    let mut ssh = Ssh::through(&target, &bastions).expect("it connects again");
    ssh.run(FACTS).expect("it answers");
    assert_eq!(bastion.logins(), 2);
}

#[test]
fn a_bastion_behind_a_bastion_is_a_bastion() {
    let Some(first) = Server::start() else { return };
    let Some(second) = Server::start() else { return };
    let target = SshTarget { via: Some(Box::new(second.behind(&first))), ..second.good() };
    Ssh::connect(&target).expect("it connects").run(FACTS).expect("it answers");
    assert_eq!((first.logins(), second.logins()), (1, 2));
}

/// libssh2 asks a bastion for one tunnel at a time; a bastion answers for a dead host after minutes.
#[test]
fn a_host_that_does_not_answer_its_bastion_does_not_hold_up_the_others_for_good() {
    let Some(bastion) = Server::start() else { return };
    let Some(host) = Server::with("MaxStartups 100", "") else { return };
    let good = host.behind(&bastion);
    let (listener, held) = deaf();
    let dead = SshTarget { port: listener.local_addr().expect("it listens").port(), ..good.clone() };
    let targets = [dead, good.clone(), good.clone(), good];
    let results = connect_all(&targets, &Bastions::default());
    for (index, result) in results.iter().enumerate() {
        assert_eq!(result.is_ok(), index > 0, "{index}: {:?}", result.as_ref().map(|_| ()));
    }
    // The bastion was given up while it was still trying to reach the host.
    let is_given_up = |error: &TransportError| {
        let TransportError::Tunnel { source, .. } = error else { return false };
        source.kind() == ErrorKind::TimedOut
    };
    assert!(results[0].as_ref().is_err_and(is_given_up), "{:?}", results[0].as_ref().err());
    assert!(bastion.logins() <= 2);
    drop(held);
}

/// A listener whose queue is full, so that who connects hears nothing.
fn deaf() -> (std::net::TcpListener, Vec<TcpStream>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    rustix::net::listen(&listener, 0).expect("it listens");
    let address = listener.local_addr().expect("it listens");
    let patience = Duration::from_millis(200);
    let connect = || TcpStream::connect_timeout(&address, patience).ok();
    let held: Vec<_> = std::iter::from_fn(connect).take(16).collect();
    assert!(held.len() < 16, "the queue has no end");
    (listener, held)
}
