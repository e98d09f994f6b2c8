//! Says every few seconds how far a start has come, so that nobody takes a long recovery for a hang
//! and kills it.
//!
//! Counts what the journal reads by standing between it and its files. Decides nothing, writes
//! nothing, and ends with the start.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::{
    error::Result,
    journal::{
        Files,
        files::{FileLock, LogFile, Mode},
    },
    supervise::Supervisor,
};

const EVERY: Duration = Duration::from_secs(5);

/// A start that is under way; dropping it ends the telling.
pub struct Starting {
    phase: Arc<Mutex<&'static str>>,
    read_bytes: Arc<AtomicU64>,
    _ended: Sender<()>,
}

/// How far a start has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: &'static str,
    /// What was read of the journal so far. A recovery reads it about three times.
    pub read_bytes: u64,
    /// Time since the start.
    pub elapsed: Duration,
}

impl Starting {
    /// Says it in the log every five seconds.
    pub fn begin(supervisor: &Supervisor, journal: &Path) -> Result<Self> {
        let journal = journal.to_owned();
        let say = move |Progress { phase, read_bytes, elapsed }| {
            let (journal_bytes, elapsed_ms) = (bytes_in(&journal), elapsed.as_millis() as u64);
            tracing::info!(phase, read_bytes, journal_bytes, elapsed_ms, "starting");
        };
        Self::watch(supervisor, EVERY, say)
    }

    /// Calls `say` after each `every`, on a thread of its own.
    pub fn watch(
        supervisor: &Supervisor,
        every: Duration,
        say: impl Fn(Progress) + Send + 'static,
    ) -> Result<Self> {
        let (ended, until_ended) = mpsc::channel::<()>();
        let phase = Arc::new(Mutex::new("journal recovery"));
        let read_bytes = Arc::new(AtomicU64::new(0));
        let (phase_now, read_now) = (phase.clone(), read_bytes.clone());
        let began = Instant::now();
        supervisor.spawn("start", "starting".to_owned(), move || {
            while until_ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                say(Progress {
                    phase: *phase_now.lock(),
                    read_bytes: read_now.load(Ordering::Relaxed),
                    elapsed: began.elapsed(),
                });
            }
            Ok(())
        })?;
        Ok(Self { phase, read_bytes, _ended: ended })
    }

    /// What is done from now on.
    pub fn phase(&self, phase: &'static str) {
        *self.phase.lock() = phase;
    }

    /// The same files, with what is read of them counted.
    pub fn files(&self, files: Arc<dyn Files>) -> Arc<dyn Files> {
        Arc::new(Counted { inner: files, read_bytes: self.read_bytes.clone() })
    }
}

/// Bytes of all files in a directory; 0 where it cannot be read.
fn bytes_in(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

struct Counted<T: ?Sized> {
    read_bytes: Arc<AtomicU64>,
    inner: Arc<T>,
}

impl LogFile for Counted<dyn LogFile> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.inner.read_at(buffer, offset)?;
        self.read_bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.inner.write_at(bytes, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }
    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }
}

impl Files for Counted<dyn Files> {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.inner.create_directory(path)
    }
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.inner.list(directory)
    }
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn LogFile>> {
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(Counted { inner, read_bytes: self.read_bytes.clone() }))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_directory(path)
    }
    fn new_id(&self) -> Uuid {
        self.inner.new_id()
    }
    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.inner.try_lock(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::SystemFiles;

    #[test]
    fn a_start_says_what_it_does_and_what_it_has_read_until_it_ends() {
        let supervisor = Supervisor::new(|part, error| panic!("{part}: {error}"));
        let (sender, said) = mpsc::channel();
        let say = move |progress| {
            let _ = sender.send(progress);
        };
        let starting = Starting::watch(&supervisor, Duration::from_millis(1), say).unwrap();
        assert_eq!(said.recv().unwrap().phase, "journal recovery");

        let path = std::env::temp_dir().join(format!("labeler-starting-{}", std::process::id()));
        let file = starting.files(Arc::new(SystemFiles)).open(&path, Mode::Create).unwrap();
        file.write_at(b"seven b", 0).unwrap();
        file.read_at(&mut [0; 64], 0).unwrap();
        std::fs::remove_file(&path).unwrap();
        starting.phase("models");
        let told = said.iter().find(|progress| progress.phase == "models").unwrap();
        assert_eq!(told.read_bytes, 7);

        drop(starting);
        assert!(said.iter().all(|progress| progress.read_bytes == 7), "and then it ends");
    }
}
