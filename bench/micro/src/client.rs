//! A robot's side of the loopback: one label at a time, unary or as messages of one stream, by the
//! frame. Runs on the calling thread alone, so that the server's threads do nothing but serve.

use std::error::Error;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use h2::{RecvStream, SendStream, client::SendRequest};
use prost::Message as _;
use tokio::{net::TcpStream, runtime::Runtime};

use labeler_core::proto;

/// What a measurement fails with.
pub type Failure = Box<dyn Error + Send + Sync>;

const HEAD_BYTES: usize = 5;

/// A connection.
pub struct Client {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
}

/// An open `LabelStream`.
pub struct Stream {
    body: SendStream<Bytes>,
    replies: RecvStream,
    read: BytesMut,
}

impl Client {
    /// Connects to `host:port`.
    pub fn connect(address: &str) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sender = runtime.block_on(async {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            let (sender, connection) = h2::client::handshake(socket).await?;
            tokio::spawn(connection);
            Ok::<_, Failure>(sender)
        })?;
        Ok(Self { runtime, sender })
    }

    /// One call of `Label`; fails where it is not answered with a label.
    pub fn label(&self, request: &proto::LabelRequest) -> Result<(), Failure> {
        self.runtime.block_on(async {
            let (mut body, reply) = self.open("Label").await?;
            body.send_data(frame(request), true)?;
            let (head, mut replies) = reply.await?.into_parts();
            let mut read = BytesMut::new();
            while let Some(chunk) = replies.data().await {
                take(&mut replies, &mut read, &chunk?)?;
            }
            let trailers = replies.trailers().await?.unwrap_or_default();
            let status = trailers.get("grpc-status").or(head.headers.get("grpc-status"));
            if status.is_none_or(|status| status != "0") {
                return Err(format!("a label was refused: {status:?}").into());
            }
            proto::LabelResponse::decode(&read[HEAD_BYTES..])?;
            Ok(())
        })
    }

    /// Opens a stream.
    pub fn stream(&self, first: &proto::LabelRequest) -> Result<Stream, Failure> {
        let mut stream = self.runtime.block_on(async {
            let (mut body, reply) = self.open("LabelStream").await?;
            body.send_data(frame(first), false)?;
            let replies = reply.await?.into_body();
            Ok::<_, Failure>(Stream { body, replies, read: BytesMut::new() })
        })?;
        self.reply(&mut stream)?;
        Ok(stream)
    }

    /// One message and its reply; fails where that is no label.
    pub fn message(
        &self,
        stream: &mut Stream,
        request: &proto::LabelRequest,
    ) -> Result<(), Failure> {
        stream.body.send_data(frame(request), false)?;
        self.reply(stream)
    }

    fn reply(&self, stream: &mut Stream) -> Result<(), Failure> {
        self.runtime.block_on(async {
            let Stream { replies, read, .. } = stream;
            while missing(read) {
                let chunk = replies.data().await.ok_or("the stream ended")??;
                take(replies, read, &chunk)?;
            }
            read.advance(1);
            let length = read.get_u32() as usize;
            let reply = proto::LabelStreamResponse::decode(read.split_to(length))?;
            match reply.result {
                Some(proto::label_stream_response::Result::Response(_)) => Ok(()),
                other => Err(format!("a message was refused: {other:?}").into()),
            }
        })
    }

    async fn open(
        &self,
        method: &str,
    ) -> Result<(SendStream<Bytes>, h2::client::ResponseFuture), Failure> {
        let head = http::Request::post(format!("http://labeler/labeler.v1.LabelService/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let mut sender = self.sender.clone().ready().await?;
        let (reply, body) = sender.send_request(head, false)?;
        Ok((body, reply))
    }
}

fn missing(read: &BytesMut) -> bool {
    let length = read.get(1..HEAD_BYTES).map(|mut length| length.get_u32() as usize);
    length.is_none_or(|length| read.len() < HEAD_BYTES + length)
}

fn take(replies: &mut RecvStream, read: &mut BytesMut, chunk: &Bytes) -> Result<(), Failure> {
    read.extend_from_slice(chunk);
    replies.flow_control().release_capacity(chunk.len())?;
    Ok(())
}

fn frame(message: &proto::LabelRequest) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEAD_BYTES + message.encoded_len());
    frame.put_u8(0);
    frame.put_u32(message.encoded_len() as u32);
    message.encode_raw(&mut frame);
    frame.freeze()
}
