//! Notes sequence numbers of a key in a file, before they are used. The number is the IV of AES-GCM, so no number may be used twice
//! with a key, whatever happens to the process (docs/howto/esp.md).
//!
//! The file is one line: `millrace-sequence 1 KEY NUMBER`. KEY is a fingerprint, so that the file of another key is recognised. NUMBER is
//! the last number that may have been used. It grows in blocks, and is on the disk before a larger number is given out. A killed
//! process loses the rest of its block; the peer's window accepts the gap.
//!
//! The file is locked as long as the SA lives. A file that cannot be understood is never overwritten. Neither is an empty one: a new
//! file gets its name when its first line is on the disk, so an empty file has lost its line.

use crate::base::guard::{is_ours_alone, lock_file};
use aws_lc_rs::digest;
use logic::esp::{Key, Sequence};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
    time::SystemTime,
};

/// The block for 32-bit numbers; a few thousand killed processes do not use them up.
const SMALL: u64 = 1 << 20;
/// The block for 64-bit numbers.
const LARGE: u64 = 1 << 24;
const MAGIC: &str = "millrace-sequence 1";
/// The largest file that is read. All lines have the same length.
const MOST_BYTES: u64 = 80;
/// Digits of 2^64.
const DIGITS: usize = 20;

/// The file in which the sequence numbers of an SA are noted.
pub struct SequenceFile {
    path: PathBuf,
    file: File,
    /// The fingerprint of the key.
    key: String,
    /// The number that [`SequenceFile::open`] found. No smaller number is ever noted.
    used: u64,
}

/// Why there are no numbers.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("cannot {what} the sequence file {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("the sequence file {} is in use by another process, or by another SA", .0.display())]
    Locked(PathBuf),
    #[error("others may write the sequence file {}: it must belong to the user who runs Millrace, and only this user may write it (chmod 600)", .0.display())]
    NotOurs(PathBuf),
    #[error("the sequence file {} belongs to another key: a new key needs a new file", .0.display())]
    OtherKey(PathBuf),
    #[error("the sequence file {} is damaged: it is not known which numbers were used, so the SA needs a new key and a new file", .0.display())]
    Broken(PathBuf),
}

impl SequenceFile {
    /// Opens the file, or creates it for a key that was never used.
    pub fn open(path: &Path, key: &Key) -> Result<Self, Fault> {
        let io = |what| move |source| Fault::Io { what, path: path.into(), source };
        let key = fingerprint(key);
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let mut file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = make(path, &line(&key, 0))?;
                return Ok(SequenceFile { path: path.into(), file, key, used: 0 });
            }
            Err(error) => return Err(io("open")(error)),
        };
        let data = file.metadata().map_err(io("read"))?;
        if !data.is_file() {
            return Err(Fault::Broken(path.into()));
        }
        if !is_ours_alone(&data) {
            return Err(Fault::NotOurs(path.into()));
        }
        lock(&file, path)?;
        let mut text = String::new();
        (&mut file).take(MOST_BYTES + 1).read_to_string(&mut text).map_err(io("read"))?;
        let Some((of_key, used)) = parse(&text) else { return Err(Fault::Broken(path.into())) };
        if of_key != key {
            return Err(Fault::OtherKey(path.into()));
        }
        let mut opened = SequenceFile { path: path.into(), file, key, used };
        // Fails now if the file cannot be written.
        opened.note(used)?;
        Ok(opened)
    }

    /// The last number that may have been used before the file was opened.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Gives out more numbers if at most half a block is left.
    pub fn reserve(&mut self, sequence: &Sequence) -> Result<(), Fault> {
        let block = if sequence.last() <= u32::MAX.into() { SMALL } else { LARGE };
        let (taken, reserved) = (sequence.taken(), sequence.reserved());
        if reserved - taken > block / 2 || reserved >= sequence.last() {
            return Ok(());
        }
        let more = reserved.saturating_add(block).min(sequence.last());
        self.note(more)?;
        sequence.reserve(more);
        Ok(())
    }

    /// Notes the last number that was used. Nothing has the SA any more.
    pub fn finish(mut self, taken: u64) -> Result<(), Fault> {
        self.note(taken)
    }

    /// Makes writes fail, as if the disk had failed.
    #[cfg(test)]
    pub fn cannot_be_written(&mut self) {
        self.file = File::open(&self.path).unwrap();
    }

    #[cfg(test)]
    pub fn is_mended(&mut self, file: File) {
        self.file = file;
    }

    fn note(&mut self, number: u64) -> Result<(), Fault> {
        let line = line(&self.key, number.max(self.used));
        let written = self.file.write_all_at(line.as_bytes(), 0).and_then(|()| self.file.sync_data());
        written.map_err(|source| Fault::Io { what: "write", path: self.path.clone(), source })
    }
}

pub(crate) fn line(key: &str, number: u64) -> String {
    format!("{MAGIC} {key} {number:0DIGITS$}\n")
}

/// The fingerprint of the key, and the number, from a text that [`line`] wrote.
pub(crate) fn parse(text: &str) -> Option<(&str, u64)> {
    let line = text.strip_prefix(MAGIC)?.strip_suffix('\n')?;
    let (key, number) = line.trim_start().split_once(' ')?;
    let is_number = number.len() == DIGITS && number.bytes().all(|digit| digit.is_ascii_digit());
    Some((key, number.parse().ok().filter(|_| is_number)?))
}

/// Creates a file with this line, locked. It gets its name when all of it is on the disk, and never replaces another file.
fn make(path: &Path, line: &str) -> Result<File, Fault> {
    let io = |what| move |source| Fault::Io { what, path: path.into(), source };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{}", process::id(), now.as_nanos()));
    let temporary = Path::new(&name);
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    let mut file = options.open(temporary).map_err(io("create"))?;
    let made = lock(&file, path).and_then(|()| {
        file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).map_err(io("write"))?;
        match fs::hard_link(temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Fault::Locked(path.into())),
            linked => linked.map_err(io("create")),
        }
    });
    let removed = fs::remove_file(temporary).map_err(io("create"));
    made.and(removed)?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = File::open(directory.unwrap_or(Path::new("."))).map_err(io("write"))?;
    directory.sync_all().map_err(io("write"))?;
    Ok(file)
}

fn lock(file: &File, path: &Path) -> Result<(), Fault> {
    match lock_file(file) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Fault::Locked(path.into())),
        Err(source) => Err(Fault::Io { what: "lock", path: path.into(), source }),
    }
}

/// 64 bits of SHA-256. They reveal nothing of a key that cannot be guessed.
pub fn fingerprint(key: &Key) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"millrace sequence numbers\0");
    context.update(&key.salt());
    context.update(key.aes());
    crate::base::hex::encode(context.finish().as_ref().get(..8).unwrap_or_default())
}
