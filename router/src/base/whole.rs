//! Reads files that people edit, when they are whole.

use std::{
    fs::{self, Metadata, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    thread,
    time::Duration,
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
    for _ in 0..LOOKS {
        if let Some(text) = read_settled(file, most_bytes, &accepts)? {
            return Ok(text);
        }
        thread::sleep(SETTLES);
    }
    Err(io::Error::other("the file keeps changing; try again when it is complete"))
}

/// `None`: the file has just changed.
fn read_settled(
    file: &Path,
    most_bytes: u64,
    accepts: impl Fn(&Metadata) -> io::Result<()>,
) -> io::Result<Option<String>> {
    // Opening a FIFO would otherwise wait for its writer.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    let before = opened.metadata()?;
    if !before.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    accepts(&before)?;
    if before.modified()?.elapsed().is_ok_and(|age| age < SETTLES) {
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
    use std::io::Write;

    const MOST: u64 = 1 << 20;

    /// An editor that writes in pieces, and one that replaces the file.
    #[test]
    fn a_file_that_is_being_written_is_read_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("m.toml");
        let whole: Vec<String> =
            (0..2).map(|n| format!("heartbeat = \"{}s\"\n", n + 5).repeat(2000)).collect();
        fs::write(&file, &whole[0]).unwrap();
        let ends = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1.. {
                    let mut written = fs::File::create(&file).unwrap();
                    for piece in whole[n % 2].as_bytes().chunks(3000) {
                        written.write_all(piece).unwrap();
                        thread::sleep(Duration::from_millis(1));
                    }
                    thread::sleep(Duration::from_millis(if n % 3 == 0 { 60 } else { 5 }));
                    let new = directory.path().join("new");
                    fs::write(&new, &whole[n % 2]).unwrap();
                    fs::rename(&new, &file).unwrap();
                    thread::sleep(Duration::from_millis(20));
                    if ends.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let read = |_| {
                thread::sleep(Duration::from_millis(7));
                read_text(&file, MOST, |_| Ok(())).ok()
            };
            let read: Vec<_> = (0..60).filter_map(read).collect();
            ends.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(read.len() > 3 && read.iter().all(|text| whole.contains(text)), "{}", read.len());
        });
        read_text(&file, MOST, |_| Ok(())).unwrap();
    }
}
