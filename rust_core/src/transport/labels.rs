//! `Label` and `LabelBatch`.
//!
//! A batch is as many requests as it has rows: each is counted, refused and answered on its own.

use std::{any::Any, future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt as _, future::join_all};
use tonic::Status;

use crate::{
    account::{Entry, Method},
    error::{Error, Result},
    label::{Priority, Request},
    path::Arrival,
    proto,
    stages::Stage,
    supervise::panic_message,
};

use super::{
    Shared,
    codec::{Answered, Received, Rows},
    wire,
};

/// What the headers said of a call.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// µs on the engine's clock.
    pub arrived_us: u64,
    /// From `grpc-timeout`.
    pub timeout_us: Option<u64>,
}

/// Answers one request; its entry is closed on every way out, by dropping it if the caller leaves.
pub fn label(
    shared: Arc<Shared>,
    call: Call,
    received: Received<proto::LabelRequest>,
) -> impl Future<Output = std::result::Result<Answered, Status>> {
    let entry = shared.accounts.receive(Method::Label);
    let Received { message, arrival } = received;
    let arrival = Arrival { arrived_us: call.arrived_us, ..arrival };
    let mut asked = message.and_then(|message| asked(call, message, Priority::Robot));
    // What is moved into this block is in its future once, unlike an `async fn`'s arguments.
    async move {
        let answer = match &mut asked {
            Ok((request, want_scores)) => {
                let reply = shared.path.label(request, arrival).await;
                reply.map(|reply| (reply, *want_scores))
            }
            Err(error) => Err(error.clone()),
        };
        match answer {
            Ok((reply, want_scores)) => {
                let arrived_us = arrival.arrived_us;
                Ok(Answered { reply, want_scores, entry, arrived_us })
            }
            Err(error) => Err(shared.refuse(entry, &error)),
        }
    }
}

/// Answers each row; the call fails only as a whole if it is no batch.
pub async fn label_batch(
    shared: Arc<Shared>,
    call: Call,
    received: Received<proto::LabelBatchRequest>,
) -> std::result::Result<Rows, Status> {
    let Received { message, arrival } = received;
    let arrival = Arrival { arrived_us: call.arrived_us, ..arrival };
    let in_time = |message| match call.timeout_us {
        // One answer says it for all rows, as for any call that is late as a whole.
        Some(us) if call.arrived_us + us <= shared.clock.now_us() => {
            Err(Error::DeadlinePassed { stage: Stage::Admit, label_exists: false })
        }
        _ => Ok(message),
    };
    let rows = match message.and_then(in_time) {
        Ok(message) => message.requests,
        Err(error) => {
            let entry = shared.accounts.receive(Method::LabelBatch);
            return Err(shared.refuse(entry, &error));
        }
    };
    let rows = rows.into_iter().map(|message| {
        let entry = shared.accounts.receive(Method::LabelBatch);
        row(&shared, call, entry, message, Priority::Bulk, arrival)
    });
    Ok(Rows(join_all(rows).await))
}

/// Answers one row of a batch or message of a stream: its error travels in its place, and so does
/// its panic.
pub async fn row(
    shared: &Shared,
    call: Call,
    entry: Entry,
    message: proto::LabelRequest,
    priority: Priority,
    arrival: Arrival,
) -> Result<Answered> {
    let answer = async {
        let mut asked = asked(call, message, priority);
        let answer = match &mut asked {
            Ok((request, want_scores)) => {
                let reply = shared.path.label(request, arrival).await;
                reply.map(|reply| (reply, *want_scores))
            }
            Err(error) => Err(error.clone()),
        };
        match answer {
            Ok((reply, want_scores)) => {
                Ok(Answered { reply, want_scores, entry, arrived_us: arrival.arrived_us })
            }
            Err(error) => Err(shared.refuse_row(entry, error)),
        }
    };
    let answer = AssertUnwindSafe(answer).catch_unwind().await;
    answer.unwrap_or_else(|panic| Err(panicked(shared, "label path", &*panic)))
}

/// Counts and tells a panic; the error that it becomes for who waits.
pub fn panicked(shared: &Shared, part: &'static str, panic: &(dyn Any + Send)) -> Error {
    let reason = panic_message(panic);
    tracing::error!(part, reason, "a call panicked");
    shared.errors.count(tonic::Code::Internal);
    Error::Internal { part, reason }
}

/// A request, and whether it wants all scores.
type Asked = (Request, bool);

fn asked(call: Call, message: proto::LabelRequest, priority: Priority) -> Result<Asked> {
    let want_scores = message.want_scores;
    let mut request = wire::request(message, priority)?;
    // The nearer of the message's own deadline and the call's.
    request.timeout_us = match (request.timeout_us, call.timeout_us) {
        (Some(own), Some(call)) => Some(own.min(call)),
        (own, call) => own.or(call),
    };
    Ok((request, want_scores))
}
