//! The monotonic clock of the label path, and the wall clock as a stamp.
//!
//! Durations and deadlines come from `now_us` only; `unix_us` is never compared with anything.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Microseconds since the engine's start.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts at 0 now.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Monotonic, µs since the start.
    pub fn now_us(&self) -> u64 {
        self.origin.elapsed().as_micros() as u64
    }

    /// The instant that `us` stands for.
    pub fn instant(&self, us: u64) -> Instant {
        self.origin + Duration::from_micros(us)
    }

    /// Wall time in µs since 1970, for stamps.
    pub fn unix_us(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }
}

/// A smaller step back is slewing, or two threads that stamp at once.
const STEP_US: i64 = 1_000_000;

/// Counts how often the wall clock went back. Stamps only: no order rests on them.
#[derive(Debug, Default)]
pub struct Stamps {
    highest_us: AtomicI64,
    regressions: AtomicU64,
}

impl Stamps {
    /// The last stamp from before the start.
    pub fn begin_at(&self, unix_us: i64) {
        self.highest_us.store(unix_us, Ordering::Relaxed);
    }

    /// Notes a stamp of now and gives it back.
    pub fn note(&self, unix_us: i64) -> i64 {
        let highest_us = self.highest_us.load(Ordering::Relaxed);
        if unix_us < highest_us - STEP_US {
            // From here on time goes on from there: one step back counts once.
            let exchange = self.highest_us.compare_exchange(
                highest_us,
                unix_us,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            self.regressions.fetch_add(u64::from(exchange.is_ok()), Ordering::Relaxed);
        } else {
            self.highest_us.fetch_max(unix_us, Ordering::Relaxed);
        }
        unix_us
    }

    /// Steps back so far.
    pub fn regressions(&self) -> u64 {
        self.regressions.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_back_counts_once_and_slewing_not_at_all() {
        let stamps = Stamps::default();
        let ten_minutes_us = 600_000_000;
        for unix_us in [ten_minutes_us * 2, ten_minutes_us * 2 - STEP_US, ten_minutes_us * 2 + 5] {
            stamps.note(unix_us);
        }
        assert_eq!(stamps.regressions(), 0);
        for after_us in [0, 1, 2] {
            assert_eq!(stamps.note(ten_minutes_us + after_us), ten_minutes_us + after_us);
        }
        assert_eq!(stamps.regressions(), 1);
        stamps.note(0);
        assert_eq!(stamps.regressions(), 2);
    }
}
