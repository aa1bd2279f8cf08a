//! Settings of conntrack in a namespace (`Documentation/networking/nf_conntrack-sysctl.rst`).

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

const DIRECTORY: &str = "/proc/sys/net/netfilter";

/// What a namespace's conntrack is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `nf_conntrack_tcp_timeout_established`, in seconds; 0: it is negative.
    pub tcp_established_s: u32,
    /// The smaller one of `nf_conntrack_tcp_timeout_unacknowledged` and `nf_conntrack_tcp_timeout_max_retrans`, likewise.
    pub tcp_least_s: u32,
    /// The smallest one of `nf_conntrack_tcp_timeout_fin_wait`, `close_wait` and `last_ack`, likewise.
    pub tcp_closing_s: u32,
    /// `nf_conntrack_tcp_timeout_close`, likewise.
    pub tcp_close_s: u32,
    /// `nf_conntrack_udp_timeout_stream`, likewise.
    pub udp_stream_s: u32,
}

impl Settings {
    /// Does a connection of TCP with no more than `tcp_close_s` left show that Linux has seen an RST? Other packets set
    /// longer timeouts, which run down while the connection is silent. The row in the kernel plane ends after the shortest
    /// timeout at the latest. By then, more than `tcp_close_s` must be left.
    pub fn shows_resets(&self) -> bool {
        let least = self.tcp_established_s.min(self.tcp_least_s);
        self.tcp_close_s.saturating_add(least.min(self.tcp_closing_s)) < least
    }
}

/// Open files of the settings of one namespace. They do not keep the namespace alive.
#[derive(Debug)]
pub struct SettingFiles {
    tcp_established: Named,
    tcp_unacknowledged: Named,
    tcp_max_retrans: Named,
    tcp_closing: [Named; 3],
    tcp_close: Named,
    udp_stream: Named,
}

#[derive(Debug)]
struct Named(PathBuf, File);

impl SettingFiles {
    /// Opens the files of the calling thread's namespace.
    ///
    /// # Errors
    /// `Unsupported`: the kernel has no conntrack, or its module is not loaded. Else any error of open(2).
    pub fn open() -> io::Result<SettingFiles> {
        Self::open_in(Path::new(DIRECTORY))
    }

    fn open_in(directory: &Path) -> io::Result<SettingFiles> {
        let need = |name| {
            let path = directory.join(name);
            match File::open(&path) {
                Ok(file) => Ok(Named(path, file)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    let absent = format!("this kernel has no conntrack: {} is missing", path.display());
                    Err(io::Error::new(io::ErrorKind::Unsupported, absent))
                }
                Err(e) => Err(wrong(&path, e)),
            }
        };
        Ok(SettingFiles {
            tcp_established: need("nf_conntrack_tcp_timeout_established")?,
            tcp_unacknowledged: need("nf_conntrack_tcp_timeout_unacknowledged")?,
            tcp_max_retrans: need("nf_conntrack_tcp_timeout_max_retrans")?,
            tcp_closing: [
                need("nf_conntrack_tcp_timeout_fin_wait")?,
                need("nf_conntrack_tcp_timeout_close_wait")?,
                need("nf_conntrack_tcp_timeout_last_ack")?,
            ],
            tcp_close: need("nf_conntrack_tcp_timeout_close")?,
            udp_stream: need("nf_conntrack_udp_timeout_stream")?,
        })
    }

    /// The settings now.
    ///
    /// # Errors
    /// A file cannot be read, or is not a number.
    pub fn read(&self) -> io::Result<Settings> {
        let [fin_wait, close_wait, last_ack] = &self.tcp_closing;
        Ok(Settings {
            tcp_established_s: self.tcp_established.number()?,
            tcp_least_s: self.tcp_unacknowledged.number()?.min(self.tcp_max_retrans.number()?),
            tcp_closing_s: fin_wait.number()?.min(close_wait.number()?).min(last_ack.number()?),
            tcp_close_s: self.tcp_close.number()?,
            udp_stream_s: self.udp_stream.number()?,
        })
    }
}

impl Named {
    fn number(&self) -> io::Result<u32> {
        let mut bytes = [0; 16];
        let n = self.1.read_at(&mut bytes, 0).map_err(|e| wrong(&self.0, e))?;
        let text = String::from_utf8_lossy(bytes.get(..n).unwrap_or_default());
        let bad = || wrong(&self.0, io::Error::new(io::ErrorKind::InvalidData, "it is not a number"));
        let number: i64 = text.trim().parse().map_err(|_| bad())?;
        Ok(u32::try_from(number.max(0)).unwrap_or(u32::MAX))
    }
}

fn wrong(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_a_missing_conntrack_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(directory.path().join(format!("nf_conntrack_{name}")), text).unwrap();
        };
        let absent = SettingFiles::open_in(directory.path()).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::Unsupported, "{absent}");
        write("tcp_timeout_established", "432000\n");
        write("tcp_timeout_fin_wait", "120\n");
        write("tcp_timeout_close_wait", "60\n");
        write("tcp_timeout_last_ack", "30\n");
        write("tcp_timeout_close", "10\n");
        write("udp_timeout_stream", "120\n");
        write("tcp_timeout_unacknowledged", "300\n");
        write("tcp_timeout_max_retrans", "-1\n");
        let files = SettingFiles::open_in(directory.path()).unwrap();
        let expected = Settings {
            tcp_established_s: 432_000,
            tcp_least_s: 0,
            tcp_closing_s: 30,
            tcp_close_s: 10,
            udp_stream_s: 120,
        };
        assert_eq!(files.read().unwrap(), expected);
        let usual = Settings { tcp_least_s: 300, ..expected };
        assert!(usual.shows_resets());
        for other in [
            Settings { tcp_close_s: 270, ..usual },
            Settings { tcp_established_s: 30, ..usual },
            Settings { tcp_least_s: 12, ..usual },
            Settings { tcp_close_s: u32::MAX, ..usual },
        ] {
            assert!(!other.shows_resets(), "{other:?}");
        }
        write("udp_timeout_stream", "60\n");
        assert_eq!(files.read().unwrap(), Settings { udp_stream_s: 60, ..expected });
        write("udp_timeout_stream", "x\n");
        assert!(files.read().unwrap_err().to_string().contains("nf_conntrack_udp_timeout_stream"));
    }
}
