//! The floor: tonic's stock server with the same messages, which answers a constant and does
//! nothing: it reads no payload, keeps nothing, and knows no limit of its own.
//!
//! `echo ADDRESS THREADS`; prints `serving ADDRESS` when it listens, with the port that it got.

#![allow(clippy::print_stdout)]

use std::{env, error::Error, net::SocketAddr};

use futures_util::{StreamExt as _, stream::BoxStream};
use labeler_core::proto::{
    self, label_result, label_service_server as service, label_stream_response as streamed,
};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

const USAGE: &str = "usage: echo IP:PORT THREADS";
const NOT_STORED: &str = "the floor stores nothing, so there is nothing to read back";

struct Echo;

/// The same answer for every request; only the sequence is the request's own.
fn answer(request: &proto::LabelRequest) -> proto::LabelResponse {
    proto::LabelResponse {
        sequence: request.sequence.unwrap_or(0),
        label: "Move-Forward".into(),
        confidence: 1.0,
        model: "wall-following".into(),
        version: "1".into(),
        source: proto::Source::Model.into(),
        durability: proto::Durability::Buffered.into(),
        timing: Some(proto::Timing { total_us: 1, ..Default::default() }),
        ..Default::default()
    }
}

fn reply(
    request: Result<proto::LabelRequest, Status>,
) -> Result<proto::LabelStreamResponse, Status> {
    let response = answer(&request?);
    let sequence = response.sequence;
    Ok(proto::LabelStreamResponse { sequence, result: Some(streamed::Result::Response(response)) })
}

fn row(request: &proto::LabelRequest) -> proto::LabelResult {
    proto::LabelResult { result: Some(label_result::Result::Response(answer(request))) }
}

#[tonic::async_trait]
impl service::LabelService for Echo {
    type LabelStreamStream = BoxStream<'static, Result<proto::LabelStreamResponse, Status>>;

    async fn label(
        &self,
        request: Request<proto::LabelRequest>,
    ) -> Result<Response<proto::LabelResponse>, Status> {
        Ok(Response::new(answer(request.get_ref())))
    }

    async fn label_batch(
        &self,
        request: Request<proto::LabelBatchRequest>,
    ) -> Result<Response<proto::LabelBatchResponse>, Status> {
        let results = request.get_ref().requests.iter().map(row).collect();
        Ok(Response::new(proto::LabelBatchResponse { results }))
    }

    async fn label_stream(
        &self,
        requests: Request<Streaming<proto::LabelRequest>>,
    ) -> Result<Response<Self::LabelStreamStream>, Status> {
        Ok(Response::new(requests.into_inner().map(reply).boxed()))
    }

    async fn get_label(
        &self,
        _: Request<proto::GetLabelRequest>,
    ) -> Result<Response<proto::GetLabelResponse>, Status> {
        Err(Status::unimplemented(NOT_STORED))
    }

    async fn list_labels(
        &self,
        _: Request<proto::ListLabelsRequest>,
    ) -> Result<Response<proto::ListLabelsResponse>, Status> {
        Err(Status::unimplemented(NOT_STORED))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, threads] = arguments.as_slice() else { return Err(USAGE.into()) };
    let (address, threads) = (address.parse()?, threads.parse()?);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(serve(address))
}

async fn serve(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let incoming = TcpIncoming::bind(address)?.with_nodelay(Some(true));
    println!("serving {}", incoming.local_addr()?);
    let mut server = Server::builder();
    server
        .add_service(service::LabelServiceServer::new(Echo))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}
