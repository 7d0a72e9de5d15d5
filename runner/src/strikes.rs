//! Strikes against hosts, and the hosts excluded because of them: pure functions of the strikes in the
//! history.
//!
//! A strike says that one attempt was lost, or slowed down, by one cause on one host. Two of the same host
//! and cause within an hour exclude the host for ten minutes; every further time, for twice as long as the
//! time before, up to a day. A strike expires after a week. Strikes hold across trials, as a bad host is also
//! bad for the next one.
//!
//! If two hosts lose their connection it is unknown which is at fault: that counts half for each, and the
//! strikes of a pair are cleared once one of the two is excluded. So the host that all pairs have in common
//! goes first, and of one pair only one.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Milliseconds within which the strikes of a host add up.
const WINDOW_MS: u64 = 60 * 60 * 1000;

/// Duration of the first exclusion of a host, in milliseconds.
const FIRST_MS: u64 = 10 * 60 * 1000;

/// Longest duration of an exclusion, in milliseconds.
const LONGEST_MS: u64 = 24 * 60 * 60 * 1000;

/// Milliseconds after which a strike expires and is forgotten.
pub const FORGOTTEN_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// Sum of the weights of strikes that excludes a host: that of two full strikes.
const LIMIT: u32 = 4;

/// Number of hosts that must remain if a slow one is excluded. A slow rank takes 1.3 times as long as its
/// peers: with fewer hosts training is faster with it than without.
const FOR_A_SLOW_ONE: usize = 4;

/// Cause of a strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrikeCause {
    /// The host was lost.
    Lost,
    /// The host could not start its ranks.
    Launch,
    /// The system or a user killed a rank on the host.
    Killed,
    /// A rank on the host failed by itself, which may be a fault of the program: counts half.
    Rank,
    /// The connection to another host broke: counts half for each of the two.
    Link,
    /// The host could not read the data, while other hosts may be able to: one strike suffices.
    Data,
    /// A rank on the host was slow for many steps: one strike suffices.
    Slow,
    /// The host could not save checkpoints, because its disk is full or fails: one strike suffices.
    Storage,
    /// The system asked the host's agent to end. Nothing is held against the host; it is left out for a moment.
    Left,
}

impl StrikeCause {
    /// Returns the word by which the cause is stored.
    pub fn word(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Launch => "launch",
            Self::Killed => "killed",
            Self::Rank => "rank",
            Self::Link => "link",
            Self::Data => "data",
            Self::Slow => "slow",
            Self::Storage => "storage",
            Self::Left => "left",
        }
    }

    /// Returns a description of the cause, for users.
    pub fn words(self) -> &'static str {
        match self {
            Self::Lost => "the host was lost",
            Self::Launch => "ranks could not be started",
            Self::Killed => "a rank was killed",
            Self::Rank => "a rank failed",
            Self::Link => "two hosts did not hear each other",
            Self::Data => "the data could not be read",
            Self::Slow => "a rank was slow",
            Self::Storage => "checkpoints could not be saved",
            Self::Left => "its agent was asked to end",
        }
    }

    /// Parses the word by which a cause is stored; `None` if it is unknown.
    pub fn parse(word: &str) -> Option<Self> {
        let all = [
            Self::Lost,
            Self::Launch,
            Self::Killed,
            Self::Rank,
            Self::Link,
            Self::Data,
            Self::Slow,
            Self::Storage,
        ];
        all.into_iter().find(|cause| cause.word() == word)
    }

    fn weight(self) -> u32 {
        match self {
            Self::Rank | Self::Link => 1,
            Self::Lost | Self::Launch | Self::Killed => 2,
            Self::Data | Self::Slow | Self::Storage => LIMIT,
            Self::Left => 0,
        }
    }
}

/// One strike against a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    /// Name of the host, as shown to users.
    pub host: String,
    /// Other host of a pair that lost its connection; `None` for other causes.
    pub partner: Option<String>,
    /// Cause of the strike.
    pub cause: StrikeCause,
    /// Time of the strike in milliseconds since the Unix epoch, by the clock of the controller.
    pub at_ms: u64,
    /// Description of the failure that caused the strike.
    pub detail: String,
}

/// Host that is excluded for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedHost {
    /// Name of the host, as shown to users.
    pub host: String,
    /// Cause of the exclusion.
    pub cause: StrikeCause,
    /// End of the exclusion, in milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// Description of the failure that caused the last strike.
    pub detail: String,
}

/// Tally of the strikes against one host for one cause.
#[derive(Clone, Debug, Default)]
struct StrikeTally {
    /// Weight, time in milliseconds, and other host of each strike since the last exclusion.
    open: Vec<(u32, u64, Option<String>)>,
    /// Number of exclusions so far.
    times: u32,
    until_ms: u64,
    detail: String,
}

impl StrikeTally {
    fn sum(&self) -> u32 {
        self.open.iter().map(|(weight, ..)| weight).sum()
    }
}

/// Returns the hosts that `strikes` exclude at `now_ms`, the longest exclusion first. Of several exclusions
/// of a host the longest counts.
pub fn excluded_hosts(strikes: &[Strike], now_ms: u64) -> Vec<ExcludedHost> {
    let mut all: BTreeMap<String, ExcludedHost> = BTreeMap::new();
    for ((host, cause), account) in tally_strikes(strikes, now_ms) {
        let StrikeTally { until_ms, detail, .. } = account;
        if until_ms > now_ms && all.get(&host).is_none_or(|known| known.until_ms < until_ms) {
            all.insert(host.clone(), ExcludedHost { host, cause, until_ms, detail });
        }
    }
    let mut all: Vec<ExcludedHost> = all.into_values().collect();
    all.sort_by_key(|left_out| std::cmp::Reverse(left_out.until_ms));
    all
}

/// Returns the hosts in `left_out` to exclude from a launch on the hosts `usable`, the worst first. At least
/// one host remains; a slow one is excluded only if that makes training faster.
pub fn hosts_to_exclude(left_out: &[ExcludedHost], usable: &[String]) -> Vec<ExcludedHost> {
    let mut gone: Vec<ExcludedHost> = Vec::new();
    let is_slow = |one: &&ExcludedHost| one.cause == StrikeCause::Slow;
    let known = || left_out.iter().filter(|one| usable.contains(&one.host));
    // Slow hosts last: they are more useful than those that fail.
    for one in known().filter(|one| !is_slow(one)).chain(known().filter(is_slow)) {
        let remain = usable.len() - gone.len() - 1;
        let least = if is_slow(&one) { FOR_A_SLOW_ONE } else { 1 };
        if remain >= least {
            gone.push(one.clone());
        }
    }
    gone
}

fn tally_strikes(strikes: &[Strike], now_ms: u64) -> BTreeMap<(String, StrikeCause), StrikeTally> {
    let mut all: BTreeMap<(String, StrikeCause), StrikeTally> = BTreeMap::new();
    let mut strikes: Vec<&Strike> = strikes.iter().collect();
    strikes.sort_by_key(|strike| strike.at_ms);
    for strike in strikes {
        // A clock that was set back does not extend an exclusion.
        let at_ms = strike.at_ms.min(now_ms);
        if now_ms - at_ms >= FORGOTTEN_MS {
            continue;
        }
        // In a tie the partner is excluded.
        let both = [
            strike.partner.as_ref().map(|partner| (partner, Some(&strike.host))),
            Some((&strike.host, strike.partner.as_ref())),
        ];
        let both: Vec<(&String, Option<&String>)> = both.into_iter().flatten().collect();
        for (host, other) in &both {
            let account = all.entry(((*host).clone(), strike.cause)).or_default();
            account.open.retain(|(_, at, _)| at_ms - at < WINDOW_MS);
            account.open.push((strike.cause.weight(), at_ms, other.cloned()));
            account.detail.clone_from(&strike.detail);
        }
        let sum = |host: &String| all.get(&(host.clone(), strike.cause)).map_or(0, StrikeTally::sum);
        // The first of those with the highest sum.
        let worst = both.iter().map(|(host, _)| *host).rev().max_by_key(|host| sum(host));
        if let Some(worst) = worst.filter(|host| sum(host) >= LIMIT) {
            exclude(&mut all, worst, strike.cause, at_ms);
        }
    }
    all
}

/// Excludes a host for `cause` from `at_ms` on, and clears the strikes of its partners for broken connections
/// to it.
fn exclude(
    all: &mut BTreeMap<(String, StrikeCause), StrikeTally>,
    host: &str,
    cause: StrikeCause,
    at_ms: u64,
) {
    for ((_, other), account) in all.iter_mut() {
        if *other == cause {
            account.open.retain(|(_, _, with)| with.as_deref() != Some(host));
        }
    }
    if let Some(account) = all.get_mut(&(host.to_owned(), cause)) {
        account.open.clear();
        let doubled = FIRST_MS.saturating_mul(1u64 << account.times.min(20));
        account.until_ms = at_ms.saturating_add(doubled.min(LONGEST_MS));
        account.times += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;
    const START: u64 = 1_800_000_000_000;

    fn strike(host: &str, cause: StrikeCause, minute: u64) -> Strike {
        Strike {
            host: host.into(),
            partner: None,
            cause,
            at_ms: START + minute * MINUTE,
            detail: "seen".into(),
        }
    }

    fn pair(host: &str, with: &str, minute: u64) -> Strike {
        Strike { partner: Some(with.into()), ..strike(host, StrikeCause::Link, minute) }
    }

    /// Returns the excluded hosts, each with the remaining minutes.
    fn out(strikes: &[Strike], minute: u64) -> Vec<(String, u64)> {
        let now = START + minute * MINUTE;
        excluded_hosts(strikes, now)
            .into_iter()
            .map(|one| (one.host, (one.until_ms - now) / MINUTE))
            .collect()
    }

    fn hosts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn two_strikes_within_an_hour_leave_a_host_out_and_each_time_for_twice_as_long() {
        let one = strike("a", StrikeCause::Lost, 0);
        assert_eq!(out(std::slice::from_ref(&one), 0), []);
        assert_eq!(out(&[one.clone(), strike("a", StrikeCause::Lost, 61)], 61), [], "an hour apart");
        assert_eq!(out(&[one.clone(), strike("a", StrikeCause::Launch, 1)], 1), [], "another cause");
        assert_eq!(out(&[one.clone(), strike("b", StrikeCause::Lost, 1)], 1), [], "another host");
        let mut strikes = vec![one, strike("a", StrikeCause::Lost, 5)];
        assert_eq!(out(&strikes, 5), [("a".into(), 10)]);
        assert_eq!(out(&strikes, 14), [("a".into(), 1)]);
        assert_eq!(out(&strikes, 15), [], "it is tried again");
        let (mut minute, mut before) = (20, 10);
        for _ in 0..10 {
            strikes
                .extend([strike("a", StrikeCause::Lost, minute), strike("a", StrikeCause::Lost, minute + 1)]);
            let [(_, minutes)] = out(&strikes, minute + 1)[..] else { panic!("left out again") };
            assert!(minutes == 2 * before || minutes == 24 * 60, "{minutes} after {before}");
            (before, minute) = (minutes, minute + 1 + minutes);
            if minutes == 24 * 60 {
                return;
            }
        }
        panic!("a day is the most");
    }

    #[test]
    fn the_host_that_all_pairs_have_in_common_is_left_out_and_the_others_are_not() {
        let strikes = [pair("a", "c", 0), pair("b", "c", 1), pair("c", "d", 2), pair("e", "c", 3)];
        assert_eq!(out(&strikes[..3], 3), []);
        assert_eq!(out(&strikes, 3), [("c".into(), 10)]);
        let later = [strikes.as_slice(), &[pair("a", "b", 4), pair("a", "b", 5)]].concat();
        assert_eq!(out(&later, 5), [("c".into(), 8)], "what was held against pairs with it is settled");
    }

    #[test]
    fn of_one_pair_only_one_is_left_out() {
        let strikes: Vec<Strike> = (0..4).map(|minute| pair("a", "b", minute)).collect();
        assert_eq!(out(&strikes[..3], 2), []);
        assert_eq!(out(&strikes, 3), [("b".into(), 10)], "the one that was not heard");
        let turned: Vec<Strike> =
            [pair("a", "b", 0), pair("b", "a", 1), pair("a", "b", 2), pair("b", "a", 3)].into();
        assert_eq!(out(&turned, 3).len(), 1);
    }

    #[test]
    fn a_rank_that_fails_by_itself_counts_half_and_bad_data_or_a_slow_rank_at_once() {
        let ranks: Vec<Strike> = (0..4).map(|minute| strike("a", StrikeCause::Rank, minute)).collect();
        assert_eq!((out(&ranks[..3], 2), out(&ranks, 3)), (vec![], vec![("a".into(), 10)]));
        assert_eq!(out(&[strike("a", StrikeCause::Data, 0)], 0), [("a".into(), 10)]);
        assert_eq!(out(&[strike("a", StrikeCause::Slow, 0)], 9), [("a".into(), 1)]);
    }

    #[test]
    fn at_least_one_host_remains_and_a_slow_one_goes_only_where_that_helps() {
        let bad = |host: &str, cause, until_ms| ExcludedHost {
            host: host.into(),
            cause,
            until_ms,
            detail: String::new(),
        };
        let names = |left_out: &[ExcludedHost], usable: &[&str]| -> Vec<String> {
            hosts_to_exclude(left_out, &hosts(usable)).into_iter().map(|one| one.host).collect()
        };
        let all = [
            bad("b", StrikeCause::Lost, 9),
            bad("a", StrikeCause::Launch, 5),
            bad("c", StrikeCause::Slow, 20),
        ];
        assert_eq!(names(&all, &["a", "b"]), ["b"], "one remains");
        assert_eq!(names(&all, &["a"]), [""; 0]);
        assert_eq!(names(&all, &["d", "e"]), [""; 0], "they are not asked for");
        assert_eq!(names(&all, &["a", "b", "c", "d", "e", "f"]), ["b", "a"], "three others are too few");
        assert_eq!(names(&all, &["a", "b", "c", "d", "e", "f", "g"]), ["b", "a", "c"]);
    }

    #[test]
    fn a_clock_that_was_set_back_and_a_week_change_nothing_for_long() {
        let future = [strike("a", StrikeCause::Data, 1_000_000)];
        assert_eq!(out(&future, 0), [("a".into(), 10)], "as if it were now");
        assert_eq!(excluded_hosts(&[strike("a", StrikeCause::Data, 0)], START + FORGOTTEN_MS), []);
    }
}
