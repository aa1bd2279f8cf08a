//! Reads files that people edit, when they are whole.

use std::{
    fs::{self, Metadata, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    thread,
    time::{Duration, SystemTime},
};

/// A file that changed within this time may be half written.
const SETTLES: Duration = Duration::from_millis(25);
/// The most attempts to read a file that is being written.
const LOOKS: u32 = 40;

/// Reads a text. It waits a moment if the file is being written, because a part of it may be valid, too. `accepts` may refuse the
/// file by its owner or mode.
///
/// # Errors
/// It cannot be read, is refused, is no ordinary file, has more bytes, is not UTF-8, or keeps changing.
pub fn read_text(
    file: &Path,
    most_bytes: u64,
    accepts: impl Fn(&Metadata) -> io::Result<()>,
) -> io::Result<String> {
    read_patiently(file, most_bytes, accepts, SystemTime::now, thread::sleep)
}

fn read_patiently(
    file: &Path,
    most_bytes: u64,
    accepts: impl Fn(&Metadata) -> io::Result<()>,
    now: impl Fn() -> SystemTime,
    wait: impl Fn(Duration),
) -> io::Result<String> {
    for _ in 0..LOOKS {
        if let Some(text) = read_settled(file, most_bytes, &accepts, &now)? {
            return Ok(text);
        }
        wait(SETTLES);
    }
    Err(io::Error::other("the file keeps changing; try again when it is complete"))
}

/// `None`: the file has just changed.
fn read_settled(
    file: &Path,
    most_bytes: u64,
    accepts: impl Fn(&Metadata) -> io::Result<()>,
    now: impl Fn() -> SystemTime,
) -> io::Result<Option<String>> {
    // Opening a FIFO would otherwise wait for its writer.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    let before = opened.metadata()?;
    if !before.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    accepts(&before)?;
    if now().duration_since(before.modified()?).is_ok_and(|age| age < SETTLES) {
        return Ok(None);
    }
    let mut text = Vec::new();
    (&opened).take(most_bytes + 1).read_to_end(&mut text)?;
    if text.len() as u64 > most_bytes {
        return Err(io::Error::other(format!("it is larger than {} MiB", most_bytes >> 20)));
    }
    let state = |data: &Metadata| (data.dev(), data.ino(), data.len(), data.mtime(), data.mtime_nsec());
    if state(&before) != state(&fs::metadata(file)?) || before.len() != text.len() as u64 {
        return Ok(None);
    }
    String::from_utf8(text)
        .map(Some)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, io::Write, path::PathBuf};

    const MOST: u64 = 1 << 20;

    /// An editor that writes a piece of a file each time that the reader waits, in virtual time.
    struct Editor {
        file: PathBuf,
        now: Cell<SystemTime>,
        pieces: Cell<usize>,
    }

    impl Editor {
        fn new(file: PathBuf, pieces: usize) -> Self {
            let now = Cell::new(SystemTime::now());
            let editor = Self { file, now, pieces: Cell::new(pieces) };
            editor.write();
            editor
        }

        fn write(&self) {
            let mut written = fs::File::options().create(true).append(true).open(&self.file).unwrap();
            written.write_all(b"heartbeat\n").unwrap();
            written.set_modified(self.now.get()).unwrap();
        }

        fn wait(&self, time: Duration) {
            let left = self.pieces.get();
            let step = if left > 0 { time / 2 } else { time };
            self.now.set(self.now.get() + step);
            if left > 0 {
                self.pieces.set(left - 1);
                self.write();
            }
        }

        fn read(&self) -> io::Result<String> {
            read_patiently(&self.file, MOST, |_| Ok(()), || self.now.get(), |time| self.wait(time))
        }
    }

    #[test]
    fn a_file_that_is_being_written_is_read_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        for pieces in [0, 1, 7, 38] {
            let editor = Editor::new(directory.path().join(pieces.to_string()), pieces);
            assert_eq!(editor.read().unwrap(), "heartbeat\n".repeat(pieces + 1));
        }
    }

    #[test]
    fn a_file_that_keeps_changing_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = Editor::new(directory.path().join("m.toml"), 1000).read().unwrap_err();
        assert!(error.to_string().contains("keeps changing"), "{error}");
    }

    /// The editor replaces or shortens the file between the look at it and the reading.
    #[test]
    fn a_file_that_changes_while_it_is_read_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("m.toml");
        let old = SystemTime::now() - Duration::from_secs(60);
        let write = |to: &Path, text: &str| {
            fs::write(to, text).unwrap();
            fs::File::options().write(true).open(to).unwrap().set_modified(old).unwrap();
        };
        let replace = || {
            let new = directory.path().join("new");
            write(&new, "new");
            fs::rename(&new, &file).unwrap();
        };
        for change in [&replace as &dyn Fn(), &|| write(&file, "half")] {
            write(&file, "whole");
            let accepts = |_: &Metadata| {
                change();
                Ok(())
            };
            assert_eq!(read_settled(&file, MOST, accepts, SystemTime::now).unwrap(), None);
        }
        assert_eq!(read_text(&file, MOST, |_| Ok(())).unwrap(), "half");
    }
}
