//! Tests of the dedupe window.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    error::Error,
    label::{Answer, Priority, Source},
    row::Asked,
};

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
    assert!(window.remembered.lock().line.places.len() <= 9);
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

fn answer(index: u32) -> Answer {
    Answer {
        index,
        label: "go".into(),
        confidence: 0.5,
        scores: Box::new([0.5, 0.25]),
        model: "kiva-floor".into(),
        version: "1".into(),
        source: Source::Model,
    }
}

/// What an answered row goes through until the store has it.
fn store(window: &Dedupe, row: &Arc<Row>, number: u64) {
    row.number.store(number, Ordering::Release);
    window.numbered(std::slice::from_ref(row));
    let rows = window.confirmed(&[number]);
    rows.iter().for_each(|row| row.reached(Durability::Stored));
    window.settle(&rows);
}

#[test]
fn a_stored_row_is_remembered_whole_as_its_record() {
    let window = Dedupe::new(8, 1_000);
    let first = row(1, 5);
    look(&window, &first, 0);
    first.labeled_at_unix_us.store(77, Ordering::Relaxed);
    first.answered(answer(3));
    store(&window, &first, 40);
    assert_eq!(Arc::strong_count(&first), 1, "the window has let the row go");
    let Seen::Again(again) = look(&window, &row(1, 5), 1) else { panic!("a stored row is known") };
    assert_eq!((again.answer(), again.progress()), (first.answer(), Progress::Stored));
    assert_eq!(again.number.load(Ordering::Acquire), 40);
    assert_eq!(again.labeled_at_unix_us.load(Ordering::Relaxed), 77);
    assert_eq!(again.asked.key, first.asked.key);
    assert!(matches!(look(&window, &row(1, 6), 1), Seen::Conflict));
    assert_eq!((window.counts().replays_total, window.counts().rows), (1, 1));
}

#[test]
fn a_row_confirmed_before_its_number_is_remembered_as_its_record_too() {
    let window = Dedupe::new(4, 1_000);
    let first = row(1, 1);
    look(&window, &first, 0);
    first.answered(answer(0));
    first.number.store(40, Ordering::Release);
    window.confirmed(&[40]);
    window.numbered(std::slice::from_ref(&first));
    assert_eq!(Arc::strong_count(&first), 1);
    assert_eq!(window.get(&first.asked.key).unwrap().answer(), first.answer());
}

#[test]
fn a_row_restored_as_stored_is_remembered_as_its_record() {
    let window = Dedupe::new(4, 1_000);
    let asked = Arc::into_inner(row(1, 1)).unwrap().asked;
    let known = Arc::new(Row::restored(asked, answer(2), Durability::Stored, 9, 5));
    window.restore(known.clone());
    assert_eq!(Arc::strong_count(&known), 1);
    assert_eq!(window.get(&known.asked.key).unwrap().answer(), known.answer());
}

/// The window as a list of all rows that ever entered it, searched from the end.
#[derive(Default)]
struct Listed {
    rows: Vec<(u64, Arc<Row>)>,
    standing: BTreeMap<u64, usize>,
    first: usize,
}

impl Listed {
    fn look(&mut self, row: &Arc<Row>, rows_max: usize, now_us: u64, window_us: u64) -> bool {
        let standing = self.standing.get(&row.asked.key.sequence).map(|at| &self.rows[*at].1);
        if standing.is_some_and(|first| first.failure().is_none()) {
            return false;
        }
        self.standing.insert(row.asked.key.sequence, self.rows.len());
        self.rows.push((now_us, row.clone()));
        let before_us = now_us.saturating_sub(window_us);
        while let Some((since_us, row)) = self.rows.get(self.first) {
            let stands = self.standing.get(&row.asked.key.sequence) == Some(&self.first);
            let old = *since_us < before_us && row.progress() >= Progress::Stored;
            if stands && !old && self.standing.len() <= rows_max {
                break;
            }
            if stands {
                self.standing.remove(&row.asked.key.sequence);
            }
            self.first += 1;
        }
        true
    }

    fn forget(&mut self, row: &Arc<Row>) {
        let sequence = row.asked.key.sequence;
        if self.standing.get(&sequence).is_some_and(|at| Arc::ptr_eq(&self.rows[*at].1, row)) {
            self.standing.remove(&sequence);
        }
    }
}

proptest! {
    #[test]
    fn the_window_remembers_what_a_plain_list_would(
        rows_max in 1..6usize,
        steps in prop::collection::vec((0..4u8, 1..9u64, 0..40u64), 1..120),
    ) {
        let (window, mut listed) = (Dedupe::new(rows_max, 100), Listed::default());
        // A name of a place wraps within the run.
        window.remembered.lock().line.first = u32::MAX - 20;
        let (mut now_us, mut number) = (0, 0);
        let mut open: Vec<Arc<Row>> = vec![];
        for (step, sequence, pause_us) in steps {
            now_us += pause_us;
            if step < 2 {
                let asked = row(sequence, 1);
                let new = matches!(look(&window, &asked, now_us), Seen::New);
                prop_assert_eq!(new, listed.look(&asked, rows_max, now_us, 100));
                if new {
                    open.push(asked);
                }
            } else if !open.is_empty() {
                let ended = open.remove(sequence as usize % open.len());
                if step == 2 {
                    ended.fail(Error::Cancelled);
                    window.forget(&ended);
                    listed.forget(&ended);
                } else {
                    number += 1;
                    ended.begin();
                    ended.answered(answer(number as u32));
                    store(&window, &ended, number);
                }
            }
            for sequence in 1..9 {
                let found = window.get(&row(sequence, 1).asked.key);
                let expected = listed.standing.get(&sequence).map(|at| &listed.rows[*at].1);
                let seen = |row: &Arc<Row>| (row.answer().cloned(), row.progress());
                prop_assert_eq!(found.as_ref().map(seen), expected.map(seen));
            }
            prop_assert_eq!(window.counts().rows, listed.standing.len());
        }
    }
}
