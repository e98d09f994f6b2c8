//! Since when records are pending: marks of time by number, and the bound on the oldest one's age.
//!
//! An age counts from when a record became durable, or from the start of the process where that
//! was before; on the monotonic clock. It may be told too old by a share of what the marks span,
//! never too young. Admission reads one atomic and the clock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::admission::Share;
use super::files::Clock;
use crate::error::{Error, Result};

const MARKS_MAX: usize = 1024;
const STEP_MIN: Duration = Duration::from_millis(20);
/// Marks are no closer than this part of what they span, so that a day needs no more than an hour.
const STEPS_A_SPAN: u32 = 512;
const RETRY_AGE: Duration = Duration::from_secs(1);
/// Nothing is pending.
const NONE: u64 = u64::MAX;

/// When numbers became durable: ascending, few.
pub(super) struct Marks {
    marks: VecDeque<(u64, Duration)>,
    oldest_at_us: Arc<AtomicU64>,
}

/// The bound, as admission asks it.
pub(super) struct AgeBound {
    age_max: Option<Duration>,
    oldest_at_us: Arc<AtomicU64>,
    refused: AtomicU64,
}

/// Both sides of it; 0 is no bound. All that is pending now counts from `now`.
pub(super) fn ages(age_ms_max: u64, oldest: Option<u64>, now: Duration) -> (Marks, AgeBound) {
    let oldest_at_us = Arc::new(AtomicU64::new(NONE));
    let marks = VecDeque::from([(0, now)]);
    let marks = Marks { marks, oldest_at_us: Arc::clone(&oldest_at_us) };
    marks.tell(oldest);
    let age_max = (age_ms_max > 0).then(|| Duration::from_millis(age_ms_max));
    (marks, AgeBound { age_max, oldest_at_us, refused: AtomicU64::new(0) })
}

impl Marks {
    /// Forgets all: nothing is pending, so the next record's time is exact.
    pub(super) fn clear(&mut self) {
        self.marks.clear();
    }

    /// Numbers from `first` on became durable; `oldest` is the first pending one.
    pub(super) fn note(&mut self, first: u64, oldest: Option<u64>, now: Duration) {
        let oldest_or_first = oldest.unwrap_or(first);
        while self.marks.len() > 1 && self.marks[1].0 <= oldest_or_first {
            self.marks.pop_front();
        }
        if let (Some((_, begin)), Some((_, last))) = (self.marks.front(), self.marks.back()) {
            let step = STEP_MIN.max(now.saturating_sub(*begin) / STEPS_A_SPAN);
            if now.saturating_sub(*last) < step {
                return;
            }
        }
        if self.marks.len() >= MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.marks.push_back((first, now));
        self.tell(oldest);
    }

    /// Tells admission which record is the first pending one.
    pub(super) fn tell(&self, oldest: Option<u64>) {
        let at = oldest.and_then(|number| self.at(number));
        let at_us = at.map_or(NONE, |at| at.as_micros() as u64);
        self.oldest_at_us.store(at_us, Ordering::Release);
    }

    /// When a number became durable.
    pub(super) fn at(&self, number: u64) -> Option<Duration> {
        let after = self.marks.partition_point(|(first, _)| *first <= number);
        after.checked_sub(1).map(|index| self.marks[index].1)
    }
}

impl AgeBound {
    /// Refuses new records while the oldest is too old; those that may wait from 80 % on.
    pub(super) fn check(&self, share: Share, clock: &dyn Clock) -> Result<()> {
        let Some(age_max) = self.age_max else { return Ok(()) };
        let at_us = self.oldest_at_us.load(Ordering::Acquire);
        if at_us == NONE {
            return Ok(());
        }
        let age = clock.now().saturating_sub(Duration::from_micros(at_us));
        let (bound, of) = match share {
            Share::All => (age_max, ""),
            Share::Spare => (age_max / 5 * 4, "80 % of "),
        };
        if age <= bound {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        let (age_ms, age_ms_max) = (age.as_millis(), age_max.as_millis());
        Err(Error::Overloaded {
            what: "journal",
            bound: format!(
                "the oldest label that the store does not have has waited {age_ms} ms, more than \
                 {of}journal.pending_age_ms_max, {age_ms_max} ms"
            ),
            retry_after: RETRY_AGE,
        })
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_of_commits_is_remembered_to_a_five_hundredth_of_it_and_never_too_young() {
        let (mut marks, _) = ages(0, None, Duration::ZERO);
        marks.clear();
        let at = |number: u64| Duration::from_millis(100 * number);
        let count = 864_000;
        for number in 1..=count {
            marks.note(number, Some(1), at(number));
        }
        assert!(marks.marks.len() <= MARKS_MAX);
        let coarse = at(count) / STEPS_A_SPAN + STEP_MIN;
        for number in (1..=count).step_by(977) {
            let told = marks.at(number).unwrap();
            assert!(told <= at(number), "{number} is told too young");
            assert!(at(number) - told <= 2 * coarse, "{number}: {told:?}");
        }
    }

    #[test]
    fn what_is_confirmed_takes_its_marks_along() {
        let (mut marks, _) = ages(0, None, Duration::ZERO);
        for number in 1..=100 {
            marks.note(number, Some(number), Duration::from_secs(number));
        }
        assert!(marks.marks.len() <= 2);
        assert_eq!(marks.at(100), Some(Duration::from_secs(100)));
    }
}
