//! Control requests: what the control side answers (read-back, model operations).
//!
//! A bounded queue of its own, with deadline and cancellation. It shares no permit, lock or thread
//! with the label path: when nobody answers, requests end with DEADLINE_EXCEEDED and labels go on.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::{
    error::{Error, Result},
    faults, proto,
    stages::Stage,
};

/// What is asked of the control side.
#[derive(Debug, Clone)]
pub enum Ask {
    /// `GetLabel` of what is not pending here.
    Get(proto::GetLabelRequest),
    /// `ListLabels`.
    List(proto::ListLabelsRequest),
    /// `LoadModel`.
    LoadModel(proto::LoadModelRequest),
    /// `UnloadModel`.
    UnloadModel(proto::UnloadModelRequest),
    /// `ListModels`.
    ListModels,
}

/// What it answers.
#[derive(Debug)]
pub enum Answered {
    /// To `Get`.
    Label(Box<proto::StoredLabel>),
    /// To `List`.
    Labels(proto::ListLabelsResponse),
    /// To the model operations.
    Models(Vec<proto::ModelVersion>),
}

/// A request on its way to the control side.
#[derive(Debug)]
pub struct Asked {
    /// By which it is answered.
    pub id: u64,
    /// What is asked.
    pub ask: Ask,
    /// When its caller leaves.
    pub deadline: Instant,
}

struct Waiting {
    id: u64,
    ask: Ask,
    deadline: Instant,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    answers: HashMap<u64, oneshot::Sender<Result<Answered>>>,
    next_id: u64,
    expired_total: u64,
    closed: bool,
}

/// The queue.
pub struct Control {
    state: Mutex<State>,
    ready: Condvar,
    rows_max: usize,
}

impl Control {
    /// An empty queue of at most `rows_max` unanswered requests.
    pub fn new(rows_max: usize) -> Self {
        Self { state: Mutex::default(), ready: Condvar::new(), rows_max }
    }

    /// Asks and waits until `deadline`. Dropping the future withdraws the request.
    pub async fn ask(&self, ask: Ask, deadline: Instant) -> Result<Answered> {
        let (id, receiver) = self.enqueue(ask, deadline)?;
        let _withdraw = Withdraw { control: self, id };
        faults::point("control");
        match tokio::time::timeout_at(deadline.into(), receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Error::Stopped),
            Err(_) => {
                self.state.lock().expired_total += 1;
                Err(Error::DeadlinePassed { stage: Stage::Queue, label_exists: false })
            }
        }
    }

    /// For the control side: requests whose callers still wait, at most `rows_max`; empty when the
    /// time is over, `Stopped` after `close`. Blocks the calling thread.
    pub fn take(&self, rows_max: usize, timeout: Duration) -> Result<Vec<Asked>> {
        let until = Instant::now() + timeout;
        let mut state = self.state.lock();
        loop {
            faults::point("control take");
            let now = Instant::now();
            let mut taken = Vec::new();
            while taken.len() < rows_max
                && let Some(Waiting { id, ask, deadline }) = state.queue.pop_front()
            {
                if deadline > now && state.answers.contains_key(&id) {
                    taken.push(Asked { id, ask, deadline });
                }
            }
            if state.closed {
                return Err(Error::Stopped);
            }
            if !taken.is_empty() || self.ready.wait_until(&mut state, until).timed_out() {
                return Ok(taken);
            }
        }
    }

    /// For the control side: an answer. A caller who has left is no error.
    pub fn answer(&self, id: u64, answer: Result<Answered>) {
        let sender = self.state.lock().answers.remove(&id);
        if let Some(sender) = sender {
            let _ = sender.send(answer);
        }
    }

    /// Fails all callers; nothing is taken any more.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.queue.clear();
        state.answers.clear();
        self.ready.notify_all();
    }

    /// Unanswered requests, and those that ended by their deadline since the start.
    pub fn counts(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.answers.len(), state.expired_total)
    }

    fn enqueue(
        &self,
        ask: Ask,
        deadline: Instant,
    ) -> Result<(u64, oneshot::Receiver<Result<Answered>>)> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::Stopped);
        }
        if state.answers.len() >= self.rows_max {
            let bound = format!("{} requests", self.rows_max);
            let retry_after = Duration::from_millis(100);
            return Err(Error::Overloaded { what: "control queue", bound, retry_after });
        }
        let id = state.next_id;
        state.next_id += 1;
        let (sender, receiver) = oneshot::channel();
        state.answers.insert(id, sender);
        state.queue.push_back(Waiting { id, ask, deadline });
        drop(state);
        self.ready.notify_one();
        Ok((id, receiver))
    }
}

struct Withdraw<'a> {
    control: &'a Control,
    id: u64,
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        let mut state = self.control.state.lock();
        state.answers.remove(&self.id);
        state.queue.retain(|w| w.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn soon(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[tokio::test]
    async fn an_answer_reaches_the_one_who_asked() {
        let control = Arc::new(Control::new(4));
        let asking = tokio::spawn({
            let control = control.clone();
            async move { control.ask(Ask::ListModels, soon(5_000)).await }
        });
        let taking = control.clone();
        let taken = tokio::task::spawn_blocking(move || taking.take(8, Duration::from_secs(5)));
        let taken = taken.await.unwrap().unwrap();
        control.answer(taken[0].id, Ok(Answered::Models(vec![])));
        assert!(matches!(asking.await.unwrap(), Ok(Answered::Models(_))));
        assert_eq!(control.counts(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_answers_and_the_deadline_ends_it() {
        let control = Control::new(4);
        let asked = control.ask(Ask::ListModels, soon(50)).await;
        assert!(matches!(asked, Err(Error::DeadlinePassed { .. })));
        assert_eq!(control.counts(), (0, 1));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_and_a_withdrawn_request_gives_its_place_back() {
        let control = Control::new(1);
        let first = control.ask(Ask::ListModels, soon(5_000));
        let mut first = Box::pin(first);
        assert!(futures_util::poll!(&mut first).is_pending());
        let second = control.ask(Ask::ListModels, soon(5_000)).await;
        assert!(matches!(second, Err(Error::Overloaded { .. })));
        drop(first);
        assert_eq!(control.counts().0, 0);
        assert!(
            control.take(8, Duration::ZERO).unwrap().is_empty(),
            "a withdrawn request is not taken"
        );
    }
}
