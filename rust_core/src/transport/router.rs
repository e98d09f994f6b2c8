//! Routes a call to its method: the label service by hand, with our codec and clock, the rest
//! through tonic's `Routes` (models, health, reflection).
//!
//! The deadline is read here, before the body; a panic in a handler fails its call and nothing
//! else.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::FutureExt as _;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::watch;
use tonic::{Status, body::Body, server::Grpc, service::Routes};
use tower::{Service, service_fn};

use crate::{
    account::Method, error::Error, limits::MESSAGE_US_MAX, proto, stages::Stage,
    supervise::panic_message,
};

use super::{
    Shared,
    codec::{Received, StreamReply, TimedCodec},
    connection::Ending,
    deadline::timeout_us,
    labels::{self, Call},
    readback,
    running::{Begun, apart},
    stream,
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

    /// The calls of a connection that runs what is `begun`, and whose end `ending` announces.
    pub fn for_connection(&self, ending: watch::Receiver<Option<Ending>>, begun: Begun) -> Calls {
        Calls { router: self.clone(), ending, begun }
    }
}

/// The calls of one connection.
pub struct Calls {
    router: Router,
    ending: watch::Receiver<Option<Ending>>,
    begun: Begun,
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
        match method {
            "Label" => {
                let call = unary(shared.clone(), Method::Label, request, labels::label);
                guarded(shared, call)
            }
            "LabelBatch" => {
                let call = unary(shared.clone(), Method::LabelBatch, request, labels::label_batch);
                Box::pin(apart(guarded(shared, call)))
            }
            "LabelStream" => {
                let (ending, begun) = (self.ending.clone(), self.begun.clone());
                guarded(shared.clone(), label_stream(shared, ending, begun, request))
            }
            "GetLabel" => {
                let call = unary(shared.clone(), Method::GetLabel, request, readback::get_label);
                guarded(shared, call)
            }
            "ListLabels" => {
                let list = readback::list_labels;
                let call = unary(shared.clone(), Method::ListLabels, request, list);
                guarded(shared, call)
            }
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

/// Runs a call of one message. The message must have arrived by the call's deadline, since until
/// then nobody else looks at the time; from there on the handler keeps it.
async fn unary<M, O, H, F>(
    shared: Arc<Shared>,
    method: Method,
    request: Request<Incoming>,
    handler: H,
) -> Response<Body>
where
    M: prost::Message + Default + 'static,
    O: super::codec::Outgoing,
    H: Fn(Arc<Shared>, Call, tonic::Request<Received<M>>) -> F + Send,
    F: Future<Output = Result<tonic::Response<O>, Status>> + Send,
{
    let arrived_us = shared.clock.now_us();
    let timeout_us = match timeout_us(request.headers()) {
        Ok(timeout_us) => timeout_us,
        Err(error) => return shared.refuse(shared.accounts.receive(method), &error).into_http(),
    };
    let call = Call { arrived_us, timeout_us };
    let reached = AtomicBool::new(false);
    let mut grpc = grpc::<M, O>(&shared);
    let service = service_fn(|received| {
        reached.store(true, Ordering::Relaxed);
        handler(shared.clone(), call, received)
    });
    let mut answer = std::pin::pin!(grpc.unary(Borrowed(service), request));
    let until = shared.clock.instant(arrived_us + timeout_us.unwrap_or(MESSAGE_US_MAX));
    let mut late = std::pin::pin!(tokio::time::sleep_until(until.into()));
    let answer = poll_fn(|context| match answer.as_mut().poll(context) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        // Not polled, a timer costs nothing: most messages come with their headers.
        Poll::Pending if reached.load(Ordering::Relaxed) => Poll::Pending,
        Poll::Pending => late.as_mut().poll(context).map(|()| None),
    });
    let Some(answer) = answer.await else {
        let error = Error::DeadlinePassed { stage: Stage::Decode, label_exists: false };
        return shared.refuse(shared.accounts.receive(method), &error).into_http();
    };
    if !reached.load(Ordering::Relaxed) {
        count_unread(&shared, method, &answer);
    }
    answer
}

async fn label_stream(
    shared: Arc<Shared>,
    ending: watch::Receiver<Option<Ending>>,
    begun: Begun,
    request: Request<Incoming>,
) -> Response<Body> {
    let mut grpc = grpc::<proto::LabelRequest, StreamReply>(&shared);
    let handler = service_fn(move |received| {
        let answer = stream::label_stream(shared.clone(), ending.clone(), &begun, received);
        std::future::ready(Ok::<_, Status>(answer))
    });
    grpc.streaming(handler, request).await
}

/// What tonic says of a request that ended before its message.
const NO_MESSAGE: &str = "Missing request message.";

/// tonic refused the message before the handler saw it: too large, cut short, compressed unknown.
fn count_unread(shared: &Shared, method: Method, answer: &Response<Body>) {
    let status = Status::from_header_map(answer.headers());
    let message = status.as_ref().map_or("no status", |s| s.message()).to_owned();
    if message == NO_MESSAGE {
        // The caller left while it sent: nothing was received.
        return;
    }
    shared.errors.count(status.map_or(tonic::Code::Unknown, |s| s.code()));
    let entry = shared.accounts.receive(method);
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
