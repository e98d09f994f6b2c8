//! The one clock, and how the sender waits for a time to come.
//!
//! Tokio's timers keep to whole milliseconds, which would put up to one of the sender's own into
//! every latency. So on Linux the next call waits on a timer of the kernel's; elsewhere, and on
//! tokio's virtual clock, it waits on tokio's.

use tokio::time::{Duration, Instant};

use crate::error::Result;

/// Time since the run's beginning, ns. It follows tokio's clock, which a test may hold.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that is at 0 in `lead`.
    pub fn starting_in(lead: Duration) -> Self {
        Self { origin: Instant::now() + lead }
    }

    /// Now, 0 before the beginning.
    pub fn now_ns(&self) -> u64 {
        Instant::now().saturating_duration_since(self.origin).as_nanos() as u64
    }

    /// The instant that `ns` stands for.
    pub fn instant(&self, ns: u64) -> Instant {
        self.origin + Duration::from_nanos(ns)
    }
}

/// Waits for instants.
pub enum Pacer {
    /// A timer of the kernel's.
    #[cfg(target_os = "linux")]
    Kernel(kernel::Timer),
    /// Tokio's, to the millisecond.
    #[cfg(any(test, not(target_os = "linux")))]
    Tokio,
}

impl Pacer {
    /// The most exact one of this machine. Must be called within a runtime.
    pub fn exact() -> Result<Self> {
        #[cfg(target_os = "linux")]
        return kernel::Timer::new().map(Self::Kernel).map_err(crate::Error::machine);
        #[cfg(not(target_os = "linux"))]
        return Ok(Self::Tokio);
    }

    /// Returns at `due` or, by the pacer's kind, a little after.
    pub async fn until(&self, due: Instant) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Kernel(timer) => timer.until(due).await,
            #[cfg(any(test, not(target_os = "linux")))]
            Self::Tokio => tokio::time::sleep_until(due).await,
        }
    }
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::{io, os::fd::OwnedFd};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::{
        io::{Interest, unix::AsyncFd},
        time::Instant,
    };

    /// A timerfd that tokio's reactor watches.
    pub struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        // Deprecated since a descriptor's type may lie about owning it. An `OwnedFd` does not, and
        // the way that replaces this one is `unsafe`, which this crate forbids.
        #[allow(deprecated)]
        pub fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            Ok(Self(AsyncFd::with_interest(timer, Interest::READABLE)?))
        }

        /// Arming it again forgets an expiry, so it is never read.
        pub async fn until(&self, due: Instant) {
            loop {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                if self.arm(left).is_err() {
                    return tokio::time::sleep_until(due).await;
                }
                match self.0.readable().await {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => return tokio::time::sleep_until(due).await,
                }
            }
        }

        fn arm(&self, left: std::time::Duration) -> rustix::io::Result<()> {
            let it_value = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let value = Itimerspec { it_interval, it_value };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &value).map(drop)
        }
    }
}
