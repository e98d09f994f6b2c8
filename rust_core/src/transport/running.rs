//! A connection and its calls, run as one task.
//!
//! hyper would start a task a call. Here calls are polled by their connection: the batch that
//! answers several of them wakes one task, and what they write leaves in one flush. A call that has
//! much to do starts a task of its own (`apart`), so that it does not hold up its neighbours. A
//! call's panic ends that call.

use std::{
    future::Future,
    mem,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::wakes;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes what a connection begins.
#[derive(Clone, Default)]
pub struct Begun(Arc<Mutex<Vec<Call>>>);

impl<F> Executor<F> for Begun
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        let call = AssertUnwindSafe(call).catch_unwind().map(drop);
        self.0.lock().push(Box::pin(call));
    }
}

/// A connection with the calls that it began; its end is theirs.
pub struct Running<C> {
    connection: Pin<Box<C>>,
    begun: Begun,
    /// Empty between two steps, and kept for its room.
    new: Vec<Call>,
    calls: FuturesUnordered<Call>,
}

impl<C> Running<C> {
    /// `begun` is what the connection was given as its executor.
    pub fn new(connection: C, begun: Begun) -> Self {
        let (new, calls) = (Vec::new(), FuturesUnordered::new());
        Self { connection: Box::pin(connection), begun, new, calls }
    }

    /// The connection itself.
    pub fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }
}

impl<C: Future> Future for Running<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        loop {
            // Replies before the connection, which sends them.
            while let Poll::Ready(Some(())) = self.calls.poll_next_unpin(context) {}
            if let Poll::Ready(end) = self.connection.as_mut().poll(context) {
                return Poll::Ready(end);
            }
            let Self { begun, new, calls, .. } = &mut *self;
            mem::swap(&mut *begun.0.lock(), new);
            if new.is_empty() {
                wakes::turn();
                return Poll::Pending;
            }
            calls.extend(new.drain(..));
        }
    }
}

/// Runs a call on a task of its own, which ends with it.
pub async fn apart<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> T {
    struct Apart<T>(JoinHandle<T>);
    impl<T> Drop for Apart<T> {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let mut call = Apart(tokio::spawn(async {
        // Rows that are in line do not wait for what it has to do.
        wakes::now();
        call.await
    }));
    match (&mut call.0).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only the drop above cancels, and the runtime's end, which ends this too.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Wake, Waker},
    };

    use tokio::sync::{Notify, oneshot};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn step<C: Future>(running: &mut Running<C>, wakes: &Arc<Wakes>) -> Poll<C::Output> {
        let waker = Waker::from(wakes.clone());
        Pin::new(running).poll(&mut Context::from_waker(&waker))
    }

    #[test]
    fn calls_that_are_answered_together_wake_their_connection_once() {
        let (answered, begun) = (Arc::new(Notify::new()), Begun::default());
        for _ in 0..8 {
            let answered = answered.clone();
            begun.execute(async move { answered.notified().await });
        }
        let (mut running, wakes) = (Running::new(pending::<()>(), begun), Arc::default());
        assert!(step(&mut running, &wakes).is_pending());
        let before = wakes.0.load(Ordering::Relaxed);
        answered.notify_waiters();
        assert_eq!(wakes.0.load(Ordering::Relaxed) - before, 1);
        assert!(step(&mut running, &wakes).is_pending());
        assert!(running.calls.is_empty(), "one step has answered all of them");
    }

    #[test]
    fn a_call_that_panics_ends_alone() {
        let (begun, (done, mut news)) = (Begun::default(), oneshot::channel());
        begun.execute(async { panic!("on purpose") });
        begun.execute(async move { done.send(()).unwrap() });
        let mut running = Running::new(pending::<()>(), begun);
        assert!(step(&mut running, &Arc::default()).is_pending());
        assert_eq!(news.try_recv(), Ok(()));
    }

    #[tokio::test]
    async fn a_call_apart_ends_when_its_caller_leaves() {
        let (held, mut left) = oneshot::channel::<()>();
        let mut call = Box::pin(apart(async move {
            let _held = held;
            pending::<()>().await;
        }));
        let polled = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context)));
        assert!(polled.await.is_pending());
        assert!(left.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Empty));
        drop(call);
        assert!(left.await.is_err(), "what it held is dropped");
    }
}
