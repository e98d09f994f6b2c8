//! What tests of several parts need.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
};

/// A task that only counts its wakes.
#[derive(Default)]
pub struct Wakes(AtomicUsize);

impl Wakes {
    /// So many until now.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// What wakes it.
    pub fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
