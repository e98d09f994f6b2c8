//! The supervisor: the one place that starts threads, and that notices when one ends.
//!
//! A long-lived thread or task that panics or returns an error is never silent: its end goes to
//! `on_end`, which the engine turns into NOT_SERVING and an exit (TRAPS 13).

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
};

use futures_util::FutureExt as _;

use crate::error::{Error, Result};

type OnEnd = dyn Fn(&'static str, &Error) + Send + Sync;

/// Starts threads and reports those that end by an error or a panic.
#[derive(Clone)]
pub struct Supervisor {
    on_failure: Arc<OnEnd>,
}

impl Supervisor {
    /// `on_failure` gets the part's name and why it ended, on the thread that ended.
    pub fn new(on_failure: impl Fn(&'static str, &Error) + Send + Sync + 'static) -> Self {
        Self { on_failure: Arc::new(on_failure) }
    }

    /// Runs `body` on a thread named `name`; an `Ok` end is a normal end.
    pub fn spawn(
        &self,
        part: &'static str,
        name: String,
        body: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<JoinHandle<()>> {
        let on_failure = self.on_failure.clone();
        let run = move || {
            let ended = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
                Err(Error::Internal { part, reason: panic_message(&*panic) })
            });
            if let Err(error) = ended {
                on_failure(part, &error);
            }
        };
        std::thread::Builder::new()
            .name(name)
            .spawn(run)
            .map_err(|e| Error::Internal { part, reason: format!("no thread: {e}") })
    }

    /// A task whose panic is reported as a thread's is; its end is a normal end.
    pub fn watched(
        &self,
        part: &'static str,
        body: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let this = self.clone();
        AssertUnwindSafe(body).catch_unwind().map(move |ended| {
            if let Err(panic) = ended {
                let error = Error::Internal { part, reason: panic_message(&*panic) };
                // What it sets off may wait, and no task may.
                if let Err(none) = this.spawn(part, format!("{part} end"), || Err(error)) {
                    tracing::error!(error = %none, part, "the end of a task is not reported");
                }
            }
        })
    }
}

/// What a panic said.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panic: {}", text.unwrap_or_else(|| "without a message".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_panic_on_a_supervised_thread_is_reported_with_its_message() {
        let (sender, receiver) = mpsc::channel();
        let supervisor = Supervisor::new(move |part, error| {
            sender.send((part, error.to_string())).unwrap();
        });
        supervisor.spawn("committer", "c".into(), || panic!("lost")).unwrap().join().unwrap();
        assert_eq!(receiver.recv().unwrap(), ("committer", "committer failed: panic: lost".into()));
    }

    #[tokio::test]
    async fn a_panic_of_a_watched_task_is_reported_by_a_thread_that_may_wait() {
        let (sender, receiver) = mpsc::channel();
        let supervisor = Supervisor::new(move |part, error| {
            let waits = tokio::runtime::Handle::try_current().is_err();
            sender.send((part, error.to_string(), waits)).unwrap();
        });
        tokio::spawn(supervisor.watched("accept", async { panic!("deaf") })).await.unwrap();
        let told = receiver.recv().unwrap();
        assert_eq!(told, ("accept", "accept failed: panic: deaf".into(), true));
    }

    #[test]
    fn a_normal_end_is_not_reported() {
        let supervisor = Supervisor::new(|part, _| panic!("{part}"));
        supervisor.spawn("committer", "c".into(), || Ok(())).unwrap().join().unwrap();
    }
}
