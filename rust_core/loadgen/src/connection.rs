//! Connections: made, kept, made again with back-off. Each is one HTTP/2 connection whose handle
//! lies open for the sender; who finds none there does not wait for one.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use h2::{Ping, client};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{Notify, Semaphore, watch},
    time::{Duration, Instant, sleep, timeout},
};

use crate::flag::raised;

/// A handle to send on; cheap to clone.
pub type Handle = client::SendRequest<Bytes>;

const WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Connections that are being made at once: fewer than the shortest usual backlog of a listener.
const ATTEMPTS_AT_ONCE: usize = 100;
/// From the first packet to the answer of the server's HTTP/2; of HTTP/1.1, to the connection.
pub const ATTEMPT_MAX: Duration = Duration::from_secs(5);
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How a connection's bytes get to the server.
pub trait Dial: Clone + Send + Sync + 'static {
    /// What it gives.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Connects once.
    fn dial(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

/// Over TCP.
#[derive(Clone)]
pub struct Tcp {
    /// `host:port`; a name is looked up each time.
    pub address: Arc<str>,
}

impl Dial for Tcp {
    type Io = TcpStream;

    async fn dial(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&*self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// One connection's place: it may be empty.
#[derive(Default)]
pub struct Link {
    handle: Mutex<Option<Handle>>,
    opened: Notify,
    stale: Notify,
}

impl Link {
    /// The handle, if the connection is up.
    pub fn handle(&self) -> Option<Handle> {
        self.handle.lock().clone()
    }

    /// Its connection takes no new calls: it is left to those that it has, and a new one is made.
    pub fn gone(&self) {
        if self.handle.lock().take().is_some() {
            self.stale.notify_one();
        }
    }

    fn fill(&self, handle: Handle) {
        // What was said of the connection before is not said of this one.
        let stale = self.stale.notified();
        tokio::pin!(stale);
        stale.as_mut().enable();
        *self.handle.lock() = Some(handle);
        self.opened.notify_waiters();
    }

    /// The handle, as soon as there is one.
    pub async fn wait(&self) -> Handle {
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            // Registered before the look, so that what comes between is not missed.
            opened.as_mut().enable();
            if let Some(handle) = self.handle() {
                return handle;
            }
            opened.await;
        }
    }
}

/// All connections of a run.
pub struct Links {
    links: Vec<Link>,
    up: watch::Sender<usize>,
    /// What the last attempt that failed met.
    failure: Mutex<String>,
    attempts: Semaphore,
    tasks: AtomicUsize,
    gone: Notify,
}

impl Links {
    /// `count` places, none of them filled.
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            links: (0..count).map(|_| Link::default()).collect(),
            up: watch::Sender::new(0),
            failure: Mutex::default(),
            attempts: Semaphore::new(ATTEMPTS_AT_ONCE),
            tasks: AtomicUsize::new(0),
            gone: Notify::new(),
        })
    }

    /// Robot `robot`'s connection.
    pub fn of(&self, robot: u32) -> &Link {
        &self.links[robot as usize % self.links.len()]
    }

    /// Starts making and keeping all of them, until `closing`.
    pub fn start<D: Dial>(self: &Arc<Self>, dial: &D, closing: &watch::Receiver<bool>) {
        for at in 0..self.links.len() {
            let (links, dial, mut closing) = (self.clone(), dial.clone(), closing.clone());
            self.tasks.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                links.keep(at, &dial, &mut closing).await;
                if links.tasks.fetch_sub(1, Ordering::Relaxed) == 1 {
                    links.gone.notify_one();
                }
            });
        }
    }

    /// Waits until all are up. Errors: why not, when `deadline` has passed.
    pub async fn all_up(&self, deadline: Instant) -> std::result::Result<(), String> {
        let mut up = self.up.subscribe();
        let all = up.wait_for(|up| *up == self.links.len());
        if tokio::time::timeout_at(deadline, all).await.is_ok() {
            return Ok(());
        }
        let (up, all) = (*self.up.borrow(), self.links.len());
        let why = self.failure.lock().clone();
        let why = if why.is_empty() { "no answer".to_owned() } else { why };
        Err(if all == 1 { why } else { format!("{up} of {all} connections are up; {why}") })
    }

    /// Streams that the server takes on each connection.
    pub fn streams_max(&self) -> usize {
        let handles = self.links.iter().filter_map(Link::handle);
        handles.map(|handle| handle.current_max_send_streams()).min().unwrap_or(0)
    }

    /// Waits until all are closed, for a moment at most.
    pub async fn all_closed(&self, within: Duration) {
        if self.tasks.load(Ordering::Relaxed) > 0 {
            let _ = timeout(within, self.gone.notified()).await;
        }
    }

    async fn keep<D: Dial>(&self, at: usize, dial: &D, closing: &mut watch::Receiver<bool>) {
        let mut backoff = BACKOFF_FIRST;
        while !*closing.borrow() {
            let attempt = tokio::select! {
                attempt = self.attempt(dial) => attempt,
                () = raised(closing) => return,
            };
            match attempt {
                Ok((handle, connection)) => {
                    backoff = BACKOFF_FIRST;
                    self.links[at].fill(handle);
                    self.up.send_modify(|up| *up += 1);
                    let ended = self.drive(at, connection, closing).await;
                    self.up.send_modify(|up| *up -= 1);
                    self.note(ended.map_or_else(|e| e.to_string(), |()| "it closed".to_owned()));
                }
                Err(why) => self.note(why),
            }
            tokio::select! {
                () = sleep(backoff) => backoff = (backoff * 2).min(BACKOFF_MAX),
                () = raised(closing) => return,
            }
        }
    }

    /// Moves the connection's bytes until it ends, or takes no new calls. A run that closes takes
    /// its handle away, and the connection ends by itself once its calls have.
    async fn drive<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        at: usize,
        mut connection: client::Connection<I, Bytes>,
        closing: &mut watch::Receiver<bool>,
    ) -> std::result::Result<(), h2::Error> {
        let link = &self.links[at];
        tokio::select! {
            ended = &mut connection => {
                *link.handle.lock() = None;
                ended
            }
            () = link.stale.notified() => {
                tokio::spawn(connection);
                Ok(())
            }
            () = raised(closing) => {
                *link.handle.lock() = None;
                connection.await
            }
        }
    }

    async fn attempt<D: Dial>(
        &self,
        dial: &D,
    ) -> std::result::Result<(Handle, client::Connection<D::Io, Bytes>), String> {
        let _permit = self.attempts.acquire().await.map_err(|e| e.to_string())?;
        match timeout(ATTEMPT_MAX, shake_hands(dial)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no HTTP/2 answer within {} s", ATTEMPT_MAX.as_secs())),
        }
    }

    fn note(&self, why: String) {
        *self.failure.lock() = why;
    }
}

/// Connects, and waits until HTTP/2 answers a ping: a listener that accepts is not a server yet.
async fn shake_hands<D: Dial>(
    dial: &D,
) -> std::result::Result<(Handle, client::Connection<D::Io, Bytes>), String> {
    let io = dial.dial().await.map_err(|e| e.to_string())?;
    let shaken = client::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .enable_push(false)
        .handshake(io)
        .await;
    let (handle, mut connection) = shaken.map_err(|e| no_server(&e))?;
    let mut pings = connection.ping_pong().ok_or("the connection has no pings")?;
    tokio::select! {
        ended = &mut connection => match ended {
            Ok(()) => Err("the server closed the connection".to_owned()),
            Err(error) => Err(no_server(&error)),
        },
        pong = pings.ping(Ping::opaque()) => match pong {
            Ok(_) => Ok((handle, connection)),
            Err(error) => Err(no_server(&error)),
        },
    }
}

fn no_server(error: &h2::Error) -> String {
    format!("it does not answer as an HTTP/2 server does: {error}")
}
