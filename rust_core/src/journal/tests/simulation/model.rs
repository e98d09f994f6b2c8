//! What must be true of each record, as small as it can be said, and the comparison with the
//! journal.
//!
//! Knows nothing of files, groups and segments: numbers, bodies, and what was promised of them.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Confirmations are on disk after so long, if the committer ran and nothing broke.
const CONFIRM_DELAY: Duration = Duration::from_millis(200);

/// What is known of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Appended, and not durable as far as anyone was told: may be there after a crash.
    Appended,
    /// Durable: must be there.
    Durable,
    /// Confirmed at this time: may be there after a crash.
    Confirmed(Duration),
    /// Confirmed, and that is on disk: must not be handed out again.
    Gone,
}

/// A call of `append` whose caller was not told yet.
struct Call {
    first: u64,
    rows: u64,
}

/// What damage between two lives may have done: nothing else may be missing or come back.
#[derive(Debug, Default)]
pub(super) struct Excused {
    pub(super) missing: BTreeSet<u64>,
    pub(super) back: BTreeSet<u64>,
}

#[derive(Default)]
pub(super) struct Model {
    records: BTreeMap<u64, (Fate, Vec<u8>)>,
    calls: BTreeMap<u64, Call>,
    calls_made: u64,
    /// journaled, stored, superseded, dead, unknown: what this life's figures must be.
    counts: [u64; 5],
    taken_to: u64,
    next_number: u64,
    /// No number below was left unseen by everyone, so none below may be given again.
    unused_from: u64,
    pub(super) excused: Excused,
}

impl Model {
    /// An accepted append: its numbers follow the ones before.
    pub(super) fn appended(&mut self, first: u64, bodies: Vec<Vec<u8>>) -> u64 {
        assert_eq!(first, self.next_number, "numbers are consecutive");
        let rows = bodies.len() as u64;
        self.next_number += rows;
        for (number, body) in (first..).zip(bodies) {
            self.records.insert(number, (Fate::Appended, body));
        }
        self.calls.insert(self.calls_made, Call { first, rows });
        self.calls_made += 1;
        self.calls_made - 1
    }

    /// The id that the next accepted append gets.
    pub(super) fn next_call(&self) -> u64 {
        self.calls_made
    }

    /// Everything below is durable, the journal says.
    pub(super) fn durable_to(&mut self, durable_number: u64) {
        let from = self.records.range(..durable_number).rev();
        let news = from.take_while(|(_, (fate, _))| *fate == Fate::Appended);
        let news: Vec<u64> = news.map(|(number, _)| *number).collect();
        for number in news {
            self.records.get_mut(&number).expect("it is there").0 = Fate::Durable;
            self.counts[0] += 1;
            self.unused_from = self.unused_from.max(number + 1);
        }
    }

    /// A caller was told; once, and in the order of the calls if it is good news.
    pub(super) fn told(&mut self, id: u64, result: Result<u64>, terminal: bool) {
        let call = self.calls.remove(&id).expect("each caller is told once");
        match result {
            Ok(first) => {
                assert_eq!(first, call.first, "the caller is told its own number");
                let earlier = self.calls.keys().next().is_none_or(|earliest| *earliest > id);
                assert!(earlier, "an earlier caller still waits");
                for number in first..first + call.rows {
                    let fate = self.records[&number].0;
                    assert_ne!(fate, Fate::Appended, "{number} was acknowledged too early");
                }
            }
            Err(error) => assert!(terminal, "an accepted append was refused: {error}"),
        }
    }

    /// After a terminal failure, or at rest, nobody waits.
    pub(super) fn nobody_waits(&self) {
        assert!(self.calls.is_empty(), "callers that are never told: {:?}", self.calls.keys());
    }

    /// What was taken is exactly what is next: by number, whole, within its bounds.
    pub(super) fn taken(&mut self, taken: &[(u64, Vec<u8>)], rows_max: usize, bytes_max: usize) {
        let mut expected = Vec::new();
        let mut bytes = 0;
        for (number, (fate, body)) in self.records.range(self.taken_to..) {
            let fits = expected.len() < rows_max && bytes + body.len() <= bytes_max;
            if *fate != Fate::Durable {
                continue;
            }
            if !fits && (rows_max == 0 || !expected.is_empty()) {
                break;
            }
            bytes += body.len();
            expected.push((*number, body.clone()));
        }
        let numbers = |rows: &[(u64, Vec<u8>)]| rows.iter().map(|row| row.0).collect::<Vec<_>>();
        assert_eq!(numbers(taken), numbers(&expected), "other records were handed out");
        assert!(taken == expected, "a record was handed out with another body");
        if let Some((number, _)) = taken.last() {
            self.taken_to = number + 1;
        }
    }

    /// Numbers of durable records, ascending.
    pub(super) fn pending(&self) -> Vec<u64> {
        let durable = self.records.iter().filter(|(_, (fate, _))| *fate == Fate::Durable);
        durable.map(|(number, _)| *number).collect()
    }

    pub(super) fn confirmed(&mut self, numbers: &[u64], outcome: Outcome, now: Duration) {
        for number in numbers {
            match self.records.get_mut(number) {
                Some((fate, _)) if *fate == Fate::Durable => {
                    *fate = Fate::Confirmed(now);
                    self.counts[outcome as usize] += 1;
                }
                _ => self.counts[4] += 1,
            }
        }
    }

    /// The committer had nothing more to do at `now`.
    pub(super) fn confirmations_are_durable(&mut self, now: Duration) {
        for (fate, _) in self.records.values_mut() {
            if matches!(*fate, Fate::Confirmed(at) if at + CONFIRM_DELAY <= now) {
                *fate = Fate::Gone;
            }
        }
    }

    /// It was closed in good order: everything is on disk.
    pub(super) fn closed(&mut self) {
        self.nobody_waits();
        for (fate, _) in self.records.values_mut() {
            assert_ne!(*fate, Fate::Appended, "closing left a record behind");
            if matches!(*fate, Fate::Confirmed(_)) {
                *fate = Fate::Gone;
            }
        }
    }

    /// journaled = stored + superseded + dead + pending, each of them as the model has it.
    pub(super) fn accounts(&self, stats: &JournalStats, ended: bool) {
        let [journaled, stored, superseded, dead, unknown] = self.counts;
        let pending = self.pending().len() as u64;
        assert_eq!(
            (stats.journaled_total, stats.pending, stats.unknown_total),
            (journaled, pending, unknown)
        );
        assert_eq!(
            (stats.stored_total, stats.superseded_total, stats.dead_total),
            (stored, superseded, dead)
        );
        assert_eq!(journaled, stored + superseded + dead + pending, "the model itself balances");
        assert_eq!(stats.next_number, self.next_number);
        let waiting = self.records.values().filter(|(fate, _)| *fate == Fate::Appended);
        let waiting: u64 = waiting.map(|(_, body)| body.len() as u64).sum();
        assert!(ended || stats.uncommitted_bytes >= waiting, "{waiting} bytes hold no room");
    }

    /// The next life: compares what it found with what was promised, and goes on from there.
    pub(super) fn reopened(&mut self, found: BTreeMap<u64, Vec<u8>>, recovery: &Recovery) {
        let mut hole = None;
        for (number, (fate, body)) in &self.records {
            match (fate, found.get(number)) {
                (Fate::Durable, None) => {
                    assert!(self.excused.missing.contains(number), "{number} is lost");
                }
                (Fate::Gone, Some(_)) => {
                    assert!(self.excused.back.contains(number), "{number} came back");
                }
                (Fate::Appended, None) => drop(hole.get_or_insert(*number)),
                (Fate::Appended, Some(_)) => assert_eq!(hole, None, "{number} without the first"),
                _ => {}
            }
            if let Some(found) = found.get(number) {
                assert!(found == body, "{number} is another");
            }
        }
        for (number, body) in found.keys().map(|number| (number, &found[number])) {
            let known = self.records.contains_key(number);
            assert!(known, "{number} ({} bytes) was invented", body.len());
        }
        let next_number = recovery.next_number;
        assert!(next_number >= self.unused_from, "numbers restart at {next_number}");
        let after = found.keys().next_back().map_or(1, |number| number + 1);
        assert!(next_number >= after, "{next_number} is in use");
        self.records.retain(|number, (fate, _)| {
            let there = found.contains_key(number);
            *fate = if there { Fate::Durable } else { Fate::Gone };
            there || *number < self.unused_from
        });
        self.calls.clear();
        self.counts = [found.len() as u64, 0, 0, 0, 0];
        self.taken_to = 0;
        self.next_number = next_number;
        self.unused_from = self.unused_from.max(after);
        self.excused = Excused::default();
    }
}
