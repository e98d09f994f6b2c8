//! Batching: which waiting rows run next. Work-conserving: what queued during the last run is the
//! next batch, up to the bound; it never waits on purpose unless `delay_us_max` says so.
//!
//! Robots first, from a queue of their own; earliest deadline first among rows that can still
//! finish; cancelled rows have left, expired ones leave here uncomputed. `Waiting` is a pure
//! function of its entries and the time; `Queue` adds the lock and the wake-up.

use std::{
    collections::BTreeMap,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use parking_lot::{Condvar, Mutex};

use crate::{
    clock::Clock, config::PathConfig, error::Error, faults, label::Priority,
    limits::BATCH_ROWS_MAX, row::Row, wakes,
};

use super::{Batches, Entry, Formed};

/// Bounds of one version's queue.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// Robots' rows.
    pub queue_rows_max: usize,
    /// Bulk rows.
    pub bulk_queue_rows_max: usize,
    /// Rows of a run.
    pub batch_rows_max: usize,
    /// Cost of a bulk run.
    pub bulk_run_us_max: u64,
    /// Waiting for a fuller batch.
    pub delay_us_max: u64,
}

impl From<&PathConfig> for BatchLimits {
    fn from(path: &PathConfig) -> Self {
        Self {
            queue_rows_max: path.queue_rows_max,
            bulk_queue_rows_max: path.bulk_queue_rows_max,
            batch_rows_max: path.batch_rows_max,
            bulk_run_us_max: path.bulk_run_us_max,
            delay_us_max: path.delay_us_max,
        }
    }
}

/// What a version's queues have done since the start, over all its loads: a counter never falls.
#[derive(Debug, Clone)]
pub struct BatchTotals {
    /// Batches formed.
    pub batches_total: u64,
    /// Of these, bulk batches.
    pub bulk_batches_total: u64,
    /// Rows in them.
    pub rows_total: u64,
    /// Batches by their exact number of rows.
    pub batch_rows: Histogram<u64>,
}

impl Default for BatchTotals {
    fn default() -> Self {
        let batch_rows = match Histogram::new_with_max(BATCH_ROWS_MAX, 4) {
            Ok(histogram) => histogram,
            Err(error) => unreachable!("constant bounds are valid: {error}"),
        };
        Self { batches_total: 0, bulk_batches_total: 0, rows_total: 0, batch_rows }
    }
}

impl BatchTotals {
    fn count(&mut self, rows: usize, bulk: bool) {
        self.batches_total += 1;
        self.bulk_batches_total += u64::from(bulk);
        self.rows_total += rows as u64;
        self.batch_rows.saturating_record(rows as u64);
    }
}

/// Measured cost of a run: a moving average of the whole, and of it per row.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunCost {
    run_us: f64,
    row_us: f64,
}

impl RunCost {
    /// Takes a measured run in. A stall of the machine (far above the average) counts as a little
    /// more than the average, so that one does not make every waiting row look hopeless.
    pub fn observe(&mut self, rows: usize, us: u64) {
        let capped = |old: f64, new: f64| if old > 0.0 { new.min(old * 4.0) } else { new };
        let run = capped(self.run_us, us as f64);
        let row = capped(self.row_us, us as f64 / rows.max(1) as f64);
        let blend = |old: f64, new: f64| if old > 0.0 { old * 0.9 + new * 0.1 } else { new };
        self.run_us = blend(self.run_us, run);
        self.row_us = blend(self.row_us, row);
    }

    /// What the next run probably takes.
    pub fn run_us(&self) -> u64 {
        self.run_us as u64
    }

    /// Rows that fit `budget_us`, at least 1; 1 before anything was measured.
    fn rows_within(&self, budget_us: u64) -> usize {
        if self.row_us > 0.0 { (budget_us as f64 / self.row_us).max(1.0) as usize } else { 1 }
    }
}

/// Where a row stands in its queue: its deadline, and the order in which rows came.
pub type Place = (u64, u64);

#[derive(Default)]
struct Waiting {
    robots: BTreeMap<Place, Entry>,
    bulk: BTreeMap<Place, Entry>,
    next_id: u64,
    closed: bool,
    cost: RunCost,
}

impl Waiting {
    fn side(&mut self, priority: Priority) -> &mut BTreeMap<Place, Entry> {
        match priority {
            Priority::Robot => &mut self.robots,
            Priority::Bulk => &mut self.bulk,
        }
    }

    fn form(&mut self, now_us: u64, limits: &BatchLimits, formed: &mut Formed) {
        expire(&mut self.robots, now_us, &mut formed.expired);
        expire(&mut self.bulk, now_us, &mut formed.expired);
        let finish_us = now_us + self.cost.run_us();
        if !self.robots.is_empty() {
            take(&mut self.robots, finish_us, limits.batch_rows_max, &mut formed.rows);
        }
        // Robots' rows may all have been withdrawn since they queued.
        formed.bulk = formed.rows.is_empty() && !self.bulk.is_empty();
        if formed.bulk {
            let rows_max = limits.batch_rows_max.min(self.cost.rows_within(limits.bulk_run_us_max));
            take(&mut self.bulk, finish_us, rows_max, &mut formed.rows);
        }
    }
}

fn expire(side: &mut BTreeMap<Place, Entry>, now_us: u64, expired: &mut Vec<Entry>) {
    while let Some(first) = side.first_entry() {
        if first.key().0 > now_us {
            return;
        }
        expired.push(first.remove());
    }
}

/// Earliest deadline first among rows that can still finish; the others only fill places left over,
/// since running them first would make more rows late.
fn take(side: &mut BTreeMap<Place, Entry>, finish_us: u64, rows_max: usize, rows: &mut Vec<Entry>) {
    let mut push = |entry: Entry| {
        if entry.row.begin() {
            rows.push(entry);
        }
        rows.len()
    };
    let all_hopeful = side.first_key_value().is_none_or(|(place, _)| place.0 >= finish_us);
    let mut hopeless = BTreeMap::new();
    if !all_hopeful {
        let hopeful = side.split_off(&(finish_us, 0));
        hopeless = mem::replace(side, hopeful);
    }
    let mut taken = 0;
    while taken < rows_max {
        match side.pop_first().or_else(|| hopeless.pop_first()) {
            Some((_, entry)) => taken = push(entry),
            None => break,
        }
    }
    side.append(&mut hopeless);
}

/// The waiting rows of one model version: filled by the transport, emptied by its inference thread.
pub struct Queue {
    waiting: Mutex<Waiting>,
    ready: Arc<Condvar>,
    limits: BatchLimits,
    totals: Arc<Mutex<BatchTotals>>,
    clock: Clock,
}

impl Queue {
    /// An empty queue that counts on in `totals`.
    pub fn new(limits: BatchLimits, totals: Arc<Mutex<BatchTotals>>, clock: Clock) -> Self {
        Self { waiting: Mutex::default(), ready: Arc::default(), limits, totals, clock }
    }

    /// Puts a row in line; returns its place, by which a cancelled row leaves.
    ///
    /// Errors: `Overloaded` with the time the queue needs to empty; `Stopped` after `close`, when
    /// the entry is given back so that the caller can take it to the version that serves now.
    pub fn push(&self, entry: Entry) -> Result<Place, Box<(Error, Entry)>> {
        let (priority, deadline_us) = (entry.row.asked.priority, entry.row.asked.deadline_us);
        let mut waiting = self.waiting.lock();
        faults::point("queue");
        if waiting.closed {
            return Err(Box::new((Error::Stopped, entry)));
        }
        let (what, bound) = match priority {
            Priority::Robot => ("robot queue", self.limits.queue_rows_max),
            Priority::Bulk => ("bulk queue", self.limits.bulk_queue_rows_max),
        };
        let row_us = waiting.cost.row_us;
        let side = waiting.side(priority);
        if side.len() >= bound {
            let wait = Duration::from_micros((side.len() as f64 * row_us) as u64);
            let retry_after = wait.max(Duration::from_millis(5));
            let error = Error::Overloaded { what, bound: format!("{bound} rows"), retry_after };
            return Err(Box::new((error, entry)));
        }
        let id = waiting.next_id;
        waiting.next_id += 1;
        waiting.side(priority).insert((deadline_us, id), entry);
        drop(waiting);
        wakes::row(&self.ready);
        Ok((deadline_us, id))
    }

    /// Takes a cancelled or expired row out; it is dropped outside of the lock.
    pub fn remove(&self, priority: Priority, place: Place) {
        let entry = self.waiting.lock().side(priority).remove(&place);
        drop(entry);
    }

    /// The same for a row whose place only its first caller knows: one that was joined.
    pub fn remove_row(&self, row: &Arc<Row>) {
        let deadline_us = row.asked.deadline_us;
        let mut waiting = self.waiting.lock();
        let side = waiting.side(row.asked.priority);
        let mut places = side.range((deadline_us, 0)..=(deadline_us, u64::MAX));
        let place = places.find(|(_, entry)| Arc::ptr_eq(&entry.row, row)).map(|(place, _)| *place);
        let entry = place.and_then(|place| side.remove(&place));
        drop(waiting);
        drop(entry);
    }

    /// Takes no more rows; those inside are still served.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.ready.notify_all();
    }

    /// Its thread is gone: takes no more rows, and fails those inside.
    pub fn abandon(&self) {
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        let left = (mem::take(&mut waiting.robots), mem::take(&mut waiting.bulk));
        drop(waiting);
        drop(left);
    }

    /// Robots' and bulk rows that wait now.
    pub fn waiting_rows(&self) -> (usize, usize) {
        let waiting = self.waiting.lock();
        (waiting.robots.len(), waiting.bulk.len())
    }

    fn linger(&self, waiting: &mut parking_lot::MutexGuard<'_, Waiting>) {
        if self.limits.delay_us_max == 0 {
            return;
        }
        let until = Instant::now() + Duration::from_micros(self.limits.delay_us_max);
        let full = |w: &Waiting| w.robots.len() + w.bulk.len() >= self.limits.batch_rows_max;
        while !waiting.closed && !full(waiting) {
            if self.ready.wait_until(waiting, until).timed_out() {
                return;
            }
        }
    }
}

impl Batches for Queue {
    fn next(&self, formed: &mut Formed) -> bool {
        formed.clear();
        let mut waiting = self.waiting.lock();
        loop {
            if !(waiting.robots.is_empty() && waiting.bulk.is_empty()) {
                faults::point("batch");
            }
            waiting.form(self.clock.now_us(), &self.limits, formed);
            if !formed.rows.is_empty() {
                self.totals.lock().count(formed.rows.len(), formed.bulk);
            }
            if !formed.rows.is_empty() || !formed.expired.is_empty() {
                return true;
            }
            if waiting.closed {
                return false;
            }
            self.ready.wait(&mut waiting);
            self.linger(&mut waiting);
        }
    }

    fn ran(&self, rows: usize, us: u64) {
        self.waiting.lock().cost.observe(rows, us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        label::{Durability, Key},
        row::Asked,
    };

    const LIMITS: BatchLimits = BatchLimits {
        queue_rows_max: 4,
        bulk_queue_rows_max: 8,
        batch_rows_max: 3,
        bulk_run_us_max: 1_000,
        delay_us_max: 0,
    };

    fn entry(sequence: u64, priority: Priority, deadline_us: u64) -> Entry {
        let key = Key { robot_id: "r".into(), sequence };
        let asked =
            Asked { key, digest: 0, priority, deadline_us, captured_at_unix_us: 0, sku: "".into() };
        let row = Arc::new(Row::new(asked, Durability::Journaled));
        Entry { row, values: vec![], reservation: None }
    }

    fn sequences(rows: &[Entry]) -> Vec<u64> {
        rows.iter().map(|e| e.row.asked.key.sequence).collect()
    }

    fn formed(waiting: &mut Waiting, now_us: u64) -> Formed {
        let mut formed = Formed::default();
        waiting.form(now_us, &LIMITS, &mut formed);
        formed
    }

    fn queue(entries: impl IntoIterator<Item = Entry>) -> Queue {
        let queue = Queue::new(LIMITS, Arc::default(), Clock::start());
        for entry in entries {
            assert!(queue.push(entry).is_ok());
        }
        queue
    }

    #[test]
    fn takes_robots_before_bulk_and_the_earliest_deadline_first() {
        let queue = queue([
            entry(1, Priority::Bulk, 100),
            entry(2, Priority::Robot, 900),
            entry(3, Priority::Robot, 500),
        ]);
        let mut waiting = queue.waiting.lock();
        let first = formed(&mut waiting, 0);
        assert_eq!((sequences(&first.rows), first.bulk), (vec![3, 2], false));
        let second = formed(&mut waiting, 0);
        assert_eq!((sequences(&second.rows), second.bulk), (vec![1], true));
    }

    #[test]
    fn a_row_past_its_deadline_leaves_uncomputed() {
        let queue = queue([entry(1, Priority::Robot, 10), entry(2, Priority::Robot, 11)]);
        let late = formed(&mut queue.waiting.lock(), 10);
        assert_eq!((sequences(&late.expired), sequences(&late.rows)), (vec![1], vec![2]));
    }

    #[test]
    fn rows_that_cannot_finish_only_fill_places_left_over() {
        let deadlines = [(1, 50), (2, 300), (3, 400), (4, 500)];
        let queue = queue(deadlines.map(|(s, d)| entry(s, Priority::Robot, d)));
        let mut waiting = queue.waiting.lock();
        waiting.cost.observe(1, 200);
        assert_eq!(sequences(&formed(&mut waiting, 0).rows), vec![2, 3, 4]);
        assert_eq!(sequences(&formed(&mut waiting, 0).rows), vec![1]);
    }

    #[test]
    fn a_bulk_batch_is_cut_to_the_cost_that_a_robot_may_wait_for() {
        let queue = queue((1..=3).map(|s| entry(s, Priority::Bulk, 100_000)));
        let mut waiting = queue.waiting.lock();
        waiting.cost.observe(1, 600);
        assert_eq!(formed(&mut waiting, 0).rows.len(), 1);
    }

    #[test]
    fn a_bulk_batch_whose_cost_nobody_knows_is_one_row() {
        let queue = queue((1..=3).map(|s| entry(s, Priority::Bulk, 100_000)));
        let mut waiting = queue.waiting.lock();
        assert_eq!(formed(&mut waiting, 0).rows.len(), 1);
        waiting.cost.observe(1, 100);
        assert_eq!(formed(&mut waiting, 0).rows.len(), 2);
    }

    #[test]
    fn a_joined_row_that_all_leave_frees_its_place_and_no_other() {
        let queue = queue((1..=3).map(|s| entry(s, Priority::Robot, 100)));
        let rows: Vec<_> =
            queue.waiting.lock().robots.values().map(|entry| entry.row.clone()).collect();
        queue.remove_row(&rows[1]);
        queue.remove_row(&rows[1]);
        assert_eq!(sequences(&formed(&mut queue.waiting.lock(), 0).rows), vec![1, 3]);
    }

    #[test]
    fn a_cancelled_row_is_not_computed_and_frees_its_place() {
        let queue = Queue::new(LIMITS, Arc::default(), Clock::start());
        let first = entry(1, Priority::Robot, 100);
        let row = first.row.clone();
        let place = queue.push(first).ok().unwrap();
        assert!(row.leave());
        queue.remove(Priority::Robot, place);
        assert_eq!(queue.waiting_rows().0, 0);
        assert!(formed(&mut queue.waiting.lock(), 0).rows.is_empty());
    }

    #[test]
    fn withdrawn_robots_do_not_hold_bulk_up() {
        let queue = queue([entry(1, Priority::Robot, 100), entry(2, Priority::Bulk, 100)]);
        let mut waiting = queue.waiting.lock();
        let row = waiting.robots.values().next().unwrap().row.clone();
        assert!(row.leave());
        assert_eq!(sequences(&formed(&mut waiting, 0).rows), vec![2]);
    }

    #[test]
    fn a_full_queue_refuses_with_a_time_to_wait_and_bulk_does_not_fill_the_robots_queue() {
        let queue = queue((1..=8).map(|s| entry(s, Priority::Bulk, 100)));
        let refusal = queue.push(entry(9, Priority::Bulk, 100)).err().unwrap();
        let Error::Overloaded { what, retry_after, .. } = refusal.0 else {
            panic!("{}", refusal.0);
        };
        assert_eq!(what, "bulk queue");
        assert!(retry_after >= Duration::from_millis(5));
        assert!(queue.push(entry(10, Priority::Robot, 100)).is_ok());
    }

    #[test]
    fn a_closed_queue_serves_what_it_has_and_takes_no_more() {
        let queue = queue([entry(1, Priority::Robot, u64::MAX)]);
        queue.close();
        let refusal = queue.push(entry(2, Priority::Robot, 100)).err().unwrap();
        assert_eq!(refusal.0, Error::Stopped);
        let mut formed = Formed::default();
        assert!(queue.next(&mut formed));
        assert_eq!(formed.rows.len(), 1);
        assert!(!queue.next(&mut formed));
        assert!(formed.rows.is_empty());
    }

    #[test]
    fn a_dropped_entry_fails_its_callers() {
        let dropped = entry(1, Priority::Robot, 100);
        let row = dropped.row.clone();
        drop(dropped);
        assert!(matches!(row.failure(), Some(Error::Internal { .. })));
    }

    #[test]
    fn one_stall_does_not_make_waiting_rows_look_hopeless() {
        let mut cost = RunCost::default();
        cost.observe(1, 20);
        cost.observe(1, 37_000);
        assert!(cost.run_us() < 40, "{}", cost.run_us());
    }
}
