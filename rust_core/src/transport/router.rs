//! Routes a call to its method: the label service by hand, with our codec and clock, the rest
//! through tonic's `Routes` (models, health, reflection).
//!
//! The deadline is read here, before the body; a panic in a handler fails its call and nothing
//! else.

use std::{
    convert::Infallible,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::FutureExt as _;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::watch;
use tonic::{Status, body::Body, server::Grpc, service::Routes};
use tower::{Service, service_fn};

use crate::{account::Method, error::Error, proto, supervise::panic_message};

use super::{
    Shared,
    codec::{Answered, Plain, Rows, StreamReply, TimedCodec},
    connection::Ending,
    deadline::timeout_us,
    labels::{self, Call},
    readback, stream,
};

/// The calls of one server; `for_connection` makes that of one connection.
#[derive(Clone)]
pub struct Router {
    shared: Arc<Shared>,
    others: Routes,
}

impl Router {
    /// With the services that are not on the label path.
    pub fn new(shared: Arc<Shared>, others: Routes) -> Self {
        Self { shared, others }
    }

    /// The calls of a connection whose end `ending` announces.
    pub fn for_connection(&self, ending: watch::Receiver<Option<Ending>>) -> Calls {
        Calls { router: self.clone(), ending }
    }
}

/// The calls of one connection.
pub struct Calls {
    router: Router,
    ending: watch::Receiver<Option<Ending>>,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl hyper::service::Service<Request<Incoming>> for Calls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let shared = self.router.shared.clone();
        let Some(method) = request.uri().path().strip_prefix("/labeler.v1.LabelService/") else {
            let mut others = self.router.others.clone();
            return Box::pin(async move { others.call(request).await });
        };
        let arrived_us = shared.clock.now_us();
        match method {
            "Label" => guarded(shared.clone(), unary(shared, arrived_us, request)),
            "LabelBatch" => guarded(shared.clone(), batch(shared, arrived_us, request)),
            "LabelStream" => {
                let ending = self.ending.clone();
                guarded(shared.clone(), label_stream(shared, ending, request))
            }
            "GetLabel" => guarded(shared.clone(), get(shared, arrived_us, request)),
            "ListLabels" => guarded(shared.clone(), list(shared, arrived_us, request)),
            method => {
                let text = format!("LabelService has no method {method:?}");
                let status = Status::unimplemented(text);
                Box::pin(async move { Ok(status.into_http()) })
            }
        }
    }
}

/// A panic becomes INTERNAL for its own call.
fn guarded(
    shared: Arc<Shared>,
    call: impl Future<Output = Response<Body>> + Send + 'static,
) -> Answer {
    Box::pin(AssertUnwindSafe(call).catch_unwind().map(move |answer| {
        Ok(answer.unwrap_or_else(|panic| {
            let reason = panic_message(&*panic);
            tracing::error!(reason, "a call panicked");
            let error = Error::Internal { part: "label path", reason };
            shared.errors.count(tonic::Code::Internal);
            super::status::to_status(&error).into_http()
        }))
    }))
}

fn grpc<M, O>(shared: &Shared) -> Grpc<TimedCodec<M, O>>
where
    M: prost::Message + Default + 'static,
    O: super::codec::Outgoing,
{
    let bytes_max = shared.config.message_bytes_max;
    Grpc::new(TimedCodec::new(shared.clock)).max_decoding_message_size(bytes_max)
}

async fn unary(shared: Arc<Shared>, arrived_us: u64, request: Request<Incoming>) -> Response<Body> {
    let mut entry = Some(shared.accounts.receive(Method::Label));
    let call = match timeout_us(request.headers()) {
        Ok(timeout_us) => Call { arrived_us, timeout_us },
        Err(error) => return refuse(&shared, &mut entry, &error),
    };
    let answer = {
        let (shared, entry) = (&shared, &mut entry);
        let handler = service_fn(move |received| {
            // One call, one message: the entry is there.
            let entry = entry.take().unwrap_or_else(|| shared.accounts.receive(Method::Label));
            labels::label(shared, call, entry, received)
        });
        grpc::<proto::LabelRequest, Answered>(shared).unary(Borrowed(handler), request).await
    };
    count_unread(&shared, entry, &answer);
    answer
}

async fn batch(shared: Arc<Shared>, arrived_us: u64, request: Request<Incoming>) -> Response<Body> {
    let call = match timeout_us(request.headers()) {
        Ok(timeout_us) => Call { arrived_us, timeout_us },
        Err(error) => {
            let mut entry = Some(shared.accounts.receive(Method::LabelBatch));
            return refuse(&shared, &mut entry, &error);
        }
    };
    let mut reached = false;
    let answer = {
        let (shared, reached) = (&shared, &mut reached);
        let handler = service_fn(move |received| {
            *reached = true;
            labels::label_batch(shared, call, received)
        });
        grpc::<proto::LabelBatchRequest, Rows>(shared).unary(Borrowed(handler), request).await
    };
    if !reached {
        let entry = shared.accounts.receive(Method::LabelBatch);
        count_unread(&shared, Some(entry), &answer);
    }
    answer
}

async fn label_stream(
    shared: Arc<Shared>,
    ending: watch::Receiver<Option<Ending>>,
    request: Request<Incoming>,
) -> Response<Body> {
    let mut grpc = grpc::<proto::LabelRequest, StreamReply>(&shared);
    let handler = service_fn(move |received| {
        let answer = stream::label_stream(shared.clone(), ending.clone(), received);
        std::future::ready(Ok::<_, Status>(answer))
    });
    grpc.streaming(handler, request).await
}

async fn get(shared: Arc<Shared>, arrived_us: u64, request: Request<Incoming>) -> Response<Body> {
    let timeout_us = timeout_us(request.headers());
    let mut grpc = grpc::<proto::GetLabelRequest, Plain<proto::GetLabelResponse>>(&shared);
    let handler = service_fn(|received| {
        readback::get_label(&shared, arrived_us, timeout_us.clone(), received)
    });
    grpc.unary(Borrowed(handler), request).await
}

async fn list(shared: Arc<Shared>, arrived_us: u64, request: Request<Incoming>) -> Response<Body> {
    let timeout_us = timeout_us(request.headers());
    let mut grpc = grpc::<proto::ListLabelsRequest, Plain<proto::ListLabelsResponse>>(&shared);
    let handler = service_fn(|received| {
        readback::list_labels(&shared, arrived_us, timeout_us.clone(), received)
    });
    grpc.unary(Borrowed(handler), request).await
}

fn refuse(
    shared: &Shared,
    entry: &mut Option<crate::account::Entry>,
    error: &Error,
) -> Response<Body> {
    match entry.take() {
        Some(entry) => shared.refuse(entry, error).into_http(),
        None => super::status::to_status(error).into_http(),
    }
}

/// tonic refused the message before the handler saw it: too large, cut short, compressed unknown.
fn count_unread(shared: &Shared, entry: Option<crate::account::Entry>, answer: &Response<Body>) {
    let Some(entry) = entry else { return };
    let status = Status::from_header_map(answer.headers());
    let message = status.as_ref().map_or("no status", |s| s.message()).to_owned();
    shared.errors.count(status.map_or(tonic::Code::Unknown, |s| s.code()));
    entry.ended(&super::wire::invalid("message", message, "one whole gRPC message"));
}

/// tonic wants a service of its own; this lends one that borrows.
struct Borrowed<S>(S);

impl<S, R> Service<R> for Borrowed<S>
where
    S: Service<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.0.call(request)
    }
}
