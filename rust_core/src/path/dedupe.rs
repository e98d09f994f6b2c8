//! The dedupe window: the part of the cache stage that keeps a retry from being a second label.
//!
//! Bounded in rows and in time. The same key and digest gets the first row again, in flight or
//! done; the same key with another digest is a conflict. Never computes, never waits.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use parking_lot::Mutex;

use crate::{
    label::{Durability, Key},
    row::{Progress, Row},
};

/// What the window says about a key.
pub enum Seen {
    /// Nothing, or only a row that failed: the given row now stands for the key.
    New,
    /// The first request's row, joined.
    Again(Arc<Row>),
    /// The key was used for another payload or model.
    Conflict,
}

/// What the window has done since the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct DedupeCounts {
    /// Rows remembered now.
    pub rows: usize,
    /// Retries answered with the first reply.
    pub replays_total: u64,
    /// Retries that joined a row in flight.
    pub joins_total: u64,
    /// Keys used for something else.
    pub conflicts_total: u64,
}

#[derive(Default)]
struct Remembered {
    rows: HashMap<Key, Arc<Row>>,
    order: VecDeque<(u64, Arc<Row>)>,
    by_number: HashMap<u64, Arc<Row>>,
    last_number: u64,
    early: HashSet<u64>,
    counts: DedupeCounts,
}

/// Confirmations that may overtake their rows' numbers: more than one batch never does.
const EARLY_MAX: usize = 4_096;

/// The window.
pub struct Dedupe {
    remembered: Mutex<Remembered>,
    rows_max: usize,
    window_us: u64,
}

impl Dedupe {
    /// An empty window.
    pub fn new(rows_max: usize, window_us: u64) -> Self {
        Self { remembered: Mutex::default(), rows_max, window_us }
    }

    /// Looks the row's key up, and puts the row in where the key is new. A row found is joined by a
    /// caller that waits until `level`.
    pub fn look(&self, row: &Arc<Row>, level: Durability, now_us: u64) -> Seen {
        let mut remembered = self.remembered.lock();
        let seen = remembered.rows.get(&row.asked.key).cloned();
        // A row that failed, or whose record the journal refused, stands for nothing.
        if let Some(first) = seen.filter(|r| r.failure().is_none()) {
            if first.asked.digest != row.asked.digest {
                remembered.counts.conflicts_total += 1;
                return Seen::Conflict;
            }
            first.join(level);
            if first.progress() < Progress::Buffered {
                remembered.counts.joins_total += 1;
            } else {
                remembered.counts.replays_total += 1;
            }
            return Seen::Again(first);
        }
        remembered.insert(row.clone(), now_us);
        remembered.forget(self.rows_max, now_us.saturating_sub(self.window_us));
        Seen::New
    }

    /// A row found here turned out to be another version's than the one asked for.
    pub fn count_conflict(&self) {
        self.remembered.lock().counts.conflicts_total += 1;
    }

    /// Puts a row in that was recovered from the journal.
    pub fn restore(&self, row: Arc<Row>) {
        let mut remembered = self.remembered.lock();
        remembered.insert(row, 0);
        remembered.forget(self.rows_max, 0);
    }

    /// Takes a failed row out, so that a retry is computed.
    pub fn forget(&self, row: &Arc<Row>) {
        let mut remembered = self.remembered.lock();
        if remembered.stands(row) {
            remembered.rows.remove(&row.asked.key);
        }
    }

    /// Notes the journal number of rows, so that a confirmation finds them. One that came before
    /// the committer got here is not lost: its row is stored.
    pub fn numbered(&self, rows: &[Arc<Row>]) {
        let mut remembered = self.remembered.lock();
        for row in rows {
            let number = row.number.load(Ordering::Acquire);
            remembered.last_number = remembered.last_number.max(number);
            if remembered.early.remove(&number) {
                row.reached(Durability::Stored);
            } else if remembered.by_number.len() < self.rows_max {
                remembered.by_number.insert(number, row.clone());
            }
        }
    }

    /// The store has confirmed these numbers, or never will: rows that are still known, taken out.
    pub fn confirmed(&self, numbers: &[u64]) -> Vec<Arc<Row>> {
        let mut remembered = self.remembered.lock();
        let mut rows = Vec::new();
        for number in numbers {
            match remembered.by_number.remove(number) {
                Some(row) => rows.push(row),
                None if *number > remembered.last_number && remembered.early.len() < EARLY_MAX => {
                    remembered.early.insert(*number);
                }
                None => {}
            }
        }
        rows
    }

    /// The row of a key, if the window remembers it.
    pub fn get(&self, key: &Key) -> Option<Arc<Row>> {
        self.remembered.lock().rows.get(key).cloned()
    }

    /// Counts at this moment.
    pub fn counts(&self) -> DedupeCounts {
        let remembered = self.remembered.lock();
        DedupeCounts { rows: remembered.rows.len(), ..remembered.counts }
    }
}

impl Remembered {
    fn insert(&mut self, row: Arc<Row>, now_us: u64) {
        self.rows.insert(row.asked.key.clone(), row.clone());
        self.order.push_back((now_us, row));
    }

    /// Rows leave by age once the store has them, since until then `GetLabel` answers from here; by
    /// number they always leave, since memory is bounded. A refused row left the map at once and
    /// only its place in line is still here: it pushes nobody out.
    fn forget(&mut self, rows_max: usize, before_us: u64) {
        while let Some((since_us, row)) = self.order.front() {
            let old = *since_us < before_us && row.progress() >= Progress::Stored;
            if self.stands(row) && !old && self.rows.len() <= rows_max {
                break;
            }
            self.forget_first();
        }
        if self.order.len() > 2 * rows_max {
            let rows = &self.rows;
            self.order.retain(|(_, row)| stands(rows, row));
        }
    }

    fn forget_first(&mut self) {
        let Some((_, row)) = self.order.pop_front() else { return };
        if self.stands(&row) {
            self.rows.remove(&row.asked.key);
        }
        self.by_number.remove(&row.number.load(Ordering::Acquire));
    }

    fn stands(&self, row: &Arc<Row>) -> bool {
        stands(&self.rows, row)
    }
}

/// Whether the row is the one that its key means.
fn stands(rows: &HashMap<Key, Arc<Row>>, row: &Arc<Row>) -> bool {
    rows.get(&row.asked.key).is_some_and(|r| Arc::ptr_eq(r, row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Error, label::Priority, row::Asked};

    fn row(sequence: u64, digest: u128) -> Arc<Row> {
        let key = Key { robot_id: "r".into(), sequence };
        let asked = Asked {
            key,
            digest,
            priority: Priority::Robot,
            deadline_us: 1,
            captured_at_unix_us: 0,
            sku: "".into(),
        };
        Arc::new(Row::new(asked, Durability::Journaled))
    }

    fn look(window: &Dedupe, row: &Arc<Row>, now_us: u64) -> Seen {
        window.look(row, Durability::Journaled, now_us)
    }

    #[test]
    fn the_same_key_and_payload_joins_the_first_row() {
        let window = Dedupe::new(8, 1_000);
        let first = row(1, 5);
        assert!(matches!(look(&window, &first, 0), Seen::New));
        assert!(matches!(look(&window, &row(1, 5), 1), Seen::Again(r) if Arc::ptr_eq(&r, &first)));
        assert_eq!(window.counts().joins_total, 1);
    }

    #[test]
    fn the_same_key_with_another_payload_is_a_conflict() {
        let window = Dedupe::new(8, 1_000);
        look(&window, &row(1, 5), 0);
        assert!(matches!(look(&window, &row(1, 6), 1), Seen::Conflict));
        assert_eq!(window.counts().conflicts_total, 1);
    }

    #[test]
    fn a_failed_row_gives_its_key_back() {
        let window = Dedupe::new(8, 1_000);
        let first = row(1, 5);
        look(&window, &first, 0);
        first.fail(Error::Cancelled);
        assert!(matches!(look(&window, &row(1, 6), 1), Seen::New));
    }

    #[test]
    fn rows_are_bounded_and_old_ones_stay_until_they_are_stored() {
        let window = Dedupe::new(2, 10);
        let first = row(1, 1);
        look(&window, &first, 0);
        look(&window, &row(2, 2), 100);
        assert!(window.get(&first.asked.key).is_some(), "not stored yet");
        first.reached(Durability::Stored);
        look(&window, &row(3, 3), 101);
        assert!(window.get(&first.asked.key).is_none());
        look(&window, &row(4, 4), 101);
        look(&window, &row(5, 5), 101);
        assert_eq!(window.counts().rows, 2);
    }

    #[test]
    fn a_confirmation_finds_its_row_once() {
        let window = Dedupe::new(8, 10);
        let first = row(1, 1);
        first.number.store(40, Ordering::Release);
        window.numbered(std::slice::from_ref(&first));
        assert_eq!(window.confirmed(&[39, 40]).len(), 1);
        assert!(window.confirmed(&[40]).is_empty());
    }

    #[test]
    fn refused_rows_push_nobody_out() {
        let window = Dedupe::new(4, 1_000);
        let kept = row(1, 1);
        look(&window, &kept, 0);
        for sequence in 2..1_000 {
            let refused = row(sequence, 1);
            look(&window, &refused, 1);
            refused.fail(Error::Cancelled);
            window.forget(&refused);
        }
        assert!(window.get(&kept.asked.key).is_some());
        assert!(window.remembered.lock().order.len() <= 9);
    }

    #[test]
    fn a_record_that_the_journal_refused_can_be_tried_again() {
        let window = Dedupe::new(4, 1_000);
        let first = row(1, 1);
        look(&window, &first, 0);
        first.undurable(Error::Stopped);
        assert!(matches!(look(&window, &row(1, 1), 1), Seen::New));
    }

    #[test]
    fn a_confirmation_before_the_number_is_not_lost() {
        let window = Dedupe::new(4, 1_000);
        let first = row(1, 1);
        first.number.store(40, Ordering::Release);
        assert!(window.confirmed(&[40]).is_empty());
        window.numbered(std::slice::from_ref(&first));
        assert_eq!(first.progress(), Progress::Stored);
    }
}
