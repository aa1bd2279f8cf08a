//! epoll, eventfd, inotify and pidfd, only the parts that the observer needs.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    sync::Arc,
    time::Duration,
};

/// The largest number of tokens returned at once; more follow in the next call.
const MOST: usize = 256;

/// An epoll instance, level-triggered, for reading.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        // SAFETY: no pointers; the result is checked before it is owned.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Poller)
    }

    /// Report `token` while `fd` is readable. Closing `fd` ends that.
    pub fn add(&self, fd: &impl AsRawFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: `event` lives across the call.
        check(unsafe {
            libc::epoll_ctl(self.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event)
        })
    }

    /// Stop reporting `fd`.
    pub fn remove(&self, fd: &impl AsRawFd) -> io::Result<()> {
        // SAFETY: this operation takes no event.
        check(unsafe {
            libc::epoll_ctl(self.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), std::ptr::null_mut())
        })
    }

    /// Tokens that are ready; none after the timeout. Waits up to a millisecond too long, never too short.
    pub fn wait(&self, timeout: Duration) -> io::Result<Vec<u64>> {
        let timeout_ms = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        // SAFETY: the pointer and the length are those of `events`.
        let n = unsafe {
            libc::epoll_wait(self.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, timeout_ms)
        };
        match usize::try_from(n) {
            Ok(n) => Ok(events[..n].iter().map(|e| e.u64).collect()),
            Err(_) => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
                e => Err(e),
            },
        }
    }
}

/// Ends a wait from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Waker {
    pub fn new() -> io::Result<Waker> {
        // SAFETY: no pointers.
        let fd = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        Ok(Waker(Arc::new(fd)))
    }

    /// Makes the descriptor readable. This fails only after 2^64 wake-ups, and then it is readable already.
    pub fn wake(&self) {
        let one = 1_u64;
        // SAFETY: the pointer and the length are those of `one`.
        unsafe { libc::write(self.as_raw_fd(), (&raw const one).cast(), size_of_val(&one)) };
    }

    /// Makes the descriptor unreadable until the next wake-up.
    pub fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: the pointer and the length are those of `count`.
        unsafe { libc::read(self.as_raw_fd(), (&raw mut count).cast(), size_of_val(&count)) };
    }
}

/// Reports that names in one directory appeared or vanished.
#[derive(Debug)]
pub struct DirectoryWatch(OwnedFd);

impl AsRawFd for DirectoryWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl DirectoryWatch {
    /// # Errors
    /// `ENOENT` while the directory does not exist.
    pub fn new(directory: &Path) -> io::Result<DirectoryWatch> {
        let path = CString::new(directory.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: no pointers.
        let fd = owned(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })?;
        let mask =
            libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVED_FROM | libc::IN_MOVED_TO | libc::IN_ONLYDIR;
        // SAFETY: `path` is a terminated string that lives across the call.
        check(unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), mask) })?;
        Ok(DirectoryWatch(fd))
    }

    /// Discard the reports; their content is not needed.
    pub fn clear(&self) {
        let mut bytes = [0u8; 4096];
        // SAFETY: the pointer and the length are those of `bytes`.
        while unsafe { libc::read(self.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) } > 0 {}
    }
}

/// Readable once a process has ended.
#[derive(Debug)]
pub struct ProcessWatch {
    fd: OwnedFd,
    /// Which process.
    pub pid: u32,
}

impl AsRawFd for ProcessWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl ProcessWatch {
    /// # Errors
    /// `ESRCH`: the process has already ended.
    pub fn new(pid: u32) -> io::Result<ProcessWatch> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        owned(fd as RawFd).map(|fd| ProcessWatch { fd, pid })
    }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: a call that creates descriptors just returned `fd`, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(rc: i32) -> io::Result<()> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
