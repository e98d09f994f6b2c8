//! Routes a call to its method: our services by hand, with our codec and clock, the rest through
//! tonic's `Routes` (health, reflection). What is no gRPC is refused before that.
//!
//! The deadline is read here, before the body; a panic in a handler fails its call and nothing
//! else.

use std::{
    convert::Infallible,
    future::{Future, poll_fn, ready},
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
use hyper::body::{Body as _, Incoming};
use tokio::sync::watch;
use tonic::{Code, Status, body::Body, server::Grpc, service::Routes};
use tower::{Service, service_fn};

use crate::{account::Method, error::Error, limits::MESSAGE_US_MAX, proto, stages::Stage};

use super::{
    Shared,
    codec::{self, Outgoing, Received, StreamReply, TimedCodec},
    connection::Ending,
    deadline::timeout_us,
    labels::{self, Call},
    models, readback,
    running::{Begun, apart},
    status,
    stream::{self, Asked, Connection, Watched},
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
        let connection = Connection { ending, begun, streams: Arc::default() };
        Calls { router: self.clone(), connection }
    }
}

/// The calls of one connection.
pub struct Calls {
    router: Router,
    connection: Connection,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl hyper::service::Service<Request<Incoming>> for Calls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        if let Some(refused) = status::not_grpc(&request) {
            return Box::pin(ready(Ok(refused)));
        }
        let shared = self.router.shared.clone();
        match request.uri().path() {
            "/labeler.v1.LabelService/Label" => {
                let call = unary(shared.clone(), Method::Label, request, labels::label);
                guarded(shared, call)
            }
            "/labeler.v1.LabelService/LabelBatch" => {
                let call = unary(shared.clone(), Method::LabelBatch, request, labels::label_batch);
                Box::pin(apart(guarded(shared, call)))
            }
            "/labeler.v1.LabelService/LabelStream" => {
                guarded(shared.clone(), label_stream(shared, self.connection.clone(), request))
            }
            "/labeler.v1.LabelService/GetLabel" => {
                let call = unary(shared.clone(), Method::GetLabel, request, readback::get_label);
                guarded(shared, call)
            }
            "/labeler.v1.LabelService/ListLabels" => {
                let list = readback::list_labels;
                let call = unary(shared.clone(), Method::ListLabels, request, list);
                guarded(shared, call)
            }
            "/labeler.v1.ModelService/LoadModel" => {
                let call = unary(shared.clone(), Method::Models, request, models::load_model);
                guarded(shared, call)
            }
            "/labeler.v1.ModelService/UnloadModel" => {
                let call = unary(shared.clone(), Method::Models, request, models::unload_model);
                guarded(shared, call)
            }
            "/labeler.v1.ModelService/ListModels" => {
                let call = unary(shared.clone(), Method::Models, request, models::list_models);
                guarded(shared, call)
            }
            path if OTHERS.iter().any(|service| path.starts_with(service)) => {
                let mut others = self.router.others.clone();
                guarded(shared, async move {
                    let Ok(response) = others.call(request).await;
                    response
                })
            }
            path => {
                shared.errors.count(Code::Unimplemented);
                Box::pin(ready(Ok(status::no_method(path).into_http())))
            }
        }
    }
}

/// Services that tonic's `Routes` serves.
const OTHERS: [&str; 3] = [
    "/grpc.health.v1.Health/",
    "/grpc.reflection.v1.ServerReflection/",
    "/grpc.reflection.v1alpha.ServerReflection/",
];

/// A panic becomes INTERNAL for its own call.
fn guarded(
    shared: Arc<Shared>,
    call: impl Future<Output = Response<Body>> + Send + 'static,
) -> Answer {
    Box::pin(AssertUnwindSafe(call).catch_unwind().map(move |answer| {
        Ok(answer.unwrap_or_else(|panic| {
            let error = labels::panicked(&shared, "label path", &*panic);
            super::status::to_status(&error).into_http()
        }))
    }))
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
    M: codec::Incoming,
    O: Outgoing,
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
    let bytes_max = shared.config.message_bytes_max;
    let codec = TimedCodec::<M, O>::unary(shared.clock);
    let mut grpc = Grpc::new(codec).max_decoding_message_size(bytes_max);
    let empty = request.body().is_end_stream();
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
    if reached.load(Ordering::Relaxed) { answer } else { unread(&shared, method, empty, answer) }
}

async fn label_stream(
    shared: Arc<Shared>,
    connection: Connection,
    request: Request<Incoming>,
) -> Response<Body> {
    // A stream has no deadline as a whole, but what is malformed is never read as none.
    if let Err(error) = timeout_us(request.headers()) {
        return shared.refuse(shared.accounts.receive(Method::LabelStream), &error).into_http();
    }
    let bytes_max = shared.config.message_bytes_max;
    let codec = TimedCodec::<proto::LabelRequest, StreamReply>::stream(shared.clock);
    let mut grpc = Grpc::new(codec).max_decoding_message_size(bytes_max);
    let asked = Arc::<Asked>::default();
    let of_it = asked.clone();
    let handler = service_fn(move |received| {
        let (shared, connection) = (shared.clone(), connection.clone());
        let answer = stream::label_stream(shared, connection, of_it.clone(), received);
        ready(Ok::<_, Status>(answer))
    });
    let answer = grpc.streaming(handler, request).await;
    answer.map(|body| Body::new(Watched::new(body, asked)))
}

/// tonic refused the message before the handler saw it: it is counted, and told in our words.
/// `empty`: the request came without a body.
fn unread(shared: &Shared, method: Method, empty: bool, answer: Response<Body>) -> Response<Body> {
    let Some(told) = Status::from_header_map(answer.headers()) else { return answer };
    if told.code() == Code::Unknown {
        // The call was reset, or its connection broke, while it sent: nothing was received.
        return answer;
    }
    let (status, error) = status::unread(&told, shared.config.message_bytes_max);
    // A reset can also look like the end of a body without a message.
    if told.message() != status::NO_MESSAGE || empty {
        shared.errors.count(status.code());
        shared.accounts.receive(method).ended(&error);
    }
    let mut response = status.into_http();
    if let Some(encodings) = answer.headers().get(ACCEPT_ENCODING) {
        response.headers_mut().insert(ACCEPT_ENCODING, encodings.clone());
    }
    response
}

const ACCEPT_ENCODING: &str = "grpc-accept-encoding";

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
