//! Admission: the first stage that may say no, and the cheapest place to say it.
//!
//! Never waits and reads no clock: `now_us` is passed in. Refuses in this order: the service's
//! state, the deadline, the journal's room. What it takes, a permit gives back on every way out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    error::{Error, Result},
    journal::{Journal, Reservation},
    label::{Durability, Priority},
    limits::RECORD_OVERHEAD_BYTES,
    stages::Stage,
};

/// The first stage.
pub struct Admit {
    journal: Journal,
    closed: AtomicBool,
    stored_waiters: Arc<AtomicUsize>,
    stored_waiters_max: usize,
}

impl Admit {
    /// Open for requests at once.
    pub fn new(journal: Journal, stored_waiters_max: usize) -> Self {
        let stored_waiters = Arc::new(AtomicUsize::new(0));
        Self { journal, closed: AtomicBool::new(false), stored_waiters, stored_waiters_max }
    }

    /// Refuses everything from now on: the service drains.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Says no to a request that cannot be served, whatever its key is.
    pub fn admit(&self, deadline_us: u64, now_us: u64) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Unavailable { state: "draining" });
        }
        if deadline_us <= now_us {
            return Err(Error::DeadlinePassed { stage: Stage::Admit, label_exists: false });
        }
        Ok(())
    }

    /// Room in the journal for a record with `strings_bytes` of text and `scores` numbers, so that
    /// a label once made can always be journaled. Bulk leaves a part of it to robots.
    pub fn reserve(
        &self,
        priority: Priority,
        strings_bytes: usize,
        scores: usize,
    ) -> Result<Reservation> {
        let bytes = RECORD_OVERHEAD_BYTES + strings_bytes + 4 * scores;
        match priority {
            Priority::Robot => self.journal.reserve(bytes),
            Priority::Bulk => self.journal.reserve_spare(bytes),
        }
    }

    /// How long the store has confirmed nothing although labels wait for it.
    pub fn unconfirmed(&self) -> Duration {
        self.journal.unconfirmed()
    }

    /// The level that a caller may wait for. Waiters for the store are bounded, bulk ones by three
    /// quarters of that: one too many waits for the journal only, or is refused where it made the
    /// level a condition.
    pub fn level(
        &self,
        asked: Durability,
        required: bool,
        priority: Priority,
    ) -> Result<(Durability, Option<StoredWaiter>)> {
        if asked < Durability::Stored {
            return Ok((asked, None));
        }
        let waiters_max = match priority {
            Priority::Robot => self.stored_waiters_max,
            Priority::Bulk => self.stored_waiters_max - self.stored_waiters_max / 4,
        };
        if self.stored_waiters.fetch_add(1, Ordering::AcqRel) < waiters_max {
            return Ok((asked, Some(StoredWaiter(self.stored_waiters.clone()))));
        }
        self.stored_waiters.fetch_sub(1, Ordering::AcqRel);
        if required {
            let bound = format!("{waiters_max} callers");
            let retry_after = Duration::from_millis(100);
            return Err(Error::Overloaded { what: "wait for the store", bound, retry_after });
        }
        Ok((Durability::Journaled, None))
    }
}

/// A place among those that wait for the store, given back when dropped.
#[derive(Debug)]
pub struct StoredWaiter(Arc<AtomicUsize>);

impl Drop for StoredWaiter {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
