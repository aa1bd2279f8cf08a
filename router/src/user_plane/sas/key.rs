//! Keys: hexadecimal digits in a file that only its owner may read, or in an environment variable. No error text contains digits of
//! a key.

use crate::{
    base::{foreign::Quoted, guard::lock_file},
    config::KeySource,
};
use logic::esp::Key;
use rustix::fs::{Mode, OFlags};
use std::{
    env,
    fs::File,
    io::Read,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
};
use zeroize::Zeroizing;

const FORM: &str = "40 or 72 hexadecimal digits are allowed: an AES key of 128 or 256 bits, followed by a salt of 32 bits (RFC 4106)";
/// The largest file, in bytes: the digits, and blanks around them.
const MOST_BYTES: usize = 128;
/// The longest key with its salt.
const MOST_KEY_BYTES: usize = 36;
/// Permissions of group and others.
const NOT_THE_OWNER: u32 = 0o077;

/// Reads a key. With `is_alone`, only one SA may use it, so that its packets are counted in one place; then the file is locked and
/// returned.
pub fn read(source: &KeySource, is_alone: bool) -> Result<(Key, Option<File>), String> {
    match source {
        KeySource::Environment(name) => {
            let value = env::var_os(name).ok_or_else(|| format!("the environment has no {name}"))?;
            let text = Zeroizing::new(value.into_vec());
            Ok((parse(&text, &format!("the variable {name}"))?, None))
        }
        KeySource::File(file) => {
            let name = file.display();
            let cannot = |e: &dyn std::fmt::Display| format!("cannot read the key file {name}: {e}");
            // Does not wait for a pipe.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = rustix::fs::open(file, flags, Mode::empty()).map_err(|e| cannot(&e))?;
            let mut opened = File::from(opened);
            let data = opened.metadata().map_err(|e| cannot(&e))?;
            if !data.is_file() {
                return Err(cannot(&"it is not a file"));
            }
            if data.uid() != rustix::process::geteuid().as_raw() {
                return Err(format!("the key file {name} does not belong to the user who runs Millrace"));
            }
            if data.mode() & NOT_THE_OWNER != 0 {
                return Err(format!(
                    "the key file {name} is open to others than its owner: chmod 600 -- {}",
                    Quoted(&name.to_string())
                ));
            }
            if is_alone {
                let is_locked =
                    lock_file(&opened).map_err(|e| format!("cannot lock the key file {name}: {e}"))?;
                if !is_locked {
                    return Err(format!(
                        "the key file {name} is in use by another process, or by another SA, which sends with this key"
                    ));
                }
            }
            let mut text = Zeroizing::new([0; MOST_BYTES + 1]);
            let bytes = fill(&mut opened, &mut *text).map_err(|e| cannot(&e))?;
            let key = parse(text.get(..bytes).unwrap_or_default(), &format!("the key file {name}"))?;
            Ok((key, is_alone.then_some(opened)))
        }
    }
}

/// Reads until `into` is full, or the file ends; returns the number of bytes. No buffer grows, so no copies of the key are left
/// behind.
fn fill(file: &mut File, mut into: &mut [u8]) -> std::io::Result<usize> {
    let all = into.len();
    while !into.is_empty() {
        let read = match file.read(into) {
            Ok(0) => break,
            Ok(read) => read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        into = into.get_mut(read..).unwrap_or_default();
    }
    Ok(all - into.len())
}

pub(crate) fn parse(text: &[u8], whence: &str) -> Result<Key, String> {
    let digits = text.trim_ascii();
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(format!("{whence} does not consist of pairs of hexadecimal digits: {FORM}"));
    }
    let mut bytes = Zeroizing::new([0; MOST_KEY_BYTES]);
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = value(*high) << 4 | value(*low);
    }
    let key = bytes.get(..pairs.len()).and_then(Key::new);
    key.ok_or_else(|| format!("{whence} has {} digits: {FORM}", digits.len()))
}

/// The value of a hexadecimal digit.
fn value(digit: u8) -> u8 {
    char::from(digit).to_digit(16).unwrap_or_default() as u8
}
