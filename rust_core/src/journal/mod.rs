//! The journal: an append-only log on disk that holds every label until the store has confirmed it.
//!
//! append ▸ one commit (one group, one fdatasync) ▸ take ▸ confirm ▸ delete. Bodies are opaque
//! bytes. Starts no thread: the engine runs `Committer::run`. Files and time are arguments. Never
//! restarts its numbers, never retries a failed fsync, never deletes an unconfirmed record. The
//! format and the rules of recovery are in `docs/journal.md`.

mod admission;
mod age;
#[cfg(any(test, feature = "faults"))]
pub mod checks;
mod committer;
#[cfg(any(test, feature = "faults"))]
pub mod faulty;
pub mod files;
pub mod format;
mod index;
mod inspect;
mod quarantine;
mod reader;
mod recovery;
mod segment;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod upkeep;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

pub use admission::Reservation;
pub use committer::{Committer, Next};
pub use files::{Clock, Files, SystemClock, SystemFiles};
pub use inspect::{DumpedRecord, SegmentReport, StatReport, VerifyReport, dump, stat, verify};
pub use recovery::{Damage, Recovery};
pub use state::JournalStats;

use crate::error::{Error, Result};
use admission::Share;
use state::Shared;

/// No record is longer, whatever the segment's size.
pub const RECORD_BYTES_MAX: u64 = 1 << 20;
/// The smallest segment.
pub const SEGMENT_BYTES_MIN: u64 = 8192;
/// The largest segment: offsets of one group stay within 32 bits.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// Fewer segments than this leave no room to carry records forward.
pub const SEGMENTS_MIN: u64 = 4;

/// Where the journal lives and what it may take.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalConfig {
    /// Its directory, made if it does not exist.
    pub directory: PathBuf,
    /// Size of a segment; existing ones keep theirs.
    pub segment_bytes: u64,
    /// All segments together never take more.
    pub disk_bytes_max: u64,
    /// Records that are reserved or appended and not committed never take more.
    pub memory_bytes_max: u64,
    /// Least time from the start of one commit to the start of the next.
    pub commit_gap_us_min: u64,
    /// The oldest segment is copied forward below this share of live bytes.
    pub copy_forward_live_pct: u8,
    /// Space kept for the headers of groups that only hold confirmations.
    pub reserve_bytes: u64,
    /// No new record while the oldest pending one is older; 0 is no bound.
    pub pending_age_ms_max: u64,
}

impl JournalConfig {
    fn check(&self) -> Result<()> {
        let wrong = |setting: &str, reason: String| {
            Err(Error::Config { setting: format!("journal.{setting}"), reason })
        };
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
            || !self.segment_bytes.is_multiple_of(SEGMENT_BYTES_MIN / 2)
        {
            let reason = format!(
                "{} is not a multiple of {} from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}",
                self.segment_bytes,
                SEGMENT_BYTES_MIN / 2
            );
            return wrong("segment_bytes", reason);
        }
        let least = self.segment_bytes.saturating_mul(SEGMENTS_MIN) + self.reserve_bytes;
        if self.disk_bytes_max < least {
            let reason = format!(
                "{} is less than {SEGMENTS_MIN} segments and the reserve, {least}",
                self.disk_bytes_max
            );
            return wrong("disk_bytes_max", reason);
        }
        if self.copy_forward_live_pct > 90 {
            let reason = format!("{} is not from 0 to 90", self.copy_forward_live_pct);
            return wrong("copy_forward_live_pct", reason);
        }
        Ok(())
    }
}

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[repr(u8)]
pub enum Outcome {
    /// The store holds it.
    Stored = 1,
    /// The store holds a later record of the same key.
    Superseded = 2,
    /// The store refuses it for good; it is a dead letter.
    Dead = 3,
}

impl Outcome {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Outcome::Stored),
            2 => Some(Outcome::Superseded),
            3 => Some(Outcome::Dead),
            _ => None,
        }
    }
}

/// An open journal, its committer, and what was found at the start.
pub struct Opened {
    /// For everyone who appends, takes or confirms.
    pub journal: Journal,
    /// For the thread that commits.
    pub committer: Committer,
    /// What was found.
    pub recovery: Recovery,
}

/// Whether a directory holds a journal: `open` would recover it, and make no new one.
pub fn exists(directory: &Path, files: &dyn Files) -> Result<bool> {
    Ok(!segment::list_segments(directory, files)?.is_empty())
}

/// Opens the journal in a directory, or makes one; recovers what the last process left.
pub fn open(config: JournalConfig, files: Arc<dyn Files>) -> Result<Opened> {
    open_with(config, files, Arc::new(SystemClock::default()))
}

/// Like `open`, with another clock.
pub fn open_with(
    config: JournalConfig,
    files: Arc<dyn Files>,
    clock: Arc<dyn Clock>,
) -> Result<Opened> {
    config.check()?;
    let start = recovery::recover(&config, Arc::clone(&files), &*clock)?;
    let (recovery, cut) = (start.recovery.clone(), start.cut);
    let (shared, tail, lock) = Shared::start(config, files, clock, start);
    let mut committer = Committer::new(Arc::clone(&shared), tail, lock);
    if let Some(cut) = cut {
        committer.cut_from(cut)?;
    }
    committer.upkeep_at_start()?;
    Ok(Opened { journal: Journal { shared }, committer, recovery })
}

/// The journal, as its users see it.
#[derive(Clone)]
pub struct Journal {
    shared: Arc<Shared>,
}

/// Called on the committer's thread, once: with the group's first number when it is durable, or
/// with the reason why it never will be.
pub type Done = Box<dyn FnOnce(Result<u64>) + Send>;

impl Journal {
    /// Takes room for one record of up to `bytes`, so that a label once made can be journaled.
    ///
    /// Atomics only. `Error::Overloaded` says how long to wait; dropping the reservation gives it
    /// back.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation> {
        self.reserve_of(bytes, Share::All)
    }

    /// The same for a record that may wait: a quarter of the room, a fifth of all disk and of the
    /// age is left to others.
    pub fn reserve_spare(&self, bytes: usize) -> Result<Reservation> {
        self.shared.admission.check_spare()?;
        self.reserve_of(bytes, Share::Spare)
    }

    fn reserve_of(&self, bytes: usize, share: Share) -> Result<Reservation> {
        self.shared.age.check(share, &*self.shared.clock)?;
        self.shared.admission.reserve(bytes, share)
    }

    /// Appends records; their numbers are consecutive from the returned one. Never waits for the
    /// disk.
    ///
    /// What the reservations do not cover is reserved here, and may be refused. If this returns an
    /// error, `done` is dropped uncalled; else it is called exactly once. An empty `bodies` is
    /// durable when everything appended before it is.
    pub fn append(
        &self,
        bodies: Vec<Vec<u8>>,
        reservations: Vec<Reservation>,
        done: Done,
    ) -> Result<u64> {
        self.shared.append(bodies, reservations, done, true)
    }

    /// The same for records whose durability nobody waits for: alone they are committed after
    /// `UNAWAITED_GAPS` gaps, together with others at once.
    pub fn append_unawaited(
        &self,
        bodies: Vec<Vec<u8>>,
        reservations: Vec<Reservation>,
        done: Done,
    ) -> Result<u64> {
        self.shared.append(bodies, reservations, done, false)
    }

    /// The next durable, unconfirmed records by ascending number, each handed out once in a process
    /// life; waits for the first one up to `timeout`.
    ///
    /// At least one record is returned however small `bytes_max` is, if there is one.
    pub fn take(
        &self,
        rows_max: usize,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        self.shared.take(rows_max, bytes_max, timeout)
    }

    /// Ends records. Idempotent; numbers that are not pending are ignored and counted.
    ///
    /// True in memory at once; on disk within about 200 ms. A crash in between hands the record out
    /// again after the restart.
    pub fn confirm(&self, numbers: &[u64], outcome: Outcome) {
        self.shared.confirm(numbers, outcome);
    }

    /// Ends a record whose body means nothing to us; it counts as dead. Its bytes stay in
    /// `quarantine/`: the file's name is returned, or `None` where they could not be kept.
    pub fn give_up(&self, number: u64, body: &[u8]) -> Option<String> {
        let (directory, files) = (&self.shared.config.directory, &*self.shared.files);
        let kept = quarantine::keep_record(directory, files, number, body);
        self.confirm(&[number], Outcome::Dead);
        kept
    }

    /// How long records have been pending without a single confirmation; zero while it goes on.
    pub fn unconfirmed(&self) -> Duration {
        let now = self.shared.clock.now();
        self.shared.state.lock().unconfirmed(now)
    }

    /// One consistent snapshot: journaled = stored + superseded + dead + pending, always.
    pub fn stats(&self) -> JournalStats {
        self.shared.stats()
    }

    /// Calls `f` with every durable readable record (number, body, pending): those that were
    /// carried forward, then all others by ascending number.
    pub fn scan(&self, f: &mut dyn FnMut(u64, &[u8], bool)) -> Result<()> {
        self.shared.scan(f)
    }

    /// Commits what is appended, refuses anything later, and waits for the committer's end.
    pub fn close(&self, budget: Duration) -> Result<()> {
        self.shared.close(budget)
    }

    /// Names this journal for as long as its files exist; every stored row carries it.
    pub fn journal_id(&self) -> Uuid {
        self.shared.journal_id
    }
}
