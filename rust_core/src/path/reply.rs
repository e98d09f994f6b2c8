//! The wait for an answer: until the level that the caller asked for, or until its deadline less a
//! margin.
//!
//! A caller that leaves drops its `Waiter`; the last one takes a row that nobody has begun to
//! compute out of its queue. A label that exists is never an error, unless its level was made a
//! condition.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Instant,
};

use crate::{
    error::{Error, Result},
    label::Durability,
    row::{Progress, Row},
    stages::Stage,
};

/// What a caller waits for.
#[derive(Debug)]
pub struct Want {
    /// The level.
    pub level: Durability,
    /// Whether a weaker level is an error.
    pub required: bool,
    /// When the caller's time is over.
    pub deadline: Instant,
    /// When it gets what there is: the deadline less a margin.
    pub give_up: Instant,
}

/// Takes a row back that nobody waits for any more.
pub trait Withdraw {
    /// Runs if the last caller leaves and no batch has the row.
    fn withdraw(self, row: &Arc<Row>);
}

/// One caller of one row.
pub struct Waiter<W: Withdraw> {
    row: Arc<Row>,
    withdraw: Option<W>,
}

impl<W: Withdraw> Waiter<W> {
    /// A caller already counted in the row.
    pub fn new(row: Arc<Row>, withdraw: Option<W>) -> Self {
        Self { row, withdraw }
    }

    /// The row waited for.
    pub fn row(&self) -> &Arc<Row> {
        &self.row
    }

    /// Waits. `Ok` is the level reached.
    pub async fn wait(&self, want: &Want) -> Result<Durability> {
        if !self.reaches(want.level, want.give_up).await
            && self.row.progress() < Progress::Buffered
            && self.row.failure().is_none()
        {
            // No answer yet: the margin was for telling a level, and there is none to tell.
            self.row.accept(Durability::Buffered);
            self.reaches(Durability::Buffered, want.deadline).await;
        }
        outcome(&self.row, want)
    }

    /// True once the row is at `level` or has failed, false when the time is over.
    async fn reaches(&self, level: Durability, until: Instant) -> bool {
        let mut over = pin!(tokio::time::sleep_until(until.into()));
        loop {
            let mut changed = pin!(self.row.changed());
            changed.as_mut().enable();
            if self.row.failure().is_some()
                || self.row.progress().level().is_some_and(|l| l >= level)
            {
                return true;
            }
            let has_changed = poll_fn(|context| match changed.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending => over.as_mut().poll(context).map(|()| false),
            });
            if !has_changed.await {
                return false;
            }
        }
    }
}

fn outcome(row: &Row, want: &Want) -> Result<Durability> {
    let level = row.progress().level();
    match level {
        Some(level) if level >= want.level => return Ok(level),
        _ => {}
    }
    if let Some(error) = row.failure() {
        return Err(error.clone());
    }
    match level {
        Some(level) if !want.required => Ok(level),
        level => {
            let stage = if level.is_some() { Stage::Journal } else { Stage::Queue };
            Err(Error::DeadlinePassed { stage, label_exists: level.is_some() })
        }
    }
}

impl<W: Withdraw> Drop for Waiter<W> {
    fn drop(&mut self) {
        if self.row.leave()
            && let Some(withdraw) = self.withdraw.take()
        {
            withdraw.withdraw(&self.row);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        label::{Answer, Key, Priority, Source},
        row::Asked,
    };

    const DEADLINE: Duration = Duration::from_millis(150);
    const MARGIN: Duration = Duration::from_millis(5);

    enum Nowhere {}

    impl Withdraw for Nowhere {
        fn withdraw(self, _: &Arc<Row>) {
            match self {}
        }
    }

    fn row() -> Arc<Row> {
        let key = Key { robot_id: Arc::from("r1"), sequence: 7 };
        let (digest, priority, sku) = (1, Priority::Robot, "".into());
        let asked = Asked { key, digest, priority, deadline_us: 0, captured_at_unix_us: 0, sku };
        Arc::new(Row::new(asked, Durability::Stored))
    }

    fn answer(row: &Row) {
        let (label, model, version) = ("go".into(), "m".into(), "1".into());
        let (confidence, scores) = (1.0, Box::new([1.0_f32]));
        let source = Source::Model;
        assert!(row.begin());
        row.answered(Answer { index: 0, label, confidence, scores, model, version, source });
    }

    /// What a caller gets that wants `Stored`, and after how long; time is the test's own.
    async fn waited(row: &Arc<Row>, required: bool) -> (Result<Durability>, Duration) {
        let began = tokio::time::Instant::now();
        let deadline = began.into_std() + DEADLINE;
        let give_up = deadline - MARGIN;
        let want = Want { level: Durability::Stored, required, deadline, give_up };
        let got = Waiter::<Nowhere>::new(row.clone(), None).wait(&want).await;
        (got, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_whose_level_does_not_come_gets_what_there_is_a_margin_before_its_deadline() {
        let row = row();
        answer(&row);
        row.reached(Durability::Journaled);
        assert_eq!(waited(&row, false).await, (Ok(Durability::Journaled), DEADLINE - MARGIN));
    }

    #[tokio::test(start_paused = true)]
    async fn a_label_made_within_the_margin_is_told_as_it_is_made() {
        let (row, made) = (row(), DEADLINE - MARGIN + Duration::from_millis(2));
        let late = async {
            tokio::time::sleep(made).await;
            answer(&row);
            row.reached(Durability::Buffered);
        };
        let (got, ()) = tokio::join!(waited(&row, false), late);
        assert_eq!(got, (Ok(Durability::Buffered), made));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_label_the_whole_deadline_is_waited_for() {
        let error = Error::DeadlinePassed { stage: Stage::Queue, label_exists: false };
        assert_eq!(waited(&row(), false).await, (Err(error), DEADLINE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_level_that_is_a_condition_is_an_error_that_says_the_label_exists() {
        let row = row();
        answer(&row);
        row.reached(Durability::Journaled);
        let error = Error::DeadlinePassed { stage: Stage::Journal, label_exists: true };
        assert_eq!(waited(&row, true).await, (Err(error), DEADLINE - MARGIN));
    }

    #[tokio::test(start_paused = true)]
    async fn a_level_that_comes_ends_the_wait_at_once() {
        let row = row();
        answer(&row);
        row.reached(Durability::Stored);
        assert_eq!(waited(&row, true).await, (Ok(Durability::Stored), Duration::ZERO));
    }
}
