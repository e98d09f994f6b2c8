//! One reply to one request: unary labels, batches, labels read back. A task a call, which holds
//! the call's time limit.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::ResponseFuture;
use labeler_core::proto;
use prost::Message;
use tokio::time::timeout_at;

use crate::{
    connection::Handle,
    http1,
    kinds::Kind,
    kserve::{self, InferResponse},
    plan::Rpc,
    run::Shared,
    tally::Call,
    wire::{self, Frames, Key},
};

/// What a call asked for, as its reply is judged by.
pub enum Asked {
    /// One label, and its truth.
    Label(Key, i16),
    /// The same of a server that speaks the open inference protocol.
    Infer(Key, i16),
    /// The same of a server that answers JSON over HTTP/1.1.
    Predict(Key, i16),
    /// Rows from this one on, by the plan's rule, and their truths; none where nothing is judged.
    Batch(u64, Vec<i16>),
    /// Labels read back.
    Read,
}

/// Sends a call on its robot's connection and returns; the reply is counted when it comes. Whether
/// it was sent.
pub fn send(shared: &Arc<Shared>, robot: u32, call: Call, message: Bytes, asked: Asked) -> bool {
    let Some(mut handle) = shared.links.of(robot).handle() else {
        shared.tally.not_sent(&call, Kind::UNAVAILABLE);
        return false;
    };
    let (reply, mut body) = match handle.send_request(shared.head(), false) {
        Ok(sent) => sent,
        Err(error) => {
            shared.links.of(robot).gone();
            shared.tally.not_sent(&call, refused(&error));
            return false;
        }
    };
    shared.tally.sent(&call);
    // A body that the connection refuses ends the reply with the reason.
    let _ = body.send_data(message, true);
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut call = call;
        let deadline = shared.deadline(&call);
        let receive = receive(&shared, &mut call, handle, reply);
        let reply = timeout_at(deadline, receive).await.unwrap_or(Err(Kind::Timeout));
        conclude(&shared, &call, asked, reply);
    });
    true
}

/// The same over HTTP/1.1, on whichever connection is free, as soon as one is.
pub fn send_http(shared: &Arc<Shared>, call: Call, body: Bytes, asked: Asked) -> bool {
    shared.tally.sent(&call);
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut call = call;
        let deadline = shared.deadline(&call);
        let exchange = async {
            let taken = shared.pool.take().await?;
            // It may have waited for its connection: it is sent only now.
            call.sent_ns = shared.clock().now_ns();
            taken.call(shared.head(), body).await
        };
        let reply = timeout_at(deadline, exchange).await.unwrap_or(Err(Kind::Timeout));
        conclude(&shared, &call, asked, reply);
    });
    true
}

/// A request that found no place: its connection is going or gone.
pub fn refused(error: &h2::Error) -> Kind {
    match Kind::from(error) {
        Kind::Transport | Kind::INTERNAL => Kind::UNAVAILABLE,
        kind => kind,
    }
}

async fn receive(
    shared: &Shared,
    call: &mut Call,
    mut handle: Handle,
    reply: ResponseFuture,
) -> Result<Bytes, Kind> {
    let mut waited = false;
    let opened = std::future::poll_fn(|context| {
        let ready = handle.poll_ready(context);
        waited |= ready.is_pending();
        ready
    });
    opened.await.map_err(|e| Kind::from(&e))?;
    if waited {
        // The server's limit of calls on a connection held it back: it is sent only now.
        call.sent_ns = shared.clock().now_ns();
    }
    let (head, mut body) = reply.await.map_err(|e| Kind::from(&e))?.into_parts();
    if let Some(code) = wire::status(&head.headers) {
        return Err(Kind::code(code));
    }
    if head.status != http::StatusCode::OK {
        return Err(Kind::code(unframed(head.status)));
    }
    let mut frames = Frames::default();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(|e| Kind::from(&e))?;
        // The window is only ever short when its stream has ended.
        let _ = body.flow_control().release_capacity(chunk.len());
        frames.push(chunk);
    }
    let trailers = body.trailers().await.map_err(|e| Kind::from(&e))?;
    match trailers.as_ref().and_then(wire::status) {
        Some(0) => frames.next().ok().flatten().ok_or(Kind::INTERNAL),
        code => Err(Kind::code(code.unwrap_or(2))),
    }
}

/// The code of a reply that is not gRPC's, as its documents map it.
pub fn unframed(status: http::StatusCode) -> u32 {
    match status.as_u16() {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => 2,
    }
}

fn conclude(shared: &Shared, call: &Call, asked: Asked, reply: Result<Bytes, Kind>) {
    match reply {
        Ok(message) => settle(shared, call, asked, message),
        Err(kind) => shared.tally.failed(call, kind),
    }
    shared.settled();
}

fn settle(shared: &Shared, call: &Call, asked: Asked, message: Bytes) {
    let now_ns = shared.clock().now_ns();
    match asked {
        Asked::Label(key, truth) => {
            let reply = proto::LabelResponse::decode(message).ok();
            labelled(shared, call, (key, truth), now_ns, reply);
        }
        Asked::Infer(key, truth) => {
            let reply = InferResponse::decode(message).ok();
            let reply = reply.and_then(|reply| kserve::label(reply, &shared.plan.labels));
            labelled(shared, call, (key, truth), now_ns, reply);
        }
        Asked::Predict(key, truth) => {
            labelled(shared, call, (key, truth), now_ns, http1::label(&message));
        }
        Asked::Batch(first, truths) => match proto::LabelBatchResponse::decode(message) {
            Ok(reply) if reply.results.len() == call.rows as usize => {
                shared.tally.replied(call, now_ns, longest_us(&reply));
                rows(shared, call, (first, &truths), reply);
            }
            _ => shared.tally.failed(call, Kind::INTERNAL),
        },
        Asked::Read => {
            let whole = match shared.plan.rpc {
                Rpc::GetLabel => proto::GetLabelResponse::decode(message).is_ok(),
                _ => proto::ListLabelsResponse::decode(message).is_ok(),
            };
            if whole {
                shared.tally.replied(call, now_ns, None);
                shared.tally.read(call);
            } else {
                shared.tally.failed(call, Kind::INTERNAL);
            }
        }
    }
}

/// What a reply says of the server's own time.
pub fn server_us(reply: &proto::LabelResponse) -> Option<u32> {
    reply.timing.as_ref().map(|timing| timing.total_us)
}

fn longest_us(reply: &proto::LabelBatchResponse) -> Option<u32> {
    let rows = reply.results.iter().filter_map(|row| match &row.result {
        Some(proto::label_result::Result::Response(reply)) => server_us(reply),
        _ => None,
    });
    rows.max()
}

fn labelled(
    shared: &Shared,
    call: &Call,
    (key, truth): (Key, i16),
    now_ns: u64,
    reply: Option<proto::LabelResponse>,
) {
    if let Some(reply) = reply {
        shared.tally.replied(call, now_ns, server_us(&reply));
        shared.tally.labelled(call, key, truth, &reply);
    } else {
        shared.tally.failed(call, Kind::INTERNAL);
    }
}

fn rows(
    shared: &Shared,
    call: &Call,
    (first, truths): (u64, &[i16]),
    reply: proto::LabelBatchResponse,
) {
    use proto::label_result::Result::{Error, Response};
    for (at, row) in reply.results.into_iter().enumerate() {
        match row.result {
            Some(Response(reply)) => {
                let truth = truths.get(at).copied().unwrap_or(-1);
                shared.tally.labelled(call, shared.key(first + at as u64), truth, &reply);
            }
            Some(Error(error)) => shared.tally.refused(call, Kind::code(error.code)),
            None => shared.tally.refused(call, Kind::INTERNAL),
        }
    }
}
