//! Atomic outputs: files and folders appear under their names only when complete.

use super::ExportError;
use crate::durable::sync_folder;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Returns a function that converts an I/O error into the error of a failed write to `path`.
pub(super) fn write_error(path: &Path) -> impl Fn(io::Error) -> ExportError {
    move |source| ExportError::Write { path: path.to_path_buf(), source }
}

/// Returns the temporary path `.NAME.partial` beside `path`.
pub(super) fn partial(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.partial"))
}

/// Checks that an output may be written to `path`; `Err` if something exists there, unless `force` is set.
pub(super) fn is_free(path: &Path, force: bool) -> Result<(), ExportError> {
    match path.symlink_metadata() {
        Ok(_) if !force => Err(ExportError::Exists(path.display().to_string())),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(write_error(path)(error)),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Writes the file `path` atomically: `write` fills it, and `force` replaces an existing one.
pub(super) fn file<T>(
    path: &Path,
    force: bool,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<T, ExportError>,
) -> Result<T, ExportError> {
    is_free(path, force)?;
    if path.is_dir() {
        return Err(write_error(path)(ErrorKind::IsADirectory.into()));
    }
    let folder = folder_of(path);
    fs::create_dir_all(folder).map_err(write_error(folder))?;
    let partial = partial(path);
    let work = || {
        // A link that another user put there is removed, not followed.
        let file =
            remove(&partial).and_then(|()| File::create_new(&partial)).map_err(write_error(&partial))?;
        let mut file = BufWriter::new(file);
        let done = write(&mut file)?;
        file.flush().and_then(|()| file.get_ref().sync_all()).map_err(write_error(&partial))?;
        fs::rename(&partial, path).and_then(|()| sync_folder(folder)).map_err(write_error(path))?;
        Ok(done)
    };
    let done = work();
    if done.is_err() {
        drop(fs::remove_file(&partial));
    }
    done
}

/// Writes the folder `path` atomically: `fill` gets an empty one. `force` replaces a folder whose files all
/// have names that `is_ours` accepts.
pub(super) fn folder<T>(
    path: &Path,
    (force, is_ours): (bool, fn(&str) -> bool),
    fill: impl FnOnce(&Path) -> Result<T, ExportError>,
) -> Result<T, ExportError> {
    is_free(path, force)?;
    if let Some(foreign) = foreign(path, is_ours).map_err(write_error(path))? {
        return Err(ExportError::Foreign { folder: path.to_path_buf(), foreign });
    }
    let (partial, above) = (partial(path), folder_of(path));
    let old = partial.with_extension("replaced");
    let work = || {
        for rest in [&partial, &old] {
            remove(rest).map_err(write_error(rest))?;
        }
        fs::create_dir_all(&partial).map_err(write_error(&partial))?;
        let done = fill(&partial)?;
        sync_folder(&partial).map_err(write_error(&partial))?;
        match fs::rename(path, &old) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(write_error(path)(error)),
            Ok(()) | Err(_) => {}
        }
        fs::rename(&partial, path).and_then(|()| sync_folder(above)).map_err(write_error(path))?;
        Ok(done)
    };
    let done = work();
    drop(remove(if done.is_ok() { &old } else { &partial }));
    done
}

/// Returns the first entry of a folder, at any depth, that no export wrote; `None` if `path` does not exist.
fn foreign(path: &Path, is_ours: fn(&str) -> bool) -> io::Result<Option<PathBuf>> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(found) if !found.is_dir() => return Ok(Some(path.to_path_buf())),
        Ok(_) => {}
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let found = if entry.file_type()?.is_dir() {
            foreign(&entry.path(), is_ours)?
        } else {
            (!entry.file_name().to_str().is_some_and(is_ours)).then(|| entry.path())
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Returns a nameless temporary file in the folder of `path`; it vanishes when closed.
pub(super) fn scratch(path: &Path) -> Result<File, ExportError> {
    let beside = partial(&partial(path));
    let make = || {
        remove(&beside)?;
        let file = File::options().read(true).write(true).create_new(true).open(&beside)?;
        fs::remove_file(&beside)?;
        Ok(file)
    };
    make().map_err(write_error(&beside))
}

/// Writes a new file in a folder that is being filled; the file is durable when this returns.
pub(super) fn write_inside(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), ExportError> {
    let work = || {
        let mut file = BufWriter::new(File::create_new(path)?);
        write(&mut file)?;
        file.flush()?;
        file.get_ref().sync_all()
    };
    work().map_err(write_error(path))
}

/// Removes a file or a folder if it exists.
fn remove(path: &Path) -> io::Result<()> {
    let gone = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match gone {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        gone => gone,
    }
}

/// Returns the folder of `path`; `.` for a bare name.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_replaced_without_force_and_nothing_is_left_of_what_failed() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("new/run");
        let is_a: fn(&str) -> bool = |name| name == "a";
        let put = |text: &str| {
            let text = text.to_owned();
            move |folder: &Path| write_inside(&folder.join("a"), |file| file.write_all(text.as_bytes()))
        };
        folder(&path, (false, is_a), put("one")).expect("room");
        assert!(matches!(folder(&path, (false, is_a), put("two")), Err(ExportError::Exists(_))));
        let failed = folder(&path, (true, is_a), |folder| {
            put("three")(folder)?;
            Err::<(), _>(ExportError::Exists("something else".into()))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(path.join("a")).expect("kept"), "one");
        folder(&path, (true, is_a), put("four")).expect("room");
        assert_eq!(fs::read_to_string(path.join("a")).expect("replaced"), "four");
        fs::write(path.join("thesis.tex"), "mine").expect("room");
        let refused = folder(&path, (true, is_a), put("five")).expect_err("it has a foreign file");
        assert!(matches!(&refused, ExportError::Foreign { foreign, .. } if foreign.ends_with("thesis.tex")));
        assert_eq!(fs::read_to_string(path.join("a")).expect("kept"), "four");
        fs::remove_file(path.join("thesis.tex")).expect("there");
        let left: Vec<_> = fs::read_dir(root.path().join("new")).expect("a folder").collect();
        assert_eq!(left.len(), 1, "{left:?}");

        let path = root.path().join("table");
        let put = |text: &'static str| {
            move |to: &mut BufWriter<File>| to.write_all(text.as_bytes()).map_err(write_error(Path::new("")))
        };
        file(&path, false, put("one")).expect("room");
        assert!(matches!(file(&path, false, put("two")), Err(ExportError::Exists(_))));
        file(&path, true, put("three")).expect("room");
        assert_eq!(fs::read_to_string(&path).expect("replaced"), "three");
        std::os::unix::fs::symlink(root.path().join("new/run/a"), partial(&path)).expect("a link");
        file(&path, true, put("five")).expect("room");
        assert_eq!(fs::read_to_string(root.path().join("new/run/a")).expect("kept"), "four", "not followed");
        assert!(file(root.path(), true, put("four")).is_err(), "a folder is not replaced by a file");
    }
}
