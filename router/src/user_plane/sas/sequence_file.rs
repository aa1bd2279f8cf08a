//! Which sequence numbers of a key are used, noted before they are: no number is ever used twice with a key, whatever happens to the process, as the number
//! is the IV of AES-GCM (docs/howto/esp.md).
//!
//! One line: `millrace-sequence 1 KEY NUMBER`. KEY is a fingerprint, so that a file is never taken for another key's; NUMBER, the last that may have been
//! used. It is written through to the disk before a number beyond the old one is given out, in blocks. A process that is killed loses the rest of its block:
//! a gap, which the peer's window takes. The file is locked as long as the SA lives. What is not understood is never overwritten, and neither is a file that is
//! empty: a new one gets its name when its first line is on the disk, so an empty one has lost its line.

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

/// How many are noted at once: 2^20 of 32-bit numbers, so that a few thousand killed processes do not use them up; 2^24 of others.
const SMALL: u64 = 1 << 20;
const LARGE: u64 = 1 << 24;
const MAGIC: &str = "millrace-sequence 1";
/// One line is always as long.
const MOST_BYTES: u64 = 80;
/// Digits of 2^64.
const DIGITS: usize = 20;

pub struct SequenceFile {
    path: PathBuf,
    file: File,
    /// Fingerprint.
    key: String,
    /// What [`SequenceFile::open`] found: nothing less is ever noted.
    used: u64,
}

/// Why there are no numbers.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("cannot {what} the sequence file {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("the sequence file {} is in use by another process, or by another SA", .0.display())]
    Locked(PathBuf),
    #[error("the sequence file {} is not this user's alone to write: it must belong to who runs Millrace, and be written by no group and no others (chmod 600)", .0.display())]
    NotOurs(PathBuf),
    #[error("the sequence file {} is another key's: a new key needs a file of its own", .0.display())]
    OtherKey(PathBuf),
    #[error("the sequence file {} is not as Millrace writes it: which numbers were used is not known, so the SA needs a new key and a new file", .0.display())]
    Broken(PathBuf),
}

impl SequenceFile {
    /// Opens it, or makes it for a key that was never used.
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
        // Says so now if it cannot be written.
        opened.note(used)?;
        Ok(opened)
    }

    /// The last number that may have been used when it was opened.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Gives out more where less than half a block is left.
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

    /// The last that was used; nobody has the SA any more.
    pub fn finish(mut self, taken: u64) -> Result<(), Fault> {
        self.note(taken)
    }

    /// As if its disk had failed.
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

/// The fingerprint of the key, and the number, of what [`line`] wrote.
pub(crate) fn parse(text: &str) -> Option<(&str, u64)> {
    let line = text.strip_prefix(MAGIC)?.strip_suffix('\n')?;
    let (key, number) = line.trim_start().split_once(' ')?;
    let is_number = number.len() == DIGITS && number.bytes().all(|digit| digit.is_ascii_digit());
    Some((key, number.parse().ok().filter(|_| is_number)?))
}

/// A new one with this line, locked. It has its name only when all of it is on the disk, and takes nobody's place.
fn make(path: &Path, line: &str) -> Result<File, Fault> {
    let io = |what| move |source| Fault::Io { what, path: path.into(), source };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{}", process::id(), now.as_nanos()));
    let temporary = Path::new(&name);
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    let mut file = options.open(temporary).map_err(io("make"))?;
    let made = lock(&file, path).and_then(|()| {
        file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).map_err(io("write"))?;
        match fs::hard_link(temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Fault::Locked(path.into())),
            linked => linked.map_err(io("make")),
        }
    });
    let removed = fs::remove_file(temporary).map_err(io("make"));
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

/// 64 bits of SHA-256, which say nothing of a key that cannot be guessed.
pub fn fingerprint(key: &Key) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"millrace sequence numbers\0");
    context.update(&key.salt());
    context.update(key.aes());
    crate::base::hex::encode(context.finish().as_ref().get(..8).unwrap_or_default())
}
