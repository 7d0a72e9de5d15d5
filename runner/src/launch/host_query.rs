//! Short questions to hosts, any of which may be silent.

use super::cancellation::{CANCEL_POLL_INTERVAL, CancellationToken};
use super::relay::{Disconnect, RemoteHost};
use super::timeouts::SUSPECT_TIMEOUT;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// Number of times, a millisecond apart, that the lock of a host is tried before the time of the earlier question counts.
const TRIES_FOR_A_NOTE: u32 = 10;

/// A host that can be asked, and the state of its health.
pub(super) struct PolledHost {
    /// Name of the host in messages.
    pub(super) name: String,
    remote: Arc<Mutex<RemoteHost>>,
    disconnect: Disconnect,
    cancel: CancellationToken,
    /// True if the host did not answer last time, or was reported lost. Any answer clears it, even a late
    /// one.
    is_suspect: Arc<AtomicBool>,
    /// Time at which the question that has no answer yet was asked.
    asked_at: Arc<Mutex<Option<Instant>>>,
}

impl PolledHost {
    /// Creates a host to ask; cancelling `cancel` ends the waits for its answers.
    pub(super) fn new(remote: RemoteHost, cancel: &CancellationToken) -> Self {
        let (name, disconnect) = (remote.name.clone(), remote.disconnect());
        let (remote, cancel) = (Arc::new(Mutex::new(remote)), cancel.clone());
        Self { name, remote, disconnect, cancel, is_suspect: Arc::default(), asked_at: Arc::default() }
    }

    /// Closes the connection to the host, so that the host can be asked something else.
    pub(super) fn disconnect(&self) {
        self.disconnect.disconnect();
    }

    /// Shortens the timeout for this host until it answers.
    pub(super) fn suspect(&self) {
        self.is_suspect.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::SeqCst)
    }

    /// Returns the time to wait for this host: `usual`, or less if it is suspect.
    pub(super) fn patience(&self, usual: Duration) -> Duration {
        if self.is_suspect() { usual.min(SUSPECT_TIMEOUT) } else { usual }
    }

    /// Asks the host a short question in a thread. Waits for an earlier question, and fails if that has had no answer for
    /// [`SUSPECT_TIMEOUT`].
    pub(super) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut RemoteHost) -> Result<T, String> + Send + 'static,
    ) -> HostQuery<T> {
        let (sender, answer) = channel();
        let (remote, is_suspect) = (Arc::clone(&self.remote), Arc::clone(&self.is_suspect));
        let asked_at = Arc::clone(&self.asked_at);
        thread::spawn(move || {
            let mut tries = 0;
            let answer = loop {
                match remote.try_lock() {
                    Ok(mut host) => {
                        *asked_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                        break question(&mut host);
                    }
                    Err(TryLockError::Poisoned(host)) => break question(&mut host.into_inner()),
                    Err(TryLockError::WouldBlock) => {
                        let asked_at = *asked_at.lock().unwrap_or_else(PoisonError::into_inner);
                        let silent = asked_at.map_or(Duration::ZERO, |at| at.elapsed());
                        // A question that was just sent may not have noted its time yet.
                        if silent >= SUSPECT_TIMEOUT && tries >= TRIES_FOR_A_NOTE {
                            break Err(format!("no answer for {:.1} s", silent.as_secs_f64()));
                        }
                        tries += 1;
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            };
            if answer.is_ok() {
                is_suspect.store(false, Ordering::SeqCst);
            }
            drop(sender.send(answer));
        });
        let (name, is_suspect) = (self.name.clone(), Arc::clone(&self.is_suspect));
        HostQuery { name, is_suspect, asked_at: Instant::now(), answer, cancel: self.cancel.clone() }
    }
}

/// A pending question to a host.
pub(super) struct HostQuery<T> {
    name: String,
    is_suspect: Arc<AtomicBool>,
    asked_at: Instant,
    answer: Receiver<Result<T, String>>,
    cancel: CancellationToken,
}

impl<T> HostQuery<T> {
    /// Waits for the answer, at most for `patience` since the question. On a timeout the host becomes
    /// suspect.
    pub(super) fn answer(&self, patience: Duration) -> Result<T, String> {
        let answer = loop {
            let left = patience.saturating_sub(self.asked_at.elapsed());
            match self.answer.recv_timeout(left.min(CANCEL_POLL_INTERVAL)) {
                Ok(answer) => break answer,
                Err(RecvTimeoutError::Disconnected) => break Err("it has answered before".into()),
                Err(RecvTimeoutError::Timeout) if self.cancel.is_cancelled() => {
                    break Err("interrupted before it answered".into());
                }
                Err(RecvTimeoutError::Timeout) if left > CANCEL_POLL_INTERVAL => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.is_suspect.store(true, Ordering::SeqCst);
                    break Err(format!("no answer within {:.1} s", patience.as_secs_f64()));
                }
            }
        };
        answer.map_err(|reason| format!("{}: {reason}", self.name))
    }

    /// Returns the answer if it has arrived; `Err` if no answer will come.
    pub(super) fn try_answer(&self) -> Option<Result<T, String>> {
        let answer = match self.answer.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err("it has answered before".into()),
        };
        Some(answer.map_err(|reason| format!("{}: {reason}", self.name)))
    }
}

/// Asks several hosts at the same time; returns the answers in order. Waits less for suspect hosts, unless
/// all are.
pub(super) fn ask_all<T: Send + 'static>(
    hosts: &[&PolledHost],
    patience: Duration,
    question: impl Fn(&mut RemoteHost) -> Result<T, String> + Clone + Send + 'static,
) -> Vec<Result<T, String>> {
    let are_all_suspect = hosts.iter().all(|host| host.is_suspect());
    let ask = |host: &&PolledHost| {
        let patience = if are_all_suspect { patience } else { host.patience(patience) };
        (host.ask(question.clone()), patience)
    };
    let asked: Vec<(HostQuery<T>, Duration)> = hosts.iter().map(ask).collect();
    asked.into_iter().map(|(question, patience)| question.answer(patience)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::relay::Connector;
    use super::*;
    use std::io;
    use std::os::unix::net::UnixStream;
    use std::sync::MutexGuard;

    /// A connector that is never used: the questions here answer themselves.
    struct Nobody;

    impl Connector for Nobody {
        fn dial(&mut self) -> io::Result<UnixStream> {
            unreachable!("no question here is sent")
        }
    }

    /// Far longer than the timeout of a suspect host.
    const LONG: Duration = Duration::from_secs(20);

    fn host(name: &str) -> PolledHost {
        PolledHost::new(RemoteHost::new(name, Box::new(Nobody)), &CancellationToken::default())
    }

    /// Returns a question that `silent` answers once the lock is free, and other hosts at once.
    fn question(
        may: &Arc<Mutex<()>>,
    ) -> impl Fn(&mut RemoteHost) -> Result<String, String> + Clone + Send + 'static {
        let may = Arc::clone(may);
        move |host| {
            let _waited = (host.name == "silent").then(|| may.lock());
            Ok(host.name.clone())
        }
    }

    #[test]
    fn a_suspect_host_is_not_waited_for_until_it_has_answered() {
        let (well, silent, may) = (host("well"), host("silent"), Arc::default());
        silent.suspect();
        let held = may_not(&may);
        let answers = ask_all(&[&silent, &well], LONG, question(&may));
        // The error names the time after which the host was given up.
        assert_eq!(answers[0], Err("silent: no answer within 0.3 s".into()));
        assert_eq!(answers[1], Ok("well".into()));
        drop(held);
        while silent.is_suspect() {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(silent.patience(LONG), LONG);
    }

    #[test]
    fn who_gives_no_answer_is_suspect_and_alone_is_waited_for_all_the_same() {
        let (silent, may) = (host("silent"), Arc::default());
        let held = may_not(&may);
        let asked = silent.ask(question(&may));
        assert!(asked.answer(Duration::ZERO).is_err() && silent.is_suspect());
        drop(held);
        assert_eq!(asked.answer(LONG), Ok("silent".into()), "late, and still an answer");
        silent.suspect();
        let held = may_not(&may);
        let answers = thread::scope(|scope| {
            let asking = scope.spawn(|| ask_all(&[&silent], LONG, question(&may)));
            thread::sleep(2 * SUSPECT_TIMEOUT);
            drop(held);
            asking.join().expect("it does not panic")
        });
        assert_eq!(answers, [Ok("silent".into())]);
    }

    #[test]
    fn a_question_waits_for_an_earlier_one_but_not_for_long() {
        let (host, may) = (host("silent"), Arc::default());
        let held = may_not(&may);
        let (first, second) = (host.ask(question(&may)), host.ask(question(&may)));
        drop(held);
        assert_eq!((first.answer(LONG), second.answer(LONG)), (Ok("silent".into()), Ok("silent".into())));
        let held = may_not(&may);
        let first = host.ask(question(&may));
        while host.remote.try_lock().is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
        let words = host.ask(question(&may)).answer(LONG).expect_err("the first has no answer");
        assert!(words.starts_with("silent: no answer for"), "{words}");
        drop(held);
        assert_eq!(first.answer(LONG), Ok("silent".into()));
    }

    #[test]
    fn who_is_interrupted_waits_no_longer() {
        let (cancel, may) = (CancellationToken::default(), Arc::default());
        let silent = PolledHost::new(RemoteHost::new("silent", Box::new(Nobody)), &cancel);
        let held = may_not(&may);
        let asked = silent.ask(question(&may));
        cancel.cancel();
        // Another error than after `LONG`.
        assert_eq!(asked.answer(LONG), Err("silent: interrupted before it answered".into()));
        assert!(!silent.is_suspect(), "it is not the host's fault");
        drop(held);
        cancel.reset();
        assert_eq!(asked.answer(LONG), Ok("silent".into()));
    }

    fn may_not(may: &Arc<Mutex<()>>) -> MutexGuard<'_, ()> {
        may.lock().expect("no thread panics")
    }
}
