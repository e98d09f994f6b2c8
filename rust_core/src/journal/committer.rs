//! The committer: takes what is appended, writes it as one group, syncs, and tells who waits.
//!
//! A commit is one group and one fdatasync, so a mark says exactly what was durable before. A first
//! record after a quiet time commits at once, later ones keep the gap. A failed write or fsync is
//! final: everyone who waits is told, nothing is tried again. Starts no thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::admission::DEBT_BYTES;
use super::files::FileLock;
use super::format::{
    ALIGN_BYTES, CONFIRM_FRAME_BYTES, COPY_FRAME_BYTES, GROUP_BYTES_MAX, GROUP_HEADER_BYTES,
    GroupBuilder, Place, RECORD_FRAME_BYTES,
};
use super::segment::{Segment, Tail, cut_off, waste_bytes};
use super::state::{Entry, Shared, Sleep};
use super::upkeep::Upkeep;
use super::{Done, RECORD_BYTES_MAX, Reservation};
use crate::error::{Error, Result};
use crate::faults;

/// Records that nobody waits for, alone, wait for so many gaps: a sync costs more than they do.
const UNAWAITED_GAPS: u32 = 5;
/// Confirmations wait no longer for records to travel with.
const CONFIRM_DELAY: Duration = Duration::from_millis(200);
/// Under full load, a slice of upkeep is done at least after so many commits.
const COMMITS_PER_UPKEEP: u32 = 8;
const CONFIRM_GROUP_BYTES: u64 =
    (GROUP_HEADER_BYTES + CONFIRM_FRAME_BYTES).next_multiple_of(ALIGN_BYTES);
/// What a group costs beside its frames.
pub(super) const GROUP_OVERHEAD_BYTES: u64 = GROUP_HEADER_BYTES + ALIGN_BYTES;

const _: () = assert!(
    RECORD_BYTES_MAX + GROUP_HEADER_BYTES + COPY_FRAME_BYTES + ALIGN_BYTES <= GROUP_BYTES_MAX,
    "any record fits a group"
);

/// What to do after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// There is more to do.
    Again,
    /// Nothing before this time of the journal's clock, unless something is appended or confirmed.
    Sleep(Option<Duration>),
    /// It was closed and everything is on disk.
    Ended,
}

/// The part that writes; run by one thread of the engine, or step by step by a simulation.
pub struct Committer {
    pub(super) shared: Arc<Shared>,
    pub(super) tail: Tail,
    pub(super) upkeep: Upkeep,
    group: GroupBuilder,
    local: VecDeque<Entry>,
    last_commit_at: Option<Duration>,
    /// The last commit had no room for all that was due.
    left_over: bool,
    commits_since_upkeep: u32,
    lock: Option<Box<dyn FileLock>>,
}

/// What one group holds beside its bytes.
#[derive(Default)]
struct Plan {
    first: u64,
    record_bytes: u64,
    copied: Vec<u64>,
    copied_bytes: u64,
    confirm_bytes: u64,
    finished: Vec<(u64, Done, Vec<Reservation>)>,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, tail: Tail, lock: Box<dyn FileLock>) -> Self {
        Committer {
            shared,
            tail,
            upkeep: Upkeep::default(),
            group: GroupBuilder::default(),
            local: VecDeque::new(),
            last_commit_at: None,
            left_over: false,
            commits_since_upkeep: 0,
            lock: Some(lock),
        }
    }

    /// Commits until the journal is closed (`Ok`) or the disk fails (`Err`, terminal: every waiter
    /// has been told before it returns, and later appends fail at once).
    pub fn run(mut self) -> Result<()> {
        loop {
            match self.step()? {
                Next::Again => {}
                Next::Sleep(until) => self.sleep(until),
                Next::Ended => return Ok(()),
            }
        }
    }

    /// Does one thing: a commit, a slice of upkeep, or the end. An error is terminal.
    pub fn step(&mut self) -> Result<Next> {
        let result = self.try_step();
        match &result {
            Ok(Next::Ended) => self.finish(&Ok(())),
            Ok(_) => {}
            Err(error) => self.finish(&Err(error.clone())),
        }
        result
    }

    fn try_step(&mut self) -> Result<Next> {
        let now = self.shared.clock.now();
        let closing = self.collect();
        let due = self.due_at();
        if !self.local.is_empty()
            && (closing || due <= now)
            && self.commits_since_upkeep < COMMITS_PER_UPKEEP
        {
            self.commits_since_upkeep += 1;
            self.commit(now, Vec::new())?;
            return Ok(Next::Again);
        }
        self.commits_since_upkeep = 0;
        let confirms_at = self.confirms_at(closing);
        if confirms_at.is_some_and(|at| closing || at <= now) {
            self.commit(now, Vec::new())?;
            return Ok(Next::Again);
        }
        if closing && self.local.is_empty() {
            return Ok(Next::Ended);
        }
        let upkeep = self.upkeep(now)?;
        if upkeep.did || (!self.local.is_empty() && due <= now) {
            return Ok(Next::Again);
        }
        let commit_at = (!self.local.is_empty()).then_some(due);
        let times = [commit_at, confirms_at, upkeep.again_at];
        Ok(Next::Sleep(times.into_iter().flatten().min()))
    }

    fn due_at(&self) -> Duration {
        let mut gap = Duration::from_micros(self.shared.config.commit_gap_us_min);
        if !self.left_over && !is_awaited(&self.local) {
            gap *= UNAWAITED_GAPS;
        }
        self.last_commit_at.map_or(Duration::ZERO, |at| at + gap)
    }

    /// When confirmations have waited long enough; `None` if there are none, or no room for them.
    fn confirms_at(&mut self, closing: bool) -> Option<Duration> {
        let since = self.shared.state.lock().confirms_since?;
        self.tail.room_for(CONFIRM_GROUP_BYTES)?;
        (closing || self.can_confirm_alone()).then(|| since + CONFIRM_DELAY)
    }

    /// Whether a group of confirmations alone leaves the room of all that is admitted and pending:
    /// its header is nobody's. Else they wait for records, for more room, or for the close.
    fn can_confirm_alone(&self) -> bool {
        let charged = self.shared.admission.charged();
        let waste = if charged == 0 { CONFIRM_GROUP_BYTES } else { self.waste_bytes() };
        // Each further segment's end may split a group, which costs another header.
        let headers = GROUP_OVERHEAD_BYTES * (1 + self.tail.segments());
        self.tail.room(waste) >= charged + self.debt_bytes() + headers
    }

    /// Takes over what is appended; returns whether the journal is being closed.
    fn collect(&mut self) -> bool {
        let mut queue = self.shared.queue.lock();
        if self.local.is_empty() {
            std::mem::swap(&mut self.local, &mut queue.entries);
        } else {
            self.local.append(&mut queue.entries);
        }
        queue.closing
    }

    /// Waits until `until`, or for anything to do.
    fn sleep(&mut self, until: Option<Duration>) {
        let wait = until.map(|until| until.saturating_sub(self.shared.clock.now()));
        let mut queue = self.shared.queue.lock();
        // Within the gap, what is appended joins the next commit and wakes nobody.
        let sleep = match &self.local {
            local if local.is_empty() => Sleep::UntilAppended,
            local if is_awaited(local) => Sleep::Undisturbed,
            _ => Sleep::UntilAwaited,
        };
        let disturbed = match sleep {
            Sleep::UntilAppended => !queue.entries.is_empty(),
            Sleep::UntilAwaited => is_awaited(&queue.entries),
            Sleep::Undisturbed => false,
        };
        if std::mem::take(&mut queue.poked) || disturbed {
            return;
        }
        queue.sleep = sleep;
        match wait {
            Some(wait) => {
                self.shared.wake.wait_for(&mut queue, wait);
            }
            None => self.shared.wake.wait(&mut queue),
        }
        queue.sleep = Sleep::Undisturbed;
        queue.poked = false;
    }

    /// Writes one group: confirmations first, then copies, then as many records as fit.
    pub(super) fn commit(&mut self, now: Duration, copies: Vec<(u64, Vec<u8>)>) -> Result<()> {
        let Some(room) = self.make_room(&copies)? else {
            self.refuse_first();
            return Ok(());
        };
        let limit = room.min(GROUP_BYTES_MAX);
        self.group.clear();
        let mut plan = Plan::default();
        if self.encode_confirms(limit, &mut plan) {
            self.encode_copies(limit, copies, &mut plan);
        }
        self.encode_records(limit, &mut plan);
        self.left_over = !self.local.is_empty();
        if self.group.is_empty() {
            self.tell(plan);
            return Ok(());
        }
        faults::point("commit");
        self.last_commit_at = Some(now);
        let unix_us = self.shared.clock.unix_us();
        let written = self.tail.append(&mut self.group, self.shared.seed, plan.first, unix_us);
        match written {
            Ok(place) => {
                let took = self.shared.clock.now().saturating_sub(now);
                self.publish(place, took, &plan);
                self.publish_room();
                self.tell(plan);
                Ok(())
            }
            Err(error) => {
                for (_, done, _) in plan.finished {
                    done(Err(error.clone()));
                }
                Err(error)
            }
        }
    }

    /// Cuts what follows the end of the log from a place on.
    ///
    /// It may hold a damaged group that was acknowledged, and says how many numbers that may have
    /// had: so it goes only once the next number is durable in a group of its own.
    pub(super) fn cut_from(&mut self, cut: Place) -> Result<()> {
        // Twice, so that a flip in the last group does not take the number back. Where no header
        // fits and there is no further segment, there was no group either.
        for _ in 0..2 {
            if self.tail.room_for(GROUP_HEADER_BYTES).is_some() {
                self.stamp()?;
            }
        }
        let state = self.shared.state.lock();
        let segments: Vec<Segment> =
            state.segments.range(cut.segment..).map(|s| s.1.clone()).collect();
        drop(state);
        for segment in &segments {
            cut_off(&self.shared.config.directory, segment)?;
        }
        Ok(())
    }

    /// Writes a group without frames, to make the next number and the mark durable.
    fn stamp(&mut self) -> Result<()> {
        self.group.clear();
        let next_number = self.shared.queue.lock().next_number;
        let unix_us = self.shared.clock.unix_us();
        let place = self.tail.append(&mut self.group, self.shared.seed, next_number, unix_us)?;
        self.publish(place, Duration::ZERO, &Plan::default());
        Ok(())
    }

    /// Room for the first thing to be written; `None` if there is none and none can be made.
    fn make_room(&mut self, copies: &[(u64, Vec<u8>)]) -> Result<Option<u64>> {
        let confirms = !self.shared.state.lock().confirms.is_empty();
        let first_frame = if confirms {
            CONFIRM_FRAME_BYTES
        } else if let Some((_, body)) = copies.first() {
            COPY_FRAME_BYTES + body.len() as u64
        } else {
            let bodies = self.local.iter().find_map(|entry| entry.bodies.as_slice().first());
            let Some(body) = bodies else { return Ok(Some(GROUP_HEADER_BYTES)) };
            RECORD_FRAME_BYTES + body.len() as u64
        };
        let bytes = (GROUP_HEADER_BYTES + first_frame).next_multiple_of(ALIGN_BYTES);
        loop {
            if let Some(room) = self.tail.room_for(bytes) {
                return Ok(Some(room));
            }
            // Admission keeps this from happening; if it does, waiting for the disk is right.
            if !self.allocate_now()? {
                return Ok(None);
            }
        }
    }

    /// There is no room and none can be made: whoever waits first is told, instead of waiting for
    /// ever. Who brought no record needs no room: all before it is durable.
    fn refuse_first(&mut self) {
        let Some(entry) = self.local.pop_front() else { return };
        if entry.bodies.as_slice().is_empty() {
            drop(entry.reservations);
            (entry.done)(Ok(entry.first));
            return;
        }
        let error = Error::Overloaded {
            what: "journal",
            bound: format!("{} bytes on disk", self.shared.config.disk_bytes_max),
            retry_after: Duration::from_secs(1),
        };
        (entry.done)(Err(error));
    }

    /// Encodes confirmations; true if none are left.
    fn encode_confirms(&mut self, limit: u64, plan: &mut Plan) -> bool {
        let mut state = self.shared.state.lock();
        while let Some(range) = state.confirms.front() {
            if self.group.total_bytes_with(CONFIRM_FRAME_BYTES) > limit {
                return false;
            }
            self.group.confirm(range.outcome, range.first, range.last);
            plan.confirm_bytes += CONFIRM_FRAME_BYTES;
            state.confirms.pop_front();
        }
        state.confirms_since = None;
        true
    }

    /// Encodes those copies whose records are still pending; what does not fit is read again later.
    ///
    /// Every confirmation so far stands before them, so none can be overtaken by its record's copy.
    fn encode_copies(&mut self, limit: u64, copies: Vec<(u64, Vec<u8>)>, plan: &mut Plan) {
        if copies.is_empty() {
            return;
        }
        let mut state = self.shared.state.lock();
        if !state.confirms.is_empty() {
            return;
        }
        for (number, body) in copies {
            let frame = COPY_FRAME_BYTES + body.len() as u64;
            if !state.index.is_pending(number) {
                continue;
            }
            if self.group.total_bytes_with(frame) > limit {
                break;
            }
            self.group.copy(number, &body);
            plan.copied.push(number);
            plan.copied_bytes += frame;
        }
        state.counts.copied += plan.copied.len() as u64;
    }

    fn encode_records(&mut self, limit: u64, plan: &mut Plan) {
        while let Some(entry) = self.local.front_mut() {
            let next = plan.first + u64::from(self.group.count());
            if self.group.count() > 0 && entry.next != next {
                break;
            }
            let Some(body) = entry.bodies.as_slice().first() else {
                if let Some(entry) = self.local.pop_front() {
                    plan.finished.push((entry.first, entry.done, entry.reservations));
                }
                continue;
            };
            let frame = RECORD_FRAME_BYTES + body.len() as u64;
            if self.group.total_bytes_with(frame) > limit {
                break;
            }
            if self.group.count() == 0 {
                plan.first = entry.next;
            }
            self.group.record(body);
            plan.record_bytes += frame;
            entry.bodies.next();
            entry.next += 1;
        }
        if self.group.count() == 0 {
            let durable = self.shared.state.lock().durable_number;
            plan.first = self.local.front().map_or(durable, |entry| entry.next);
        }
    }

    fn publish(&mut self, place: Place, took: Duration, plan: &Plan) {
        let now = self.shared.clock.now();
        let count = u64::from(self.group.count());
        let mut state = self.shared.state.lock();
        if count > 0 {
            let last = plan.first + count - 1;
            if state.index.pending() == 0 {
                state.note_first_pending(now);
            }
            state.index.insert(plan.first..=last, place, plan.record_bytes);
            state.durable_number = last + 1;
            state.counts.journaled += count;
            state.note_age(plan.first, now);
        }
        state.index.moved(&plan.copied, place, plan.copied_bytes, false);
        state.index.used(place.segment, plan.confirm_bytes);
        let active = self.tail.active();
        let segment = state.segments.entry(place.segment).or_insert_with(|| active.clone());
        segment.end = active.end;
        state.counts.commits += 1;
        state.commit_us.saturating_record(took.as_micros() as u64);
        drop(state);
        if count > 0 {
            self.shared.durable.notify_all();
        }
    }

    fn tell(&self, plan: Plan) {
        for (first, done, reservations) in plan.finished {
            drop(reservations);
            done(Ok(first));
        }
    }

    /// Bytes that pending records and queued confirmations keep for themselves.
    pub(super) fn debt_bytes(&self) -> u64 {
        let state = self.shared.state.lock();
        let rows = state.index.pending() + state.confirms.len() as u64;
        rows * DEBT_BYTES
    }

    /// What admitted records, confirmations included, may waste at a segment's end.
    pub(super) fn waste_bytes(&self) -> u64 {
        waste_bytes(self.shared.config.segment_bytes)
    }

    fn finish(&mut self, result: &Result<()>) {
        let mut waiting = std::mem::take(&mut self.local);
        waiting.extend(self.shared.end(result));
        let error = result.clone().err().unwrap_or(Error::Stopped);
        for entry in waiting {
            (entry.done)(Err(error.clone()));
        }
        self.lock = None;
    }
}

fn is_awaited(entries: &VecDeque<Entry>) -> bool {
    entries.iter().any(|entry| entry.awaited)
}

impl Drop for Committer {
    fn drop(&mut self) {
        if self.lock.is_some() {
            let reason = "its thread ended before the journal was closed".to_string();
            self.finish(&Err(Error::Internal { part: "journal committer", reason }));
        }
    }
}
