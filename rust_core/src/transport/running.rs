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
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::FutureExt as _;
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::wakes;

use super::slots::Slots;

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
    connection_woken: Part,
    begun: Begun,
    /// Empty between two steps, and kept for its room.
    new: Vec<Call>,
    calls: Slots<Call>,
    calls_woken: Part,
    task: Task,
}

/// Rounds of calls and connection before other tasks have their turn.
const ROUNDS_MAX: usize = 4;

/// Calls whose room a connection keeps where none runs.
const KEPT_CALLS: usize = 8;

/// Whom its parts wake; nobody while it runs, since it looks at them before it rests.
type Task = Arc<Mutex<Option<Waker>>>;

/// What is polled only when it was woken: a call that only takes a message in has nothing to send.
struct Part {
    woken: Arc<WakePart>,
    waker: Waker,
}

struct WakePart {
    woken: AtomicBool,
    task: Task,
}

impl Part {
    /// To be polled first of all.
    fn new(task: &Task) -> Self {
        let woken = Arc::new(WakePart { woken: true.into(), task: task.clone() });
        let waker = Waker::from(woken.clone());
        Self { woken, waker }
    }

    fn set(&self) {
        self.woken.woken.store(true, Ordering::Release);
    }

    fn take(&self) -> bool {
        self.woken.woken.swap(false, Ordering::AcqRel)
    }

    fn is_set(&self) -> bool {
        self.woken.woken.load(Ordering::Acquire)
    }
}

impl Wake for WakePart {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            let task = self.task.lock().take();
            if let Some(task) = task {
                task.wake();
            }
        }
    }
}

impl<C> Running<C> {
    /// `begun` is what the connection was given as its executor.
    pub fn new(connection: C, begun: Begun) -> Self {
        let (new, calls, task) = (Vec::new(), Slots::default(), Task::default());
        let (connection_woken, calls_woken) = (Part::new(&task), Part::new(&task));
        let connection = Box::pin(connection);
        Self { connection, connection_woken, begun, new, calls, calls_woken, task }
    }

    /// The connection itself, which is polled after this.
    pub fn connection(&mut self) -> Pin<&mut C> {
        self.connection_woken.set();
        self.connection.as_mut()
    }
}

impl<C: Future> Running<C> {
    fn step_calls(&mut self) {
        if self.calls_woken.take() {
            let mut context = Context::from_waker(&self.calls_woken.waker);
            while self.calls.poll_next(&mut context).is_ready() {}
            self.calls.rest(KEPT_CALLS);
        }
    }

    fn step_connection(&mut self) -> Poll<C::Output> {
        if !self.connection_woken.take() {
            return Poll::Pending;
        }
        let mut context = Context::from_waker(&self.connection_woken.waker);
        let end = self.connection.as_mut().poll(&mut context);
        mem::swap(&mut *self.begun.0.lock(), &mut self.new);
        if !self.new.is_empty() {
            self.new.drain(..).for_each(|call| self.calls.push(call));
            self.calls_woken.set();
        }
        end
    }

    fn is_woken(&self) -> bool {
        self.calls_woken.is_set() || self.connection_woken.is_set()
    }
}

impl<C: Future> Future for Running<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        *self.task.lock() = None;
        for _ in 0..ROUNDS_MAX {
            // Replies before the connection, which sends them.
            self.step_calls();
            if let Poll::Ready(end) = self.step_connection() {
                return Poll::Ready(end);
            }
            if !self.is_woken() {
                break;
            }
        }
        wakes::turn();
        *self.task.lock() = Some(context.waker().clone());
        // Also by who came before its task was known.
        if self.is_woken() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
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
    use std::{future::pending, sync::atomic::AtomicUsize};

    use tokio::sync::{Notify, oneshot};

    use super::{super::testing::Wakes, *};

    fn step<C: Future>(running: &mut Running<C>, wakes: &Arc<Wakes>) -> Poll<C::Output> {
        let waker = wakes.waker();
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
        let before = wakes.count();
        answered.notify_waiters();
        assert_eq!(wakes.count() - before, 1);
        assert!(step(&mut running, &wakes).is_pending());
        assert!(running.calls.is_empty(), "one step has answered all of them");
    }

    #[test]
    fn a_connection_is_polled_when_it_was_woken_or_looked_at_and_at_no_other_time() {
        let (news, begun) = (Arc::new(Notify::new()), Begun::default());
        let (told, sends) = (news.clone(), Arc::new(Notify::new()));
        let send = sends.clone();
        begun.execute(async move {
            told.notified().await;
            told.notified().await;
            send.notify_one();
        });
        let polls = Arc::new(AtomicUsize::new(0));
        let polled = polls.clone();
        let mut flushed = Box::pin(async move { sends.notified().await });
        let connection = std::future::poll_fn(move |context| {
            polled.fetch_add(1, Ordering::Relaxed);
            flushed.as_mut().poll(context)
        });
        let (mut running, wakes) = (Running::new(connection, begun), Arc::default());
        assert!(step(&mut running, &wakes).is_pending());
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        news.notify_waiters();
        assert!(step(&mut running, &wakes).is_pending());
        assert_eq!(polls.load(Ordering::Relaxed), 1, "its call had nothing to send");
        running.connection();
        assert!(step(&mut running, &wakes).is_pending());
        assert_eq!(polls.load(Ordering::Relaxed), 2, "it may have been told to end");
        news.notify_waiters();
        assert!(step(&mut running, &wakes).is_ready(), "what its call sent has left in that step");
        assert_eq!(wakes.count(), 2, "one wake for each news");
    }

    #[test]
    fn a_connection_that_wakes_itself_again_and_again_lets_other_tasks_run() {
        let connection = std::future::poll_fn(|context: &mut Context<'_>| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        let (mut running, wakes) = (Running::new(connection, Begun::default()), Arc::default());
        for step_number in 1..=3 {
            assert!(step(&mut running, &wakes).is_pending());
            assert_eq!(wakes.count(), step_number);
        }
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
