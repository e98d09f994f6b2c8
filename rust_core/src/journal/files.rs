//! All that the journal asks of a file system and a clock, as two small traits and their real
//! forms.
//!
//! Never caches, retries or hides an error: what a short write or a failed fsync means is decided
//! by the callers. The fault-injecting double is in `faulty.rs`.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::error::Error;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// For reading; it must exist.
    Read,
    /// For reading and writing; it must exist.
    Write,
    /// For reading and writing; made, or emptied if it exists.
    Create,
}

/// A held lock; dropping it gives it back.
pub trait FileLock: Send {}

/// One open file, used by several threads at once.
pub trait LogFile: Send + Sync {
    /// Reads at an offset; fewer bytes than asked for is normal, 0 is the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes at an offset; fewer bytes than given is normal.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Makes content and length durable (fdatasync).
    fn sync_data(&self) -> io::Result<()>;
    /// The file's length in bytes.
    fn length(&self) -> io::Result<u64>;
}

/// A file system.
pub trait Files: Send + Sync {
    /// Makes a directory and its parents, each durable before the next; fine if it exists.
    fn create_directory(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, in no order.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Opens or makes a file.
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn LogFile>>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames a file within its directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
    /// An id that no other journal has.
    fn new_id(&self) -> Uuid;
    /// Takes the lock file at `path`, making it if needed, and leaves the process's id in it;
    /// `None` if another holds it.
    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>>;
}

/// Time, as far as the journal needs it.
pub trait Clock: Send + Sync {
    /// Monotonic time since some origin.
    fn now(&self) -> Duration;
    /// Wall time in µs since 1970, used as a stamp only.
    fn unix_us(&self) -> u64;
}

/// The file system of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemFiles;

struct SystemFile(File);

struct SystemLock(#[allow(dead_code, reason = "held for its drop")] File);

impl FileLock for SystemLock {}

impl LogFile for SystemFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(bytes, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

impl Files for SystemFiles {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut missing: Vec<&Path> =
            path.ancestors().take_while(|path| is_missing(path)).collect();
        // Whoever made the level above may have been killed before that was durable.
        if let Some(given) = missing.last().and_then(|top| top.parent()) {
            match self.sync_directory(directory_of(given)) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                synced => synced?,
            }
        }
        while let Some(level) = missing.pop() {
            std::fs::create_dir_all(level)?;
            self.sync_directory(directory_of(level))?;
        }
        std::fs::create_dir_all(path)
    }
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn LogFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(mode != Mode::Read);
        if mode == Mode::Create {
            options.create(true).truncate(true);
        }
        Ok(Arc::new(SystemFile(options.open(path)?)))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
    fn new_id(&self) -> Uuid {
        Uuid::new_v4()
    }
    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => {
                // For people only, so a disk that is too full for it does not matter.
                let _ = file.set_len(0).and_then(|()| {
                    file.write_at(format!("{}\n", std::process::id()).as_bytes(), 0)
                });
                Ok(Some(Box::new(SystemLock(file))))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// The clock of the machine; its origin is when it was made.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
    fn unix_us(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
    }
}

/// The error of a file operation, with the path in it.
pub(super) fn disk(operation: &'static str, path: &Path, error: &io::Error) -> Error {
    Error::Disk { operation, path: path.display().to_string(), reason: error.to_string() }
}

fn is_missing(path: &Path) -> bool {
    !path.as_os_str().is_empty() && !path.exists()
}

/// The directory that holds a path's name.
pub(super) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Whether an error says that the disk, or the quota, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Writes all bytes, going on after short writes and interruptions.
pub(super) fn write_all(file: &dyn LogFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends; returns how many bytes were read.
pub(super) fn read_full(file: &dyn LogFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
