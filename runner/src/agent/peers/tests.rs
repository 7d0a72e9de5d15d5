//! Tests of the peers that an agent's listener accepts or refuses.

use super::listener::PeerListener;
use super::*;
use crate::certificates::{agent_certificates, rank_certificates};
use crate::control_protocol::AgentIdentity;
use crate::control_protocol::PeerAddress;
use crate::home::TrialFolder;
use dtrain_protocol::tls::Tls;
use dtrain_protocol::{AttemptId, TlsIdentity, TrialId};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Folder and content of the requested file.
const FOLDER: &str = "step-000000012.a3";
const FILE: &str = "rank-00001.safetensors";
const CONTENT: &[u8] = b"weights";

fn names(attempt: u64) -> TrialAttempt {
    TrialAttempt { trial: TrialId("01JZX0000000000000000000AB".into()), attempt: AttemptId(attempt) }
}

fn agents(attempt: u64) -> Vec<TlsIdentity> {
    let TrialAttempt { trial, attempt } = names(attempt);
    agent_certificates(&trial, attempt, 3).expect("keys")
}

/// The listener of host 1 in attempt 3, the identities of all hosts, and the accepted leaders.
struct Place {
    listener: Arc<PeerListener>,
    agents: Vec<TlsIdentity>,
    leaders: Receiver<MutualTlsStream>,
    _folder: tempfile::TempDir,
}

fn place() -> Place {
    let root = tempfile::tempdir().expect("a temporary folder");
    let folder = TrialFolder::at(root.path());
    folder.create().expect("room on disk");
    std::fs::create_dir(folder.checkpoints().join(FOLDER)).expect("room on disk");
    std::fs::write(folder.checkpoints().join(FOLDER).join(FILE), CONTENT).expect("room on disk");
    let agents = agents(3);
    let seat =
        AgentIdentity { host: 1, bind: "127.0.0.1".into(), identity: agents[1].clone(), is_shared: false };
    let (to, leaders) = channel();
    let listener = PeerListener::bind(&seat, names(3), &folder)
        .expect("a free port")
        .open(move |stream| drop(to.send(stream)));
    Place { listener, agents, leaders, _folder: root }
}

impl Place {
    fn peer(&self) -> PeerAddress {
        PeerAddress { host: 1, name: "node1".into(), address: self.listener.address.clone() }
    }

    /// Returns the answer to a peer with this identity and greeting.
    fn says(&self, identity: &TlsIdentity, greeting: &Greeting) -> Vec<u8> {
        let tls = Tls::new(identity).expect("an identity");
        let mut heard = Vec::new();
        if let Ok(mut stream) = connect(&tls, &names(3), &self.peer(), greeting) {
            drop(stream.read_to_end(&mut heard));
        }
        heard
    }

    fn nobody_leads(&self) -> bool {
        self.leaders.recv_timeout(Duration::from_millis(200)).is_err()
    }
}

fn read(host: u32) -> Greeting {
    Greeting::Read { host, folder: FOLDER.into(), file: FILE.into() }
}

#[test]
fn who_is_of_the_attempt_gets_what_is_its_due() {
    let place = place();
    let expected = [&(CONTENT.len() as u64).to_le_bytes()[..], CONTENT].concat();
    assert_eq!(place.says(&place.agents[2], &read(2)), expected);
    let tls = Tls::new(&place.agents[0]).expect("an identity");
    let _leader = connect(&tls, &names(3), &place.peer(), &Greeting::Lead).expect("it is the leader");
    place.leaders.recv_timeout(Duration::from_secs(10)).expect("it was let in");
}

#[test]
fn nobody_else_gets_a_byte() {
    let place = place();
    let ours = |other: TlsIdentity| TlsIdentity { authority: place.agents[0].authority.clone(), ..other };
    let ranks = rank_certificates(&names(3).trial, AttemptId(3), 3).expect("keys");
    for (what, identity) in [
        ("another authority", ours(agents(3).swap_remove(0))),
        ("an older attempt", ours(agents(2).swap_remove(0))),
        ("a rank", ours(ranks[0].clone())),
        ("another host", place.agents[2].clone()),
    ] {
        for greeting in [Greeting::Lead, read(0)] {
            assert_eq!(place.says(&identity, &greeting), b"", "{what} got something for {greeting:?}");
        }
        assert!(place.nobody_leads(), "{what} leads");
    }
    let long = Greeting::Read { host: 2, folder: "x".repeat(8 << 10), file: FILE.into() };
    assert_eq!(place.says(&place.agents[2], &long), b"", "a greeting is short");
    for file in ["../../agent.json", "..", "/etc/passwd"] {
        let greeting = Greeting::Read { host: 2, folder: FOLDER.into(), file: file.into() };
        assert_eq!(place.says(&place.agents[2], &greeting), b"", "{file}");
    }
}

#[test]
fn who_shows_no_certificate_or_talks_plainly_is_turned_away() {
    let place = place();
    let mut socket = TcpStream::connect(&place.listener.address).expect("it listens");
    dtrain_protocol::frame::write(&mut socket, &Greeting::Lead).expect("it reads");
    let mut heard = Vec::new();
    drop(socket.read_to_end(&mut heard));
    assert!(heard.len() < 16, "nothing but an alert: {heard:?}");

    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(place.agents[0].authority.as_bytes()).expect("PEM");
    roots.add(authority).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().expect("versions");
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(names(3).of(1)).expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    let socket = TcpStream::connect(&place.listener.address).expect("it listens");
    let mut stream = StreamOwned::new(connection, socket);
    let mut heard = Vec::new();
    drop(dtrain_protocol::frame::write(&mut stream, &read(2)));
    assert!(stream.read_to_end(&mut heard).is_err(), "no certificate, no answer");
    assert_eq!(heard, b"");
    assert!(place.nobody_leads());
}

#[test]
fn strangers_who_say_nothing_keep_nobody_out() {
    let place = place();
    let strangers: Vec<_> =
        (0..300).map(|_| TcpStream::connect(&place.listener.address).expect("it listens")).collect();
    assert!(place.says(&place.agents[2], &read(2)).ends_with(CONTENT));
    drop(strangers);
}
