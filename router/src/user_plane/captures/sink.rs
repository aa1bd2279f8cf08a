//! The files of captures.
//!
//! A file of the daemon is created for its user alone (0600), never in place of another file, and never through a symbolic link. An
//! existing file is continued if it is a capture of ours that nobody else writes. So a restarted daemon loses nothing, and the limit
//! of the file holds across restarts. A partial record that a killed process left is cut off. If another process truncates the file
//! or appends to it, that is noticed before the next record is written.
//!
//! A file of a run is emptied first. So it must be empty, or a capture of ours that nobody writes, and no link. Pipes and devices
//! need no check, because they hold nothing.

use crate::base::guard::{is_ours_alone, lock_file};
use anyhow::{Context, Result, ensure};
use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Write},
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Bytes of a record before the data of its packet.
pub(super) const RECORD: usize = 16;
/// The most bytes that are captured of a packet.
pub(super) const MOST_CAPTURED: usize = u16::MAX as usize;
/// The header of the file: pcap 2.4 with nanoseconds, little endian, Ethernet. It does not depend on `snap_bytes`, so that a file can be
/// continued.
pub(super) const HEADER: [u8; 24] =
    [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];
/// Bytes of an existing file that are read before the next check whether the daemon ends.
const AT_ONCE: u64 = 16 << 20;
const NOT_OURS: &str = "it exists and is not a capture of Millrace: move it away";

/// The file of a capture; see the head of this file.
pub trait Sink {
    /// Opens the file, or opens it again. Returns its length, which is the header and whole records.
    ///
    /// # Errors
    /// It cannot be opened. The call may be repeated.
    fn open(&mut self) -> Result<u64>;
    /// Writes records after the first `at` bytes.
    ///
    /// # Errors
    /// The file has only the first `at` bytes and the records that fit. The call may be repeated.
    fn write(&mut self, at: u64, records: &[u8]) -> Result<(), Failed>;
    /// The file must be opened again.
    fn is_gone(&self) -> bool;
}

/// Not all records were written.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed {
    /// Why.
    pub error: io::Error,
    /// The records that were written.
    pub fit: Whole,
}

impl From<io::Error> for Failed {
    /// No record was written.
    fn from(error: io::Error) -> Failed {
        Failed { error, fit: Whole::default() }
    }
}

/// Whole records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    pub records: u64,
    pub bytes: usize,
}

impl Whole {
    /// The whole records at the start of these bytes.
    pub fn of(bytes: &[u8]) -> Whole {
        let mut whole = Whole::default();
        while let Some(head) = bytes.get(whole.bytes..).and_then(<[u8]>::first_chunk)
            && let end = whole.bytes + RECORD + captured(head)
            && end <= bytes.len()
        {
            whole = Whole { records: whole.records + 1, bytes: end };
        }
        whole
    }
}

/// Bytes of the packet after the head of its record.
fn captured(head: &[u8; RECORD]) -> usize {
    let [.., a, b, c, d, _, _, _, _] = *head;
    u32::from_le_bytes([a, b, c, d]) as usize
}

impl Sink for Box<dyn Sink + '_> {
    fn open(&mut self) -> Result<u64> {
        (**self).open()
    }
    fn write(&mut self, at: u64, records: &[u8]) -> Result<(), Failed> {
        (**self).write(at, records)
    }
    fn is_gone(&self) -> bool {
        (**self).is_gone()
    }
}

/// A file of the daemon, by its name.
pub struct OfDaemon {
    path: PathBuf,
    file: Option<File>,
    /// Its length, if nobody else changes it.
    bytes: u64,
    /// The daemon ends, and does not wait until a long file is read.
    ends: Arc<AtomicBool>,
}

impl OfDaemon {
    /// The file, not open yet.
    pub fn new(path: &Path, ends: Arc<AtomicBool>) -> OfDaemon {
        OfDaemon { path: path.into(), file: None, bytes: 0, ends }
    }
}

impl Sink for OfDaemon {
    fn open(&mut self) -> Result<u64> {
        // This unlocks the file, which may still have its name.
        self.file = None;
        let file = file(&self.path)?;
        self.bytes = whole(&file, &self.path, &self.ends)?;
        self.file = Some(file);
        Ok(self.bytes)
    }

    fn write(&mut self, at: u64, records: &[u8]) -> Result<(), Failed> {
        let Some(file) = &self.file else { return Err(io::Error::from(io::ErrorKind::NotFound).into()) };
        if file.metadata()?.len() != at {
            // Records after the end would leave a hole, which no reader of captures understands.
            self.file = None;
            return Err(io::Error::other("another process truncated it or wrote to it").into());
        }
        let (written, is_whole) = put(file, at, records);
        if !is_whole {
            // The partial record is cut off when the file is opened again.
            self.file = None;
        }
        self.bytes = at + written.as_ref().map_or_else(|failed| failed.fit.bytes, |()| records.len()) as u64;
        written
    }

    fn is_gone(&self) -> bool {
        let same = |file: &File| {
            let (ours, named) = (file.metadata().ok()?, fs::symlink_metadata(&self.path).ok()?);
            Some((ours.dev(), ours.ino(), ours.len()) == (named.dev(), named.ino(), self.bytes))
        };
        self.file.as_ref().and_then(same) != Some(true)
    }
}

/// Writes records after the first `at` bytes, as many as fit. Also returns whether the file now ends with a whole record.
pub(super) fn put(file: &File, at: u64, records: &[u8]) -> (Result<(), Failed>, bool) {
    let mut done = 0;
    let error = loop {
        let rest = records.get(done..).unwrap_or_default();
        match file.write_at(rest, at + done as u64) {
            _ if rest.is_empty() => return (Ok(()), true),
            Ok(0) => break io::ErrorKind::WriteZero.into(),
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break error,
        }
    };
    let fit = Whole::of(records.get(..done).unwrap_or_default());
    let is_whole = file.set_len(at + fit.bytes as u64).is_ok();
    (Err(Failed { error, fit }), is_whole)
}

/// Opens or creates a file, and locks it.
fn file(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let opened = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return options
                .create_new(true)
                .mode(0o600)
                .open(path)
                .context("cannot create it")
                .and_then(locked);
        }
        opened => opened.context("cannot open it")?,
    };
    let data = opened.metadata().context("cannot read it")?;
    ensure!(data.is_file(), "it exists and is not a file");
    ensure!(is_ours_alone(&data), "it exists, but not only this user may write it (chmod 600)");
    locked(opened)
}

fn locked(file: File) -> Result<File> {
    ensure!(lock_file(&file).context("cannot lock it")?, "another process writes it, or another mirror");
    Ok(file)
}

/// Reads the header and the whole records of a file, and cuts off the rest. Returns the length.
fn whole(file: &File, path: &Path, ends: &AtomicBool) -> Result<u64> {
    let length = file.metadata().context("cannot read it")?.len();
    if length == 0 {
        return begin(file);
    }
    let mut reader = BufReader::new(file);
    let mut header = [0; HEADER.len()];
    let read = reader.read_exact(&mut header);
    ensure!(read.is_ok() && header == HEADER, NOT_OURS);
    let mut end = HEADER.len() as u64;
    let mut record = [0; RECORD];
    let mut looks = AT_ONCE;
    while length - end >= RECORD as u64 {
        if end > looks {
            ensure!(!ends.load(Relaxed), "the daemon ends before it has read the existing file");
            looks += AT_ONCE;
        }
        reader.read_exact(&mut record).context("cannot read it")?;
        let captured = captured(&record);
        ensure!(captured <= MOST_CAPTURED, "it is broken: move it away");
        let next = end + (RECORD + captured) as u64;
        if next > length {
            break;
        }
        reader.seek_relative(captured as i64).context("cannot read it")?;
        end = next;
    }
    if end < length {
        tracing::warn!("mirror {}: cut off {} bytes of a partial packet", path.display(), length - end);
        file.set_len(end).context("cannot truncate it")?;
    }
    Ok(end)
}

fn begin(file: &File) -> Result<u64> {
    file.write_all_at(&HEADER, 0)
        .or_else(|error| file.set_len(0).and(Err(error)))
        .context("cannot write it")?;
    Ok(HEADER.len() as u64)
}

/// A file of a run, or a pipe or device: written from its beginning to its end.
pub struct OfRun {
    file: File,
    is_seekable: bool,
    /// Why a pipe or device got no more records; the last one may be partial.
    ended: Option<String>,
}

impl OfRun {
    /// `file` is empty, and nobody else writes it.
    pub fn new(file: File) -> Self {
        let is_seekable = file.metadata().is_ok_and(|data| data.is_file());
        OfRun { file, is_seekable, ended: None }
    }

    /// Opens and locks a file that will be emptied and written. It changes nothing in the file yet.
    ///
    /// # Errors
    /// The file cannot be opened, holds something other than a capture of ours, or somebody writes it.
    pub fn claim(path: &Path) -> Result<File> {
        // A device or pipe may be named by a link, as /dev/stdout is.
        let kind = path.metadata().ok().map(|data| data.file_type()).filter(|kind| !kind.is_file());
        if let Some(kind) = kind {
            ensure!(!kind.is_block_device(), "it is a disk");
            let opened = File::options().write(true).open(path)?;
            ensure!(opened.metadata()?.file_type() == kind, "something else took its place");
            return Ok(opened);
        }
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let opened = options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
        ensure!(opened.metadata()?.is_file(), "something else took its place");
        let opened = locked(opened)?;
        let mut header = [0; HEADER.len()];
        let mut is_ours = || opened.read_exact_at(&mut header, 0).is_ok() && header == HEADER;
        ensure!(opened.metadata()?.len() == 0 || is_ours(), NOT_OURS);
        Ok(opened)
    }
}

impl Sink for OfRun {
    fn open(&mut self) -> Result<u64> {
        self.write(0, &HEADER).context("cannot write it")?;
        Ok(HEADER.len() as u64)
    }

    fn write(&mut self, at: u64, records: &[u8]) -> Result<(), Failed> {
        if self.is_seekable {
            return put(&self.file, at, records).0;
        }
        if let Some(why) = &self.ended {
            return Err(io::Error::other(why.clone()).into());
        }
        let written = self.file.write_all(records);
        self.ended = written.as_ref().err().map(ToString::to_string);
        Ok(written?)
    }

    fn is_gone(&self) -> bool {
        false
    }
}
