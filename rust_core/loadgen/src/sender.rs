//! The sender as its users hold it: a run on a thread of its own, and calls that wait for its
//! steps.

use std::{
    fs::File,
    io::BufWriter,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use hdrhistogram::{
    Histogram,
    serialization::{V2DeflateSerializer, interval_log::IntervalLogWriterBuilder},
};
use parking_lot::{Condvar, Mutex};
use tokio::{runtime, sync::watch};

use crate::{
    acks::failed,
    connection::Tcp,
    error::{Error, Result},
    flag::raised,
    pace::Pacer,
    plan::Plan,
    result::{self, RunResult, Snapshot},
    run::{self, Shared},
};

/// Tasks that run before the reactor is asked again: few, since the next call's time is told there.
const TASKS_A_TURN: u32 = 16;

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    New,
    Connecting,
    Ready,
    Firing,
    Over(Box<RunResult>),
    Failed(Error),
}

struct Steps {
    phase: Mutex<Phase>,
    changed: Condvar,
    fire: watch::Sender<bool>,
    stop: watch::Sender<bool>,
}

impl Steps {
    fn set(&self, phase: Phase) {
        *self.phase.lock() = phase;
        self.changed.notify_all();
    }
}

/// A run, from its plan to its result: `connect`, `fire`, `wait`, `result`, each once.
pub struct Sender {
    shared: Arc<Shared>,
    steps: Arc<Steps>,
}

impl Sender {
    /// Reads and checks the plan; nothing is started. Errors: `Invalid` names the field, `Disk` the
    /// acknowledgement file.
    pub fn new(plan_json: &str) -> Result<Self> {
        let shared = Shared::new(Plan::from_json(plan_json)?)?;
        let steps = Steps {
            phase: Mutex::new(Phase::New),
            changed: Condvar::new(),
            fire: watch::Sender::new(false),
            stop: watch::Sender::new(false),
        };
        Ok(Self { shared, steps: Arc::new(steps) })
    }

    /// The plan as it was checked.
    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Adds rows for a plan with `rows: fed`; waits while the queue is full, and drops them once
    /// the run is over. `values`: little-endian float32 [n × width]; `truths`, `skus`: int16 [n],
    /// `skus` may be empty. Errors: `Invalid`, `OutOfOrder`.
    pub fn feed(&self, values: &[u8], truths: &[u8], skus: &[u8]) -> Result<()> {
        self.fed()?.add(values, truths, skus)
    }

    /// Says that no more rows come: calls beyond them are counted as UNFED. Errors: `OutOfOrder`.
    pub fn end_feed(&self) -> Result<()> {
        self.fed().map(|feed| feed.end())
    }

    /// Makes all connections and streams and returns when they are up. Errors: `NotReady`, with
    /// who, why and how long it waited; `Machine`; `OutOfOrder`.
    pub fn connect(&self) -> Result<()> {
        {
            let mut phase = self.steps.phase.lock();
            if *phase != Phase::New {
                return Err(Error::OutOfOrder("connect comes once, before fire"));
            }
            *phase = Phase::Connecting;
        }
        let (shared, steps) = (self.shared.clone(), self.steps.clone());
        let run = move || {
            let ended = live(&shared, &steps);
            if let Some(feed) = &shared.feed {
                feed.close();
            }
            steps.set(ended.unwrap_or_else(Phase::Failed));
        };
        let thread = std::thread::Builder::new().name("sender".to_owned()).spawn(run);
        if let Err(error) = thread {
            self.steps.set(Phase::Failed(Error::machine(error)));
        }
        let mut phase = self.steps.phase.lock();
        self.steps.changed.wait_while(&mut phase, |phase| *phase == Phase::Connecting);
        match &*phase {
            Phase::Failed(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Starts the schedule and returns. Errors: `OutOfOrder`.
    pub fn fire(&self) -> Result<()> {
        let mut phase = self.steps.phase.lock();
        if *phase != Phase::Ready {
            return Err(Error::OutOfOrder("fire comes once, after connect"));
        }
        *phase = Phase::Firing;
        drop(phase);
        self.steps.fire.send_replace(true);
        Ok(())
    }

    /// Waits for the run's end, at most so long. Whether it is over.
    pub fn wait(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut phase = self.steps.phase.lock();
        let running = |phase: &mut Phase| !matches!(phase, Phase::Over(_) | Phase::Failed(_));
        !self.steps.changed.wait_while_until(&mut phase, running, until).timed_out()
    }

    /// Sends nothing more from now on; what is under way keeps its time limit.
    pub fn stop(&self) {
        self.steps.stop.send_replace(true);
    }

    /// Counts so far, and what happened since the last call of this.
    pub fn snapshot(&self) -> Snapshot {
        result::snapshot(&self.shared)
    }

    /// The result of a run that is over. Errors: `OutOfOrder` before that; what ended the run.
    pub fn result(&self) -> Result<RunResult> {
        match &*self.steps.phase.lock() {
            Phase::Over(result) => Ok((**result).clone()),
            Phase::Failed(error) => Err(error.clone()),
            _ => Err(Error::OutOfOrder("there is a result once the run is over: see wait")),
        }
    }

    /// Writes the histograms as HdrHistogram logs, values in µs: `latency_us.hlog`,
    /// `latency_uncorrected_us.hlog`, `server_us.hlog`, `network_us.hlog`, `schedule_lag_us.hlog`.
    /// Their paths. Errors: `Disk`.
    pub fn write_histograms(&self, directory: &Path) -> Result<Vec<String>> {
        let shown = directory.display().to_string();
        std::fs::create_dir_all(directory).map_err(|e| failed("create", &shown, &e))?;
        let elapsed = Duration::from_secs_f64(self.shared.elapsed_s());
        let all = self.shared.tally.look(|totals, _| {
            [
                ("latency_us", totals.latency_us.clone()),
                ("latency_uncorrected_us", totals.uncorrected_us.clone()),
                ("server_us", totals.server_us.clone()),
                ("network_us", totals.network_us.clone()),
                ("schedule_lag_us", totals.lag_us.clone()),
            ]
        });
        let mut written = Vec::with_capacity(all.len());
        for (name, histogram) in all {
            let path = directory.join(format!("{name}.hlog"));
            let shown = path.display().to_string();
            let file = File::create(&path).map_err(|e| failed("create", &shown, &e))?;
            write_log(file, name, &histogram, elapsed)
                .map_err(|e| failed("write", &shown, &std::io::Error::other(e)))?;
            written.push(shown);
        }
        Ok(written)
    }

    fn fed(&self) -> Result<&Arc<crate::rows::Feed>> {
        let feed = self.shared.feed.as_ref();
        feed.ok_or(Error::OutOfOrder("the plan's rows are not \"fed\", so nothing is fed"))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // The thread ends by itself; nobody waits for it.
        self.steps.stop.send_replace(true);
    }
}

fn write_log(
    file: File,
    name: &str,
    histogram: &Histogram<u64>,
    elapsed: Duration,
) -> std::result::Result<(), String> {
    let (mut file, mut serializer) = (BufWriter::new(file), V2DeflateSerializer::new());
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment(&format!("labeler loadgen: {name}"))
        .with_start_time(SystemTime::now() - elapsed)
        .with_max_value_divisor(1.0)
        .begin_log_with(&mut file, &mut serializer)
        .map_err(|e| e.to_string())?;
    log.write_histogram(histogram, Duration::ZERO, elapsed, None).map_err(|e| format!("{e:?}"))?;
    std::io::Write::flush(&mut file).map_err(|e| e.to_string())
}

/// The whole life of the sender's thread.
fn live(shared: &Arc<Shared>, steps: &Steps) -> Result<Phase> {
    let runtime = build(shared)?;
    let tcp = Tcp { address: shared.plan.address.as_str().into() };
    let closing = watch::Sender::new(false);
    let outcome = runtime.block_on(async {
        let (mut stopped, mut fired) = (steps.stop.subscribe(), steps.fire.subscribe());
        let until = closing.subscribe();
        let connected = tokio::select! {
            connected = run::connect(shared, &tcp, &until) => connected,
            () = raised(&mut stopped) => {
                Err(Error::OutOfOrder("the run was stopped before it was ready"))
            }
        };
        connected?;
        steps.set(Phase::Ready);
        let pacer = Pacer::exact()?;
        tokio::select! {
            () = raised(&mut fired) => {
                run::fire(shared, pacer, steps.stop.subscribe()).await;
            }
            () = raised(&mut stopped) => (),
        }
        let (acks_missing, acks) = shared.tally.close();
        let result = result::result(shared, acks_missing);
        run::close(shared, &closing).await;
        acks.map(|()| Phase::Over(Box::new(result)))
    });
    runtime.shutdown_background();
    outcome
}

fn build(shared: &Arc<Shared>) -> Result<runtime::Runtime> {
    let threads = shared.plan.threads as usize;
    let mut builder = if threads == 1 {
        shared.threads.add_this();
        runtime::Builder::new_current_thread()
    } else {
        let mut builder = runtime::Builder::new_multi_thread();
        // The thread that waits for the run sends its calls.
        shared.threads.add_this();
        let started = shared.clone();
        builder.worker_threads(threads - 1).on_thread_start(move || started.threads.add_this());
        builder
    };
    let builder = builder.thread_name("sender").event_interval(TASKS_A_TURN).enable_all();
    builder.build().map_err(Error::machine)
}
