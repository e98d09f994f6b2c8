//! A target with known delays, in this process and on tokio's virtual clock: tonic's own server
//! over pipes in memory, so that what the sender writes is read by somebody else's code.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use labeler_core::proto::{self, label_service_server as service};
use tokio::{
    io::{DuplexStream, copy_bidirectional},
    sync::{mpsc, watch},
    time::{Duration, Instant, sleep_until, timeout},
};
use tonic::{Request, Response, Status, Streaming, codegen::tokio_stream::Stream};

use crate::{
    connection::Dial,
    error::Result,
    pace::Pacer,
    plan::Plan,
    result::{self, RunResult},
    run::{self, Shared},
};

const PIPE_BYTES: usize = 1 << 20;

/// When the n-th request, which came at this time since the target's beginning, is answered; or why
/// not.
pub type Script = Arc<dyn Fn(u64, Duration) -> Answer + Send + Sync>;

/// How one request is answered.
pub enum Answer {
    /// After so long, with its label.
    After(Duration),
    /// At once, with an error.
    Refuse(tonic::Code),
    /// Not at all.
    Never,
}

/// The target; a clone is the same one.
#[derive(Clone)]
pub struct Target {
    script: Script,
    streams_max: u32,
    life: Option<Duration>,
    transit: Duration,
    received: Arc<AtomicU64>,
    begin: Instant,
}

impl Target {
    /// Answers as the script says.
    pub fn new(script: impl Fn(u64, Duration) -> Answer + Send + Sync + 'static) -> Self {
        let received = Arc::default();
        let (script, begin) = (Arc::new(script), Instant::now());
        Self { script, streams_max: 1_000, life: None, transit: Duration::ZERO, received, begin }
    }

    /// Takes so many calls at once on a connection.
    pub fn with_streams_max(mut self, streams_max: u32) -> Self {
        self.streams_max = streams_max;
        self
    }

    /// Each reply takes so much longer than it says.
    pub fn with_transit(mut self, transit: Duration) -> Self {
        self.transit = transit;
        self
    }

    /// Each connection breaks after so long.
    pub fn with_life(mut self, life: Duration) -> Self {
        self.life = Some(life);
        self
    }

    /// Requests that came.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    async fn answer(&self, request: &proto::LabelRequest) -> Labelled {
        let arrived = Instant::now();
        let n = self.received.fetch_add(1, Ordering::Relaxed);
        match (self.script)(n, arrived - self.begin) {
            Answer::After(delay) => {
                sleep_until(arrived + delay + self.transit).await;
                let total_us = delay.as_micros() as u32;
                let model = if request.model.is_empty() { "known" } else { &request.model };
                Ok(proto::LabelResponse {
                    sequence: request.sequence.unwrap_or(0),
                    label: "stop".to_owned(),
                    model: model.to_owned(),
                    version: "1".to_owned(),
                    source: proto::Source::Model.into(),
                    durability: proto::Durability::Journaled.into(),
                    timing: Some(proto::Timing { total_us, ..proto::Timing::default() }),
                    ..proto::LabelResponse::default()
                })
            }
            Answer::Refuse(code) => Err(Status::new(code, "as told")),
            Answer::Never => std::future::pending().await,
        }
    }
}

type Labelled = std::result::Result<proto::LabelResponse, Status>;

impl Dial for Target {
    type Io = DuplexStream;

    async fn dial(&self) -> io::Result<DuplexStream> {
        let (mut ours, mut theirs) = tokio::io::duplex(PIPE_BYTES);
        if let Some(life) = self.life {
            let (mut inner, outer) = (theirs, ours);
            let (mut between, served) = tokio::io::duplex(PIPE_BYTES);
            (ours, theirs) = (outer, served);
            tokio::spawn(async move {
                let _ = timeout(life, copy_bidirectional(&mut inner, &mut between)).await;
            });
        }
        let server = service::LabelServiceServer::new(self.clone());
        let serve = tonic::transport::Server::builder()
            .max_concurrent_streams(self.streams_max)
            .add_service(server)
            .serve_with_incoming(Once(Some(theirs)));
        tokio::spawn(serve);
        Ok(ours)
    }
}

/// One connection, and then no other.
struct Once(Option<DuplexStream>);

impl Stream for Once {
    type Item = io::Result<DuplexStream>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.take().map(Ok))
    }
}

/// Replies of one stream.
pub struct Replies(mpsc::UnboundedReceiver<proto::LabelStreamResponse>);

impl Stream for Replies {
    type Item = std::result::Result<proto::LabelStreamResponse, Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|reply| reply.map(Ok))
    }
}

#[tonic::async_trait]
impl service::LabelService for Target {
    type LabelStreamStream = Replies;

    async fn label(
        &self,
        request: Request<proto::LabelRequest>,
    ) -> std::result::Result<Response<proto::LabelResponse>, Status> {
        self.answer(request.get_ref()).await.map(Response::new)
    }

    async fn label_batch(
        &self,
        request: Request<proto::LabelBatchRequest>,
    ) -> std::result::Result<Response<proto::LabelBatchResponse>, Status> {
        let mut results = Vec::new();
        for row in &request.get_ref().requests {
            let result = match self.answer(row).await {
                Ok(reply) => proto::label_result::Result::Response(reply),
                Err(status) => proto::label_result::Result::Error(error(&status)),
            };
            results.push(proto::LabelResult { result: Some(result) });
        }
        Ok(Response::new(proto::LabelBatchResponse { results }))
    }

    async fn label_stream(
        &self,
        request: Request<Streaming<proto::LabelRequest>>,
    ) -> std::result::Result<Response<Replies>, Status> {
        let (sender, replies) = mpsc::unbounded_channel();
        let (mut requests, target) = (request.into_inner(), self.clone());
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                let (target, sender) = (target.clone(), sender.clone());
                tokio::spawn(async move {
                    use proto::label_stream_response::Result::{Error, Response};
                    let result = match target.answer(&request).await {
                        Ok(reply) => Response(reply),
                        Err(status) => Error(error(&status)),
                    };
                    let sequence = request.sequence.unwrap_or(0);
                    let result = Some(result);
                    let _ = sender.send(proto::LabelStreamResponse { sequence, result });
                });
            }
        });
        Ok(Response::new(Replies(replies)))
    }

    async fn get_label(
        &self,
        _: Request<proto::GetLabelRequest>,
    ) -> std::result::Result<Response<proto::GetLabelResponse>, Status> {
        Ok(Response::new(proto::GetLabelResponse::default()))
    }

    async fn list_labels(
        &self,
        _: Request<proto::ListLabelsRequest>,
    ) -> std::result::Result<Response<proto::ListLabelsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

fn error(status: &Status) -> proto::Error {
    proto::Error { code: status.code() as i32 as u32, ..proto::Error::default() }
}

/// A run that a test watches and disturbs.
pub struct Run {
    /// What its parts share.
    pub shared: Arc<Shared>,
    /// Raised, it stops.
    pub stop: watch::Sender<bool>,
    closing: watch::Sender<bool>,
}

impl Run {
    /// Connected, and not yet fired. `plan`: without its address.
    pub async fn ready(target: &Target, mut plan: serde_json::Value) -> Result<Self> {
        plan["address"] = "target:1".into();
        let shared = Shared::new(Plan::from_json(&plan.to_string())?)?;
        let (stop, closing) = (watch::Sender::new(false), watch::Sender::new(false));
        run::connect(&shared, target, &closing.subscribe()).await?;
        Ok(Self { shared, stop, closing })
    }

    /// To its end.
    pub async fn fire(self) -> RunResult {
        run::fire(&self.shared, Pacer::Tokio, self.stop.subscribe()).await;
        let (missing, written) = self.shared.tally.close();
        written.unwrap();
        let result = result::result(&self.shared, missing);
        run::close(&self.shared, &self.closing).await;
        result
    }
}

/// A whole run.
pub async fn run(target: &Target, plan: serde_json::Value) -> RunResult {
    Run::ready(target, plan).await.unwrap().fire().await
}
