//! The only wiring: config ▸ journal ▸ path ▸ models ▸ transport; start, drain, stop.
//!
//! The order is the argument: recovery ends before a port opens, models are warm before ready, and
//! what stops last is what acknowledged labels rest on.

use std::{
    sync::{Arc, OnceLock, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    account::Accounts,
    clock::{Clock, Stamps},
    config::{CoreConfig, PathConfig},
    control::Control,
    error::{Error, Result},
    faults, identity,
    journal::{self, Journal, Outcome, Recovery},
    label::Durability,
    life::{Life, State},
    models::{Repository, load_runtime},
    path::{Path, admit::Admit, dedupe::Dedupe, journal::Journaling, restore, served::Served},
    records::{self, Numbered},
    row::Row,
    serving::{Parts, Serving},
    starting::Starting,
    supervise::Supervisor,
    transport::{Errors, Gauges, Shared, server::Server},
};

/// The running label path.
pub struct Engine {
    /// What handlers share; the snapshot reads it.
    pub shared: Arc<Shared>,
    /// What is served, and the operations on it.
    pub serving: Arc<Serving>,
    /// The write-ahead log.
    pub journal: Journal,
    /// Its life.
    pub life: Arc<Life>,
    /// Wall time of the start.
    pub started_unix_us: i64,
    /// The stamps that labels got.
    pub stamps: Arc<Stamps>,
    config: CoreConfig,
    server: Arc<Serves>,
    committer: Mutex<Option<JoinHandle<()>>>,
    /// Who starts threads.
    pub supervisor: Supervisor,
}

/// What a part's failure has to shut; empty until the port is open.
type Serves = OnceLock<(Arc<Shared>, Mutex<Option<Server>>)>;

/// How long the journal may take to close.
const JOURNAL_CLOSE: Duration = Duration::from_secs(5);

impl Engine {
    /// Starts everything but the port: recovers the journal, loads and warms the models. Nothing is
    /// accepted before `open`, so that a process that ends here loses nothing.
    pub fn start(config: CoreConfig) -> Result<Arc<Self>> {
        let clock = Clock::start();
        let runtime = load_runtime(&config.models.runtime_library)?;
        tracing::info!(path = %runtime.path.display(), version = runtime.version, "ONNX Runtime");
        let life = Arc::new(Life::default());
        let server: Arc<Serves> = Arc::default();
        let supervisor = supervisor(life.clone(), server.clone());
        let starting = Starting::begin(&supervisor, &config.journal.directory)?;
        let files = starting.files(Arc::new(journal::SystemFiles));
        let opened = journal::open(config.journal.clone(), files)?;
        let journal::Opened { journal, committer, recovery } = opened;
        report(&recovery);
        // After the lock: a process that misses it touches nothing.
        let instance_id = identity::instance_id(&config.state_dir)?;
        let path = &config.path;
        let dedupe = Arc::new(Dedupe::new(path.dedupe_rows_max, path.dedupe_window_ms * 1_000));
        starting.phase("dedupe window");
        let stamps = Arc::new(Stamps::default());
        restore_window(&dedupe, &journal, recovery.next_number, path, &stamps)?;
        // After what can fail: a thread that nobody ends would keep the journal's lock.
        let run = move || committer.run();
        let committer = supervisor.spawn("journal", "committer".to_owned(), run)?;
        let served = Arc::new(Served::new(&config.models.default));
        let serving = Arc::new(Serving::new(Parts {
            repository: Repository::new(config.models.repositories.clone()),
            served: served.clone(),
            limits: path.into(),
            journaling: journaling(&journal, clock, &stamps, &dedupe),
            clock,
            supervisor: supervisor.clone(),
        }));
        let shared = Arc::new(Shared {
            path: Path {
                admit: Admit::new(journal.clone(), path.stored_waiters_max),
                dedupe,
                served,
                defaults: path.into(),
                clock,
            },
            control: Control::new(config.control.queue_rows_max),
            accounts: Arc::new(Accounts::default()),
            errors: Errors::default(),
            gauges: Gauges::default(),
            clock,
            config: config.transport.clone(),
            control_timeout_us: config.control.timeout_ms * 1_000,
            store_stalled: Duration::from_millis(path.store_stalled_ms),
            instance_id,
            journal_id: recovery.journal_id.to_string(),
        });
        let engine = Arc::new(Self {
            shared,
            serving,
            journal,
            life,
            started_unix_us: clock.unix_us(),
            stamps,
            config,
            server,
            committer: Mutex::new(Some(committer)),
            supervisor,
        });
        starting.phase("models");
        engine
            .serving
            .load_all(&engine.config.models.load)
            .or_else(|error| engine.give_up(error))?;
        Ok(engine)
    }

    /// Opens the port, the last of all: nobody enters a half-built house.
    pub fn open(self: &Arc<Self>) -> Result<()> {
        let server = Server::start(self.shared.clone(), &self.supervisor)
            .or_else(|error| self.give_up(error))?;
        let (_, held) = self.server.get_or_init(|| (self.shared.clone(), Mutex::default()));
        held.lock().replace(server);
        Ok(())
    }

    /// What has started must not keep the journal's lock; the first error is the one to tell.
    fn give_up<T>(self: &Arc<Self>, error: Error) -> Result<T> {
        let _ = self.stop();
        Err(error)
    }

    fn take_server(&self) -> Option<Server> {
        self.server.get().and_then(|(_, server)| server.lock().take())
    }

    /// `host:port` that it listens on.
    pub fn grpc_address(&self) -> String {
        let server = self.server.get().map(|(_, server)| server.lock());
        server.and_then(|s| s.as_ref().map(|s| s.address().to_string())).unwrap_or_default()
    }

    /// The journal's bound on disk.
    pub fn journal_bytes_max(&self) -> u64 {
        self.config.journal.disk_bytes_max
    }

    /// Puts the next journaled records for the writer at the front of `into`: how many. Waits for
    /// the first. A body that is no record ends as dead, and its bytes are kept: no later try would
    /// read it either.
    pub fn take_records(
        &self,
        rows_max: usize,
        bytes_max: usize,
        timeout: Duration,
        into: &mut Vec<Numbered>,
    ) -> Result<usize> {
        let taken = self.journal.take(rows_max, bytes_max, timeout)?;
        Ok(records::decode(&self.journal, &taken, into))
    }

    /// The store has these records, or never will.
    pub fn confirm(&self, numbers: &[u64], outcome: Outcome) {
        self.journal.confirm(numbers, outcome);
        let rows = self.shared.path.dedupe.confirmed(numbers);
        if outcome != Outcome::Dead {
            rows.iter().for_each(|row| row.reached(Durability::Stored));
            self.shared.path.dedupe.settle(&rows);
        }
    }

    /// What SIGTERM does: NOT_SERVING, lame-duck time, streams told, accepted work finished.
    /// Returns at once; the state turns `Drained` when it is done or half of the budget is gone,
    /// since the writer needs the rest.
    pub fn drain(self: &Arc<Self>) {
        if !self.life.advance(State::Draining) {
            return;
        }
        let engine = self.clone();
        let drain = move || {
            let lame_duck = Duration::from_millis(engine.config.drain.lame_duck_ms);
            let budget = Duration::from_millis(engine.config.drain.budget_ms);
            let budget = budget.saturating_sub(lame_duck) / 2;
            if let Some(server) = engine.take_server() {
                server.not_ready();
                faults::point("drain");
                // Lame duck: balancers take their time to see that this pod is not ready.
                std::thread::sleep(lame_duck);
                server.drain(budget).tell();
                server.stop();
            }
            engine.life.advance(State::Drained);
            Ok(())
        };
        if let Err(error) = self.supervisor.spawn("drain", "drain".to_owned(), drain) {
            self.life.fail(error);
        }
    }

    /// Ends all threads and closes the journal; waits. Idempotent.
    pub fn stop(self: &Arc<Self>) -> Result<()> {
        self.drain();
        let until = Instant::now() + Duration::from_millis(self.config.drain.budget_ms);
        while self.life.state() == State::Draining && Instant::now() < until {
            self.life.wait(State::Draining, until - Instant::now());
        }
        self.shared.control.close();
        // After a failure nothing has drained it.
        if let Some(server) = self.take_server() {
            server.refuse();
            server.stop();
        }
        self.serving.stop();
        let closed = self.journal.close(JOURNAL_CLOSE);
        if closed.is_ok()
            && let Some(committer) = self.committer.lock().take()
        {
            // Its failure, if any, is the state's; one that hangs on the disk is left behind.
            let _ = committer.join();
        }
        self.life.advance(State::Stopped);
        closed
    }
}

fn supervisor(life: Arc<Life>, serves: Arc<Serves>) -> Supervisor {
    Supervisor::new(move |part, error| {
        tracing::error!(part, %error, "a part of the service ended; it stops serving");
        life.fail(error.clone());
        // During the start there is no server yet, and during a drain another has it.
        let Some((shared, server)) = serves.get() else { return };
        shared.path.admit.close();
        if let Some(server) = server.try_lock()
            && let Some(server) = server.as_ref()
        {
            server.refuse();
        }
    })
}

fn report(recovery: &Recovery) {
    let Recovery { pending, next_number, cut_bytes, .. } = recovery;
    tracing::info!(pending, next_number, cut_bytes, "journal recovered");
    for damage in &recovery.quarantined {
        tracing::error!(?damage, "a damaged part of the journal was quarantined");
    }
}

fn journaling(
    journal: &Journal,
    clock: Clock,
    stamps: &Arc<Stamps>,
    dedupe: &Arc<Dedupe>,
) -> Journaling {
    let dedupe = dedupe.clone();
    let numbered = Arc::new(move |rows: &[Arc<Row>]| dedupe.numbered(rows));
    Journaling { journal: journal.clone(), clock, stamps: stamps.clone(), numbered }
}

fn restore_window(
    dedupe: &Dedupe,
    journal: &Journal,
    next_number: u64,
    path: &PathConfig,
    stamps: &Stamps,
) -> Result<()> {
    let since_us = Clock::start().unix_us() - path.dedupe_window_ms as i64 * 1_000;
    let rows_max = path.dedupe_rows_max;
    let unreadable =
        restore::rows(journal, next_number, rows_max, since_us, &mut |row, pending| {
            stamps.begin_at(row.labeled_at_unix_us.load(Ordering::Relaxed) as i64);
            if pending {
                dedupe.numbered(std::slice::from_ref(&row));
            }
            dedupe.restore(row);
        })?;
    if unreadable > 0 {
        tracing::error!(unreadable, "journal records could not be decoded");
    }
    Ok(())
}
