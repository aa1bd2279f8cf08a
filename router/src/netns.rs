//! Network namespaces: finding them, naming them, doing something inside one.
//!
//! A thread that enters a namespace is one made for it and gone afterwards, so no other thread ever changes place.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::{fd::AsFd, fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

/// Where `ip netns` keeps its names.
pub const NAMED: &str = "/run/netns";

/// What makes a namespace distinct while it lives: device and inode of its nsfs file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    device: u64,
    inode: u64,
}

impl Key {
    /// Of an open namespace file.
    pub fn of(file: &File) -> io::Result<Key> {
        file.metadata().map(|m| Key { device: m.dev(), inode: m.ino() })
    }

    /// Of the file at `path`, links followed.
    pub fn at(path: &Path) -> io::Result<Key> {
        fs::metadata(path).map(|m| Key { device: m.dev(), inode: m.ino() })
    }

    /// The inode number, as `lsns` shows it.
    pub fn inode(self) -> u64 {
        self.inode
    }
}

/// How a configuration names a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A name under /run/netns.
    Name(String),
    /// That of a process.
    Pid(u32),
    /// A namespace file.
    Path(PathBuf),
}

impl Source {
    /// `name`, `pid:1234` or `1234`, `/a/path`.
    pub fn parse(text: &str) -> Source {
        match text.strip_prefix("pid:").unwrap_or(text).parse() {
            Ok(pid) => Source::Pid(pid),
            Err(_) if text.contains('/') => Source::Path(text.into()),
            Err(_) => Source::Name(text.into()),
        }
    }

    /// Where its namespace file is.
    pub fn path(&self) -> PathBuf {
        match self {
            Source::Name(name) => Path::new(NAMED).join(name),
            Source::Pid(pid) => format!("/proc/{pid}/ns/net").into(),
            Source::Path(path) => path.clone(),
        }
    }
}

/// A namespace that exists, and a way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name under /run/netns, or `pid:N` of its lowest process.
    pub name: String,
    /// A file that opens it.
    pub path: PathBuf,
    /// The process it was found by, if it has no name.
    pub pid: Option<u32>,
}

/// Every namespace that has a name or a process, by key.
///
/// Cost: about 3 us per process. Namespaces that only a thread other than its process's first, or only an open file,
/// keeps alive are not found.
pub fn list() -> BTreeMap<Key, Found> {
    let mut found = BTreeMap::new();
    // Only files on nsfs count: `ip netns add` makes an empty file first and mounts over it.
    let Ok(own) = Key::at(Path::new("/proc/self/ns/net")) else { return found };
    for entry in fs::read_dir(NAMED).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Ok(key) = Key::at(&path)
            && key.device == own.device
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            found.entry(key).or_insert(Found { name, path, pid: None });
        }
    }
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    for pid in pids {
        let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
        if let Ok(key) = Key::at(&path) {
            found.entry(key).or_insert_with(|| Found { name: format!("pid:{pid}"), path, pid: Some(pid) });
        }
    }
    found
}

/// Run `task` in the namespace, in a thread made for it.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN; `EINVAL` if the file is not a network namespace.
pub fn inside<T: Send>(namespace: &File, task: impl FnOnce() -> T + Send) -> io::Result<T> {
    on_a_thread(|| enter(namespace).map(|()| task()))
}

/// Run `task` in each namespace in turn, in one thread made for it. A namespace that cannot be entered yields an error.
pub fn inside_each<I: Send, T: Send>(
    namespaces: Vec<(&File, I)>,
    task: impl Fn(I) -> T + Send,
) -> io::Result<Vec<io::Result<T>>> {
    on_a_thread(move || {
        Ok(namespaces.into_iter().map(|(file, item)| enter(file).map(|()| task(item))).collect())
    })
}

fn on_a_thread<T: Send>(task: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".into()).spawn_scoped(scope, task)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a namespace thread panicked")))
    })
}

fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: setns takes a descriptor, open for as long as `namespace` is borrowed, and affects this thread only.
    match unsafe { libc::setns(namespace.as_fd().as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        assert_eq!(Source::parse("red"), Source::Name("red".into()));
        assert_eq!(Source::parse("pid:12"), Source::Pid(12));
        assert_eq!(Source::parse("12"), Source::Pid(12));
        assert_eq!(Source::parse("/proc/1/ns/net"), Source::Path("/proc/1/ns/net".into()));
        assert_eq!(Source::parse("red").path(), Path::new("/run/netns/red"));
    }

    #[test]
    fn our_own_namespace_is_among_those_found() {
        let own = Key::at(Path::new("/proc/self/ns/net")).unwrap();
        assert!(list().contains_key(&own));
    }
}
