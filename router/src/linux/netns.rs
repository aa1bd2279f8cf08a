//! Network namespaces: finding them, naming them, and running code inside one.
//!
//! A thread that enters a namespace is created for this purpose and ends afterwards. So no other thread ever changes
//! its namespace.

use crate::base::BadValue;
use logic::observe::Owner;
use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

/// The directory in which `ip netns` keeps its names.
pub const NAMED: &str = "/run/netns";

/// Identifies a namespace while it exists: device and inode of its nsfs file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    device: u64,
    inode: u64,
}

impl Key {
    /// The key of an open namespace file.
    pub fn of(file: &File) -> io::Result<Key> {
        file.metadata().map(|m| Key { device: m.dev(), inode: m.ino() })
    }

    /// The key of the file at `path`. Links are followed.
    pub fn at(path: &Path) -> io::Result<Key> {
        fs::metadata(path).map(|m| Key { device: m.dev(), inode: m.ino() })
    }

    /// The inode number, as `lsns` shows it.
    pub fn inode(self) -> u64 {
        self.inode
    }
}

/// A reference by which a namespace is found again. It keeps no namespace alive, except our own.
///
/// The kernel gives the inode number of an ended namespace to the next one. So the cookie decides (`SO_NETNS_COOKIE`),
/// which is never used twice.
#[derive(Clone, Debug)]
pub struct NamespaceRef {
    key: Key,
    cookie: u64,
    way: Way,
}

#[derive(Clone, Debug)]
enum Way {
    Path(PathBuf),
    Own(Arc<File>),
}

impl NamespaceRef {
    /// A reference to the namespace with this key and cookie, which has a file at `path`.
    pub fn new(key: Key, cookie: u64, path: PathBuf) -> Self {
        NamespaceRef { key, cookie, way: Way::Path(path) }
    }

    /// A reference to the calling thread's namespace, which it keeps alive.
    pub fn own() -> io::Result<Self> {
        let file = File::open("/proc/thread-self/ns/net")?;
        Ok(NamespaceRef { key: Key::of(&file)?, cookie: cookie()?, way: Way::Own(Arc::new(file)) })
    }

    pub fn key(&self) -> Key {
        self.key
    }

    /// Unique among all namespaces since the machine started.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Stores a new path to the namespace.
    pub fn move_to(&mut self, path: &Path) {
        if let Way::Path(known) = &mut self.way {
            path.clone_into(known);
        }
    }

    /// Opens its file, which keeps the namespace alive while it is open. This does not detect a namespace that got the
    /// inode of an ended one.
    ///
    /// # Errors
    /// The path leads nowhere, or to another namespace.
    pub fn open(&self) -> io::Result<Arc<File>> {
        let path = match &self.way {
            Way::Own(file) => return Ok(file.clone()),
            Way::Path(path) => path,
        };
        // Opened only if it is a namespace: an open of a FIFO would wait.
        if Key::at(path)? != self.key {
            return Err(gone());
        }
        let file = File::open(path)?;
        if Key::of(&file)? == self.key { Ok(Arc::new(file)) } else { Err(gone()) }
    }

    /// Runs `task` in the namespace, and keeps the namespace alive meanwhile.
    ///
    /// # Errors
    /// As [`NamespaceRef::open`] and [`inside`].
    pub fn inside<T: Send>(&self, task: impl FnOnce() -> T + Send) -> io::Result<T> {
        let file = self.open()?;
        inside(&file, || if cookie()? == self.cookie { Ok(task()) } else { Err(replaced()) })?
    }

    /// Makes the calling thread enter the namespace.
    ///
    /// # Errors
    /// As [`NamespaceRef::open`]. After an error, the thread may be in another namespace.
    pub fn enter(&self) -> io::Result<()> {
        enter(&*self.open()?)?;
        if cookie()? == self.cookie { Ok(()) } else { Err(replaced()) }
    }
}

impl PartialEq for NamespaceRef {
    fn eq(&self, other: &Self) -> bool {
        self.cookie == other.cookie
    }
}

/// The namespace has ended, and the kernel gave its inode number to another one.
#[derive(Debug, thiserror::Error)]
#[error("the namespace has ended, and another one has its number now")]
struct Replaced;

fn replaced() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, Replaced)
}

/// Does this error of a [`NamespaceRef`] mean that its namespace has ended?
pub fn was_replaced(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Replaced>())
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the namespace is gone")
}

/// The cookie of the calling thread's namespace (`SO_NETNS_COOKIE`, Linux 5.14).
pub fn cookie() -> io::Result<u64> {
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    let (mut cookie, mut length) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the pointers lead to live locals, and `length` is the size of `cookie`.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if rc == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// `include/uapi/asm-generic/socket.h`.
const SO_NETNS_COOKIE: i32 = 71;

/// The owner of the network namespace: the outermost user namespace around it, except our own, or the user who created
/// that. A namespace that belongs to our own user namespace is owned by the machine.
///
/// # Errors
/// Errors of `ioctl(2)`: the namespace belongs to no user namespace that ours contains, or there are no free
/// descriptors.
pub fn owner(namespace: &File) -> io::Result<Owner> {
    // The kernel nests at most 32 user namespaces (`create_user_ns()`).
    const DEEPEST: usize = 64;
    let mut around = vec![related(namespace, libc::NS_GET_USERNS)?];
    while let Some(inner) = around.last()
        && around.len() < DEEPEST
    {
        match related(inner, libc::NS_GET_PARENT) {
            Ok(outer) => around.push(outer),
            // There is no outer one, or we may not see it.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => break,
            Err(error) => return Err(error),
        }
    }
    // The last one is our own.
    let Some(outermost) = around.len().checked_sub(2).and_then(|at| around.get(at)) else {
        return Ok(Owner::Machine);
    };
    let mut uid: libc::uid_t = 0;
    // SAFETY: the request writes one `uid_t` to a live local, and the descriptor is open.
    match unsafe { libc::ioctl(outermost.as_raw_fd(), libc::NS_GET_OWNER_UID, &raw mut uid) } {
        0 if uid == 0 => Ok(Owner::UserNamespace(Key::of(outermost)?.inode)),
        0 => Ok(Owner::User(uid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens the namespace that `request` finds from another one (`ioctl_nsfs(2)`).
fn related(namespace: &File, request: libc::Ioctl) -> io::Result<File> {
    // SAFETY: these requests take no argument, and the descriptor is open for as long as `namespace` is borrowed.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), request) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
        descriptor => Ok(unsafe { File::from_raw_fd(descriptor) }),
    }
}

/// The name of a namespace: `red` (under /run/netns), `pid:1234`, or the path of a namespace file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A name under /run/netns.
    Name(String),
    /// The namespace of a process.
    Pid(u32),
    /// The absolute path of a namespace file.
    Path(PathBuf),
}

impl Source {
    /// The path of its namespace file.
    pub fn path(&self) -> PathBuf {
        match self {
            Source::Name(name) => Path::new(NAMED).join(name),
            Source::Pid(pid) => format!("/proc/{pid}/ns/net").into(),
            Source::Path(path) => path.clone(),
        }
    }

    /// The key of the namespace that it names now.
    ///
    /// # Errors
    /// There is no such file, or it is not the file of a network namespace.
    pub fn key(&self) -> io::Result<Key> {
        let path = self.path();
        let key = Key::at(&path)?;
        // Opened only on nsfs, where an open has no effect: an open of a FIFO would wait.
        let on_nsfs = key.device == Key::at(Path::new("/proc/self/ns/net"))?.device;
        if !(on_nsfs && is_network(&File::open(&path)?)) {
            return Err(io::Error::other(
                "the file is not a network namespace; give a file such as /proc/PID/ns/net",
            ));
        }
        Ok(key)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Name(name) => f.write_str(name),
            Source::Pid(pid) => write!(f, "pid:{pid}"),
            Source::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for Source {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let bad = || {
            BadValue(format!(
                "{s:?} is not a router: give a name under {NAMED}, pid:NUMBER, or the absolute path of a namespace file"
            ))
        };
        if let Some(pid) = s.strip_prefix("pid:") {
            return pid.parse().ok().filter(|&p| p > 0).map(Source::Pid).ok_or_else(bad);
        }
        if s.starts_with('/') {
            return Ok(Source::Path(s.into()));
        }
        let wrong = s.is_empty() || s.len() > 255 || s == "." || s == ".." || s.contains(['/', '\0']);
        if wrong { Err(bad()) } else { Ok(Source::Name(s.into())) }
    }
}

/// A namespace that exists, and a path to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundNamespace {
    /// The first of its names under /run/netns, or `pid:N` of its lowest process.
    pub name: String,
    /// The path of its file.
    pub path: PathBuf,
    /// The process through which it was found, if it has no name.
    pub pid: Option<u32>,
}

/// Every namespace that has a name or a process, by key.
///
/// This takes about 3 us per process. A namespace is not found if it is kept alive only by an open file, or by a thread
/// that is not the first of its process.
pub fn list() -> BTreeMap<Key, FoundNamespace> {
    let mut found = BTreeMap::new();
    // Only files on nsfs count: `ip netns add` first creates an empty file, and then mounts over it.
    let Ok(own) = Key::at(Path::new("/proc/self/ns/net")) else { return found };
    let mut named: Vec<_> = fs::read_dir(NAMED).into_iter().flatten().flatten().map(|e| e.path()).collect();
    named.sort_unstable();
    for path in named {
        if let Ok(key) = Key::at(&path)
            && key.device == own.device
            && let Some(name) = path.file_name()
        {
            let name = name.to_string_lossy().into_owned();
            found.entry(key).or_insert(FoundNamespace { name, path, pid: None });
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
            found.entry(key).or_insert_with(|| FoundNamespace {
                name: format!("pid:{pid}"),
                path,
                pid: Some(pid),
            });
        }
    }
    found
}

/// Runs `task` in the namespace: at once if this thread is in it, otherwise in a new thread (some 100 us).
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN; `EINVAL` if the file is not a network namespace.
pub fn inside<T: Send>(namespace: &File, task: impl FnOnce() -> T + Send) -> io::Result<T> {
    let here = Key::at(Path::new("/proc/thread-self/ns/net"));
    if here.is_ok_and(|here| Key::of(namespace).is_ok_and(|key| key == here)) {
        return Ok(task());
    }
    on_a_thread(|| enter(namespace).map(|()| task()))
}

/// Runs `task` in a new empty namespace, in a new thread. The namespace ends when everything opened in it is closed.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn in_a_new_one<T: Send>(task: impl FnOnce() -> T + Send) -> io::Result<T> {
    // SAFETY: moves only the calling thread, which ends with the task.
    on_a_thread(|| match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(task()),
        _ => Err(io::Error::last_os_error()),
    })
}

fn on_a_thread<T: Send>(task: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".into()).spawn_scoped(scope, task)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a namespace thread panicked")))
    })
}

/// Does this file on nsfs belong to a network namespace?
fn is_network(file: &File) -> bool {
    // SAFETY: the request takes no argument, and the descriptor is open for as long as `file` is borrowed.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), libc::NS_GET_NSTYPE) };
    kind == libc::CLONE_NEWNET
}

pub(crate) fn enter(namespace: &File) -> io::Result<()> {
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
    fn names_pids_and_paths_are_distinguished() {
        let table = [
            ("red", Source::Name("red".into()), "/run/netns/red"),
            ("12", Source::Name("12".into()), "/run/netns/12"),
            ("pid:12", Source::Pid(12), "/proc/12/ns/net"),
            ("/proc/1/ns/net", Source::Path("/proc/1/ns/net".into()), "/proc/1/ns/net"),
        ];
        for (text, source, path) in table {
            assert_eq!(text.parse::<Source>().unwrap(), source);
            assert_eq!((source.to_string(), source.path()), (text.into(), path.into()));
        }
        for wrong in ["", "a/b", "..", "pid:0", "pid:x"] {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_a_network_namespace_has_a_key() {
        let key = |path: &str| Source::Path(path.into()).key();
        assert_eq!(key("/proc/self/ns/net").unwrap(), Key::at(Path::new("/proc/self/ns/net")).unwrap());
        for other in ["/etc/passwd", "/etc", "/proc/self/ns/mnt"] {
            let error = key(other).unwrap_err().to_string();
            assert!(error.contains("not a network namespace"), "{other}: {error}");
        }
        assert_eq!(key("/nonexistent").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_task_in_the_own_namespace_needs_no_other_thread() {
        let here = File::open("/proc/thread-self/ns/net").unwrap();
        let thread = || std::thread::current().id();
        assert_eq!(inside(&here, thread).unwrap(), thread());
    }

    #[test]
    fn a_reference_leads_only_to_its_own_namespace() {
        let own = NamespaceRef::own().unwrap();
        assert_eq!(own.inside(cookie).unwrap().unwrap(), own.cookie());
        let path = PathBuf::from("/proc/self/ns/net");
        let same = NamespaceRef::new(own.key(), own.cookie(), path.clone());
        assert!(same.inside(|| ()).is_ok());
        // The kernel gave the inode to another namespace.
        let another = NamespaceRef::new(own.key(), own.cookie() + 1, path);
        assert_ne!(another, same);
        let error = another.inside(|| ()).unwrap_err();
        assert!(error.kind() == io::ErrorKind::NotFound && was_replaced(&error), "{error}");
        let moved = NamespaceRef::new(own.key(), own.cookie(), "/proc/self/ns/mnt".into());
        let error = moved.open().unwrap_err();
        assert!(error.kind() == io::ErrorKind::NotFound && !was_replaced(&error), "{error}");
    }

    #[test]
    fn the_namespace_of_this_process_belongs_to_the_machine() {
        assert_eq!(owner(&File::open("/proc/self/ns/net").unwrap()).unwrap(), Owner::Machine);
        assert!(owner(&File::open("/dev/null").unwrap()).is_err());
    }

    /// Runs `command`, which creates a network namespace and runs another command in it. Returns the owner of the
    /// namespace.
    fn owner_after(command: &[&str]) -> Owner {
        let mut child = std::process::Command::new(command[0])
            .args(&command[1..])
            .args(["sh", "-c", "echo; cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let found = owner(&File::open(format!("/proc/{}/ns/net", child.id())).unwrap()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        found
    }

    #[test]
    #[ignore = "needs root"]
    fn an_owner_is_found_through_nested_namespaces() {
        assert_eq!(owner_after(&["unshare", "-n"]), Owner::Machine);
        let nest = ["unshare", "-U", "-r", "-n"];
        let of_root = owner_after(&nest);
        assert!(matches!(of_root, Owner::UserNamespace(_)), "{of_root}");
        assert_ne!(owner_after(&nest), of_root);
        let as_user = [&["setpriv", "--reuid=65534", "--clear-groups"], &nest[..]].concat();
        let nested = [&as_user[..], &nest].concat();
        assert_eq!([owner_after(&as_user), owner_after(&nested)], [Owner::User(65534); 2]);
    }

    #[test]
    fn our_own_namespace_is_among_those_found() {
        let own = Key::at(Path::new("/proc/self/ns/net")).unwrap();
        assert!(list().contains_key(&own));
    }
}
