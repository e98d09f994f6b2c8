//! Counters by thread: what each thread allocated, and which calls to the system it made.
//!
//! Counting allocates nothing, takes no lock and makes one system call in a thread's life, so that
//! it may be done from the allocator. A thread's name is read when the counts are, by its id.

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering},
};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum What {
    /// Calls of the allocator that give memory: new, zeroed, or moved to another size.
    Allocations,
    /// Bytes asked for in them.
    AllocatedBytes,
    /// fsync, fdatasync and their like.
    FileSyncs,
    /// Files opened.
    FileOpens,
    /// Writes to files; sockets and wake-ups are none.
    FileWrites,
    /// Connections to elsewhere.
    Connects,
    /// Sleeps for a time.
    Sleeps,
}

const KINDS: usize = 7;
/// The names in results, by index.
pub const NAMES: [&str; KINDS] = [
    "allocations",
    "allocated_bytes",
    "file_syncs",
    "file_opens",
    "file_writes",
    "connects",
    "sleeps",
];

/// Counts by the index of `NAMES`.
pub type Counts = [u64; KINDS];

/// More threads than a measurement has; those above share the last place.
const THREADS_MAX: usize = 256;

struct Place {
    thread: AtomicI32,
    counts: [AtomicU64; KINDS],
}

static PLACES: [Place; THREADS_MAX] =
    [const { Place { thread: AtomicI32::new(0), counts: [const { AtomicU64::new(0) }; KINDS] } };
        THREADS_MAX];
static TAKEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // Without a destructor, so that it is there to a thread's very end.
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Counts `count` of `what` for this thread.
pub fn count(what: What, count: u64) {
    let mine = MINE.get();
    let place = if mine == usize::MAX { take_place() } else { mine };
    PLACES[place].counts[what as usize].fetch_add(count, Ordering::Relaxed);
}

fn take_place() -> usize {
    let place = TAKEN.fetch_add(1, Ordering::Relaxed).min(THREADS_MAX - 1);
    // SAFETY: it takes nothing and touches no memory.
    let thread = unsafe { libc::gettid() };
    PLACES[place].thread.store(thread, Ordering::Relaxed);
    MINE.set(place);
    place
}

/// The counts so far by kind of thread: `transport`, `infer`, `committer`, and `other` for what is
/// not on the label path, above all the client.
pub fn by_kind() -> BTreeMap<&'static str, Counts> {
    let mut found = BTreeMap::new();
    for place in &PLACES[..TAKEN.load(Ordering::Relaxed).min(THREADS_MAX)] {
        let counts: &mut Counts = found.entry(kind(place)).or_default();
        for (sum, count) in counts.iter_mut().zip(&place.counts) {
            *sum += count.load(Ordering::Relaxed);
        }
    }
    found
}

fn kind(place: &Place) -> &'static str {
    let thread = place.thread.load(Ordering::Relaxed);
    kind_of(&std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default())
}

/// The kind of a thread by its name.
pub fn kind_of(name: &str) -> &'static str {
    let kinds = ["transport", "infer", "committer"];
    kinds.into_iter().find(|kind| name.starts_with(kind)).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_counts_stands_under_its_kind() {
        let counted = || {
            count(What::FileSyncs, 2);
            by_kind()["infer"][What::FileSyncs as usize]
        };
        let thread = std::thread::Builder::new().name("infer-model".into()).spawn(counted);
        assert_eq!(thread.unwrap().join().unwrap(), 2);
        assert_eq!((kind_of("committer"), kind_of("main")), ("committer", "other"));
    }
}
