//! A run from its plan to its result: ready ▸ fire ▸ drain ▸ result. The one place that wires the
//! parts; it knows no thread and no Python.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use http::Request;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Duration, Instant, sleep, sleep_until, timeout_at},
};

use crate::{
    connection::{Dial, Links},
    error::{Error, Result},
    fire::Fire,
    http1::Pool,
    pace::{Clock, Pacer},
    plan::{Plan, Rows, Rpc},
    rows::Feed,
    sampler::{Samples, Threads},
    schedule::Shape,
    streams::Streams,
    tally::{Call, Tally},
    wire::{self, Key},
};

/// From the order to fire to the first intended time, so that it can be kept.
const LEAD: Duration = Duration::from_millis(20);
/// Beyond a request's own time limit, so that the server's word on it is heard where it speaks.
pub const TIMEOUT_GRACE: Duration = Duration::from_millis(50);
/// From the last time limit to the end of the run.
const DRAIN_GRACE: Duration = Duration::from_millis(250);
/// How long closing connections may take.
const CLOSE_MAX: Duration = Duration::from_millis(500);
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// What the parts of a run share.
pub struct Shared {
    /// As checked, with the first sequence filled in.
    pub plan: Plan,
    /// The connections.
    pub links: Arc<Links>,
    /// Those over HTTP/1.1, where the plan's rpc is one; then there are no others.
    pub pool: Pool,
    /// The robots' streams; none where the plan's rpc is another.
    pub streams: Streams,
    /// All counts.
    pub tally: Tally,
    /// The sender's threads.
    pub threads: Threads,
    /// The queue of fed rows.
    pub feed: Option<Arc<Feed>>,
    /// CPU and memory.
    pub samples: Mutex<Samples>,
    head: Request<()>,
    clock: OnceLock<Clock>,
    sent_until_ns: OnceLock<u64>,
    /// Told of each reply, where somebody waits for them.
    settled: Notify,
    awaited: AtomicBool,
}

impl Shared {
    /// The parts, none of them started. Errors: `Disk` for the acknowledgement file, `Invalid`.
    pub fn new(mut plan: Plan) -> Result<Arc<Self>> {
        if plan.first_sequence == 0 {
            plan.first_sequence = fresh_sequence();
        }
        let streams = if plan.rpc == Rpc::LabelStream { plan.robots } else { 0 };
        let all = plan.connections;
        let (links, pool) = if plan.rpc == Rpc::HttpPredict { (0, all) } else { (all, 0) };
        Ok(Arc::new(Self {
            links: Links::new(links as usize),
            pool: Pool::new(&plan, pool),
            streams: Streams::new(streams),
            tally: Tally::new(&plan)?,
            threads: Threads::default(),
            feed: (plan.rows == Rows::Fed).then(|| Arc::new(Feed::new(&plan))),
            samples: Mutex::default(),
            head: wire::head(&plan)?,
            clock: OnceLock::new(),
            sent_until_ns: OnceLock::new(),
            settled: Notify::new(),
            awaited: AtomicBool::new(false),
            plan,
        }))
    }

    /// The run's clock; it stands at 0 until the run fires.
    pub fn clock(&self) -> Clock {
        self.clock.get().copied().unwrap_or_else(|| Clock::starting_in(Duration::ZERO))
    }

    /// A call's head.
    pub fn head(&self) -> Request<()> {
        self.head.clone()
    }

    /// Whose row `k` is, and its sequence.
    pub fn key(&self, k: u64) -> Key {
        let robots = u64::from(self.plan.robots);
        Key { robot: (k % robots) as u32, sequence: self.plan.first_sequence + k / robots }
    }

    /// When a call is given up.
    pub fn deadline(&self, call: &Call) -> Instant {
        let timeout = Duration::from_millis(self.plan.timeout_ms);
        self.clock().instant(call.sent_ns) + timeout + TIMEOUT_GRACE
    }

    /// The end of the warm-up, ns since the run's beginning.
    pub fn warm_ns(&self) -> u64 {
        (self.plan.warmup_s * 1e9) as u64
    }

    /// Length of the measured part so far: until now, or the end of sending.
    pub fn elapsed_s(&self) -> f64 {
        let Some(clock) = self.clock.get() else { return 0.0 };
        let until_ns = self.sent_until_ns.get().copied().unwrap_or_else(|| clock.now_ns());
        until_ns.saturating_sub(self.warm_ns()) as f64 / 1e9
    }

    /// A reply was counted.
    pub fn settled(&self) {
        if self.awaited.load(Ordering::Relaxed) {
            self.settled.notify_one();
        }
    }

    /// From now on `settled` can be waited for.
    pub fn await_settled(&self) {
        self.awaited.store(true, Ordering::Relaxed);
    }

    /// Returns when something was counted since the last time.
    pub async fn something_settled(&self) {
        self.settled.notified().await;
    }
}

/// Above every sequence of an earlier run: ms since 1970, and a million requests in each.
fn fresh_sequence() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    (now.map_or(1, |since| since.as_millis() as u64)) << 20
}

/// Makes all connections and streams. Errors: `NotReady`.
pub async fn connect<D: Dial>(
    shared: &Arc<Shared>,
    dial: &D,
    closing: &watch::Receiver<bool>,
) -> Result<()> {
    let begin = Instant::now();
    let deadline = begin + Duration::from_millis(shared.plan.ready_timeout_ms);
    let not_ready = |reason: String| Error::NotReady {
        address: shared.plan.address.clone(),
        reason,
        waited_ms: begin.elapsed().as_millis() as u64,
    };
    shared.links.start(dial, closing);
    shared.links.all_up(deadline).await.map_err(not_ready)?;
    shared.pool.connect(deadline).await.map_err(not_ready)?;
    if shared.plan.rpc != Rpc::LabelStream {
        return Ok(());
    }
    let (robots, max) = (shared.plan.robots, shared.links.streams_max() as u64);
    let each = u64::from(robots.div_ceil(shared.plan.connections));
    if each > max {
        let needed = u64::from(robots).div_ceil(max.max(1));
        return Err(not_ready(format!(
            "it takes {max} streams a connection and the plan has {each}; use {needed} connections"
        )));
    }
    shared.streams.start(shared, closing);
    shared.streams.all_open(deadline).await.map_err(not_ready)
}

/// Sends by the schedule until its end or `stopped`, then waits for what is under way.
pub async fn fire(shared: &Arc<Shared>, pacer: Pacer, stopped: watch::Receiver<bool>) {
    let clock = *shared.clock.get_or_init(|| Clock::starting_in(LEAD));
    let sampler = tokio::spawn(sample(shared.clone(), clock));
    let mut fire = Fire::new(shared.clone(), stopped);
    let sent_until_ns = match shared.plan.shape {
        Shape::Saturate { in_flight } => fire.closed_loop(clock, in_flight).await,
        _ => fire.open_loop(clock, &pacer).await,
    };
    let _ = shared.sent_until_ns.set(sent_until_ns);
    shared.samples.lock().own_sent_us = shared.threads.cpu_us();
    drain(shared).await;
    sampler.abort();
    let mut samples = shared.samples.lock();
    samples.look(&shared.plan.server_pids());
    samples.own_end_us = shared.threads.cpu_us();
}

/// Lets connections end as they should.
pub async fn close(shared: &Shared, closing: &watch::Sender<bool>) {
    shared.streams.finish();
    closing.send_replace(true);
    shared.links.all_closed(CLOSE_MAX).await;
}

async fn drain(shared: &Shared) {
    shared.await_settled();
    let timeout = Duration::from_millis(shared.plan.timeout_ms) + TIMEOUT_GRACE;
    let bound = Instant::now() + timeout + DRAIN_GRACE;
    while shared.tally.in_flight() > 0 {
        if timeout_at(bound, shared.something_settled()).await.is_err() {
            return;
        }
    }
}

async fn sample(shared: Arc<Shared>, clock: Clock) {
    let pids = shared.plan.server_pids();
    sleep_until(clock.instant(shared.warm_ns())).await;
    shared.samples.lock().begin(&pids, shared.threads.cpu_us());
    if !pids.is_empty() {
        loop {
            sleep(SAMPLE_EVERY).await;
            shared.samples.lock().look(&pids);
        }
    }
}
