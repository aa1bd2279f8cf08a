//! Filters of captures, in the language of tcpdump (pcap-filter(7)). libpcap compiles them. It is opened at run time, by this command
//! only: the daemon gets instructions, and checks them.

use crate::base::library::Library;
use anyhow::{Context, Result, bail, ensure};
use libc::{c_char, c_int, c_uint, c_void};
use std::{
    ffi::{CStr, CString},
    mem::transmute,
    ptr,
};

/// libpcap of Debian and of most others.
const FILES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so.1"];
/// `DLT_EN10MB` and `PCAP_NETMASK_UNKNOWN` of pcap.h.
const ETHERNET: c_int = 1;
const NO_NETMASK: c_uint = 0xffff_ffff;

/// `struct bpf_insn` and `struct bpf_program` of pcap/bpf.h.
#[repr(C)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

#[repr(C)]
struct Program {
    length: c_uint,
    instructions: *mut Instruction,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile = unsafe extern "C" fn(*mut c_void, *mut Program, *const c_char, c_int, c_uint) -> c_int;
type GetError = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type FreeCode = unsafe extern "C" fn(*mut Program);
type Close = unsafe extern "C" fn(*mut c_void);

/// Compiles a filter that also finds packets with one tag or two, unless it names VLANs itself. In tcpdump too, filters match such
/// packets, because Linux has taken off the tags.
///
/// # Errors
/// The filter is wrong, or libpcap is not installed.
pub fn compile(filter: &str) -> Result<Vec<(u16, u8, u8, u32)>> {
    // It must be valid on its own: in brackets, 'a) or (b' would be valid too.
    let alone = compile_as_it_is(filter)?;
    let mut words = filter.split(|c: char| !c.is_ascii_alphanumeric());
    if filter.trim().is_empty() || words.any(|word| ["vlan", "mpls", "pppoes", "geneve"].contains(&word)) {
        return Ok(alone);
    }
    // Without the question about tags, `not port 22` would match each tagged packet, because it has other bytes there.
    let plain = format!(
        "not ether proto 0x8100 and not ether proto 0x88a8 and not ether proto 0x9100 and ({filter})"
    );
    compile_as_it_is(&format!("({plain}) or (vlan and (({plain}) or (vlan and ({filter}))))"))
}

fn compile_as_it_is(filter: &str) -> Result<Vec<(u16, u8, u8, u32)>> {
    let missing = "a filter needs libpcap (on Debian, install libpcap0.8)";
    let library = FILES.into_iter().map(Library::open).find_map(Result::ok).context(missing)?;
    let find = |name: &CStr| library.find(name).map_err(anyhow::Error::msg);
    // SAFETY: pcap.h declares these functions like this since libpcap 0.8.
    let (open, compile, error, free, close) = unsafe {
        (
            transmute::<*mut c_void, OpenDead>(find(c"pcap_open_dead")?.as_ptr()),
            transmute::<*mut c_void, Compile>(find(c"pcap_compile")?.as_ptr()),
            transmute::<*mut c_void, GetError>(find(c"pcap_geterr")?.as_ptr()),
            transmute::<*mut c_void, FreeCode>(find(c"pcap_freecode")?.as_ptr()),
            transmute::<*mut c_void, Close>(find(c"pcap_close")?.as_ptr()),
        )
    };
    let text = CString::new(filter).context("the filter has a NUL byte")?;
    // SAFETY: plain numbers.
    let pcap = unsafe { open(ETHERNET, 262_144) };
    ensure!(!pcap.is_null(), "libpcap has no memory");
    let mut program = Program { length: 0, instructions: ptr::null_mut() };
    // SAFETY: an open handle, a program to fill, and a text that ends with zero.
    let compiled = unsafe { compile(pcap, &mut program, text.as_ptr(), 1, NO_NETMASK) };
    let result = if compiled == 0 && !program.instructions.is_null() {
        // SAFETY: after success there are this many instructions.
        let all = unsafe { std::slice::from_raw_parts(program.instructions, program.length as usize) };
        Ok(all.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect())
    } else {
        // SAFETY: the text of the handle's last error, which ends with zero.
        Err(unsafe { CStr::from_ptr(error(pcap)) }.to_string_lossy().into_owned())
    };
    // SAFETY: both were made above, and nothing uses them any more.
    unsafe {
        free(&mut program);
        close(pcap);
    }
    match result {
        Ok(instructions) => Ok(instructions),
        Err(why) => bail!("the filter '{}' is wrong: {why}", crate::base::foreign::shown(filter)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_compiled_as_tcpdump_does() {
        if FILES.into_iter().all(|file| Library::open(file).is_err()) {
            return;
        }
        // tcpdump -y EN10MB -ddd 'vlan 7'
        let expected = [
            (40, 0, 0, 12),
            (21, 2, 0, 0x8100),
            (21, 1, 0, 0x88a8),
            (21, 0, 4, 0x9100),
            (40, 0, 0, 14),
            (84, 0, 0, 0xfff),
            (21, 0, 1, 7),
            (6, 0, 0, 262_144),
            (6, 0, 0, 0),
        ];
        assert_eq!(compile("vlan 7").unwrap(), expected);
        assert!(compile("udp").unwrap().len() > compile_as_it_is("udp").unwrap().len());
        assert_eq!(compile("").unwrap().len(), 1);
        for (filter, why) in
            [("udp prot 53", "syntax error"), ("host", "syntax error"), ("udp) or (tcp", "syntax error")]
        {
            let error = compile(filter).unwrap_err().to_string();
            assert!(error.contains(filter) && error.contains(why), "{error}");
        }
        let error = compile("host \u{1b}[2J").unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error}");
    }
}
