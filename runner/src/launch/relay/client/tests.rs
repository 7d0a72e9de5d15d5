//! Tests of answers that a host should not give.

use super::*;
use crate::control_protocol::{LinkChoice, Program};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// A host that answers every request in the same way.
struct Stubborn(fn() -> Vec<u8>);

impl Connector for Stubborn {
    fn dial(&mut self) -> io::Result<UnixStream> {
        let (near, far) = UnixStream::pair()?;
        let answer = self.0();
        thread::spawn(move || {
            while frame::read::<Request>(&mut &far).is_ok() {
                drop(io::Write::write_all(&mut &far, &answer));
            }
        });
        Ok(near)
    }
}

#[test]
fn a_host_cannot_say_more_than_is_kept() {
    let asked = |answer: fn() -> Vec<u8>| {
        let mut host = RemoteHost::new("node1", Box::new(Stubborn(answer)));
        host.log(&TrialId("01T".into()), None, 0)
    };
    let endless = asked(|| frame::encode(&Reply::Bytes { bytes: u64::MAX }));
    assert!(endless.as_ref().is_err_and(|words| words.contains("at most")), "{endless:?}");
    assert!(asked(|| vec![0xff; 64]).is_err_and(|words| words.contains("16777217")), "no frame");
    assert!(asked(|| frame::encode(&Reply::Silent)).is_err());
    let right = || [frame::encode(&Reply::Bytes { bytes: 3 }), b"log".to_vec()].concat();
    assert_eq!(asked(right), Ok(b"log".to_vec()));
}

/// A host that closes the connection when asked to lead, and counts these requests.
struct HangsUp(Arc<AtomicU32>);

impl Connector for HangsUp {
    fn dial(&mut self) -> io::Result<UnixStream> {
        let (near, far) = UnixStream::pair()?;
        let led = Arc::clone(&self.0);
        thread::spawn(move || {
            while let Ok(request) = frame::read::<Request>(&mut &far) {
                if matches!(request, Request::Lead { .. } | Request::Follow { .. }) {
                    led.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                drop(frame::write(&mut &far, &Reply::Address("10.0.0.1".into())));
            }
        });
        Ok(near)
    }
}

#[test]
fn a_host_is_told_once_to_lead_and_then_nobody_knows_whether_it_does() {
    let led = Arc::new(AtomicU32::new(0));
    let mut host = RemoteHost::new("node1", Box::new(HangsUp(Arc::clone(&led))));
    host.address().expect("it answers");
    let order = AgentOrder {
        trial: TrialId("01T".into()),
        attempt: AttemptId(1),
        folder: PathBuf::new(),
        worker: Program::new("", []),
        assignments: Vec::new(),
        link: LinkChoice::SharedMemory,
        keep: 2,
        seat: None,
        others: Vec::new(),
        notice: None,
    };
    let answer = host.lead(order);
    assert!(matches!(&answer, Err(LaunchError::Unknown(_))), "{answer:?}");
    assert_eq!(led.load(Ordering::SeqCst), 1, "it may be at work on the first order");
    host.address().expect("it is asked again over another stream");
}
