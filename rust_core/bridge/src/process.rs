//! What is once a process: signals, the watchdog of the drain, the end after a failure.
//!
//! Handled here and not in Python, so that a busy interpreter cannot delay them. Each exit leaves
//! what was acknowledged as JOURNALED in the journal, so that leaving at once loses nothing.

use std::{
    process,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use labeler_core::{Engine, Error, life::State, supervise::Supervisor};
use pyo3::{
    prelude::*,
    types::{PyCFunction, PyDict, PyTuple},
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
    iterator::{Handle, Signals},
    low_level::{emulate_default_handler, exit, register},
};

use crate::logs::write_fatal;

/// Exit code for a disk that failed (sysexits: EX_IOERR).
const EXIT_DISK: i32 = 74;
/// Exit code for any other broken part (sysexits: EX_SOFTWARE).
const EXIT_SOFTWARE: i32 = 70;
/// How long Python may take to leave by itself after a failure.
const FAILURE_GRACE: Duration = Duration::from_secs(2);
/// How long a last attempt to close the journal may take.
const LAST_CLOSE: Duration = Duration::from_millis(200);

/// Ends the engine before the interpreter is taken down, however the program leaves: the labels
/// that it has acknowledged are closed in the journal, and no thread of ours runs while libraries
/// are unloaded. A forked child has no such threads, and the journal is its parent's.
pub fn stop_at_exit(py: Python<'_>, engine: &Arc<Engine>) -> PyResult<()> {
    let (engine, pid) = (Arc::downgrade(engine), process::id());
    let stop = move |args: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
        if let Some(engine) = engine.upgrade()
            && process::id() == pid
            && let Err(error) = args.py().detach(|| engine.stop())
        {
            write_fatal(&format!("the exit left something undone, recovery is next: {error}"));
        }
    };
    let stop = PyCFunction::new_closure(py, None, None, stop)?;
    py.import("atexit")?.call_method1("register", (stop,)).map(drop)
}

/// Takes the signals over, and answers them from now on: during the start by leaving at once, since
/// nothing was accepted yet and a killed recovery does no harm; later by a drain.
pub fn signals(budget: Duration) -> Result<Taken, Error> {
    let failed = |e: std::io::Error| Error::Internal { part: "signals", reason: e.to_string() };
    for signal in [SIGTERM, SIGINT] {
        in_a_child(signal).map_err(failed)?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
    let handle = signals.handle();
    if let Some(by_default) = BY_DEFAULT.get() {
        by_default.store(false, Ordering::Release);
    }
    let started: Arc<OnceLock<Arc<Engine>>> = Arc::default();
    let (engine, broken) = (started.clone(), started.clone());
    let supervisor = Supervisor::new(move |part, error| {
        tracing::error!(part, %error, "a part of the service ended");
        if let Some(engine) = broken.get() {
            engine.life.fail(error.clone());
        }
    });
    let watchdogs = supervisor.clone();
    let thread = supervisor.spawn("signals", "signals".to_owned(), move || {
        for (count, signal) in signals.forever().enumerate() {
            let Some(engine) = engine.get() else {
                write_fatal("a signal during the start: the process exits, nothing was accepted");
                exit(0);
            };
            if count > 0 {
                leave(engine, "a second signal: the process exits at once");
            }
            tracing::info!(signal, "draining");
            engine.drain();
            let watched = engine.clone();
            watchdogs.spawn("watchdog", "watchdog".to_owned(), move || {
                std::thread::sleep(budget);
                leave(&watched, "the drain's budget is over: the process exits")
            })?;
        }
        Ok(())
    })?;
    Ok(Taken { started, handle, thread })
}

/// The signals, taken over.
pub struct Taken {
    started: Arc<OnceLock<Arc<Engine>>>,
    handle: Handle,
    thread: JoinHandle<()>,
}

/// Whether signals end the process as they do by default. Set at the first start that fails.
static BY_DEFAULT: OnceLock<Arc<AtomicBool>> = OnceLock::new();

impl Taken {
    /// From now on a signal drains this engine: before its port opens.
    pub fn drains(&self, engine: Arc<Engine>) -> &Arc<Engine> {
        self.started.get_or_init(|| engine)
    }

    /// The start has failed: nobody listens any more, and a signal ends the process as it does by
    /// default, until a later start takes them over.
    pub fn give_back(self) {
        self.handle.close();
        // It ends with its signals; a panic of it was reported.
        let _ = self.thread.join();
        let by_default = BY_DEFAULT.get_or_init(|| {
            let flag = Arc::<AtomicBool>::default();
            for signal in [SIGTERM, SIGINT] {
                // Without it a signal would find a handler that does nothing.
                let _ = flag::register_conditional_default(signal, flag.clone());
            }
            flag
        });
        by_default.store(true, Ordering::Release);
    }
}

/// A forked child inherits the handler and not the thread that acts on it: without this it could
/// not be terminated.
fn in_a_child(signal: i32) -> std::io::Result<()> {
    let pid = process::id();
    let end = move || {
        if process::id() != pid {
            // Nothing can be done about a failure in a handler; the signal is lost then.
            let _ = emulate_default_handler(signal);
        }
    };
    // SAFETY: getpid, and what `emulate_default_handler` is documented to do, are safe in a
    // handler.
    unsafe { register(signal, end) }.map(drop)
}

/// Watches the engine's life from now on.
pub fn watch(engine: &Arc<Engine>) -> Result<(), Error> {
    let on_failure = engine.clone();
    engine.supervisor.spawn("failure watch", "failure".to_owned(), move || {
        let mut state = State::Serving;
        while state != State::Failed && state != State::Stopped {
            state = on_failure.life.wait(state, Duration::from_secs(3_600));
        }
        if state == State::Failed {
            std::thread::sleep(FAILURE_GRACE);
            fail(&on_failure);
        }
        Ok(())
    })?;
    Ok(())
}

fn leave(engine: &Engine, why: &str) -> ! {
    let closed = engine.journal.close(LAST_CLOSE).is_ok();
    let pending = engine.journal.stats().pending;
    write_fatal(&format!(
        "{why}; {pending} labels wait in the journal for the store (closed: {closed})"
    ));
    exit(0);
}

fn fail(engine: &Engine) -> ! {
    let failure = engine.life.failure();
    let code = exit_code(failure.as_ref());
    let why = failure.map_or_else(|| "unknown".to_owned(), |e| e.to_string());
    write_fatal(&format!("the process exits, recovery decides at the next start: {why}"));
    exit(code);
}

/// The exit code that an end by this error has.
pub fn exit_code(failure: Option<&Error>) -> i32 {
    if matches!(failure, Some(Error::Disk { .. })) { EXIT_DISK } else { EXIT_SOFTWARE }
}
