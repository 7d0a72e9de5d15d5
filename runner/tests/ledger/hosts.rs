//! Hosts and their strikes.

use crate::support::{new_trial, place};
use dtrain_runner::strikes::{FORGOTTEN_MS, Strike, StrikeCause};
use dtrain_runner::{History, HostUpdate, Ledger, TrialUpdate};
use std::time::{SystemTime, UNIX_EPOCH};

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_millis()).expect("a time of this age")
}

fn strike(host: &str, with: Option<&str>, at_ms: u64) -> Strike {
    let cause = if with.is_some() { StrikeCause::Link } else { StrikeCause::Lost };
    Strike { host: host.into(), partner: with.map(str::to_owned), cause, at_ms, detail: "silent".into() }
}

fn news(answered: &[&str], strikes: Vec<Strike>) -> TrialUpdate {
    let answered = answered.iter().map(|name| (*name).to_owned()).collect();
    TrialUpdate { hosts: HostUpdate { answered, strikes }, ..TrialUpdate::default() }
}

#[test]
fn what_is_held_against_a_host_is_known_to_the_next_trial_until_it_is_forgiven_or_a_week_old() {
    let (_folder, path) = place();
    let mut history = History::open(&path).expect("opens");
    let [one, two] = [0, 1].map(|_| history.create_trial(&new_trial("r")).expect("recorded").id);
    let now = now_ms();
    let old = strike("a", None, now - FORGOTTEN_MS - 1);
    let (lost, pair) = (strike("a", None, now - 5), strike("b", Some("c"), now));
    history.record(&one, &news(&["a", "b"], vec![old, lost.clone()])).expect("kept");
    history.record(&two, &news(&["c"], vec![pair.clone()])).expect("kept");
    drop(history);

    let mut history = History::open(&path).expect("opens");
    assert_eq!(history.strikes().expect("readable"), [lost, pair.clone()]);
    let seen = history.hosts().expect("readable");
    assert_eq!(seen.iter().map(|host| host.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(seen.iter().all(|host| host.seen_ms >= now && host.seen_ms < now + 60_000));
    assert_eq!(history.forgive("a").expect("written"), 1);
    assert_eq!(history.strikes().expect("readable"), [pair]);
    assert_eq!(history.forgive("c").expect("written"), 1, "it is not held against the other one either");
    assert!(history.strikes().expect("readable").is_empty());
}
