//! The journal stage: answered rows become records, and their callers learn when these are durable.
//!
//! Called on the inference thread, where it only encodes and appends; told of durability on the
//! committer's. Never waits for the disk. A label once inferred is journaled even if its caller has
//! left.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    vec::Drain,
};

use crate::{
    clock::{Clock, Stamps},
    error::Error,
    faults,
    journal::Journal,
    label::{Answer, Durability},
    row::Row,
    row_record,
};

use super::Entry;

type Numbered = dyn Fn(&[Arc<Row>]) + Send + Sync;

/// Turns rows into records and records into promises.
#[derive(Clone)]
pub struct Journaling {
    /// The log.
    pub journal: Journal,
    /// For stamps.
    pub clock: Clock,
    /// The stamps so far.
    pub stamps: Arc<Stamps>,
    /// Gets rows that have just become durable and know their numbers, before their callers do.
    pub numbered: Arc<Numbered>,
}

impl Journaling {
    /// Tells callers for whom memory is enough, and appends a batch's answers as one group.
    pub fn append(&self, entries: Drain<'_, Entry>, answers: Drain<'_, Answer>) {
        let labeled_at_unix_us = self.stamps.note(self.clock.unix_us());
        let mut reservations = Vec::with_capacity(entries.len());
        let mut rows = Vec::with_capacity(entries.len());
        let mut bodies = Vec::with_capacity(entries.len());
        for (entry, answer) in entries.as_slice().iter().zip(answers.as_slice()) {
            let mut body = Vec::new();
            row_record::encode(&entry.row.asked, answer, labeled_at_unix_us, &mut body);
            bodies.push(body);
        }
        for (mut entry, answer) in entries.zip(answers) {
            let row = entry.row.clone();
            reservations.extend(entry.reservation.take());
            row.labeled_at_unix_us.store(labeled_at_unix_us as u64, Ordering::Relaxed);
            row.answered(answer);
            rows.push(row);
        }
        // Not one by one: a caller's thread that is woken by the first finds all of its rows.
        rows.iter().for_each(|row| row.tell());
        let unsettled = Arc::new(Unsettled { rows, this: self.clone(), settled: false.into() });
        faults::point("journal");
        let waiting = unsettled.clone();
        let done = Box::new(move |outcome: Result<u64, Error>| {
            faults::point("settle");
            waiting.settle(outcome);
        });
        let appended = if unsettled.rows.iter().any(|row| row.is_awaited()) {
            self.journal.append(bodies, reservations, done)
        } else {
            self.journal.append_unawaited(bodies, reservations, done)
        };
        if let Err(error) = appended {
            unsettled.settle(Err(error));
        }
    }

    fn settle(&self, rows: &[Arc<Row>], outcome: Result<u64, Error>) {
        let first = match outcome {
            Ok(first) => first,
            Err(error) => return rows.iter().for_each(|row| row.undurable(error.clone())),
        };
        let now_us = self.clock.now_us();
        for (row, number) in rows.iter().zip(first..) {
            row.number.store(number, Ordering::Release);
            row.stamps.journaled_us.store(now_us, Ordering::Relaxed);
        }
        (self.numbered)(rows);
        rows.iter().for_each(|row| row.reached(Durability::Journaled));
    }
}

/// Answered rows whose journaling has not ended. Dropped before it is settled, by a panic of
/// whichever thread has it, it tells their callers.
struct Unsettled {
    rows: Vec<Arc<Row>>,
    this: Journaling,
    settled: AtomicBool,
}

impl Unsettled {
    fn settle(&self, outcome: Result<u64, Error>) {
        self.this.settle(&self.rows, outcome);
        self.settled.store(true, Ordering::Release);
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if !*self.settled.get_mut() {
            let reason = "its thread ended before the label was durable".to_owned();
            self.this.settle(&self.rows, Err(Error::Internal { part: "journal", reason }));
        }
    }
}
