//! The floor: tonic's stock server with the same messages, which answers a constant and does
//! nothing.
//!
//! `echo ADDRESS THREADS`; prints `serving ADDRESS` when it listens.

#![allow(clippy::print_stdout)]

use std::{env, error::Error, pin::Pin};

use labeler_core::proto::{self, label_service_server as service};
use tonic::{Request, Response, Status, Streaming, codegen::tokio_stream};

struct Echo;

type Replies =
    Pin<Box<dyn tokio_stream::Stream<Item = Result<proto::LabelStreamResponse, Status>> + Send>>;

#[tonic::async_trait]
impl service::LabelService for Echo {
    type LabelStreamStream = Replies;

    async fn label(
        &self,
        request: Request<proto::LabelRequest>,
    ) -> Result<Response<proto::LabelResponse>, Status> {
        let sequence = request.into_inner().sequence.unwrap_or(0);
        Ok(Response::new(proto::LabelResponse {
            sequence,
            label: "Move-Forward".into(),
            confidence: 1.0,
            model: "wall-following".into(),
            version: "1".into(),
            source: 1,
            durability: 1,
            timing: Some(proto::Timing { total_us: 1, ..Default::default() }),
            ..Default::default()
        }))
    }

    async fn label_batch(
        &self,
        _: Request<proto::LabelBatchRequest>,
    ) -> Result<Response<proto::LabelBatchResponse>, Status> {
        Err(Status::unimplemented("the floor has unary calls only"))
    }

    async fn label_stream(
        &self,
        _: Request<Streaming<proto::LabelRequest>>,
    ) -> Result<Response<Replies>, Status> {
        Err(Status::unimplemented("the floor has unary calls only"))
    }

    async fn get_label(
        &self,
        _: Request<proto::GetLabelRequest>,
    ) -> Result<Response<proto::GetLabelResponse>, Status> {
        Err(Status::unimplemented("the floor has unary calls only"))
    }

    async fn list_labels(
        &self,
        _: Request<proto::ListLabelsRequest>,
    ) -> Result<Response<proto::ListLabelsResponse>, Status> {
        Err(Status::unimplemented("the floor has unary calls only"))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let address = arguments.next().ok_or("usage: echo ADDRESS THREADS")?.parse()?;
    let threads = arguments.next().ok_or("usage: echo ADDRESS THREADS")?.parse()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        println!("serving {address}");
        let server = tonic::transport::Server::builder().tcp_nodelay(true);
        let mut server = server;
        server.add_service(service::LabelServiceServer::new(Echo)).serve(address).await
    })?;
    Ok(())
}
