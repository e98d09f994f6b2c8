//! One run as users make it: threads, a timer of the kernel's and a real socket, against a server
//! whose delays are long beside everything else on the way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD as STANDARD};
use labeler_core::proto::{self, label_service_server as service};
use labeler_loadgen::{Error, Sender};
use serde_json::json;
use tonic::{Request, Response, Status, Streaming, codegen::tokio_stream};

const DELAY: Duration = Duration::from_millis(150);

/// Answers after `DELAY`, and keeps the longest that it really took.
#[derive(Clone, Default)]
struct Slow {
    longest_us: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl service::LabelService for Slow {
    type LabelStreamStream = tokio_stream::Empty<Result<proto::LabelStreamResponse, Status>>;

    async fn label(
        &self,
        request: Request<proto::LabelRequest>,
    ) -> Result<Response<proto::LabelResponse>, Status> {
        let arrived = Instant::now();
        tokio::time::sleep(DELAY).await;
        let sequence = request.get_ref().sequence.unwrap_or(0);
        self.longest_us.fetch_max(arrived.elapsed().as_micros() as u64, Ordering::Relaxed);
        Ok(Response::new(proto::LabelResponse { sequence, ..proto::LabelResponse::default() }))
    }

    async fn label_batch(
        &self,
        _: Request<proto::LabelBatchRequest>,
    ) -> Result<Response<proto::LabelBatchResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn label_stream(
        &self,
        _: Request<Streaming<proto::LabelRequest>>,
    ) -> Result<Response<Self::LabelStreamStream>, Status> {
        Err(Status::unimplemented("no streams here"))
    }

    async fn get_label(
        &self,
        _: Request<proto::GetLabelRequest>,
    ) -> Result<Response<proto::GetLabelResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn list_labels(
        &self,
        _: Request<proto::ListLabelsRequest>,
    ) -> Result<Response<proto::ListLabelsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// Serves until the runtime is dropped.
fn served(slow: Slow) -> (tokio::runtime::Runtime, String) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let incoming = runtime
        .block_on(async {
            tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap())
        })
        .unwrap();
    let address = incoming.local_addr().unwrap().to_string();
    let server = service::LabelServiceServer::new(slow);
    let serving = tonic::transport::Server::builder().add_service(server);
    runtime.spawn(serving.serve_with_incoming(incoming));
    (runtime, address)
}

fn plan(address: &str, rpc: &str) -> String {
    json!({
        "address": address, "rpc": rpc, "robots": 40, "connections": 4, "duration_s": 2,
        "schedule": {"shape": "constant", "rate_per_s": 100},
    })
    .to_string()
}

#[test]
fn latencies_over_a_socket_are_the_servers_delay_and_little_more() {
    let slow = Slow::default();
    let (_runtime, address) = served(slow.clone());
    let sender = Sender::new(&plan(&address, "label")).unwrap();
    sender.connect().unwrap();
    sender.fire().unwrap();
    assert!(sender.wait(Duration::from_secs(60)));
    let result = sender.result().unwrap();
    assert_eq!((result.planned, result.answered), (200, 200), "{result:?}");
    let delay_us = DELAY.as_micros() as u64;
    assert!(result.latency_uncorrected_us.p50 >= delay_us, "{result:?}");
    assert!(result.latency_us.p50 >= result.latency_uncorrected_us.p50, "{result:?}");
    assert!(result.latency_us.max >= slow.longest_us.load(Ordering::Relaxed), "{result:?}");
    // Far more than a sound machine adds, and less than what would be wrong by a call or a unit.
    assert!(result.latency_us.p50 < 2 * delay_us, "{result:?}");
}

#[test]
fn histograms_are_logs_that_others_read() {
    use hdrhistogram::serialization::{
        Deserializer,
        interval_log::{IntervalLogIterator, LogEntry},
    };
    let (_runtime, address) = served(Slow::default());
    let sender = Sender::new(&plan(&address, "label")).unwrap();
    sender.connect().unwrap();
    sender.fire().unwrap();
    assert!(sender.wait(Duration::from_secs(60)));
    let directory = tempfile::tempdir().unwrap();
    let written = sender.write_histograms(directory.path()).unwrap();
    assert_eq!(written.len(), 5);
    let result = sender.result().unwrap();
    let log = std::fs::read(directory.path().join("latency_us.hlog")).unwrap();
    let [interval] = IntervalLogIterator::new(&log)
        .filter_map(|entry| match entry {
            Ok(LogEntry::Interval(interval)) => Some(interval),
            _ => None,
        })
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let encoded = STANDARD.decode(interval.encoded_histogram()).unwrap();
    let read = Deserializer::new().deserialize::<u64, _>(&mut encoded.as_slice()).unwrap();
    assert_eq!((read.len(), read.max()), (result.latency_us.count, result.latency_us.max));
}

#[test]
fn a_server_that_refuses_streams_is_named_with_its_reason() {
    let (_runtime, address) = served(Slow::default());
    let sender = Sender::new(&plan(&address, "label_stream")).unwrap();
    let error = sender.connect().unwrap_err();
    let Error::NotReady { address: named, reason, .. } = &error else { panic!("{error:?}") };
    assert_eq!(named, &address);
    assert_eq!(reason, "it refuses LabelStream: UNIMPLEMENTED no streams here");
}

#[test]
fn steps_out_of_order_are_refused() {
    let sender = Sender::new(&plan("127.0.0.1:1", "label")).unwrap();
    assert!(matches!(sender.fire(), Err(Error::OutOfOrder(_))));
    assert!(matches!(sender.result(), Err(Error::OutOfOrder(_))));
    assert!(matches!(sender.end_feed(), Err(Error::OutOfOrder(_))));
    assert!(!sender.wait(Duration::ZERO));
}
