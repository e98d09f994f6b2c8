//! The dedupe window: the part of the cache stage that keeps a retry from being a second label.
//!
//! Bounded in rows and in time. The same key and digest gets the first row again, in flight or
//! done; the same key with another digest is a conflict. Never computes, never waits.
//!
//! A row that is stored never changes again, and is remembered as its record: a third of the bytes.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{BuildHasher as _, RandomState},
    mem,
    sync::{Arc, atomic::Ordering},
};

use hashbrown::{HashTable, hash_table::Entry};
use parking_lot::Mutex;
use prost::Message as _;

use crate::{
    label::{Durability, Key},
    proto::journal::Record,
    row::{Progress, Row},
    row_record::{self, Names},
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
    hasher: RandomState,
    /// Which place stands for a key.
    places: HashTable<u32>,
    line: Line,
    by_number: HashMap<u64, Arc<Row>>,
    last_number: u64,
    early: HashSet<u64>,
    counts: DedupeCounts,
}

/// What was remembered, oldest first.
#[derive(Default)]
struct Line {
    places: VecDeque<Place>,
    /// The name of the first place; the others follow, and wrap.
    first: u32,
}

struct Place {
    since_us: u64,
    held: Held,
}

enum Held {
    Row(Arc<Row>),
    /// A stored row's number, 8 bytes, and its record. Empty: the place stands for no key any more.
    Record(Box<[u8]>),
}

/// Confirmations that may overtake their rows' numbers: more than one batch never does.
const EARLY_MAX: usize = 4_096;
const NUMBER_BYTES: usize = size_of::<u64>();

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
        let hash = remembered.hash(&row.asked.key);
        let seen = remembered.find(hash, &row.asked.key).and_then(|id| remembered.row(id));
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
        remembered.insert(row.clone(), hash, now_us);
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
        let hash = remembered.hash(&row.asked.key);
        remembered.insert(row.clone(), hash, 0);
        remembered.forget(self.rows_max, 0);
        drop(remembered);
        if row.progress() == Progress::Stored {
            self.settle(std::slice::from_ref(&row));
        }
    }

    /// Takes a failed row out, so that a retry is computed.
    pub fn forget(&self, row: &Arc<Row>) {
        let mut remembered = self.remembered.lock();
        if let Some(id) = remembered.place_of(row) {
            remembered.vacate(id);
        }
    }

    /// Notes the journal number of rows, so that a confirmation finds them. One that came before
    /// the committer got here is not lost: its row is stored.
    pub fn numbered(&self, rows: &[Arc<Row>]) {
        let mut remembered = self.remembered.lock();
        let mut stored = Vec::new();
        for row in rows {
            let number = row.number.load(Ordering::Acquire);
            remembered.last_number = remembered.last_number.max(number);
            if remembered.early.remove(&number) {
                row.reached(Durability::Stored);
                stored.push(row.clone());
            } else if remembered.by_number.len() < self.rows_max {
                remembered.by_number.insert(number, row.clone());
            }
        }
        drop(remembered);
        self.settle(&stored);
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

    /// These rows are stored: their records are remembered in their place.
    pub fn settle(&self, rows: &[Arc<Row>]) {
        // Encoded before the lock, and the rows dropped behind it.
        let mut records: Vec<_> = rows.iter().filter_map(|row| Some((row, held(row)?))).collect();
        let mut remembered = self.remembered.lock();
        for (row, record) in &mut records {
            if let Some(id) = remembered.place_of(row) {
                mem::swap(&mut remembered.line.at(id).held, record);
            }
        }
        drop(remembered);
    }

    /// The row of a key, if the window remembers it.
    pub fn get(&self, key: &Key) -> Option<Arc<Row>> {
        let remembered = self.remembered.lock();
        remembered.row(remembered.find(remembered.hash(key), key)?)
    }

    /// Counts at this moment.
    pub fn counts(&self) -> DedupeCounts {
        let remembered = self.remembered.lock();
        DedupeCounts { rows: remembered.places.len(), ..remembered.counts }
    }
}

impl Remembered {
    fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(named(key))
    }

    fn find(&self, hash: u64, key: &Key) -> Option<u32> {
        let is = |id: &u32| self.line.get(*id).key() == Some(named(key));
        self.places.find(hash, is).copied()
    }

    /// The row of a place.
    fn row(&self, id: u32) -> Option<Arc<Row>> {
        match &self.line.get(id).held {
            Held::Row(row) => Some(row.clone()),
            Held::Record(bytes) => restored(bytes),
        }
    }

    /// The place of a row that still stands for its key.
    fn place_of(&self, row: &Arc<Row>) -> Option<u32> {
        let key = &row.asked.key;
        let id = self.find(self.hash(key), key)?;
        matches!(&self.line.get(id).held, Held::Row(held) if Arc::ptr_eq(held, row)).then_some(id)
    }

    /// `hash` is its key's.
    fn insert(&mut self, row: Arc<Row>, hash: u64, since_us: u64) {
        let Self { hasher, places, line, .. } = self;
        let is = |id: &u32| line.get(*id).key() == Some(named(&row.asked.key));
        let replaced = match places.entry(hash, is, |id| line.get(*id).hash(hasher)) {
            Entry::Occupied(mut place) => Some(mem::replace(place.get_mut(), line.next())),
            Entry::Vacant(place) => {
                place.insert(line.next());
                None
            }
        };
        if let Some(id) = replaced {
            line.at(id).held = Held::gone();
        }
        line.push(Place { since_us, held: Held::Row(row) });
    }

    /// The place stands for its key no more.
    fn vacate(&mut self, id: u32) {
        let hash = self.line.get(id).hash(&self.hasher);
        if let Ok(place) = self.places.find_entry(hash, |other| *other == id) {
            place.remove();
        }
        self.line.at(id).held = Held::gone();
    }

    /// Rows leave by age once the store has them, since until then `GetLabel` answers from here; by
    /// number they always leave, since memory is bounded. A refused row left the table at once and
    /// only its place in line is still here: it pushes nobody out.
    fn forget(&mut self, rows_max: usize, before_us: u64) {
        while let Some(place) = self.line.places.front() {
            let old = place.since_us < before_us && place.is_stored();
            if place.stands() && !old && self.places.len() <= rows_max {
                break;
            }
            self.forget_first();
        }
        if self.line.places.len() > 2 * rows_max {
            self.close_up();
        }
    }

    fn forget_first(&mut self) {
        let id = self.line.first;
        if let Held::Row(row) = &self.line.get(id).held {
            self.by_number.remove(&row.number.load(Ordering::Acquire));
        }
        if self.line.get(id).stands() {
            self.vacate(id);
        }
        self.line.pop();
    }

    /// Takes places out of the line that stand for nothing; the others get new names.
    fn close_up(&mut self) {
        let Self { hasher, places, line, .. } = self;
        line.places.retain(Place::stands);
        places.clear();
        for (index, place) in line.places.iter().enumerate() {
            let id = line.first.wrapping_add(index as u32);
            places.insert_unique(place.hash(hasher), id, |id| line.get(*id).hash(hasher));
        }
    }
}

impl Line {
    fn get(&self, id: u32) -> &Place {
        &self.places[id.wrapping_sub(self.first) as usize]
    }

    fn at(&mut self, id: u32) -> &mut Place {
        &mut self.places[id.wrapping_sub(self.first) as usize]
    }

    fn next(&self) -> u32 {
        self.first.wrapping_add(self.places.len() as u32)
    }

    fn push(&mut self, place: Place) {
        if self.places.len() == self.places.capacity() {
            // By a quarter: doubled, half of it would stand empty once the window is full.
            self.places.reserve_exact(64 + self.places.len() / 4);
        }
        self.places.push_back(place);
    }

    fn pop(&mut self) {
        self.places.pop_front();
        self.first = self.first.wrapping_add(1);
    }
}

impl Place {
    fn key(&self) -> Option<(&[u8], u64)> {
        match &self.held {
            Held::Row(row) => Some(named(&row.asked.key)),
            Held::Record(bytes) => row_record::key(bytes.get(NUMBER_BYTES..)?),
        }
    }

    fn hash(&self, hasher: &RandomState) -> u64 {
        self.key().map_or(0, |named| hasher.hash_one(named))
    }

    fn stands(&self) -> bool {
        !matches!(&self.held, Held::Record(bytes) if bytes.is_empty())
    }

    fn is_stored(&self) -> bool {
        match &self.held {
            Held::Row(row) => row.progress() >= Progress::Stored,
            Held::Record(_) => true,
        }
    }
}

impl Held {
    fn gone() -> Self {
        Held::Record(Box::default())
    }
}

/// A key as rows and records have it alike.
fn named(key: &Key) -> (&[u8], u64) {
    (key.robot_id.as_bytes(), key.sequence)
}

fn held(row: &Row) -> Option<Held> {
    let labeled_at_unix_us = row.labeled_at_unix_us.load(Ordering::Relaxed) as i64;
    let mut bytes = Vec::with_capacity(256);
    bytes.extend(row.number.load(Ordering::Acquire).to_le_bytes());
    row_record::encode(&row.asked, row.answer()?, labeled_at_unix_us, &mut bytes);
    Some(Held::Record(bytes.into()))
}

fn restored(bytes: &[u8]) -> Option<Arc<Row>> {
    let (number, body) = bytes.split_first_chunk()?;
    let record = Record::decode(body).ok()?;
    let number = u64::from_le_bytes(*number);
    Some(row_record::row(record, number, Durability::Stored, &mut Names::default()))
}

#[cfg(test)]
mod tests;
