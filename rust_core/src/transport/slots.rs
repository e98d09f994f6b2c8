//! Futures that run side by side on one task, each in a place that is used again.
//!
//! Those that are woken together wake their task once, and are polled in the order in which they
//! were woken.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use parking_lot::Mutex;

/// Places for futures.
pub struct Slots<F> {
    places: Vec<Place<F>>,
    free: Vec<usize>,
    /// What is to be polled, the last first.
    turn: Vec<usize>,
    woken: Arc<Woken>,
}

struct Place<F> {
    /// On the heap, where it stays: one that is done leaves its room to the next.
    future: Pin<Box<Option<F>>>,
    wake: Arc<WakePlace>,
    waker: Waker,
}

#[derive(Default)]
struct Woken(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    places: Vec<usize>,
    /// Taken by the first that is woken: the others are polled with it.
    task: Option<Waker>,
}

struct WakePlace {
    place: usize,
    /// Whether it stands in line already.
    stands: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for WakePlace {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.stands.swap(true, Ordering::AcqRel) {
            return;
        }
        let task = {
            let mut waiting = self.woken.0.lock();
            waiting.places.push(self.place);
            waiting.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<F> Default for Slots<F> {
    fn default() -> Self {
        let (places, free, turn) = (Vec::new(), Vec::new(), Vec::new());
        Self { places, free, turn, woken: Arc::default() }
    }
}

impl<F: Future> Slots<F> {
    /// How many futures run.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether none runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a future in; the next `poll_next` polls it.
    pub fn push(&mut self, future: F) {
        let at = self.free.pop().unwrap_or_else(|| {
            let place = self.places.len();
            let wake = WakePlace { place, stands: false.into(), woken: self.woken.clone() };
            let wake = Arc::new(wake);
            let waker = Waker::from(wake.clone());
            self.places.push(Place { future: Box::pin(None), wake, waker });
            place
        });
        let place = &mut self.places[at];
        place.future.set(Some(future));
        // Its task is the one that runs now.
        if !place.wake.stands.swap(true, Ordering::AcqRel) {
            self.woken.0.lock().places.push(at);
        }
    }

    /// What the next future that is done gives. Pending also where none runs.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<F::Output> {
        // One that wakes itself again and again does not keep its task for ever.
        for _ in 0..=self.len() {
            let Some(at) = self.next_in_turn(context) else { return Poll::Pending };
            let place = &mut self.places[at];
            // Before it is polled: what wakes it from here on is news.
            place.wake.stands.store(false, Ordering::Release);
            let Some(future) = place.future.as_mut().as_pin_mut() else { continue };
            if let Poll::Ready(done) = future.poll(&mut Context::from_waker(&place.waker)) {
                place.future.set(None);
                self.free.push(at);
                return Poll::Ready(done);
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn next_in_turn(&mut self, context: &mut Context<'_>) -> Option<usize> {
        if self.turn.is_empty() {
            let mut waiting = self.woken.0.lock();
            mem::swap(&mut waiting.places, &mut self.turn);
            self.turn.reverse();
            let known = waiting.task.as_ref().is_some_and(|task| task.will_wake(context.waker()));
            if self.turn.is_empty() && !known {
                waiting.task = Some(context.waker().clone());
            }
        }
        self.turn.pop()
    }

    /// Gives the room back where none runs, but for that of up to `kept` futures.
    pub fn rest(&mut self, kept: usize) {
        if self.is_empty() && self.places.len() > kept {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::Notify;

    use super::{super::testing::Wakes, *};

    type Call = Pin<Box<dyn Future<Output = usize> + Send>>;

    fn done(slots: &mut Slots<Call>, wakes: &Arc<Wakes>) -> Vec<usize> {
        let waker = wakes.waker();
        let mut context = Context::from_waker(&waker);
        std::iter::from_fn(|| match slots.poll_next(&mut context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
        .collect()
    }

    #[test]
    fn futures_that_are_woken_together_wake_their_task_once_and_are_done_in_that_order() {
        let (mut slots, wakes) = (Slots::default(), Arc::default());
        let news: Vec<Arc<Notify>> = (0..8).map(|_| Arc::default()).collect();
        for round in 1..=3 {
            for (n, news) in news.iter().enumerate() {
                let news = news.clone();
                slots.push(Box::pin(async move {
                    news.notified().await;
                    n
                }) as Call);
            }
            assert!(done(&mut slots, &wakes).is_empty());
            let order = [3, 0, 7, 1, 2, 6, 5, 4];
            order.iter().for_each(|n| news[*n].notify_waiters());
            assert_eq!(wakes.count(), round);
            assert_eq!(done(&mut slots, &wakes), order);
            assert!(slots.is_empty());
            assert_eq!(slots.places.len(), 8, "places are used again");
        }
        slots.rest(8);
        assert_eq!(slots.places.len(), 8);
        slots.rest(7);
        assert!(slots.places.is_empty());
    }

    #[test]
    fn one_that_wakes_itself_lets_its_task_go_on_and_is_polled_again() {
        let (mut slots, wakes) = (Slots::default(), Arc::default());
        let mut left = 100;
        slots.push(Box::pin(poll_fn(move |context| {
            left -= 1;
            context.waker().wake_by_ref();
            if left == 0 { Poll::Ready(1_usize) } else { Poll::Pending }
        })) as Call);
        let mut steps = 0;
        while done(&mut slots, &wakes).is_empty() {
            steps += 1;
            assert_eq!(wakes.count(), steps, "its task is woken for the rest");
        }
        assert!((10..100).contains(&steps), "{steps}");
    }
}
