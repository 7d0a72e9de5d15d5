//! Relocation of recorded paths after the state folder was copied or moved.

use dtrain_protocol::TrialId;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// Returns the folder below the state folder `root` that corresponds to the path `recorded`, which a folder
/// of `trial` had.
///
/// A path outside `root` is mapped to the same folder below `root` if that exists; otherwise it is unchanged,
/// such as the path of a checkpoint on another host.
pub(super) fn relocated(root: &Path, trial: &TrialId, recorded: PathBuf) -> PathBuf {
    if recorded.starts_with(root) {
        return recorded;
    }
    let parts: Vec<&OsStr> = recorded.components().map(Component::as_os_str).collect();
    let is_trial = |pair: &[&OsStr]| pair[0] == "trials" && pair[1] == OsStr::new(&trial.0);
    let Some(at) = parts.windows(2).rposition(is_trial) else { return recorded };
    let below = |first: usize| parts[first..].iter().fold(root.to_path_buf(), |path, part| path.join(part));
    // The nodes of a Slurm job have state folders of their own, below `hosts/`.
    let of_host = (at >= 2 && parts[at - 2] == "hosts").then(|| below(at - 2));
    let mut candidates = of_host.into_iter().chain([below(at)]);
    candidates.find(|folder| folder.is_dir()).unwrap_or(recorded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_is_looked_for_below_the_state_folder_in_use_first() {
        let root = tempfile::tempdir().expect("a folder");
        let trial = TrialId("01A".into());
        let now = |path: &str| relocated(root.path(), &trial, PathBuf::from(path));
        let own = root.path().join("trials/01A/checkpoints/step-1.a1");
        assert_eq!(
            now("/old/trials/01A/checkpoints/step-1.a1"),
            Path::new("/old/trials/01A/checkpoints/step-1.a1")
        );
        fs::create_dir_all(&own).expect("a folder");
        assert_eq!(now("/old/trials/01A/checkpoints/step-1.a1"), own);
        assert_eq!(now("/old/hosts/n1/trials/01A/checkpoints/step-1.a1"), own);
        let node = root.path().join("hosts/n1/trials/01A/checkpoints/step-1.a1");
        fs::create_dir_all(&node).expect("a folder");
        assert_eq!(now("/old/hosts/n1/trials/01A/checkpoints/step-1.a1"), node);
        assert_eq!(
            now("/old/trials/01B/checkpoints/step-1.a1"),
            Path::new("/old/trials/01B/checkpoints/step-1.a1")
        );
        let gone = root.path().join("trials/01A/checkpoints/step-9.a1");
        assert_eq!(relocated(root.path(), &trial, gone.clone()), gone);
    }
}
