//! The wait for an answer: until the level that the caller asked for, or until its deadline less a
//! margin.
//!
//! A caller that leaves drops its `Waiter`; the last one takes a row that nobody has begun to
//! compute out of its queue. A label that exists is never an error, unless its level was made a
//! condition.

use std::{future::Future, sync::Arc, time::Instant};

use crate::{
    error::{Error, Result},
    label::Durability,
    row::{Progress, Row},
    stages::Stage,
};

/// What a caller waits for.
#[derive(Debug, Clone, Copy)]
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

type Withdraw = dyn FnOnce(&Arc<Row>) + Send + Sync;

/// One caller of one row.
pub struct Waiter {
    row: Arc<Row>,
    withdraw: Option<Box<Withdraw>>,
}

impl Waiter {
    /// A caller already counted in the row. `withdraw` runs if this is the last caller to leave and
    /// no batch has the row.
    pub fn new(row: Arc<Row>, withdraw: Option<Box<Withdraw>>) -> Self {
        Self { row, withdraw }
    }

    /// The row waited for.
    pub fn row(&self) -> &Arc<Row> {
        &self.row
    }

    /// Waits. `Ok` is the level reached.
    pub async fn wait(&self, want: Want) -> Result<Durability> {
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
        let reached = async {
            loop {
                let mut changed = std::pin::pin!(self.row.changed());
                changed.as_mut().enable();
                if self.row.failure().is_some()
                    || self.row.progress().level().is_some_and(|l| l >= level)
                {
                    return;
                }
                changed.await;
            }
        };
        within(until, reached).await
    }
}

async fn within(until: Instant, done: impl Future<Output = ()>) -> bool {
    tokio::time::timeout_at(until.into(), done).await.is_ok()
}

fn outcome(row: &Row, want: Want) -> Result<Durability> {
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

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.row.leave()
            && let Some(withdraw) = self.withdraw.take()
        {
            withdraw(&self.row);
        }
    }
}
