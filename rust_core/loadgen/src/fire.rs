//! Sends the calls of a run: by the clock, or, in a closed loop, as replies make room.

use std::{mem, sync::Arc};

use tokio::{
    sync::watch,
    task::yield_now,
    time::{Duration, Instant, sleep, sleep_until},
};

use crate::{
    calls::{self, Asked},
    flag::raised,
    http1,
    kinds::Kind,
    pace::{Clock, Pacer},
    plan::{Rows, Rpc},
    rows::{Row, Source, Synthetic, Taken},
    run::Shared,
    streams,
    tally::Call,
    wire::Requests,
};

/// Calls sent at one go before the connections move their bytes.
const BURST: u32 = 32;
/// How long past its end a schedule that runs late is still followed.
const LATE_MAX_NS: u64 = 100_000_000;
/// Between two tries of a closed loop that finds no connection.
const RETRY: Duration = Duration::from_millis(5);

/// What became of a call whose time came.
enum Fired {
    Sent,
    Failed,
    /// No rows any more, or the run was stopped while it waited for them.
    Over,
}

/// The sender's state.
pub struct Fire {
    shared: Arc<Shared>,
    requests: Requests,
    source: Source,
    row: Row,
    stopped: watch::Receiver<bool>,
    rows_per_call: u32,
    warm_ns: u64,
    end_ns: u64,
    unfed: bool,
}

impl Fire {
    /// Ready to send the plan's first call.
    pub fn new(shared: Arc<Shared>, stopped: watch::Receiver<bool>) -> Self {
        let plan = &shared.plan;
        let source = match &shared.feed {
            Some(feed) => Source::Fed(feed.clone()),
            None => Source::Synthetic(Synthetic::new(plan.robots, plan.width)),
        };
        Self {
            requests: Requests::new(plan),
            source,
            row: Row::default(),
            stopped,
            rows_per_call: plan.rows_per_call(),
            warm_ns: shared.warm_ns(),
            end_ns: ((plan.warmup_s + plan.duration_s) * 1e9) as u64,
            unfed: false,
            shared,
        }
    }

    /// Follows the schedule; returns when the sending ended, ns since the run's beginning. The last
    /// call is not the end: a run lasts as long as was planned.
    pub async fn open_loop(&mut self, clock: Clock, pacer: &Pacer) -> u64 {
        let shared = self.shared.clone();
        let plan = &shared.plan;
        let mut times = plan.shape.times(plan.warmup_s, plan.duration_s, plan.seed);
        let (mut k, mut burst) = (0, 0);
        while let Some(intended_ns) = times.next() {
            if clock.now_ns() < intended_ns {
                burst = 0;
                if self.stopped_before(clock.instant(intended_ns), pacer).await {
                    return clock.now_ns();
                }
            } else {
                burst += 1;
                if burst % BURST == 0 {
                    yield_now().await;
                }
            }
            let over = clock.now_ns() > self.end_ns + LATE_MAX_NS;
            if over || matches!(self.event(k, intended_ns, clock).await, Fired::Over) {
                self.give_up(std::iter::once(intended_ns).chain(times));
                return clock.now_ns().min(self.end_ns);
            }
            k += 1;
        }
        let stopped = self.stopped_before(clock.instant(self.end_ns), pacer).await;
        if stopped { clock.now_ns() } else { self.end_ns }
    }

    async fn stopped_before(&mut self, due: Instant, pacer: &Pacer) -> bool {
        tokio::select! {
            biased;
            () = raised(&mut self.stopped) => true,
            () = pacer.until(due) => false,
        }
    }

    /// Keeps as many calls under way as the plan says; returns when the sending ended.
    pub async fn closed_loop(&mut self, clock: Clock, in_flight: u32) -> u64 {
        let in_flight = u64::from(in_flight) * u64::from(self.rows_per_call);
        let end = clock.instant(self.end_ns);
        self.shared.await_settled();
        sleep_until(clock.instant(0)).await;
        for k in 0.. {
            if k % u64::from(BURST) == 0 {
                yield_now().await;
            }
            while self.shared.tally.in_flight() >= in_flight {
                tokio::select! {
                    biased;
                    () = raised(&mut self.stopped) => return clock.now_ns(),
                    () = sleep_until(end) => return clock.now_ns(),
                    () = self.shared.something_settled() => (),
                }
            }
            if *self.stopped.borrow() || Instant::now() >= end {
                break;
            }
            match self.event(k, clock.now_ns(), clock).await {
                Fired::Sent => (),
                Fired::Failed => sleep(RETRY).await,
                Fired::Over => break,
            }
        }
        clock.now_ns()
    }

    /// Sends call `k`, once its rows are there.
    async fn event(&mut self, k: u64, intended_ns: u64, clock: Clock) -> Fired {
        let measured = intended_ns >= self.warm_ns;
        let call = |sent_ns| Call { intended_ns, sent_ns, rows: self.rows_per_call, measured };
        let mut call = call(0);
        let plan = &self.shared.plan;
        let (rpc, judged) = (plan.rpc, !plan.labels.is_empty() && plan.rows == Rows::Fed);
        if rpc == Rpc::LabelBatch {
            return self.batch(k, call, judged, clock).await;
        }
        let key = self.shared.key(k);
        let (message, asked) = match rpc {
            Rpc::GetLabel => (self.requests.get(key), Asked::Read),
            Rpc::ListLabels => (self.requests.list(key), Asked::Read),
            _ => {
                if !self.take(k, measured).await {
                    return Fired::Over;
                }
                let truth = self.row.truth;
                match rpc {
                    Rpc::KserveInfer => {
                        (self.requests.infer(key, &self.row), Asked::Infer(key, truth))
                    }
                    Rpc::HttpPredict => {
                        let body = http1::body(&self.row.values, self.shared.plan.payload);
                        (body, Asked::Predict(key, truth))
                    }
                    _ => (self.requests.label(key, &self.row), Asked::Label(key, truth)),
                }
            }
        };
        call.sent_ns = clock.now_ns();
        let sent = match rpc {
            Rpc::LabelStream => streams::send(&self.shared, call, key, self.row.truth, message),
            Rpc::HttpPredict => calls::send_http(&self.shared, call, message, asked),
            _ => calls::send(&self.shared, key.robot, call, message, asked),
        };
        if sent { Fired::Sent } else { Fired::Failed }
    }

    async fn batch(&mut self, k: u64, mut call: Call, judged: bool, clock: Clock) -> Fired {
        let first = k * u64::from(self.rows_per_call);
        let mut truths = Vec::with_capacity(if judged { self.rows_per_call as usize } else { 0 });
        for at in 0..self.rows_per_call {
            let number = first + u64::from(at);
            if !self.take(number, call.measured).await {
                return Fired::Over;
            }
            self.requests.set_row(at as usize, self.shared.key(number), &self.row);
            if judged {
                truths.push(self.row.truth);
            }
        }
        let message = self.requests.batch();
        call.sent_ns = clock.now_ns();
        // Batches take turns on the connections, whoever their first row is of.
        let robot = (k % u64::from(self.shared.plan.robots)) as u32;
        let asked = Asked::Batch(first, truths);
        if calls::send(&self.shared, robot, call, message, asked) {
            Fired::Sent
        } else {
            Fired::Failed
        }
    }

    /// Fills the row; waits for one that is late. Whether there is one.
    async fn take(&mut self, number: u64, measured: bool) -> bool {
        let mut late = false;
        loop {
            match self.source.take(number, &mut self.row) {
                Taken::Row => return true,
                Taken::Ended => {
                    self.unfed = true;
                    return false;
                }
                Taken::Late => {
                    if !mem::replace(&mut late, true) && measured {
                        self.shared.tally.starved(1);
                    }
                    let Source::Fed(feed) = &self.source else { return false };
                    tokio::select! {
                        () = feed.came() => (),
                        () = raised(&mut self.stopped) => return false,
                    }
                }
            }
        }
    }

    /// Counts what will not be sent, unless the run was stopped: its rows are missing, or its time
    /// is over.
    fn give_up(&self, left: impl Iterator<Item = u64>) {
        let kind = self.unfed.then_some(Kind::Unfed);
        if kind.is_none() && *self.stopped.borrow() {
            return;
        }
        let left = left.filter(|intended_ns| *intended_ns >= self.warm_ns).count() as u64;
        self.shared.tally.never_sent(left * u64::from(self.rows_per_call), kind);
    }
}
