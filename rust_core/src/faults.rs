//! Points at which a test makes a part panic, one by one: each stage, each long-lived thread.
//!
//! Only the feature `faults` gives them an effect, and only the core's own tests are built with it:
//! a release has no way to arm one. A point is hit once, by whoever comes first.

#[cfg(feature = "faults")]
mod armed {
    use parking_lot::Mutex;

    static ARMED: Mutex<Option<&'static str>> = Mutex::new(None);

    /// The next one at point `name` panics.
    pub fn arm(name: &'static str) {
        *ARMED.lock() = Some(name);
    }

    /// Nobody panics any more.
    pub fn disarm() {
        *ARMED.lock() = None;
    }

    /// Whether somebody has hit the point that was armed last.
    pub fn is_hit() -> bool {
        ARMED.lock().is_none()
    }

    pub(super) fn take(name: &str) -> bool {
        ARMED.lock().take_if(|armed| *armed == name).is_some()
    }
}

#[cfg(feature = "faults")]
pub use armed::{arm, disarm, is_hit};

/// A place where a test may make this thread panic.
#[inline(always)]
pub fn point(name: &'static str) {
    #[cfg(feature = "faults")]
    if armed::take(name) {
        panic!("fault point {name}");
    }
    #[cfg(not(feature = "faults"))]
    let _ = name;
}
