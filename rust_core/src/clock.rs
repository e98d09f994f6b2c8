//! The monotonic clock of the label path, and the wall clock as a stamp.
//!
//! Durations and deadlines come from `now_us` only; `unix_us` is never compared with anything.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
