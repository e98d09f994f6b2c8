//! What the users of the journal and its committer share, and the short locked steps on it.
//!
//! Two locks: `queue` for what is appended, `state` for what is durable. Where both are held,
//! `queue` is taken first. No file is touched under either.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use super::admission::{Admission, Share, charge_of};
use super::age::{AgeBound, Marks, ages};
use super::files::{Clock, FileLock, Files, LogFile};
use super::format::{Place, journal_seed};
use super::index::Index;
use super::reader::Cursor;
use super::recovery::Start;
use super::segment::{Segment, Tail, record_bytes_max};
use super::{Done, JournalConfig, Outcome, Reservation};
use crate::error::{Error, Result};

const DAMAGED_MAX: usize = 100_000;
const COMMIT_US_MAX: u64 = 60_000_000;

/// A snapshot of the journal.
#[derive(Debug, Clone)]
pub struct JournalStats {
    /// Records made durable in this life, and those pending when it began.
    pub journaled_total: u64,
    /// Confirmed as stored.
    pub stored_total: u64,
    /// Confirmed as superseded.
    pub superseded_total: u64,
    /// Confirmed as dead, or unreadable.
    pub dead_total: u64,
    /// Durable and not confirmed.
    pub pending: u64,
    /// Confirmations of numbers that were not pending.
    pub unknown_total: u64,
    /// The number of the next appended record.
    pub next_number: u64,
    /// No record below this number is waiting for its commit.
    pub durable_number: u64,
    /// Commits.
    pub commits_total: u64,
    /// Time of each commit, write and fdatasync, in µs.
    pub commit_us: Histogram<u64>,
    /// Time since the oldest pending record became durable, or since the start; 0 if none is
    /// pending.
    pub oldest_pending_us: u64,
    /// Time since the last confirmation, or since there was something to confirm; 0 if nothing is
    /// pending.
    pub unconfirmed_us: u64,
    /// Bytes of pending records, by each segment's mean.
    pub live_bytes: u64,
    /// Bytes of all segments.
    pub disk_bytes: u64,
    /// Segments, the spare ones included.
    pub segments: u64,
    /// Charged by reservations and by records that wait for their commit.
    pub uncommitted_bytes: u64,
    /// Allocated bytes that are free for new records; reservations are not taken off.
    pub room_bytes: u64,
    /// Reservations that were refused.
    pub refused_total: u64,
    /// Records carried forward.
    pub copied_total: u64,
    /// Damaged spans found, at the start and since.
    pub quarantined_total: u64,
}

/// Records of one call of `append`.
pub(super) struct Entry {
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) bodies: std::vec::IntoIter<Vec<u8>>,
    pub(super) reservations: Vec<Reservation>,
    pub(super) done: Done,
    /// Somebody waits until they are durable.
    pub(super) awaited: bool,
}

/// What the committer's sleep ends with, beside its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    /// Nothing: it is awake, or what is appended joins the next commit.
    Undisturbed,
    /// A record that somebody waits for.
    UntilAwaited,
    /// Any record.
    UntilAppended,
}

pub(super) struct Queue {
    pub(super) entries: VecDeque<Entry>,
    pub(super) next_number: u64,
    pub(super) sleep: Sleep,
    /// The committer has to look at everything anew before it sleeps.
    pub(super) poked: bool,
    pub(super) closing: bool,
    pub(super) ended: Option<Result<()>>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) journaled: u64,
    pub(super) stored: u64,
    pub(super) superseded: u64,
    pub(super) dead: u64,
    pub(super) unknown: u64,
    pub(super) commits: u64,
    pub(super) copied: u64,
}

/// A range of confirmations that is not on disk yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Confirmed {
    pub(super) outcome: Outcome,
    pub(super) first: u64,
    pub(super) last: u64,
}

pub(super) struct State {
    pub(super) index: Index,
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) confirms: VecDeque<Confirmed>,
    /// When the oldest of them came.
    pub(super) confirms_since: Option<Duration>,
    pub(super) counts: Counts,
    pub(super) commit_us: Histogram<u64>,
    pub(super) durable_number: u64,
    pub(super) filling_bytes: u64,
    /// Where damage was seen, so that each counts once however often it is read.
    damaged: BTreeSet<Place>,
    ages: Marks,
    /// When a record was confirmed last, or the first one became pending.
    confirmed_at: Duration,
    pub(super) ended: Option<Result<()>>,
}

pub(super) struct Shared {
    pub(super) config: JournalConfig,
    pub(super) files: Arc<dyn Files>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) journal_id: Uuid,
    pub(super) seed: u32,
    pub(super) admission: Arc<Admission>,
    pub(super) age: AgeBound,
    pub(super) queue: Mutex<Queue>,
    pub(super) wake: Condvar,
    closed: Condvar,
    pub(super) state: Mutex<State>,
    pub(super) durable: Condvar,
    pub(super) cursor: Mutex<Cursor>,
}

impl Shared {
    /// Takes over what recovery has found.
    pub(super) fn start(
        config: JournalConfig,
        files: Arc<dyn Files>,
        clock: Arc<dyn Clock>,
        start: Start,
    ) -> (Arc<Self>, Tail, Box<dyn FileLock>) {
        let Start { recovery, index, segments, active, lock, .. } = start;
        let spares = segments.range(active + 1..).map(|(_, segment)| segment.clone()).collect();
        let tail = Tail::new(
            &config,
            Arc::clone(&files),
            recovery.journal_id,
            segments[&active].clone(),
            spares,
        );
        let counts = Counts { journaled: index.pending(), ..Counts::default() };
        let (marks, age) = ages(config.pending_age_ms_max, index.next_pending(0), clock.now());
        let histogram = Histogram::new_with_bounds(1, COMMIT_US_MAX, 2);
        let state = State {
            index,
            segments,
            confirms: VecDeque::new(),
            confirms_since: None,
            counts,
            commit_us: histogram.expect("the bounds are constants that fit"),
            durable_number: recovery.next_number,
            filling_bytes: 0,
            damaged: recovery
                .quarantined
                .iter()
                .map(|damage| Place { segment: damage.segment, offset: damage.offset })
                .collect(),
            ages: marks,
            confirmed_at: clock.now(),
            ended: None,
        };
        let queue = Queue {
            entries: VecDeque::new(),
            next_number: recovery.next_number,
            sleep: Sleep::Undisturbed,
            poked: false,
            closing: false,
            ended: None,
        };
        let admission = Admission::new(
            config.memory_bytes_max,
            config.disk_bytes_max,
            record_bytes_max(config.segment_bytes),
        );
        let shared = Shared {
            config,
            files,
            clock,
            journal_id: recovery.journal_id,
            seed: journal_seed(recovery.journal_id),
            admission: Arc::new(admission),
            age,
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            closed: Condvar::new(),
            state: Mutex::new(state),
            durable: Condvar::new(),
            cursor: Mutex::new(Cursor::default()),
        };
        (Arc::new(shared), tail, lock)
    }

    pub(super) fn append(
        &self,
        bodies: Vec<Vec<u8>>,
        mut reservations: Vec<Reservation>,
        done: Done,
        awaited: bool,
    ) -> Result<u64> {
        let mut needed = 0;
        for body in &bodies {
            self.admission.check_size(body.len())?;
            needed += charge_of(body.len());
        }
        let held: u64 = reservations.iter().map(Reservation::charge).sum();
        if needed > held {
            reservations.push(self.admission.charge(needed - held, Share::All)?);
        }
        let mut queue = self.queue.lock();
        if let Some(ended) = &queue.ended {
            return Err(ended.clone().err().unwrap_or(Error::Stopped));
        }
        if queue.closing {
            return Err(Error::Stopped);
        }
        let first = queue.next_number;
        queue.next_number += bodies.len() as u64;
        let bodies = bodies.into_iter();
        queue.entries.push_back(Entry { first, next: first, bodies, reservations, done, awaited });
        let wake = match queue.sleep {
            Sleep::Undisturbed => false,
            Sleep::UntilAwaited => awaited,
            Sleep::UntilAppended => true,
        };
        if wake {
            queue.sleep = Sleep::Undisturbed;
        }
        drop(queue);
        if wake {
            self.wake.notify_one();
        }
        Ok(first)
    }

    pub(super) fn confirm(&self, numbers: &[u64], outcome: Outcome) {
        let mut state = self.state.lock();
        let first_of_all = state.confirms.is_empty();
        for &number in numbers {
            state.confirm(number, outcome);
        }
        state.tell_oldest();
        state.confirmed_at = self.clock.now();
        let plan = first_of_all && !state.confirms.is_empty();
        if plan {
            state.confirms_since = Some(self.clock.now());
        }
        drop(state);
        if plan {
            self.wake_committer();
        }
    }

    fn wake_committer(&self) {
        let mut queue = self.queue.lock();
        queue.poked = true;
        drop(queue);
        self.wake.notify_one();
    }

    pub(super) fn stats(&self) -> JournalStats {
        let queue = self.queue.lock();
        let state = self.state.lock();
        let now = self.clock.now();
        let counts = &state.counts;
        let pending = state.index.pending();
        let ended = counts.stored + counts.superseded + counts.dead;
        assert_eq!(counts.journaled, ended + pending, "every record is somewhere");
        JournalStats {
            journaled_total: counts.journaled,
            stored_total: counts.stored,
            superseded_total: counts.superseded,
            dead_total: counts.dead,
            pending,
            unknown_total: counts.unknown,
            next_number: queue.next_number,
            durable_number: state.durable_number,
            commits_total: counts.commits,
            commit_us: state.commit_us.clone(),
            oldest_pending_us: state.oldest_age(now).as_micros() as u64,
            unconfirmed_us: state.unconfirmed(now).as_micros() as u64,
            live_bytes: state.index.segments().map(|(_, used)| used.live_bytes()).sum(),
            disk_bytes: state.disk_bytes(),
            segments: state.segments.len() as u64,
            uncommitted_bytes: self.admission.charged(),
            room_bytes: self.admission.room(),
            refused_total: self.admission.refused() + self.age.refused(),
            copied_total: counts.copied,
            quarantined_total: state.damaged.len() as u64,
        }
    }

    pub(super) fn close(&self, budget: Duration) -> Result<()> {
        let mut queue = self.queue.lock();
        queue.closing = true;
        queue.poked = true;
        self.wake.notify_one();
        let until = std::time::Instant::now() + budget;
        while queue.ended.is_none() {
            if self.closed.wait_until(&mut queue, until).timed_out() {
                break;
            }
        }
        queue.ended.clone().unwrap_or_else(|| {
            let reason = format!("it did not end within {} ms", budget.as_millis());
            Err(Error::Internal { part: "journal", reason })
        })
    }

    /// Marks the end for everyone and returns what still waited for a commit.
    pub(super) fn end(&self, result: &Result<()>) -> VecDeque<Entry> {
        let mut queue = self.queue.lock();
        queue.ended.get_or_insert_with(|| result.clone());
        let waiting = std::mem::take(&mut queue.entries);
        let mut state = self.state.lock();
        state.ended.get_or_insert_with(|| result.clone());
        drop(state);
        drop(queue);
        self.durable.notify_all();
        self.closed.notify_all();
        waiting
    }

    /// The file of a segment and the end of what is durable in it.
    pub(super) fn segment(&self, id: u64) -> Option<(Arc<dyn LogFile>, u64)> {
        let state = self.state.lock();
        state.segments.get(&id).map(|segment| (Arc::clone(&segment.file), segment.end))
    }
}

impl State {
    fn confirm(&mut self, number: u64, outcome: Outcome) {
        if !self.index.confirm(number) {
            self.counts.unknown += 1;
            return;
        }
        match outcome {
            Outcome::Stored => self.counts.stored += 1,
            Outcome::Superseded => self.counts.superseded += 1,
            Outcome::Dead => self.counts.dead += 1,
        }
        if let Some(range) = self.confirms.back_mut()
            && range.outcome == outcome
            && range.last + 1 == number
        {
            range.last = number;
            return;
        }
        self.confirms.push_back(Confirmed { outcome, first: number, last: number });
    }

    /// Counts damage that was read; up to a bound, since a broken disk has no end of it.
    pub(super) fn note_damage(&mut self, segment: u64, offset: u64) {
        if self.damaged.len() < DAMAGED_MAX {
            self.damaged.insert(Place { segment, offset });
        }
    }

    /// Gives up records that cannot be read any more; they count as dead.
    pub(super) fn lose(&mut self, numbers: &[u64], now: Duration) {
        for &number in numbers {
            if self.index.is_pending(number) {
                self.confirm(number, Outcome::Dead);
                self.confirms_since.get_or_insert(now);
            }
        }
        self.tell_oldest();
    }

    /// Bytes of all segments, the one that is being filled included.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum::<u64>() + self.filling_bytes
    }

    /// Remembers when numbers from `first` on became durable.
    pub(super) fn note_age(&mut self, first: u64, now: Duration) {
        self.ages.note(first, self.index.next_pending(0), now);
    }

    fn tell_oldest(&self) {
        self.ages.tell(self.index.next_pending(0));
    }

    /// Says that records became durable while nothing was pending: the writer's time begins.
    pub(super) fn note_first_pending(&mut self, now: Duration) {
        self.confirmed_at = now;
        self.ages.clear();
    }

    pub(super) fn unconfirmed(&self, now: Duration) -> Duration {
        if self.index.pending() == 0 {
            return Duration::ZERO;
        }
        now.saturating_sub(self.confirmed_at)
    }

    fn oldest_age(&self, now: Duration) -> Duration {
        let at = self.index.next_pending(0).and_then(|oldest| self.ages.at(oldest));
        at.map_or(Duration::ZERO, |at| now.saturating_sub(at))
    }
}
