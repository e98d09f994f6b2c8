//! Tests of the journal through its public face, on the double of the file system and on real
//! files.
//!
//! The committer is stepped by hand with a clock that only moves when told, so no test waits.

mod basics;
mod bounds;
mod damage;
mod faults;
mod fixtures;
mod measure;
mod simulation;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::faulty::FaultyFiles;
use super::files::{Clock, Files};
use super::*;

pub(super) const DIRECTORY: &str = "/state/journal";

#[derive(Default)]
pub(super) struct HandClock(AtomicU64);

impl HandClock {
    pub(super) fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
    fn unix_us(&self) -> u64 {
        1_700_000_000_000_000
    }
}

pub(crate) fn config() -> JournalConfig {
    JournalConfig {
        directory: PathBuf::from(DIRECTORY),
        segment_bytes: 16384,
        disk_bytes_max: 16384 * 8,
        memory_bytes_max: 1 << 20,
        commit_gap_us_min: 1000,
        copy_forward_live_pct: 30,
        reserve_bytes: 4096,
        pending_age_ms_max: 0,
    }
}

/// What `done` was called with, in the order of the calls.
pub(super) type Told = Arc<Mutex<Vec<Result<u64>>>>;

/// A journal whose committer and clock are in the test's hand.
pub(super) struct Hand {
    pub(super) journal: Journal,
    pub(super) committer: Committer,
    pub(super) recovery: Recovery,
    pub(super) clock: Arc<HandClock>,
    pub(super) told: Told,
}

impl Hand {
    pub(super) fn open(files: &FaultyFiles) -> Hand {
        Hand::open_with(config(), Arc::new(files.clone())).unwrap()
    }

    pub(super) fn open_with(config: JournalConfig, files: Arc<dyn Files>) -> Result<Hand> {
        let clock = Arc::new(HandClock::default());
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as Arc<dyn Clock>;
        let opened = open_with(config, files, shared)?;
        let Opened { journal, committer, recovery } = opened;
        Ok(Hand { journal, committer, recovery, clock, told: Told::default() })
    }

    /// Appends a group without waiting for its commit.
    pub(super) fn append(&self, bodies: &[&[u8]]) -> Result<u64> {
        let bodies = bodies.iter().map(|body| body.to_vec()).collect();
        self.journal.append(bodies, Vec::new(), self.done())
    }

    /// The same for records that nobody waits for.
    pub(super) fn append_unawaited(&self, body: &[u8]) -> Result<u64> {
        self.journal.append_unawaited(vec![body.to_vec()], Vec::new(), self.done())
    }

    pub(super) fn done(&self) -> Done {
        let told = Arc::clone(&self.told);
        Box::new(move |result| told.lock().unwrap().push(result))
    }

    /// Steps until the committer would sleep for good or for longer than the commit gap.
    pub(super) fn settle(&mut self) -> Result<()> {
        loop {
            match self.committer.step()? {
                Next::Again => {}
                Next::Ended => return Ok(()),
                Next::Sleep(until) => {
                    let now = self.clock.now();
                    let wait = until.map_or(Duration::MAX, |until| until.saturating_sub(now));
                    if wait > Duration::from_millis(5) {
                        return Ok(());
                    }
                    self.clock.advance(wait.max(Duration::from_micros(1)));
                }
            }
        }
    }

    /// Lets so much time pass, in small steps.
    pub(super) fn pass(&mut self, time: Duration) -> Result<()> {
        let step = Duration::from_millis(100);
        let mut left = time;
        while left > Duration::ZERO {
            self.clock.advance(step.min(left));
            left = left.saturating_sub(step);
            self.settle()?;
        }
        Ok(())
    }

    /// Appends and commits one group; returns its first number.
    pub(super) fn commit(&mut self, bodies: &[&[u8]]) -> u64 {
        let first = self.append(bodies).unwrap();
        self.settle().unwrap();
        assert_eq!(self.told.lock().unwrap().pop(), Some(Ok(first)));
        first
    }

    pub(super) fn take(&self) -> Vec<(u64, Vec<u8>)> {
        self.journal.take(usize::MAX, usize::MAX, Duration::ZERO).unwrap()
    }

    pub(super) fn taken_numbers(&self) -> Vec<u64> {
        self.take().into_iter().map(|(number, _)| number).collect()
    }

    /// Confirms, and lets the confirmation reach the disk.
    pub(super) fn confirm(&mut self, numbers: &[u64], outcome: Outcome) {
        self.journal.confirm(numbers, outcome);
        self.pass(Duration::from_millis(300)).unwrap();
    }

    /// Closes it as the engine does at the end.
    pub(super) fn close(mut self) {
        let journal = self.journal.clone();
        let closer = std::thread::spawn(move || journal.close(Duration::from_secs(10)));
        while self.committer.step().unwrap() != Next::Ended {
            std::thread::yield_now();
        }
        closer.join().unwrap().unwrap();
    }
}

pub(super) fn segment_path(id: u64) -> PathBuf {
    Path::new(DIRECTORY).join(segment::segment_name(id))
}
