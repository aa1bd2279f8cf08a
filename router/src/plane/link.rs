//! Attaches the program to a port, as a BPF link. A link can be pinned, and its program can be replaced atomically.
//!
//! libbpf-rs attaches XDP without flags, so without a choice of the mode. This file calls libbpf itself (`unsafe`).

use crate::base::{
    foreign::Shown,
    guard::{check_directory, is_ours_or_roots_alone},
    instance,
};
use anyhow::{Context, Error, Result, anyhow, bail};
use libbpf_rs::{libbpf_sys as sys, query};
use std::{
    ffi::CString,
    fmt, fs, io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
};

/// The names of all our attached programs begin with this.
const OURS: &str = "millrace";

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before a socket buffer exists.
    Native,
    /// In the network core: correct, and several times slower.
    Generic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
        })
    }
}

/// The program's attachment to one device. Dropping it detaches, unless it is pinned.
#[derive(Debug)]
pub struct PortLink {
    fd: OwnedFd,
    ifindex: u32,
    mode: Mode,
}

impl PortLink {
    /// Attaches `program` to a device that runs no XDP program.
    ///
    /// # Errors
    /// Another program is there (the error names it), or the driver refuses the mode.
    pub fn attach(program: BorrowedFd<'_>, ifindex: u32, mode: Mode) -> Result<PortLink> {
        if let Some(other) = running_program(ifindex)? {
            bail!("device {ifindex} already runs {other}; Millrace does not replace it");
        }
        let flags = match mode {
            Mode::Native => sys::XDP_FLAGS_DRV_MODE,
            Mode::Generic => sys::XDP_FLAGS_SKB_MODE,
        };
        let opts = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as _,
            flags,
            ..Default::default()
        };
        // SAFETY: a valid program descriptor, and options that outlive the call.
        let fd = unsafe { sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, sys::BPF_XDP, &opts) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd))
                .with_context(|| format!("attaching to device {ifindex} in {mode} mode"));
        }
        // SAFETY: a descriptor just returned to us.
        Ok(PortLink { fd: unsafe { OwnedFd::from_raw_fd(fd) }, ifindex, mode })
    }

    /// Opens a pinned link. Returns `None` if nothing is pinned there, or if its device is gone.
    pub fn open(path: &Path) -> Result<Option<PortLink>> {
        let fd = match open_pin(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.with_context(|| format!("opening {}", path.display()))?,
        };
        let data = fs::symlink_metadata(path).with_context(|| format!("looking at {}", path.display()))?;
        if !is_ours_or_roots_alone(&data) {
            bail!("{}: others may have pinned it", path.display());
        }
        let (ifindex, id) = attachment(&fd).with_context(|| format!("asking about {}", path.display()))?;
        if ifindex == 0 {
            return Ok(None);
        }
        let program = name_of(id).unwrap_or_default();
        if !program.starts_with(OURS) {
            bail!("{}: its program {program:?} is not ours", path.display());
        }
        let mode =
            mode(ifindex)?.ok_or_else(|| anyhow!("{}: device {ifindex} is elsewhere", path.display()))?;
        Ok(Some(PortLink { fd, ifindex, mode }))
    }

    /// The program it runs now.
    pub fn program(&self) -> Result<OwnedFd> {
        let asking = || format!("asking for the program of device {}", self.ifindex);
        let (_, id) = attachment(&self.fd).with_context(asking)?;
        // SAFETY: no pointers.
        let fd = unsafe { sys::bpf_prog_get_fd_by_id(id) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd)).with_context(asking);
        }
        // SAFETY: a descriptor just returned to us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Replaces the program between two packets.
    pub fn replace(&self, program: BorrowedFd<'_>) -> Result<()> {
        // SAFETY: two valid descriptors; no options.
        let rc = unsafe { sys::bpf_link_update(self.fd.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) };
        if rc < 0 {
            return Err(io::Error::from_raw_os_error(-rc))
                .with_context(|| format!("replacing the program of device {}", self.ifindex));
        }
        Ok(())
    }

    /// Pins it, so that forwarding outlives this process.
    pub fn pin(&self, path: &Path) -> Result<()> {
        let name = c_path(path)?;
        // SAFETY: a valid descriptor and a NUL-terminated path.
        let rc = unsafe { sys::bpf_obj_pin(self.fd.as_raw_fd(), name.as_ptr()) };
        if rc < 0 {
            return Err(io::Error::from_raw_os_error(-rc))
                .with_context(|| format!("pinning {}", path.display()));
        }
        Ok(())
    }

    /// Takes the program off the device now, pinned or not.
    pub fn detach(self) -> Result<()> {
        // SAFETY: a valid link descriptor.
        let rc = unsafe { sys::bpf_link_detach(self.fd.as_raw_fd()) };
        if rc < 0 {
            return Err(io::Error::from_raw_os_error(-rc))
                .with_context(|| format!("detaching from device {}", self.ifindex));
        }
        Ok(())
    }

    /// The device.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Where the program runs.
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

/// The XDP program on a device, in words: name, id and, if it is pinned by a Millrace instance, whose.
pub fn running_program(ifindex: u32) -> Result<Option<String>> {
    let Some((id, _)) = xdp_query(ifindex)? else { return Ok(None) };
    let name = name_of(id);
    // This does not search by the device: another namespace may have one with the same number.
    let owner = pinned_links()?.into_iter().find(|path| runs(path, id));
    Ok(Some(match owner {
        Some(path) => {
            let directory = path.parent().unwrap_or(&path);
            let label = directory.file_name().unwrap_or_default().to_string_lossy();
            let stop = instance::command(&label, "stop");
            let directory = directory.display().to_string();
            format!("the Millrace instance pinned in {} (stop it with `{stop}`)", Shown(&directory))
        }
        None => format!("XDP program {:?} (id {id}), which is not ours", name.unwrap_or_default()),
    }))
}

/// The name of a loaded program, if it still exists.
fn name_of(id: u32) -> Option<String> {
    query::ProgInfoIter::default().find(|p| p.id == id).map(|p| p.name.to_string_lossy().into_owned())
}

/// The device (0: none) and the program of an XDP link.
fn attachment(link: &OwnedFd) -> Result<(u32, u32)> {
    let mut info = sys::bpf_link_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` is writable and `length` is its size.
    let rc = unsafe { sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut length) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc).into());
    }
    if info.type_ != sys::BPF_LINK_TYPE_XDP {
        bail!("it is not an XDP link");
    }
    // SAFETY: the type says which member of the union the kernel filled.
    Ok((unsafe { info.__bindgen_anon_1.xdp.ifindex }, info.prog_id))
}

fn open_pin(path: &Path) -> Result<OwnedFd, io::Error> {
    let name = c_path(path).map_err(io::Error::other)?;
    // SAFETY: a NUL-terminated path.
    let fd = unsafe { sys::bpf_obj_get(name.as_ptr()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a descriptor just returned to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Is this the pin of a link that runs the program?
fn runs(path: &Path, program: u32) -> bool {
    let attached = open_pin(path).map_err(Error::from).and_then(|link| attachment(&link));
    attached.is_ok_and(|(_, id)| id == program)
}

/// Links pinned by any Millrace instance of this machine.
fn pinned_links() -> Result<Vec<PathBuf>> {
    let Ok(directory) = fs::read_dir("/sys/fs/bpf") else { return Ok(Vec::new()) };
    let instances = directory.flatten().filter(|d| d.file_name().to_string_lossy().starts_with("millrace"));
    // A directory that others may have made shows no instance.
    let instances = instances.filter(|d| check_directory(&d.path()).is_ok());
    Ok(instances
        .filter_map(|d| fs::read_dir(d.path()).ok())
        .flat_map(|files| files.flatten())
        .filter(|f| f.file_name().to_string_lossy().starts_with("link-"))
        .map(|f| f.path())
        .collect())
}

pub(super) fn mode(ifindex: u32) -> Result<Option<Mode>> {
    Ok(xdp_query(ifindex)?.map(|(_, mode)| mode))
}

fn xdp_query(ifindex: u32) -> Result<Option<(u32, Mode)>> {
    let mut opts =
        sys::bpf_xdp_query_opts { sz: size_of::<sys::bpf_xdp_query_opts>() as _, ..Default::default() };
    // SAFETY: `opts` is writable and carries its size.
    let rc = unsafe { sys::bpf_xdp_query(ifindex as i32, 0, &mut opts) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc))
            .with_context(|| format!("asking which XDP program device {ifindex} runs"));
    }
    Ok(match (opts.drv_prog_id, opts.skb_prog_id, opts.hw_prog_id) {
        (0, 0, 0) => None,
        (0, id, 0) => Some((id, Mode::Generic)),
        (0, _, id) | (id, ..) => Some((id, Mode::Native)),
    })
}

fn c_path(path: &Path) -> Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).with_context(|| format!("{}: a NUL in a path", path.display()))
}
