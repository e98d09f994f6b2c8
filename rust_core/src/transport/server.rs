//! The server: a runtime of its own, an accept loop, and the steps of a drain.
//!
//! Nothing but transport runs on its threads. Each step of a drain has its own bound.

use std::{
    net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs as _},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use prost::Message as _;
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::watch,
};
use tonic::service::Routes;
use tonic_health::{pb::health_server::HealthServer, server::HealthReporter};

use crate::{
    error::{Error, Result},
    faults,
    proto::DESCRIPTORS,
    supervise::Supervisor,
    wakes,
};

use super::{Shared, connection, health, router::Router};

/// A running server.
pub struct Server {
    runtime: Runtime,
    address: SocketAddr,
    health: HealthReporter,
    drain: watch::Sender<bool>,
    shared: Arc<Shared>,
}

/// What a drain leaves behind: peers that did not read, answer or leave in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abandoned {
    /// Requests without an answer.
    pub requests: u64,
    /// Open `LabelStream`s.
    pub streams: u64,
    /// Open connections.
    pub connections: u64,
}

impl Abandoned {
    /// Logs it.
    pub fn tell(self) {
        let Self { requests, streams, connections } = self;
        if self.nothing() {
            tracing::info!("accepted work is finished");
        } else {
            tracing::warn!(requests, streams, connections, "abandoned by the drain");
        }
    }

    fn nothing(self) -> bool {
        self == Self { requests: 0, streams: 0, connections: 0 }
    }
}

/// How often a drain looks whether its work is done.
const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// How long streams and connections may take to say goodbye.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(50);
const ACCEPT_BACKLOG: i32 = 4096;
/// After a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

impl Server {
    /// Binds the port and starts to accept: from here on requests come.
    pub fn start(shared: Arc<Shared>, supervisor: &Supervisor) -> Result<Self> {
        let config = &shared.config;
        let listener = bind(&config.grpc_address)?;
        let io = |e: std::io::Error| Error::Internal { part: "transport", reason: e.to_string() };
        let address = listener.local_addr().map_err(io)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(config.threads)
            .thread_name("transport")
            .on_thread_start(wakes::gather)
            .on_thread_park(wakes::rest)
            .enable_all()
            .build()
            .map_err(io)?;
        let (health, health_service) = tonic_health::server::health_reporter();
        let others = others(health_service)?;
        let (drain, draining) = watch::channel(false);
        let router = Router::new(shared.clone(), others);
        runtime.block_on(async {
            health::set_live(&health).await;
            health::set_ready(&health, true).await;
            health::set_store(&health, true).await;
            let listener = TcpListener::from_std(listener).map_err(io)?;
            let (path, stalled) = (shared.clone(), shared.store_stalled);
            let unconfirmed = move || path.path.admit.unconfirmed();
            tokio::spawn(health::watch_store(health.clone(), unconfirmed, stalled));
            tokio::spawn(supervisor.watched("tick", tick()));
            let accepting = accept(shared.clone(), router, listener, draining);
            tokio::spawn(supervisor.watched("accept", accepting));
            Ok(())
        })?;
        Ok(Self { runtime, address, health, drain, shared })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Turns readiness off; requests are still taken.
    pub fn not_ready(&self) {
        self.runtime.block_on(health::set_ready(&self.health, false));
    }

    /// Stops accepting, tells streams and connections to go, refuses new requests, and waits for
    /// what is under way, at most `budget`, and a little for who does not leave.
    pub fn drain(&self, budget: Duration) -> Abandoned {
        let _ = self.drain.send(true);
        self.shared.path.admit.close();
        wait_until(budget, || self.shared.accounts.in_flight() == 0);
        // Streams say goodbye and connections send what is written and GOAWAY; then they end by
        // themselves, unless their peer is deaf.
        wait_until(budget.min(GOODBYE_MAX), || self.left().nothing());
        self.left()
    }

    fn left(&self) -> Abandoned {
        let gauges = &self.shared.gauges;
        Abandoned {
            requests: self.shared.accounts.in_flight(),
            streams: gauges.streams.load(Ordering::Acquire),
            connections: gauges.connections.load(Ordering::Acquire),
        }
    }

    /// A part broke: not ready, and nothing is taken any more.
    pub fn refuse(&self) {
        self.shared.path.admit.close();
        self.not_ready();
    }

    /// Ends the runtime; connections that are left are cut.
    pub fn stop(self) {
        self.runtime.shutdown_timeout(Duration::from_millis(500));
    }
}

fn wait_until(budget: Duration, done: impl Fn() -> bool) -> bool {
    let until = std::time::Instant::now() + budget;
    while !done() {
        if std::time::Instant::now() >= until {
            return false;
        }
        std::thread::sleep(DRAIN_LOOK);
    }
    true
}

fn bind(address: &str) -> Result<StdListener> {
    let setting = || "transport.grpc_address".to_owned();
    let config = |reason: String| Error::Config { setting: setting(), reason };
    let mut addresses = address.to_socket_addrs().map_err(|e| config(format!("{address}: {e}")))?;
    let resolved = addresses.next().ok_or_else(|| config(format!("{address} has no address")))?;
    let bound = || -> std::io::Result<StdListener> {
        let domain = socket2::Domain::for_address(resolved);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        // A restart must not wait for connections of the last process that linger in TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&resolved.into())?;
        socket.listen(ACCEPT_BACKLOG)?;
        Ok(socket.into())
    };
    bound().map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Error::InUse {
            what: "address",
            name: resolved.to_string(),
            hint: "stop the other process or set transport.grpc_address".to_owned(),
        },
        _ => config(format!("{address}: {error}")),
    })
}

fn others(health: HealthServer<impl tonic_health::pb::health_server::Health>) -> Result<Routes> {
    let set = prost_types::FileDescriptorSet::decode(DESCRIPTORS)
        .map_err(|e| Error::Internal { part: "reflection", reason: e.to_string() })?;
    let reflection = |e: tonic_reflection::server::Error| Error::Internal {
        part: "reflection",
        reason: e.to_string(),
    };
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_file_descriptor_set(set.clone())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(health)
        .add_service(builder().build_v1().map_err(reflection)?)
        .add_service(builder().build_v1alpha().map_err(reflection)?)
        .prepare())
}

/// Keeps a timer running that is sooner than the deadlines of calls. A thread that sleeps until the
/// next timer is woken by one that is sooner; without this, nearly each call's would be.
async fn tick() {
    loop {
        faults::point("tick");
        tokio::time::sleep(TICK).await;
    }
}

async fn accept(
    shared: Arc<Shared>,
    router: Router,
    listener: TcpListener,
    draining: watch::Receiver<bool>,
) {
    let mut stopped = draining.clone();
    let mut failures = 0_u64;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|drain| *drain) => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, mostly: those that are open must end first. Said once.
                if failures == 0 {
                    tracing::warn!(%error, "connections cannot be accepted");
                }
                failures += 1;
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        faults::point("accept");
        if failures > 0 {
            tracing::info!(failures, "connections are accepted again");
            failures = 0;
        }
        let Some(open) = Open::new(&shared) else { continue };
        let (shared, router, draining) = (shared.clone(), router.clone(), draining.clone());
        tokio::spawn(async move {
            let _open = open;
            connection::serve(shared, router, stream, draining).await;
        });
    }
}

/// A connection that is open. It counts from before its task starts, since a burst of connections
/// is accepted before the first of their tasks runs.
struct Open(Arc<Shared>);

impl Open {
    /// `None`: there are as many as may be. Only the accept loop calls this.
    fn new(shared: &Arc<Shared>) -> Option<Self> {
        let gauges = &shared.gauges;
        gauges.connections_total.fetch_add(1, Ordering::Relaxed);
        if gauges.connections.load(Ordering::Acquire) >= shared.config.connections_max as u64 {
            gauges.connections_refused_total.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        gauges.connections.fetch_add(1, Ordering::AcqRel);
        Some(Self(shared.clone()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.gauges.connections.fetch_sub(1, Ordering::AcqRel);
    }
}
