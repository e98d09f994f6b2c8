//! Which records are pending, and in which segment each stands.
//!
//! One bit a number and one entry a run of numbers, so that memory does not follow the backlog's
//! bytes. Pure: no file, no clock. Sizes of single records are not kept: live bytes are the
//! segment's mean record times its live records.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::format::Place;

const CHUNK_NUMBERS: u64 = 4096;
const WORDS: usize = (CHUNK_NUMBERS / 64) as usize;

/// What is known of one segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentUse {
    /// Records written to it, copies included.
    pub rows: u64,
    /// Those of them that are pending and stand nowhere later.
    pub live_rows: u64,
    /// Bytes of those records with their frames.
    pub record_bytes: u64,
    /// Bytes of all frames.
    pub frame_bytes: u64,
}

impl SegmentUse {
    /// Bytes of the live records, by the mean.
    pub fn live_bytes(&self) -> u64 {
        if self.rows == 0 {
            return 0;
        }
        let live = u128::from(self.record_bytes) * u128::from(self.live_rows);
        (live / u128::from(self.rows)) as u64
    }

    /// Bytes that no copy would carry on.
    pub fn dead_bytes(&self) -> u64 {
        self.frame_bytes.saturating_sub(self.live_bytes())
    }
}

/// A run of numbers whose pending records all stand in one segment, ascending from `place` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first number of the run.
    pub first: u64,
    /// The last number of the run.
    pub last: u64,
    /// The segment, and the group in it where the run begins.
    pub place: Place,
}

/// The pending records.
#[derive(Debug, Default)]
pub struct Index {
    chunks: BTreeMap<u64, Box<[u64; WORDS]>>,
    runs: BTreeMap<u64, Run>,
    segments: BTreeMap<u64, SegmentUse>,
    pending: u64,
}

impl Index {
    /// Pending records.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// The use of a segment.
    pub fn segment(&self, segment: u64) -> SegmentUse {
        self.segments.get(&segment).copied().unwrap_or_default()
    }

    /// The uses of all segments, oldest first.
    pub fn segments(&self) -> impl Iterator<Item = (u64, &SegmentUse)> {
        self.segments.iter().map(|(segment, used)| (*segment, used))
    }

    /// Whether a number is pending.
    pub fn is_pending(&self, number: u64) -> bool {
        let bit = number % CHUNK_NUMBERS;
        self.chunks
            .get(&(number / CHUNK_NUMBERS))
            .is_some_and(|chunk| chunk[(bit / 64) as usize] & (1 << (bit % 64)) != 0)
    }

    /// The first pending number from `number` on.
    pub fn next_pending(&self, number: u64) -> Option<u64> {
        let first_chunk = number / CHUNK_NUMBERS;
        for (id, chunk) in self.chunks.range(first_chunk..) {
            let from = if *id == first_chunk { number % CHUNK_NUMBERS } else { 0 };
            for word in (from / 64) as usize..WORDS {
                let mut bits = chunk[word];
                if word as u64 == from / 64 {
                    bits &= u64::MAX << (from % 64);
                }
                if bits != 0 {
                    let bit = word as u64 * 64 + u64::from(bits.trailing_zeros());
                    return Some(id * CHUNK_NUMBERS + bit);
                }
            }
        }
        None
    }

    /// The run that a number is part of.
    pub fn run_of(&self, number: u64) -> Option<Run> {
        let run = self.runs.range(..=number).next_back()?.1;
        (number <= run.last).then_some(*run)
    }

    /// Adds bytes of frames that are no records.
    pub fn used(&mut self, segment: u64, frame_bytes: u64) {
        self.segments.entry(segment).or_default().frame_bytes += frame_bytes;
    }

    /// Adds new records, all pending. Their group is the newest of its segment.
    pub fn insert(&mut self, numbers: RangeInclusive<u64>, place: Place, bytes: u64) {
        let (first, last) = (*numbers.start(), *numbers.end());
        for number in numbers {
            self.set(number);
        }
        let used = self.segments.entry(place.segment).or_default();
        used.rows += last - first + 1;
        used.live_rows += last - first + 1;
        used.record_bytes += bytes;
        used.frame_bytes += bytes;
        self.place_run(first, last, place);
    }

    /// Copies stand at `place` now: those still pending are alive there and dead where they were.
    /// A number that is unknown becomes pending when `revive` is set (at recovery).
    pub fn moved(&mut self, numbers: &[u64], place: Place, bytes: u64, revive: bool) {
        // They ascend, but in a file that somebody made up.
        let mut sorted = Vec::new();
        let numbers = if numbers.is_sorted_by(|one, next| one < next) {
            numbers
        } else {
            sorted.extend_from_slice(numbers);
            sorted.sort_unstable();
            sorted.dedup();
            &sorted
        };
        let used = self.segments.entry(place.segment).or_default();
        used.rows += numbers.len() as u64;
        used.record_bytes += bytes;
        used.frame_bytes += bytes;
        let mut open: Option<(u64, u64)> = None;
        for &number in numbers {
            if self.is_pending(number) {
                self.leave(number);
            } else if revive {
                self.set(number);
            } else {
                continue;
            }
            self.segments.entry(place.segment).or_default().live_rows += 1;
            open = match open {
                Some((first, last)) if self.next_pending(last + 1) == Some(number) => {
                    Some((first, number))
                }
                Some((first, last)) => {
                    self.place_run(first, last, place);
                    Some((number, number))
                }
                None => Some((number, number)),
            };
        }
        if let Some((first, last)) = open {
            self.place_run(first, last, place);
        }
    }

    /// Ends a pending record; false if the number is not pending.
    pub fn confirm(&mut self, number: u64) -> bool {
        if !self.is_pending(number) {
            return false;
        }
        self.leave(number);
        let id = number / CHUNK_NUMBERS;
        let bit = number % CHUNK_NUMBERS;
        if let Some(chunk) = self.chunks.get_mut(&id) {
            chunk[(bit / 64) as usize] &= !(1 << (bit % 64));
            if chunk.iter().all(|word| *word == 0) {
                self.chunks.remove(&id);
            }
        }
        self.pending -= 1;
        true
    }

    /// Forgets a segment without live records.
    pub fn forget_segment(&mut self, segment: u64) {
        let used = self.segments.remove(&segment).unwrap_or_default();
        assert!(used.live_rows == 0, "a deleted segment holds nothing live");
        self.runs.retain(|_, run| run.place.segment != segment);
    }

    /// The pending numbers that stand in a segment, ascending within each run.
    pub fn pending_in(&self, segment: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for (first, run) in self.runs.iter().filter(|(_, run)| run.place.segment == segment) {
            let mut at = *first;
            while let Some(number) = self.next_pending(at).filter(|number| *number <= run.last) {
                numbers.push(number);
                at = number + 1;
            }
        }
        numbers
    }

    fn leave(&mut self, number: u64) {
        let run = self.run_of(number).expect("a pending record stands somewhere");
        let used = self.segments.get_mut(&run.place.segment).expect("its segment is known");
        used.live_rows -= 1;
    }

    fn set(&mut self, number: u64) {
        let bit = number % CHUNK_NUMBERS;
        let chunk =
            self.chunks.entry(number / CHUNK_NUMBERS).or_insert_with(|| Box::new([0; WORDS]));
        let word = &mut chunk[(bit / 64) as usize];
        assert!(*word & (1 << (bit % 64)) == 0, "a number becomes pending once");
        *word |= 1 << (bit % 64);
        self.pending += 1;
    }

    /// Gives the numbers `first..=last` to a place; no other record in between is pending.
    fn place_run(&mut self, first: u64, last: u64, place: Place) {
        self.carve(first, last);
        let before = self.runs.range(..first).next_back().map(|(start, run)| (*start, *run));
        if let Some((start, run)) = before {
            // The older run's records stand before this group, so one run can hold both.
            let gap = self.next_pending(run.last + 1).is_none_or(|number| number >= first);
            if run.place.segment == place.segment && run.place <= place && gap {
                self.runs.insert(start, Run { last, ..run });
                return;
            }
        }
        self.runs.insert(first, Run { first, last, place });
    }

    /// Takes the numbers `first..=last` out of the runs that hold them.
    fn carve(&mut self, first: u64, last: u64) {
        let before = self.runs.range(..first).next_back().map(|(start, run)| (*start, *run));
        if let Some((start, run)) = before
            && run.last >= first
        {
            self.runs.insert(start, Run { last: first - 1, ..run });
            if run.last > last {
                self.runs.insert(last + 1, Run { first: last + 1, ..run });
                return;
            }
        }
        while let Some((start, run)) = self.runs.range(first..=last).next().map(|(s, r)| (*s, *r)) {
            self.runs.remove(&start);
            if run.last > last {
                self.runs.insert(last + 1, Run { first: last + 1, ..run });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u64, offset: u64) -> Place {
        Place { segment, offset }
    }

    #[test]
    fn consecutive_groups_of_a_segment_make_one_run() {
        let mut index = Index::default();
        index.insert(1..=10, place(1, 4096), 100);
        index.insert(11..=20, place(1, 5000), 100);
        assert_eq!(index.run_of(15), Some(Run { first: 1, last: 20, place: place(1, 4096) }));
        assert_eq!(index.runs.len(), 1);
        assert_eq!(index.segment(1).live_rows, 20);
    }

    #[test]
    fn confirming_twice_counts_once() {
        let mut index = Index::default();
        index.insert(1..=2, place(1, 4096), 20);
        assert!(index.confirm(1));
        assert!(!index.confirm(1));
        assert!(!index.confirm(9));
        assert_eq!((index.pending(), index.next_pending(0)), (1, Some(2)));
        assert_eq!(index.segment(1).live_bytes(), 10);
    }

    #[test]
    fn copies_leave_the_old_segment_and_those_confirmed_meanwhile_stay_dead() {
        let mut index = Index::default();
        index.insert(1..=9000, place(1, 4096), 9000);
        for number in 1..=9000 {
            if ![5, 7, 8999].contains(&number) {
                index.confirm(number);
            }
        }
        index.insert(9001..=9002, place(2, 4096), 2);
        index.confirm(7);
        index.moved(&[5, 7, 8999], place(2, 5000), 3, false);
        assert_eq!(index.segment(1).live_rows, 0);
        assert_eq!(index.segment(2).live_rows, 4);
        assert_eq!(index.run_of(5).unwrap().place, place(2, 5000));
        assert_eq!(index.run_of(9001).unwrap().place, place(2, 4096));
        index.forget_segment(1);
        assert_eq!(index.next_pending(6), Some(8999));
        assert_eq!(index.pending_in(2), [5, 8999, 9001, 9002]);
    }

    #[test]
    fn a_run_in_the_middle_of_another_splits_it() {
        let mut index = Index::default();
        index.insert(1..=9, place(1, 4096), 9);
        index.moved(&[4, 5], place(2, 4096), 2, false);
        assert_eq!(index.run_of(3).unwrap(), Run { first: 1, last: 3, place: place(1, 4096) });
        assert_eq!(index.run_of(5).unwrap(), Run { first: 4, last: 5, place: place(2, 4096) });
        assert_eq!(index.run_of(6).unwrap(), Run { first: 6, last: 9, place: place(1, 4096) });
        assert_eq!(index.segment(1).live_rows, 7);
    }
}
