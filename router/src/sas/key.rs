//! Keys: hexadecimal digits in a file that only its owner may read, or in an environment variable. No error says what they are.

use crate::{config::KeySource, hex};
use logic::esp::Key;
use rustix::fs::{Mode, OFlags};
use std::{
    env,
    fs::File,
    io::Read,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
};
use zeroize::Zeroizing;

const FORM: &str = "40 or 72 hexadecimal digits are allowed: an AES key of 128 or 256 bits, and a salt of 32 bits behind it (RFC 4106)";
/// What a file may have besides digits.
const MOST_BYTES: u64 = 128;
/// What group and others may do.
const NOT_THE_OWNER: u32 = 0o077;

pub fn read(source: &KeySource) -> Result<Key, String> {
    let (text, whence) = match source {
        KeySource::Environment(name) => {
            let value = env::var_os(name).ok_or_else(|| format!("the environment has no {name}"))?;
            (Zeroizing::new(value.into_vec()), format!("the variable {name}"))
        }
        KeySource::File(file) => {
            let name = file.display();
            let cannot = |e: &dyn std::fmt::Display| format!("cannot read the key file {name}: {e}");
            // Of a pipe nothing is waited for.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = rustix::fs::open(file, flags, Mode::empty()).map_err(|e| cannot(&e))?;
            let opened = File::from(opened);
            let data = opened.metadata().map_err(|e| cannot(&e))?;
            if !data.is_file() {
                return Err(cannot(&"it is no file"));
            }
            if data.mode() & NOT_THE_OWNER != 0 {
                return Err(format!(
                    "the key file {name} is open to others than its owner: chmod 600 {name}"
                ));
            }
            let mut text = Zeroizing::new(Vec::with_capacity(MOST_BYTES as usize + 1));
            opened.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|e| cannot(&e))?;
            (text, format!("the key file {name}"))
        }
    };
    let digits = std::str::from_utf8(&text).unwrap_or("not digits").trim();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let bytes = hex::decode(digits).map(Zeroizing::new);
    let key = bytes.as_ref().and_then(|bytes| Key::new(bytes));
    key.ok_or_else(|| {
        let what = match &bytes {
            None => "is not written in pairs of hexadecimal digits".into(),
            Some(bytes) => format!("has {} digits", 2 * bytes.len()),
        };
        format!("{whence} {what}: {FORM}")
    })
}
