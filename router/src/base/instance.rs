//! One daemon per instance. The daemon holds a lock as long as it lives, and only the holder creates the socket.
//!
//! The lock decides, not the socket. A socket that a dead daemon left behind is replaced. If two daemons start at the same
//! moment, only one gets the lock.

use anyhow::{Context, Result, bail};
use rustix::{
    fs::{AtFlags, CWD, FlockOperation, Gid, Mode, chmod, chownat, fchmod, flock},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::{
        fs::{MetadataExt, OpenOptionsExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::base::{BadValue, foreign::Quoted, guard::is_ours_or_roots_alone};

/// The label of the instance without a name.
const LABEL: &str = "millrace";
/// The files of an instance have its label and one of these extensions.
const EXTENSIONS: [&str; 7] = ["sock", "readonly.sock", "lock", "state", "cores", "spreading", "steering"];
/// Clients that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The name of an instance, for more than one daemon on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceName(String);

impl InstanceName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InstanceName {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if s.is_empty() || s.len() > 32 || !s.bytes().all(fine) {
            return Err(BadValue(format!(
                "{s:?} is not an instance name: 1 to 32 letters, digits, '-' and '_'"
            )));
        }
        Ok(Self(s.into()))
    }
}

/// Where the files of an instance are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// `None`: the instance without a name.
    pub name: Option<InstanceName>,
    directory: PathBuf,
}

impl Instance {
    /// The instance of that name under /run.
    pub fn new(name: Option<InstanceName>) -> Self {
        Self::under(Path::new("/run"), name)
    }

    /// The instance of that name in another directory.
    pub fn under(directory: &Path, name: Option<InstanceName>) -> Self {
        Self { name, directory: directory.into() }
    }

    /// The instances that have files under /run or pins in `pins`: those that run, and those that left something behind.
    pub fn all(pins: &Path) -> Vec<Self> {
        Self::all_under(Path::new("/run"), pins)
    }

    fn all_under(directory: &Path, pins: &Path) -> Vec<Self> {
        let names = |directory: &Path| {
            let files = fs::read_dir(directory).into_iter().flatten().flatten();
            files.filter_map(|file| file.file_name().into_string().ok())
        };
        let of_file = |name: String| {
            let (label, extension) = name.split_once('.')?;
            EXTENSIONS.contains(&extension).then(|| label.to_owned())
        };
        let labels: BTreeSet<_> = names(directory).filter_map(of_file).chain(names(pins)).collect();
        let name = |label: String| match label.strip_prefix(LABEL)? {
            "" => Some(None),
            rest => Some(Some(rest.strip_prefix('-')?.parse().ok()?)),
        };
        labels.into_iter().filter_map(name).map(|name| Self::under(directory, name)).collect()
    }

    /// `millrace`, or `millrace-NAME`; also the name of the directory of pins.
    pub fn label(&self) -> String {
        self.name.as_ref().map_or(LABEL.into(), |n| format!("{LABEL}-{}", n.as_str()))
    }

    /// `millrace`, or NAME; also the name of its configuration in the Debian package.
    pub fn short_name(&self) -> &str {
        self.name.as_ref().map_or(LABEL, InstanceName::as_str)
    }

    /// The command line for this instance, such as `millrace stop --instance NAME`.
    pub fn command(&self, verb: &str) -> String {
        command(&self.label(), verb)
    }

    /// The Unix socket of the API.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!("{}.sock", self.label()))
    }

    /// The Unix socket of the API for clients that only read. The names of instances have no dot, so it is no socket of
    /// another instance.
    pub fn read_only_socket(&self) -> PathBuf {
        self.directory.join(format!("{}.readonly.sock", self.label()))
    }

    fn lock_file(&self) -> PathBuf {
        self.directory.join(format!("{}.lock", self.label()))
    }

    /// The names and counters of the running generation, for the next daemon.
    pub fn state_file(&self) -> PathBuf {
        self.directory.join(format!("{}.state", self.label()))
    }

    /// The cores of queues before they were moved, for the next daemon.
    pub fn cores_file(&self) -> PathBuf {
        self.directory.join(format!("{}.cores", self.label()))
    }

    /// The indirection tables of NICs before they were changed, for the next daemon.
    pub fn spreading_file(&self) -> PathBuf {
        self.directory.join(format!("{}.spreading", self.label()))
    }

    /// The changes in the classifiers of NICs, for the next daemon.
    pub fn steering_file(&self) -> PathBuf {
        self.directory.join(format!("{}.steering", self.label()))
    }
}

/// Like [`Instance::command`], for an instance of which only the label is known.
pub fn command(label: &str, verb: &str) -> String {
    let name =
        label.strip_prefix("millrace-").map_or(String::new(), |name| format!(" --instance {}", Quoted(name)));
    format!("millrace {verb}{name}")
}

/// The right to be the daemon of an instance. It lasts until it is dropped, or until the process ends in any way.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    instance: Instance,
}

impl Lock {
    /// Takes the lock.
    ///
    /// # Errors
    /// Another process has it; the error names it. Or others can write the lock file.
    pub fn take(instance: &Instance) -> Result<Lock> {
        let path = instance.lock_file();
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(&path)
                .with_context(|| format!("cannot open the lock file {}", path.display()))?;
            if !file.metadata().is_ok_and(|data| data.is_file() && is_ours_or_roots_alone(&data)) {
                bail!("the lock file {} is not a file that only root can write: remove it", path.display());
            }
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let pid = pid.trim().parse::<u32>().map_or(String::new(), |p| format!(" (process {p})"));
                bail!(
                    "another daemon{pid} already runs as {}; stop it with `{}`, or choose another --instance",
                    describe(instance),
                    instance.command("stop")
                );
            }
            // The previous holder may have removed the file between our open and our lock.
            let same = fs::metadata(&path).is_ok_and(|m| file.metadata().is_ok_and(|f| f.ino() == m.ino()));
            if same {
                file.set_len(0)?;
                file.rewind()?;
                writeln!(file, "{}", std::process::id())?;
                return Ok(Lock { _file: file, instance: instance.clone() });
            }
        }
    }

    /// Creates the control socket, mode 0600, in place of one that a dead daemon left.
    pub fn listen(&self) -> Result<UnixListener> {
        self.listen_at(&self.instance.socket(), None)
    }

    /// Creates the read-only socket, mode 0660, for a group. Without one, removes a socket that a dead daemon left.
    ///
    /// # Errors
    /// The socket cannot be created, or this process may not give it to the group.
    pub fn listen_for(&self, readers: Option<Gid>) -> Result<Option<UnixListener>> {
        let path = self.instance.read_only_socket();
        let Some(group) = readers else {
            let _ = fs::remove_file(path);
            return Ok(None);
        };
        self.listen_at(&path, Some(group)).map(Some)
    }

    fn listen_at(&self, path: &Path, group: Option<Gid>) -> Result<UnixListener> {
        // Bound under another name first: clients find the old one or the new one.
        let own = path.with_extension(format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&own);
        let listener =
            listening(&own, group).with_context(|| format!("cannot create the socket {}", path.display()))?;
        fs::rename(&own, path).with_context(|| format!("cannot put the socket at {}", path.display()))?;
        Ok(listener)
    }

    /// Removes the sockets, the state file and the lock file, and gives up the lock. Returns the removed files, without the
    /// lock file.
    pub fn clean(self) -> Vec<PathBuf> {
        let gone = |path: &PathBuf| fs::remove_file(path).is_ok();
        let files = [self.instance.socket(), self.instance.read_only_socket(), self.instance.state_file()];
        let removed = files.into_iter().filter(gone).collect();
        let _ = fs::remove_file(self.instance.lock_file());
        removed
    }
}

/// A socket that only its owner and a group can reach. The file takes its mode from the socket (`unix_bind_bsd()`,
/// net/unix/af_unix.c), so there is no moment with a wider one.
fn listening(path: &Path, group: Option<Gid>) -> Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let of_owner = Mode::RUSR | Mode::WUSR;
    fchmod(&socket, of_owner)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    if group.is_some() {
        let given = chownat(CWD, path, None, group, AtFlags::SYMLINK_NOFOLLOW)
            .context(
                "the daemon may not give it to the group of `readers`; add the group to SupplementaryGroups= of the unit",
            )
            // The mode of a new file would depend on the umask.
            .and_then(|()| Ok(chmod(path, of_owner | Mode::RGRP | Mode::WGRP)?));
        if given.is_err() {
            let _ = fs::remove_file(path);
        }
        given?;
    }
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn describe(instance: &Instance) -> String {
    instance.name.as_ref().map_or("the unnamed instance".into(), |n| format!("instance {:?}", n.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::Permissions,
        os::unix::{fs::PermissionsExt, net::UnixStream},
    };

    fn instance(directory: &Path) -> Instance {
        Instance::under(directory, Some("t1".parse().unwrap()))
    }

    #[test]
    fn names() {
        assert_eq!(Instance::new(None).socket(), Path::new("/run/millrace.sock"));
        assert_eq!(Instance::new(Some("a-b".parse().unwrap())).socket(), Path::new("/run/millrace-a-b.sock"));
        assert_eq!(Instance::new(None).command("stop"), "millrace stop");
        for wrong in ["", "a/b", "..", "ä", &"x".repeat(33)] {
            assert!(wrong.parse::<InstanceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn all_instances_are_found_by_their_files_and_pins() {
        let [run, pins] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let all = || Instance::all_under(run.path(), pins.path());
        assert_eq!(all(), []);
        for name in ["a", "b", "c-d"] {
            let instance = Instance::under(run.path(), Some(name.parse().unwrap()));
            let files = [
                instance.socket(),
                instance.read_only_socket(),
                instance.lock_file(),
                instance.state_file(),
                instance.cores_file(),
                instance.spreading_file(),
                instance.steering_file(),
            ];
            for file in files {
                fs::write(&file, "").unwrap();
                assert_eq!(all(), std::slice::from_ref(&instance), "{}", file.display());
                fs::remove_file(file).unwrap();
            }
        }
        for other in ["millrace.conf", "millracer.sock", "millrace-.sock", "millrace-a b.sock", "other.sock"]
        {
            fs::write(run.path().join(other), "").unwrap();
        }
        for directory in ["millrace-b", "millrace", "others", "millrace2"] {
            fs::create_dir(pins.path().join(directory)).unwrap();
        }
        fs::write(run.path().join("millrace-b.state"), "").unwrap();
        let found = all();
        let labels: Vec<_> = found.iter().map(Instance::label).collect();
        assert_eq!(labels, ["millrace", "millrace-b"]);
        assert_eq!(found[0], Instance::under(run.path(), None));
    }

    #[test]
    fn a_second_daemon_is_refused_and_names_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let lock = Lock::take(&instance(directory.path())).unwrap();
        let error = Lock::take(&instance(directory.path())).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        assert!(
            error.contains("instance \"t1\"") && error.contains("`millrace stop --instance t1`"),
            "{error}"
        );
        Lock::take(&Instance::under(directory.path(), None)).expect("another instance is free");
        drop(lock);
        Lock::take(&instance(directory.path())).expect("free again");
    }

    #[test]
    fn a_lock_file_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let instance = instance(directory.path());
        let path = instance.lock_file();
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let error = Lock::take(&instance).unwrap_err().to_string();
        assert!(error.contains("is not a file that only root can write"), "{error}");
        fs::rename(&path, directory.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", &path).unwrap();
        Lock::take(&instance).unwrap_err();
    }

    #[test]
    fn a_stale_socket_is_replaced_and_only_the_owner_may_connect() {
        let directory = tempfile::tempdir().unwrap();
        let lock = Lock::take(&instance(directory.path())).unwrap();
        let path = instance(directory.path()).socket();
        drop(lock.listen().unwrap());
        assert!(UnixStream::connect(&path).is_err(), "nobody listens on the stale socket");
        let _listener = lock.listen().unwrap();
        UnixStream::connect(&path).expect("the new socket answers");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_group_may_open_the_read_only_socket_and_a_stale_one_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let lock = Lock::take(&instance(directory.path())).unwrap();
        let path = instance(directory.path()).read_only_socket();
        let group = rustix::process::getegid();
        let listener = lock.listen_for(Some(group)).unwrap();
        let data = fs::metadata(&path).unwrap();
        assert_eq!((data.mode() & 0o777, data.gid()), (0o660, group.as_raw()));
        UnixStream::connect(&path).expect("it answers");
        drop(listener);
        assert!(lock.listen_for(None).unwrap().is_none() && !path.exists());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "only the lock is left");
    }

    #[test]
    fn cleaning_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let lock = Lock::take(&instance(directory.path())).unwrap();
        let _listener = lock.listen().unwrap();
        let _read_only = lock.listen_for(Some(rustix::process::getegid())).unwrap();
        fs::write(instance(directory.path()).state_file(), "{}").unwrap();
        assert_eq!(lock.clean().len(), 3);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_one_of_many_that_start_at_once_gets_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            let locks: Vec<_> = std::thread::scope(|scope| {
                let take = || Lock::take(&instance(directory.path())).ok();
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
                threads.into_iter().filter_map(|t| t.join().unwrap()).collect()
            });
            assert_eq!(locks.len(), 1);
            locks.into_iter().for_each(|l| drop(l.clean()));
        }
    }
}
