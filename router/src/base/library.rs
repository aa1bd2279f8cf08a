//! Libraries that are opened at run time, so that the program runs without them.

use libc::{c_char, c_void};
use std::{ffi::CStr, ptr::NonNull};

/// An open library. It is never closed.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    handle: NonNull<c_void>,
    file: &'static CStr,
}

impl Library {
    /// Opens a library. Its constructors run, so it must be one that is known to do no harm.
    ///
    /// # Errors
    /// It is not there, as a sentence.
    pub fn open(file: &'static CStr) -> Result<Library, String> {
        // SAFETY: the name ends with zero. Callers open only libraries whose constructors set up tables.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = NonNull::new(handle).ok_or_else(last_error)?;
        Ok(Library { handle, file })
    }

    /// Finds a function by its name.
    ///
    /// # Errors
    /// The library has no such function, as a sentence.
    pub fn find(self, name: &CStr) -> Result<NonNull<c_void>, String> {
        // SAFETY: the library is open, and the name ends with zero.
        let found = NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) });
        let missing = || format!("{} has no {}", self.file.to_string_lossy(), name.to_string_lossy());
        found.ok_or_else(missing)
    }
}

fn last_error() -> String {
    // SAFETY: after a failed call it returns text that ends with zero, or null.
    let error: *const c_char = unsafe { libc::dlerror() };
    if error.is_null() {
        return "it was not found".into();
    }
    // SAFETY: it is not null, and is valid until the next such call of this thread.
    unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let error = Library::open(c"libnone.so.7").unwrap_err();
        assert!(error.contains("libnone.so.7"), "{error}");
        let library = Library::open(c"libc.so.6").unwrap();
        assert!(library.find(c"printf").is_ok());
        assert_eq!(library.find(c"no_such_function").unwrap_err(), "libc.so.6 has no no_such_function");
    }
}
