//! Routes a call to its method: our services by hand, with our codec and clock, the rest through
//! tonic's `Routes` (health, reflection). What is no gRPC is refused before that.
//!
//! The deadline is read here, before the body; a panic in a handler fails its call and nothing
//! else.

use std::{
    convert::Infallible,
    future::{Future, ready},
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
};

use futures_util::FutureExt as _;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::watch;
use tonic::{Code, service::Routes};
use tower::Service as _;

use crate::account::Method;

use super::{
    Shared,
    connection::Ending,
    labels, models, readback,
    running::{Begun, apart},
    status,
    stream::{self, Connection},
    unary::{self, Sent},
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

type Answer = Pin<Box<dyn Future<Output = Result<Response<Sent>, Infallible>> + Send>>;

impl hyper::service::Service<Request<Incoming>> for Calls {
    type Response = Response<Sent>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        if let Some(refused) = status::not_grpc(&request) {
            return Box::pin(ready(Ok(refused)));
        }
        let shared = self.router.shared.clone();
        match request.uri().path() {
            "/labeler.v1.LabelService/Label" => {
                let call = unary::call(shared.clone(), Method::Label, request, labels::label);
                guarded(shared, call)
            }
            "/labeler.v1.LabelService/LabelBatch" => {
                let call =
                    unary::call(shared.clone(), Method::LabelBatch, request, labels::label_batch);
                Box::pin(apart(guarded(shared, call)))
            }
            "/labeler.v1.LabelService/LabelStream" => {
                let connection = self.connection.clone();
                guarded(shared.clone(), stream::label_stream(shared, connection, request))
            }
            "/labeler.v1.LabelService/GetLabel" => {
                let call =
                    unary::call(shared.clone(), Method::GetLabel, request, readback::get_label);
                guarded(shared, call)
            }
            "/labeler.v1.LabelService/ListLabels" => {
                let list = readback::list_labels;
                let call = unary::call(shared.clone(), Method::ListLabels, request, list);
                guarded(shared, call)
            }
            "/labeler.v1.ModelService/LoadModel" => {
                let call = unary::call(shared.clone(), Method::Models, request, models::load_model);
                guarded(shared, call)
            }
            "/labeler.v1.ModelService/UnloadModel" => {
                let call =
                    unary::call(shared.clone(), Method::Models, request, models::unload_model);
                guarded(shared, call)
            }
            "/labeler.v1.ModelService/ListModels" => {
                let call =
                    unary::call(shared.clone(), Method::Models, request, models::list_models);
                guarded(shared, call)
            }
            path if OTHERS.iter().any(|service| path.starts_with(service)) => {
                let mut others = self.router.others.clone();
                guarded(shared, async move {
                    let Ok(response) = others.call(request).await;
                    response.map(Sent::Other)
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
    call: impl Future<Output = Response<Sent>> + Send + 'static,
) -> Answer {
    Box::pin(guarded_future(shared, call))
}

fn guarded_future(
    shared: Arc<Shared>,
    call: impl Future<Output = Response<Sent>>,
) -> impl Future<Output = Result<Response<Sent>, Infallible>> {
    AssertUnwindSafe(call).catch_unwind().map(move |answer| {
        Ok(answer.unwrap_or_else(|panic| {
            let error = labels::panicked(&shared, "label path", &*panic);
            status::to_status(&error).into_http()
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_bytes<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn what_waits_for_a_label_is_small_enough_for_an_allocation_that_takes_no_search() {
        // glibc keeps what was freed of up to 1,032 bytes at hand, for each thread.
        let bytes = future_bytes(|shared: Arc<Shared>, request| {
            let call = unary::call(shared.clone(), Method::Label, request, labels::label);
            guarded_future(shared, call)
        });
        assert!(bytes <= 1032, "{bytes} bytes");
    }
}
