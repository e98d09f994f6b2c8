//! One row on the path: who asked, what was made of it, how far it is, and who waits for it.
//!
//! Several callers may wait for one row (a retry joins the first try). Progress only moves forward,
//! by compare-and-swap, so a row is taken by exactly one of batch, cancel and expiry. Never blocks.

use std::sync::{
    OnceLock,
    atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
};

use tokio::sync::Notify;

use crate::{
    error::Error,
    label::{Answer, Durability, Key, Priority},
};

/// How far a row is. From `Buffered` on, the number is that of the `Durability` level plus one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Progress {
    /// Waits for the model.
    Queued = 0,
    /// In a batch.
    Running = 1,
    /// Has an answer.
    Buffered = 2,
    /// The answer is in the journal.
    Journaled = 3,
    /// The store confirmed it.
    Stored = 4,
    /// Ended without an answer.
    Failed = 5,
}

impl Progress {
    const ALL: [Progress; 6] = [
        Progress::Queued,
        Progress::Running,
        Progress::Buffered,
        Progress::Journaled,
        Progress::Stored,
        Progress::Failed,
    ];

    /// The level reached, if there is an answer.
    pub fn level(self) -> Option<Durability> {
        match self {
            Progress::Buffered => Some(Durability::Buffered),
            Progress::Journaled => Some(Durability::Journaled),
            Progress::Stored => Some(Durability::Stored),
            Progress::Queued | Progress::Running | Progress::Failed => None,
        }
    }
}

/// When a row passed each point, µs on the engine's clock; 0 where it has not.
#[derive(Debug, Default)]
pub struct Stamps {
    /// Entered the queue.
    pub queued_us: AtomicU64,
    /// Taken into a batch.
    pub formed_us: AtomicU64,
    /// The run ended.
    pub inferred_us: AtomicU64,
    /// The journal's group was synced.
    pub journaled_us: AtomicU64,
}

/// A request's own data, which its record needs beside the answer.
#[derive(Debug)]
pub struct Asked {
    /// The idempotency key.
    pub key: Key,
    /// Digest of model and payload.
    pub digest: u128,
    /// Which queue.
    pub priority: Priority,
    /// µs on the engine's clock.
    pub deadline_us: u64,
    /// The robot's clock.
    pub captured_at_unix_us: i64,
    /// The item at hand, or empty.
    pub sku: Box<str>,
}

/// One row on the path.
#[derive(Debug)]
pub struct Row {
    /// What was asked.
    pub asked: Asked,
    /// When it passed each point.
    pub stamps: Stamps,
    /// Its journal number; 0 before it has one.
    pub number: AtomicU64,
    /// Wall time of the answer.
    pub labeled_at_unix_us: AtomicU64,
    progress: AtomicU8,
    weakest: AtomicU8,
    waiters: AtomicU32,
    answer: OnceLock<Answer>,
    /// Boxed: few rows fail, and many are remembered.
    failure: OnceLock<Box<Error>>,
    notify: Notify,
}

impl Row {
    /// A queued row for which one caller waits, until `level`.
    pub fn new(asked: Asked, level: Durability) -> Self {
        Self {
            asked,
            stamps: Stamps::default(),
            number: AtomicU64::new(0),
            labeled_at_unix_us: AtomicU64::new(0),
            progress: AtomicU8::new(Progress::Queued as u8),
            weakest: AtomicU8::new(level as u8),
            waiters: AtomicU32::new(1),
            answer: OnceLock::new(),
            failure: OnceLock::new(),
            notify: Notify::new(),
        }
    }

    /// A row that was answered before the start and is known from the journal. Nobody waits for it.
    pub fn restored(
        asked: Asked,
        answer: Answer,
        level: Durability,
        number: u64,
        labeled_at_unix_us: i64,
    ) -> Self {
        let row = Self::new(asked, level);
        row.waiters.store(0, Ordering::Relaxed);
        row.number.store(number, Ordering::Relaxed);
        row.labeled_at_unix_us.store(labeled_at_unix_us as u64, Ordering::Relaxed);
        row.answered(answer);
        row.reached(level);
        row
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        Progress::ALL[self.progress.load(Ordering::Acquire) as usize]
    }

    /// The answer, once there is one.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.get()
    }

    /// Why there is no answer, or why it will not be durable.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.get().map(|error| &**error)
    }

    /// Another caller waits for it, until `level`.
    pub fn join(&self, level: Durability) {
        self.waiters.fetch_add(1, Ordering::AcqRel);
        self.weakest.fetch_min(level as u8, Ordering::AcqRel);
    }

    /// A caller that is out of time takes a weaker level.
    pub fn accept(&self, level: Durability) {
        self.weakest.fetch_min(level as u8, Ordering::AcqRel);
    }

    /// A caller left; true if it was the last and nobody has begun to compute the row, which is now
    /// cancelled and must leave its queue.
    pub fn leave(&self) -> bool {
        let last = self.waiters.fetch_sub(1, Ordering::AcqRel) == 1;
        last && self.fail_if_queued(Error::Cancelled)
    }

    /// Takes it into a batch; false if it has ended meanwhile.
    pub fn begin(&self) -> bool {
        self.swap(Progress::Queued, Progress::Running)
    }

    /// Ends it if no batch has taken it; true if this call did.
    pub fn fail_if_queued(&self, error: Error) -> bool {
        self.fail_from(Progress::Queued, error)
    }

    /// Ends a row without an answer, queued or running.
    pub fn fail(&self, error: Error) {
        if !self.fail_from(Progress::Queued, error.clone()) {
            self.fail_from(Progress::Running, error);
        }
    }

    /// Whether an answer in memory is not enough for any of its callers.
    pub fn is_awaited(&self) -> bool {
        self.weakest.load(Ordering::Acquire) > Durability::Buffered as u8
    }

    /// Puts the answer in; callers for whom that is enough are woken by `tell`.
    pub fn answered(&self, answer: Answer) {
        let first = self.answer.set(answer).is_ok();
        debug_assert!(first, "a row is answered once");
        self.advance(Progress::Buffered);
    }

    /// Wakes the callers of an answered row for whom that is enough.
    pub fn tell(&self) {
        if !self.is_awaited() {
            self.notify.notify_waiters();
        }
    }

    /// Moves an answered row to a stronger level and wakes its callers.
    pub fn reached(&self, level: Durability) {
        self.advance(match level {
            Durability::Buffered => Progress::Buffered,
            Durability::Journaled => Progress::Journaled,
            Durability::Stored => Progress::Stored,
        });
        self.notify.notify_waiters();
    }

    /// An answered row whose record could not be made durable: callers that wait for more get
    /// `error`.
    pub fn undurable(&self, error: Error) {
        let _ = self.failure.set(Box::new(error));
        self.notify.notify_waiters();
    }

    /// Is done when the row changes; take it before looking at the progress.
    pub fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.notify.notified()
    }

    fn fail_from(&self, from: Progress, error: Error) -> bool {
        let done = self.swap(from, Progress::Failed);
        if done {
            // Whoever sees `Failed` before the reason is there is woken again by the notification.
            let _ = self.failure.set(Box::new(error));
            self.notify.notify_waiters();
        }
        done
    }

    fn advance(&self, to: Progress) {
        self.progress.fetch_max(to as u8, Ordering::AcqRel);
    }

    fn swap(&self, from: Progress, to: Progress) -> bool {
        let (from, to) = (from as u8, to as u8);
        self.progress.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::label::Source;

    fn row() -> Row {
        let key = Key { robot_id: Arc::from("r1"), sequence: 7 };
        let asked = Asked {
            key,
            digest: 1,
            priority: Priority::Robot,
            deadline_us: 100,
            captured_at_unix_us: 0,
            sku: "".into(),
        };
        Row::new(asked, Durability::Journaled)
    }

    fn answer() -> Answer {
        Answer {
            index: 0,
            label: "go".into(),
            confidence: 1.0,
            scores: Box::new([1.0]),
            model: "m".into(),
            version: "1".into(),
            source: Source::Model,
        }
    }

    #[test]
    fn a_row_is_cancelled_only_when_its_last_caller_leaves_before_it_runs() {
        let row = row();
        row.join(Durability::Buffered);
        assert!(!row.leave());
        assert!(row.leave());
        assert_eq!(row.progress(), Progress::Failed);
        assert!(!row.begin(), "cancelled work is not computed");
    }

    #[test]
    fn a_running_row_is_answered_although_its_caller_has_left() {
        let row = row();
        assert!(row.begin());
        assert!(!row.leave());
        row.answered(answer());
        row.reached(Durability::Journaled);
        assert_eq!(row.progress().level(), Some(Durability::Journaled));
        assert!(row.failure().is_none());
    }

    #[test]
    fn progress_never_moves_back() {
        let row = row();
        row.begin();
        row.answered(answer());
        row.reached(Durability::Stored);
        row.reached(Durability::Journaled);
        row.fail(Error::Cancelled);
        assert_eq!(row.progress(), Progress::Stored);
    }
}
