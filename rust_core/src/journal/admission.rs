//! Room for records, taken before a label is made, so that a label once made can be journaled.
//!
//! Atomics only: never waits, never touches a file. Room means disk that is already allocated, so a
//! disk that fills up beside us cannot take it away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::format::{
    ALIGN_BYTES, CONFIRM_FRAME_BYTES, COPY_FRAME_BYTES, GROUP_HEADER_BYTES, RECORD_FRAME_BYTES,
};
use crate::error::{Error, Result};

/// What each pending record keeps for itself: its confirmation, and what a copy takes more.
pub(super) const DEBT_BYTES: u64 = CONFIRM_FRAME_BYTES + COPY_FRAME_BYTES - RECORD_FRAME_BYTES;
/// What a record is charged beside its body: frame, debt, and a group of its own at the worst.
const OVERHEAD_BYTES: u64 = RECORD_FRAME_BYTES + DEBT_BYTES + GROUP_HEADER_BYTES + ALIGN_BYTES;
const RETRY_MEMORY: Duration = Duration::from_millis(5);
const RETRY_SPACE: Duration = Duration::from_millis(50);
const RETRY_DISK: Duration = Duration::from_secs(1);

/// The bounds on what is on its way to the disk.
#[derive(Debug)]
pub(super) struct Admission {
    memory_bytes_max: u64,
    disk_bytes_max: u64,
    record_bytes_max: u64,
    /// Charged by reservations that are held or wait for their commit.
    charged: AtomicU64,
    /// Allocated room for new records, as the committer saw it last.
    room: AtomicU64,
    /// No further segment can be made at the moment.
    at_bound: AtomicU64,
    /// Little is left of the bound on disk.
    scarce: AtomicBool,
    refused: AtomicU64,
}

/// How much of the room a record may use up.
#[derive(Debug, Clone, Copy)]
pub(super) enum Share {
    All,
    /// What is left when a quarter is kept for others.
    Spare,
}

impl Share {
    fn of(self, bytes: u64) -> u64 {
        match self {
            Share::All => bytes,
            Share::Spare => bytes - bytes / 4,
        }
    }
}

/// Room for one record, or several; dropping it gives it back.
#[derive(Debug)]
pub struct Reservation {
    admission: Arc<Admission>,
    charge: u64,
}

impl Reservation {
    pub(super) fn charge(&self) -> u64 {
        self.charge
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.admission.charged.fetch_sub(self.charge, Ordering::AcqRel);
    }
}

/// What a record with a body of this length is charged.
pub(super) fn charge_of(bytes: usize) -> u64 {
    bytes as u64 + OVERHEAD_BYTES
}

impl Admission {
    pub(super) fn new(memory_bytes_max: u64, disk_bytes_max: u64, record_bytes_max: u64) -> Self {
        Admission {
            memory_bytes_max,
            disk_bytes_max,
            record_bytes_max,
            charged: AtomicU64::new(0),
            room: AtomicU64::new(0),
            at_bound: AtomicU64::new(0),
            scarce: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        }
    }

    /// Refuses what may wait while little is left of the bound on disk.
    pub(super) fn check_spare(&self) -> Result<()> {
        if self.scarce.load(Ordering::Relaxed) {
            return Err(self.refuse(
                self.disk_bytes_max,
                "on disk, and little is left",
                RETRY_DISK,
            ));
        }
        Ok(())
    }

    /// Told by the committer as `publish` is.
    pub(super) fn publish_scarce(&self, scarce: bool) {
        self.scarce.store(scarce, Ordering::Relaxed);
    }

    /// Takes room for one record.
    pub(super) fn reserve(self: &Arc<Self>, bytes: usize, share: Share) -> Result<Reservation> {
        self.check_size(bytes)?;
        self.charge(charge_of(bytes), share)
    }

    /// Refuses a record that no segment could hold.
    pub(super) fn check_size(&self, bytes: usize) -> Result<()> {
        if bytes as u64 > self.record_bytes_max {
            return Err(Error::Invalid {
                field: "record",
                got: format!("{bytes} bytes"),
                expected: format!("at most {} bytes", self.record_bytes_max),
            });
        }
        Ok(())
    }

    /// Takes room for so many charged bytes.
    pub(super) fn charge(self: &Arc<Self>, charge: u64, share: Share) -> Result<Reservation> {
        let charged = self.charged.fetch_add(charge, Ordering::AcqRel) + charge;
        // From here on the drop gives it back, also when it is refused below.
        let reservation = Reservation { admission: Arc::clone(self), charge };
        if charged > share.of(self.memory_bytes_max) {
            return Err(self.refuse(self.memory_bytes_max, "not yet committed", RETRY_MEMORY));
        }
        if charged > share.of(self.room.load(Ordering::Acquire)) {
            let at_bound = self.at_bound.load(Ordering::Relaxed) != 0;
            let retry_after = if at_bound { RETRY_DISK } else { RETRY_SPACE };
            return Err(self.refuse(self.disk_bytes_max, "on disk", retry_after));
        }
        Ok(reservation)
    }

    fn refuse(&self, bytes_max: u64, kind: &str, retry_after: Duration) -> Error {
        self.refused.fetch_add(1, Ordering::Relaxed);
        Error::Overloaded {
            what: "journal",
            bound: format!("{bytes_max} bytes {kind}"),
            retry_after,
        }
    }

    pub(super) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Acquire)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Told by the committer after each change. `at_bound`: no further segment can be made now.
    pub(super) fn publish(&self, room: u64, at_bound: bool) {
        self.at_bound.store(u64::from(at_bound), Ordering::Relaxed);
        self.room.store(room, Ordering::Release);
    }

    pub(super) fn room(&self) -> u64 {
        self.room.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_reservation_gives_its_room_back() {
        let admission = Arc::new(Admission::new(1000, 1 << 20, 500));
        admission.publish(1 << 20, false);
        let held = admission.reserve(400, Share::All).unwrap();
        assert!(matches!(admission.reserve(500, Share::All), Err(Error::Overloaded { .. })));
        drop(held);
        assert_eq!(admission.charged(), 0);
        admission.reserve(500, Share::All).unwrap();
    }

    #[test]
    fn what_may_wait_leaves_a_quarter_of_memory_and_disk_to_others() {
        let charge = charge_of(100);
        for (memory, room) in [(8 * charge, 1 << 20), (1 << 20, 8 * charge)] {
            let admission = Arc::new(Admission::new(memory, 1 << 20, 500));
            admission.publish(room, false);
            let reserve = |share| admission.reserve(100, share);
            let mut held: Vec<_> = (0..8).flat_map(|_| reserve(Share::Spare)).collect();
            assert_eq!(held.len(), 6);
            held.extend((0..8).flat_map(|_| reserve(Share::All)));
            assert_eq!(held.len(), 8);
        }
    }

    #[test]
    fn a_full_disk_refuses_with_a_longer_wait_than_full_memory() {
        let admission = Arc::new(Admission::new(1000, 1 << 20, 900));
        admission.publish(10, true);
        let wait = |result: Result<Reservation>| match result {
            Err(Error::Overloaded { what: "journal", retry_after, .. }) => retry_after,
            other => panic!("{other:?}"),
        };
        assert_eq!(wait(admission.reserve(100, Share::All)), RETRY_DISK);
        assert_eq!(wait(admission.reserve(900, Share::All)), RETRY_DISK.min(RETRY_MEMORY));
    }

    #[test]
    fn a_record_that_no_segment_can_hold_is_refused_for_good() {
        let admission = Arc::new(Admission::new(1 << 20, 1 << 20, 500));
        admission.publish(1 << 20, false);
        assert!(matches!(admission.reserve(501, Share::All), Err(Error::Invalid { .. })));
    }
}
