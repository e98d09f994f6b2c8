//! Calls by which a thread waits for a disk, a store or a clock, counted for the thread that makes
//! them.
//!
//! Each function here has the name of libc's, so that the program's calls come here first, whoever
//! makes them; it counts and makes the call itself. Changes nothing of what a call does.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::threads::{What, count};

macro_rules! counted {
    ($($what:ident: $name:ident = $number:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        // SAFETY: the name and the arguments are libc's, and so is what it does.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            count(What::$what, 1);
            // SAFETY: the caller's promise is passed on.
            unsafe { libc::syscall(libc::$number, $($arg),*) as $result }
        }
    )*};
}

counted! {
    FileSyncs: fsync = SYS_fsync(file: c_int) -> c_int;
    FileSyncs: fdatasync = SYS_fdatasync(file: c_int) -> c_int;
    FileSyncs: syncfs = SYS_syncfs(file: c_int) -> c_int;
    FileSyncs: sync_file_range =
        SYS_sync_file_range(file: c_int, offset: i64, bytes: i64, flags: c_uint) -> c_int;
    FileSyncs: msync = SYS_msync(memory: *mut c_void, bytes: usize, flags: c_int) -> c_int;
    FileWrites: pwrite64 =
        SYS_pwrite64(file: c_int, bytes: *const c_void, count: usize, offset: i64) -> isize;
    Connects: connect = SYS_connect(socket: c_int, to: *const c_void, bytes: c_uint) -> c_int;
    Sleeps: clock_nanosleep = SYS_clock_nanosleep(
        clock: c_int, flags: c_int, time: *const c_void, left: *mut c_void
    ) -> c_int;
    Sleeps: nanosleep = SYS_nanosleep(time: *const c_void, left: *mut c_void) -> c_int;
}

// SAFETY: the name is libc's; the mode, which C may leave out, is what its register holds.
#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    count(What::FileOpens, 1);
    // SAFETY: the caller's promise is passed on.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int }
}

// SAFETY: the name and the arguments are libc's, and so is what it does.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(file: c_int, bytes: *const c_void, length: usize) -> isize {
    // SAFETY: all zeros is a value of it, and the call fills it.
    let mut found: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: it gets a place of its own.
    let known = unsafe { libc::fstat64(file, &raw mut found) } == 0;
    if known && found.st_mode & libc::S_IFMT == libc::S_IFREG {
        count(What::FileWrites, 1);
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { libc::syscall(libc::SYS_write, file, bytes, length) as isize }
}
