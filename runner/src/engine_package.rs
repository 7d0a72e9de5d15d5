//! dtrain's Python package for training engines, which this program carries and writes where an engine runs.

use crate::files;
use std::io;
use std::path::Path;

/// The files of the package, by their path in its folder.
const PACKAGE: &[(&str, &str)] = &[
    ("dtrain.py", include_str!("../python/dtrain.py")),
    ("dtrain_engines/__init__.py", include_str!("../python/dtrain_engines/__init__.py")),
    ("dtrain_engines/checkpoints.py", include_str!("../python/dtrain_engines/checkpoints.py")),
    ("dtrain_engines/chunked_loss.py", include_str!("../python/dtrain_engines/chunked_loss.py")),
    ("dtrain_engines/copies.py", include_str!("../python/dtrain_engines/copies.py")),
    ("dtrain_engines/export.py", include_str!("../python/dtrain_engines/export.py")),
    ("dtrain_engines/fsdp.py", include_str!("../python/dtrain_engines/fsdp.py")),
    ("dtrain_engines/fsdp_model.py", include_str!("../python/dtrain_engines/fsdp_model.py")),
    ("dtrain_engines/hosts.py", include_str!("../python/dtrain_engines/hosts.py")),
    ("dtrain_engines/job.py", include_str!("../python/dtrain_engines/job.py")),
    ("dtrain_engines/last_words.py", include_str!("../python/dtrain_engines/last_words.py")),
    ("dtrain_engines/manifest.py", include_str!("../python/dtrain_engines/manifest.py")),
    ("dtrain_engines/optimizers.py", include_str!("../python/dtrain_engines/optimizers.py")),
    ("dtrain_engines/restore.py", include_str!("../python/dtrain_engines/restore.py")),
    ("dtrain_engines/schedule.py", include_str!("../python/dtrain_engines/schedule.py")),
    ("dtrain_engines/titan.py", include_str!("../python/dtrain_engines/titan.py")),
    ("dtrain_engines/titan_checkpoint.py", include_str!("../python/dtrain_engines/titan_checkpoint.py")),
    ("dtrain_engines/titan_job.py", include_str!("../python/dtrain_engines/titan_job.py")),
    ("dtrain_engines/titan_run.py", include_str!("../python/dtrain_engines/titan_run.py")),
    ("dtrain_engines/tokens.py", include_str!("../python/dtrain_engines/tokens.py")),
];

/// Writes the package, and the further files `own`, into a folder that is then for `PYTHONPATH`. Files that have
/// their content already are left alone: another rank may be importing them.
pub fn write<'a>(folder: &Path, own: impl IntoIterator<Item = (&'a str, &'a str)>) -> io::Result<()> {
    files::make_folder(folder)?;
    files::make_folder(&folder.join("dtrain_engines"))?;
    for (name, text) in PACKAGE.iter().copied().chain(own) {
        let path = folder.join(name);
        match std::fs::read(&path) {
            Ok(found) if found == text.as_bytes() => {}
            _ => files::write(&path, text.as_bytes())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::PACKAGE;

    #[test]
    fn every_file_of_the_package_is_written() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/python/dtrain_engines");
        let files = std::fs::read_dir(folder).expect("the package").flatten();
        let mut found: Vec<_> = files
            .filter_map(|file| file.file_name().into_string().ok())
            .filter(|name| name.ends_with(".py"))
            .map(|name| format!("dtrain_engines/{name}"))
            .collect();
        found.sort();
        let sent: Vec<_> = PACKAGE.iter().map(|(name, _)| (*name).to_owned()).skip(1).collect();
        assert_eq!(found, sent);
    }
}
