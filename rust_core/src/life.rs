//! Where the engine is in its life, and who waits for a change of that.
//!
//! States only move forward; `Failed` can be reached from each and is the last.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::Error;

/// The engine's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Takes requests.
    Serving,
    /// Not ready, finishing what it has accepted.
    Draining,
    /// Nothing is under way; the writer may still deliver.
    Drained,
    /// Threads ended, journal closed.
    Stopped,
    /// A part broke for good.
    Failed,
}

impl State {
    /// The name at the border to Python.
    pub fn name(self) -> &'static str {
        match self {
            State::Serving => "serving",
            State::Draining => "draining",
            State::Drained => "drained",
            State::Stopped => "stopped",
            State::Failed => "failed",
        }
    }
}

/// The state with its waiters.
pub struct Life {
    state: Mutex<(State, Option<Error>)>,
    changed: Condvar,
}

impl Default for Life {
    fn default() -> Self {
        Self { state: Mutex::new((State::Serving, None)), changed: Condvar::new() }
    }
}

impl Life {
    /// The state now.
    pub fn state(&self) -> State {
        self.state.lock().0
    }

    /// Why it failed, if it did.
    pub fn failure(&self) -> Option<Error> {
        self.state.lock().1.clone()
    }

    /// Moves forward; false if it is there already, or further.
    pub fn advance(&self, to: State) -> bool {
        let mut state = self.state.lock();
        let forward = state.0 < to;
        if forward {
            state.0 = to;
            self.changed.notify_all();
        }
        forward
    }

    /// A part broke for good. The first reason is kept.
    pub fn fail(&self, error: Error) -> bool {
        let mut state = self.state.lock();
        let first = state.0 != State::Failed && state.0 != State::Stopped;
        if first {
            *state = (State::Failed, Some(error));
            self.changed.notify_all();
        }
        first
    }

    /// Waits until the state is not `known`, or the time is over; returns the state.
    pub fn wait(&self, known: State, timeout: Duration) -> State {
        let until = Instant::now() + timeout;
        let mut state = self.state.lock();
        while state.0 == known {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_only_move_forward_and_the_first_failure_is_kept() {
        let life = Life::default();
        assert!(life.advance(State::Draining));
        assert!(!life.advance(State::Serving));
        assert!(life.fail(Error::Cancelled));
        assert!(!life.fail(Error::Stopped));
        assert_eq!((life.state(), life.failure()), (State::Failed, Some(Error::Cancelled)));
        assert!(!life.advance(State::Drained));
    }

    #[test]
    fn a_wait_ends_with_the_change() {
        let life = std::sync::Arc::new(Life::default());
        let other = life.clone();
        let waiter =
            std::thread::spawn(move || other.wait(State::Serving, Duration::from_secs(10)));
        life.advance(State::Draining);
        assert_eq!(waiter.join().unwrap(), State::Draining);
    }
}
