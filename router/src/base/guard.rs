//! Locks, and files and directories of one user: nobody else can have created them, or put a link in their place.

use rustix::{fs::FlockOperation, io::Errno};
use std::{
    fs::{self, File, Metadata, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
};

/// Write permissions of group and others.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Locks a mutex, even after a thread panicked while it held the lock: the data is consistent at every moment.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`locked`], but returns `None` instead of waiting.
pub fn try_locked<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks the file for as long as it is open here or in a process that inherited it. Returns false if somebody else
/// holds the lock. The lock is advisory: flock(2).
///
/// # Errors
/// The file system has no locks, or fails.
pub fn lock_file(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Does a file belong to the user who runs Millrace, and may nobody else write it?
pub fn is_ours_alone(file: &Metadata) -> bool {
    is_owned(file, &[rustix::process::geteuid().as_raw()])
}

/// Does a file belong to root or to the user who runs Millrace, and may nobody else write it?
pub fn is_ours_or_roots_alone(file: &Metadata) -> bool {
    is_owned(file, &ours_or_roots())
}

/// Checks that only root, or the user who runs Millrace, can have written to a directory or to any directory above it.
/// None of them may be a link or writable by others. A sticky directory above may be writable, because nobody can
/// replace another user's files in it.
///
/// # Errors
/// A directory fails the check (the error names it and its owner), or the directory does not exist.
pub fn check_directory(path: &Path) -> io::Result<()> {
    for (depth, directory) in path.ancestors().filter(|path| *path != Path::new("")).enumerate() {
        let data = fs::symlink_metadata(directory)?;
        let wrong = match () {
            () if !data.is_dir() => "is not a directory".into(),
            () if !is_owned_by(&data, &ours_or_roots()) => format!("belongs to user {}", data.uid()),
            () if data.mode() & OTHERS_WRITE != 0 && (depth == 0 || data.mode() & STICKY == 0) => {
                "can be written by others".into()
            }
            () => continue,
        };
        return Err(io::Error::other(format!("{} {wrong}", directory.display())));
    }
    Ok(())
}

/// Reads a file that only root, or the user who runs Millrace, can have written.
///
/// # Errors
/// The file does not exist, is a link, belongs to somebody else, or cannot be read.
pub fn read_ours(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = File::options();
    let mut file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    let data = file.metadata()?;
    if !data.is_file() || !is_ours_or_roots_alone(&data) {
        return Err(io::Error::other(format!("{} is not a file that only root can write", path.display())));
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// Writes a file, completely or not at all. It never writes into a file that others have put there.
///
/// # Errors
/// The file cannot be written; the old content remains.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    replace_by(path, |file| file.write_all(text))
}

/// As [`replace`]. All users may read the file.
///
/// # Errors
/// As [`replace`].
pub fn replace_for_all(path: &Path, text: &[u8]) -> io::Result<()> {
    replace_by(path, |file| {
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(text)
    })
}

/// As [`replace`], even if the machine fails meanwhile or afterwards. Owner and mode of the file stay. This waits for the disk.
pub fn replace_durably(path: &Path, text: &[u8]) -> io::Result<()> {
    let before = fs::metadata(path).ok();
    replace_by(path, |file| {
        file.write_all(text)?;
        if let Some(before) = &before {
            file.set_permissions(before.permissions())?;
            fchown(&*file, Some(before.uid()), Some(before.gid()))?;
        }
        file.sync_all()
    })?;
    let directory = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

fn replace_by(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    // A killed process may have left it.
    let _ = fs::remove_file(&new);
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
    let placed = write(&mut file).and_then(|()| fs::rename(&new, path));
    if placed.is_err() {
        let _ = fs::remove_file(&new);
    }
    placed
}

/// Did root create it, or the user who runs Millrace? This is for links, whose modes mean nothing.
pub fn is_by_us_or_root(file: &Metadata) -> bool {
    is_owned_by(file, &ours_or_roots())
}

fn ours_or_roots() -> [u32; 2] {
    [0, rustix::process::geteuid().as_raw()]
}

fn is_owned_by(file: &Metadata, by: &[u32]) -> bool {
    by.contains(&file.uid())
}

fn is_owned(file: &Metadata, by: &[u32]) -> bool {
    is_owned_by(file, by) && file.mode() & OTHERS_WRITE == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directories_that_others_can_change_are_refused() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("pins");
        let check = || check_directory(&directory).map_err(|error| error.to_string());
        fs::create_dir(&directory).unwrap();
        assert_eq!(check(), Ok(()));
        for (above_mode, mode, wrong) in [
            (0o700, 0o722, "/pins can be written by others"),
            (0o700, 0o1777, "/pins can be written by others"),
            (0o770, 0o700, "can be written by others"),
        ] {
            set_mode(above.path(), above_mode);
            set_mode(&directory, mode);
            assert!(check().unwrap_err().ends_with(wrong), "{above_mode:o} {mode:o}: {:?}", check());
        }
        set_mode(above.path(), 0o1777);
        set_mode(&directory, 0o700);
        assert_eq!(check(), Ok(()), "nobody replaces it in a sticky directory");
        fs::rename(&directory, above.path().join("other")).unwrap();
        symlink("other", &directory).unwrap();
        assert!(check().unwrap_err().ends_with("/pins is not a directory"));
    }

    #[test]
    fn files_are_replaced_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let [file, other] = ["state", "other"].map(|name| directory.path().join(name));
        fs::write(&other, "untouched").unwrap();
        symlink(&other, directory.path().join("state.new")).unwrap();
        replace(&file, b"ours").unwrap();
        assert_eq!(read_ours(&file).unwrap(), b"ours");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        replace_for_all(&file, b"for all").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"for all");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o644);
        replace(&file, b"ours").unwrap();
        fs::remove_file(&file).unwrap();
        symlink(&other, &file).unwrap();
        read_ours(&file).unwrap_err();
        replace(&file, b"ours").unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"untouched");
        set_mode(&file, 0o666);
        read_ours(&file).unwrap_err();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    #[ignore = "needs root"]
    fn files_of_another_user_are_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let (pins, state) = (directory.path().join("pins"), directory.path().join("state"));
        fs::create_dir(&pins).unwrap();
        fs::write(&state, "{}").unwrap();
        for path in [&pins, &state] {
            std::os::unix::fs::chown(path, Some(65534), None).unwrap();
        }
        assert!(check_directory(&pins).unwrap_err().to_string().ends_with("/pins belongs to user 65534"));
        read_ours(&state).unwrap_err();
    }
}
