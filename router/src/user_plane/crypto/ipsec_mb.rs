//! AES-GCM by intel-ipsec-mb, in bursts. The declarations follow `intel-ipsec-mb.h` of version 1.3.0 (Debian 12).
//!
//! The library is opened at run time, so the program runs without it, and is built without its headers. Its functions are in a
//! structure that differs between versions, so only the version with the structure below is used. A test compares the offsets with
//! the header, if it is installed (`structures_are_those_of_the_header`). A known answer is checked before the first key is expanded.
//!
//! Bursts are the fastest interface of this library. Its direct calls write to one global variable on every call (`imb_errno`), so
//! cores would compete for its cache line (docs/measured.md has the figures). A manager serves one thread at a time, so each thread
//! has its own.

use crate::base::library::Library;
use libc::{c_int, c_uint, c_void};
use logic::esp::{Aead, Job, Key, TAG};
use std::{
    cell::RefCell,
    ffi::CStr,
    mem::{offset_of, transmute},
    ptr::{self, NonNull},
    sync::OnceLock,
};
use zeroize::Zeroize;

/// `libipsec-mb1` of Debian 12.
const FILE: &CStr = c"libIPSec_MB.so.1";
const VERSION: c_uint = 0x1_03_00;
/// `IMB_MAX_BURST_SIZE`.
const MOST_JOBS: usize = 128;
/// Values of the library's enumerations.
const CIPHER_GCM: u32 = 5;
const HASH_GMAC: u32 = 9;
const ENCRYPT: u32 = 1;
const DECRYPT: u32 = 2;
const CIPHER_THEN_HASH: u32 = 1;
const COMPLETED: u32 = 3;
/// `struct gcm_key_data` has 1008 bytes, and is aligned to a cache line.
const KEY_BYTES: usize = 1024;

/// Why the library is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    #[error("ipsec-mb is not used: this CPU has no AES or no carry-less multiplication")]
    Cpu,
    #[error("ipsec-mb is not used: {0} (on Debian, install libipsec-mb1)")]
    NotThere(String),
    #[error("ipsec-mb is not used: it is version {0:#x}, and only {VERSION:#x} (1.3.0) is supported")]
    Version(c_uint),
    #[error("ipsec-mb is not used: it gives a wrong answer")]
    Wrong,
}

/// `IMB_JOB`.
#[repr(C)]
struct RawJob {
    enc_keys: *const c_void,
    dec_keys: *const c_void,
    key_bytes: u64,
    src: *const u8,
    dst: *mut u8,
    cipher_start: u64,
    cipher_bytes: u64,
    hash_start: u64,
    hash_bytes: u64,
    iv: *const u8,
    iv_bytes: u64,
    tag: *mut u8,
    tag_bytes: u64,
    aad: *const c_void,
    aad_bytes: u64,
    context: *mut c_void,
    status: u32,
    cipher_mode: u32,
    direction: u32,
    hash_algorithm: u32,
    order: u32,
    rest: [u64; 6],
}

const _: () = assert!(size_of::<RawJob>() == 200 && offset_of!(RawJob, status) == 128);

/// The start of `IMB_MGR`.
#[repr(C)]
struct RawManager {
    before: [u64; 56],
    gcm128_pre: Option<Expand>,
    gcm192_pre: Option<Expand>,
    gcm256_pre: Option<Expand>,
    between: [u64; 60],
    get_next_burst: Option<GetNextBurst>,
    submit_burst: Option<SubmitBurst>,
    submit_burst_nocheck: Option<SubmitBurst>,
}

const _: () = assert!(offset_of!(RawManager, gcm128_pre) == 448 && offset_of!(RawManager, gcm256_pre) == 464);
const _: () = assert!(offset_of!(RawManager, get_next_burst) == 952);
const _: () = assert!(offset_of!(RawManager, submit_burst_nocheck) == 968);

type Expand = unsafe extern "C" fn(*const c_void, *mut c_void);
type GetNextBurst = unsafe extern "C" fn(*mut RawManager, u32, *mut *mut RawJob) -> u32;
type SubmitBurst = unsafe extern "C" fn(*mut RawManager, u32, *mut *mut RawJob) -> u32;
type Allocate = unsafe extern "C" fn(u64) -> *mut RawManager;
type Initialize = unsafe extern "C" fn(*mut RawManager, *mut c_int);
type Free = unsafe extern "C" fn(*mut RawManager);

/// The functions that are found by name. The library stays open as long as the process lives.
#[derive(Clone, Copy)]
struct Functions {
    allocate: Allocate,
    initialize: Initialize,
    free: Free,
}

/// Checks whether the library can be used; the answer is computed once.
pub fn check() -> Result<(), Absent> {
    static CHECKED: OnceLock<Result<(), Absent>> = OnceLock::new();
    CHECKED.get_or_init(|| functions().and_then(|_| known_answer())).clone()
}

fn functions() -> Result<Functions, Absent> {
    static FUNCTIONS: OnceLock<Result<Functions, Absent>> = OnceLock::new();
    FUNCTIONS.get_or_init(load).clone()
}

#[cfg(target_arch = "x86_64")]
fn has_instructions() -> bool {
    is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq")
}
#[cfg(not(target_arch = "x86_64"))]
fn has_instructions() -> bool {
    false
}

fn load() -> Result<Functions, Absent> {
    if !has_instructions() {
        return Err(Absent::Cpu);
    }
    let library = Library::open(FILE).map_err(Absent::NotThere)?;
    let find = |name: &CStr| library.find(name).map_err(Absent::NotThere);
    let version = find(c"imb_get_version")?;
    // SAFETY: it is `unsigned imb_get_version(void)` in every version.
    let version = unsafe { transmute::<*mut c_void, unsafe extern "C" fn() -> c_uint>(version.as_ptr())() };
    if version != VERSION {
        return Err(Absent::Version(version));
    }
    // SAFETY: the header of this version declares these functions like this.
    unsafe {
        Ok(Functions {
            allocate: transmute::<*mut c_void, Allocate>(find(c"alloc_mb_mgr")?.as_ptr()),
            initialize: transmute::<*mut c_void, Initialize>(find(c"init_mb_mgr_auto")?.as_ptr()),
            free: transmute::<*mut c_void, Free>(find(c"free_mb_mgr")?.as_ptr()),
        })
    }
}

/// Checks known answers, test cases 2 and 14 of McGrew and Viega, "The Galois/Counter Mode of Operation", and that a wrong tag is
/// refused.
fn known_answer() -> Result<(), Absent> {
    let cases: [(&[u8], u128, u128); 2] = [
        (&[0; 20], 0x0388dace60b6a392f328c2b971b2fe78, 0xab6e47d42cec13bdf53a67b21257bddf),
        (&[0; 36], 0xcea7403d4d606b6e074ec5d3baf39d18, 0xd0d1c8a799996bf0265b98b5d48ab919),
    ];
    for (key, expected, tag) in cases {
        let expanded = Expanded::unchecked(&Key::new(key).ok_or(Absent::Wrong)?)?;
        let mut text = [0; 32];
        let sealed = once(&mut text, |jobs| expanded.seal(jobs));
        let is_known = text[..16] == expected.to_be_bytes() && text[16..] == tag.to_be_bytes();
        let (mut right, mut wrong) = (text, text);
        wrong[31] ^= 1;
        let opened = once(&mut right, |jobs| expanded.open(jobs));
        let fooled = once(&mut wrong, |jobs| expanded.open(jobs));
        if !sealed || !is_known || !opened || right[..16] != [0; 16] || fooled {
            return Err(Absent::Wrong);
        }
    }
    Ok(())
}

/// Runs one job with a nonce of zeros; returns whether it was right.
fn once<T>(text: &mut [u8], run: impl FnOnce(&mut [Job<'_>]) -> T) -> bool {
    let mut jobs = [Job { nonce: [0; 12], aad: [0; 12], aad_bytes: 0, is_right: false, text }];
    run(&mut jobs);
    jobs[0].is_right
}

/// The library's manager of one thread.
struct Manager {
    raw: NonNull<RawManager>,
    free: Free,
    expand: [Expand; 2],
    get_next_burst: GetNextBurst,
    submit_burst: SubmitBurst,
    /// Memory that each burst uses again: the jobs, and the computed tags of texts that are opened.
    jobs: [*mut RawJob; MOST_JOBS],
    tags: [[u8; TAG]; MOST_JOBS],
}

thread_local! {
    static MANAGER: RefCell<Option<Manager>> = const { RefCell::new(None) };
}

impl Manager {
    fn new() -> Result<Self, Absent> {
        let Functions { allocate, initialize, free } = functions()?;
        // SAFETY: no flags; the result is null or a manager of ours.
        let raw = NonNull::new(unsafe { allocate(0) }).ok_or(Absent::Wrong)?;
        // SAFETY: the manager was just allocated; the second argument may be null.
        unsafe { initialize(raw.as_ptr(), ptr::null_mut()) };
        // SAFETY: this is the structure of this version, and the manager is longer than it.
        let manager = unsafe { raw.as_ref() };
        let all =
            (manager.gcm128_pre, manager.gcm256_pre, manager.get_next_burst, manager.submit_burst_nocheck);
        let (Some(expand128), Some(expand256), Some(get_next_burst), Some(submit_burst)) = all else {
            // SAFETY: it was just allocated, and nothing else refers to it.
            unsafe { free(raw.as_ptr()) };
            return Err(Absent::Wrong);
        };
        let expand = [expand128, expand256];
        let (jobs, tags) = ([ptr::null_mut(); MOST_JOBS], [[0; TAG]; MOST_JOBS]);
        Ok(Manager { raw, free, expand, get_next_burst, submit_burst, jobs, tags })
    }

    /// Runs all jobs, in bursts. Returns whether all were done.
    fn run(&mut self, key: &Expanded, direction: u32, jobs: &mut [Job<'_>]) -> bool {
        let (mut jobs, mut all) = (jobs, true);
        while !jobs.is_empty() {
            let (done, are_done) = self.burst(key, direction, jobs);
            if done == 0 {
                jobs.iter_mut().for_each(undo);
                return false;
            }
            all &= are_done;
            jobs = &mut jobs[done..];
        }
        all
    }

    /// Runs the first of these jobs. Returns how many, and whether all of those were done.
    #[inline]
    fn burst(&mut self, key: &Expanded, direction: u32, jobs: &mut [Job<'_>]) -> (usize, bool) {
        let manager = self.raw.as_ptr();
        let (raw, tags) = (&mut self.jobs, &mut self.tags);
        let wanted = jobs.len().min(MOST_JOBS) as u32;
        // SAFETY: the manager is ours, and there is room for this many pointers.
        let got = unsafe { (self.get_next_burst)(manager, wanted, raw.as_mut_ptr()) };
        let got = (got as usize).min(jobs.len()).min(MOST_JOBS);
        let (aes, aes_bytes) = (key.words.0.as_ptr().cast::<c_void>(), key.aes_bytes);
        for ((raw, job), computed) in raw.iter().zip(&mut *jobs).zip(tags.iter_mut()).take(got) {
            // A text shorter than a tag becomes a job with 0 bytes, which is possible; its result is set to wrong below.
            let text = job.text.len().saturating_sub(TAG);
            let text_at = job.text.as_mut_ptr();
            let tag = if direction == ENCRYPT && job.text.len() >= TAG {
                // SAFETY: the tag is within the slice, after the text.
                unsafe { text_at.add(text) }
            } else {
                computed.as_mut_ptr()
            };
            // SAFETY: the job belongs to the manager, and nobody else uses it until it is submitted. Text, tag, IV, additional data and
            // key outlive the burst; the library reads and writes them only within the lengths given here.
            unsafe {
                let raw = &mut **raw;
                raw.enc_keys = aes;
                raw.dec_keys = aes;
                raw.key_bytes = aes_bytes;
                raw.src = text_at;
                raw.dst = text_at;
                raw.cipher_start = 0;
                raw.cipher_bytes = text as u64;
                raw.hash_start = 0;
                raw.hash_bytes = text as u64;
                raw.iv = job.nonce.as_ptr();
                raw.iv_bytes = 12;
                raw.tag = tag;
                raw.tag_bytes = TAG as u64;
                raw.aad = job.aad.as_ptr().cast();
                raw.aad_bytes = job.aad_bytes.min(12).into();
                raw.cipher_mode = CIPHER_GCM;
                raw.direction = direction;
                raw.hash_algorithm = HASH_GMAC;
                raw.order = CIPHER_THEN_HASH;
                // An earlier burst may have left `COMPLETED`.
                raw.status = 0;
            }
        }
        // SAFETY: these are the jobs that the manager gave, in its order, all filled in. Jobs of GCM are done when the call returns.
        let done = unsafe { (self.submit_burst)(manager, got as u32, raw.as_mut_ptr()) } as usize;
        if done < got {
            return (0, false);
        }
        let mut all = true;
        for ((raw, job), computed) in raw.iter().zip(jobs).zip(tags).take(got) {
            // SAFETY: the job came back, in the order in which it was submitted.
            let is_done = unsafe { (**raw).status } == COMPLETED;
            if !is_done || job.text.len() < TAG {
                undo(job);
                all = false;
            } else {
                job.is_right = direction == ENCRYPT || is_equal(job.text, computed);
            }
        }
        (got, all)
    }
}

/// Erases the text of a job that was not done, so that it does not leave unencrypted, and marks the job as wrong.
#[cold]
fn undo(job: &mut Job<'_>) {
    job.is_right = false;
    job.text.fill(0);
}

/// Whether the text ends with this tag. The time does not depend on where they differ.
#[inline]
fn is_equal(text: &[u8], computed: &[u8; TAG]) -> bool {
    let came = text.last_chunk::<TAG>().copied().unwrap_or_default();
    u128::from_ne_bytes(came) ^ u128::from_ne_bytes(*computed) == 0
}

impl Drop for Manager {
    fn drop(&mut self) {
        // SAFETY: the same library allocated it, and nothing refers to it any more.
        unsafe { (self.free)(self.raw.as_ptr()) }
    }
}

/// Calls `run` with this thread's manager. `None`: there is none.
fn with_manager<T>(run: impl FnOnce(&mut Manager) -> T) -> Option<T> {
    MANAGER.with_borrow_mut(|manager| {
        if manager.is_none() {
            *manager = Manager::new().ok();
        }
        manager.as_mut().map(run)
    })
}

#[repr(C, align(64))]
struct Words([u8; KEY_BYTES]);

/// A key, expanded.
pub struct Expanded {
    words: Box<Words>,
    aes_bytes: u64,
}

impl Expanded {
    pub fn new(key: &Key) -> Result<Self, Absent> {
        check()?;
        Expanded::unchecked(key)
    }

    /// Expands a key without [`check`], which itself uses this for the known answers.
    fn unchecked(key: &Key) -> Result<Self, Absent> {
        let mut words = Box::new(Words([0; KEY_BYTES]));
        let aes = key.aes();
        let is_done = with_manager(|manager| {
            let expand = manager.expand[usize::from(aes.len() == 32)];
            // SAFETY: it reads the 16 or 32 bytes of the key, and writes a `struct gcm_key_data`, which is shorter than `Words` and
            // needs no more alignment.
            unsafe { expand(aes.as_ptr().cast(), words.0.as_mut_ptr().cast()) }
        });
        is_done.map(|()| Expanded { words, aes_bytes: aes.len() as u64 }).ok_or(Absent::Wrong)
    }

    /// Runs all jobs. Returns whether all were done.
    fn run(&self, direction: u32, jobs: &mut [Job<'_>]) -> bool {
        with_manager(|manager| manager.run(self, direction, jobs)).unwrap_or_else(|| {
            jobs.iter_mut().for_each(undo);
            jobs.is_empty()
        })
    }
}

impl Drop for Expanded {
    fn drop(&mut self) {
        self.words.0.zeroize();
    }
}

impl Aead for Expanded {
    fn seal(&self, jobs: &mut [Job<'_>]) -> bool {
        self.run(ENCRYPT, jobs)
    }
    fn open(&self, jobs: &mut [Job<'_>]) {
        // Each job has its own result.
        let _ = self.run(DECRYPT, jobs);
    }
}
