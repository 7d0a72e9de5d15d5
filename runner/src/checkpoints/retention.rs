//! Retention of checkpoints: removes old ones and keeps the newest.

use super::committed;
use dtrain_protocol::checkpoint::{folder_name, parse_folder_name};
use dtrain_protocol::{AttemptId, ResumePoint, StepId};
use std::fs;
use std::io;
use std::path::Path;

/// Removes old checkpoints and keeps the `keep` newest (at least 2) among those of `attempt`, the checkpoint
/// `resumed` that it resumed from, and those before.
///
/// A later attempt's checkpoint is newer even if it has fewer steps: the attempt resumed from an older
/// checkpoint because later ones could not be read, and unreadable ones do not count. But the last checkpoint
/// of an earlier attempt stays until this attempt has more steps, as it may only have been unreachable. `Err`
/// is the first removal that failed; all others are still tried.
pub fn apply_retention(
    checkpoints: &Path,
    keep: u32,
    attempt: AttemptId,
    resumed: Option<&str>,
) -> io::Result<()> {
    let age = |name: &str| parse_folder_name(name).map(|(step, attempt)| (attempt, step));
    let age_of = |point: &ResumePoint| age(&point.folder.file_name()?.to_string_lossy());
    let all: Vec<_> = committed(checkpoints)?.iter().filter_map(age_of).collect();
    let superfluous = beyond_retention(&all, keep, attempt, resumed.and_then(age));
    let remove = |(attempt, step)| fs::remove_dir_all(checkpoints.join(folder_name(step, attempt)));
    superfluous.into_iter().map(remove).fold(Ok(()), Result::and)
}

/// Returns the checkpoints that [`apply_retention`] removes, given all committed ones, oldest first.
pub(crate) fn beyond_retention(
    all: &[(AttemptId, StepId)],
    keep: u32,
    attempt: AttemptId,
    resumed: Option<(AttemptId, StepId)>,
) -> Vec<(AttemptId, StepId)> {
    let counts =
        |name: &&(AttemptId, StepId)| name.0 == attempt || resumed.is_some_and(|resumed| **name <= resumed);
    let Some(oldest) = all.iter().rev().filter(counts).nth(keep.max(2) as usize - 1) else {
        return Vec::new();
    };
    let reached = all.iter().filter(|(of, _)| *of == attempt).map(|(_, step)| *step).max();
    let is_unsurpassed = |name: &(AttemptId, StepId)| {
        let last_of_its = all.iter().rfind(|(of, _)| *of == name.0);
        name.0 != attempt && reached <= Some(name.1) && last_of_its == Some(name)
    };
    let older = all.iter().take_while(|name| *name != oldest);
    older.filter(|name| !is_unsurpassed(name)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const OURS: AttemptId = AttemptId(2);

    fn left(root: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(root).expect("it is there");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("ASCII")).collect()
    }

    #[test]
    fn what_was_refused_is_not_counted_among_those_that_are_kept() {
        let root = tempfile::tempdir().expect("a folder");
        let [good, refused, own, newer] =
            ["step-000000100.a1", "step-000000200.a1", "step-000000150.a2", "step-000000250.a2"];
        for name in [good, refused, own] {
            fs::create_dir(root.path().join(name)).expect("a folder");
        }
        apply_retention(root.path(), 2, OURS, Some(good)).expect("nothing is in the way");
        assert_eq!(left(root.path()).len(), 3, "the two that can be gone on from, and what lies between");
        fs::create_dir(root.path().join(newer)).expect("a folder");
        apply_retention(root.path(), 2, OURS, Some(good)).expect("nothing is in the way");
        assert_eq!(left(root.path()), [own, newer].map(str::to_owned).into());
    }

    #[test]
    fn what_cannot_be_removed_does_not_keep_the_others() {
        let root = tempfile::tempdir().expect("a folder");
        fs::write(root.path().join("step-000000010.a2"), "no folder").expect("a file");
        for step in [20, 30, 40] {
            fs::create_dir(root.path().join(format!("step-{step:09}.a2"))).expect("a folder");
        }
        assert!(apply_retention(root.path(), 2, OURS, None).is_err(), "it is told");
        assert!(!left(root.path()).contains("step-000000020.a2"));
    }

    #[test]
    fn what_an_earlier_attempt_ended_with_stays_until_there_are_more_steps() {
        let root = tempfile::tempdir().expect("a folder");
        let make = |step: u64, attempt: u64| {
            fs::create_dir(root.path().join(format!("step-{step:09}.a{attempt}"))).expect("a folder");
        };
        // The second attempt started over, as if the checkpoints of the first were unknown.
        [(90, 1), (100, 1), (10, 2), (20, 2), (30, 2)].iter().for_each(|(step, of)| make(*step, *of));
        apply_retention(root.path(), 2, OURS, None).expect("nothing is in the way");
        let kept = ["step-000000100.a1", "step-000000020.a2", "step-000000030.a2"].map(str::to_owned);
        assert_eq!(left(root.path()), kept.into(), "the last of the first attempt, and two");
        make(100, 2);
        apply_retention(root.path(), 2, OURS, None).expect("nothing is in the way");
        assert!(left(root.path()).contains("step-000000100.a1"), "as many steps are not more");
        make(110, 2);
        apply_retention(root.path(), 2, OURS, None).expect("nothing is in the way");
        let kept = ["step-000000100.a2", "step-000000110.a2"].map(str::to_owned);
        assert_eq!(left(root.path()), kept.into());
    }
}
