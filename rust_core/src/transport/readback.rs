//! `GetLabel` and `ListLabels`: pending records of this process first, then the store, which the
//! control side asks.

use std::sync::Arc;

use tonic::Status;

use crate::{
    account::Method,
    control::{Answered, Ask},
    error::{Error, Result},
    limits::{DEADLINE_US_MAX, PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, ROBOT_ID_BYTES_MAX},
    proto,
};

use super::{
    Shared,
    codec::{Plain, Received},
    labels::Call,
    wire::{self, invalid},
};

/// One label by its key.
pub async fn get_label(
    shared: Arc<Shared>,
    call: Call,
    received: Received<proto::GetLabelRequest>,
) -> std::result::Result<Plain<proto::GetLabelResponse>, Status> {
    let entry = shared.accounts.receive(Method::GetLabel);
    match get(&shared, call, received.message).await {
        Ok(label) => {
            let response = proto::GetLabelResponse { label: Some(label) };
            Ok(Plain(response, entry))
        }
        Err(error) => Err(shared.refuse(entry, &error)),
    }
}

/// One robot's stored labels, a page.
pub async fn list_labels(
    shared: Arc<Shared>,
    call: Call,
    received: Received<proto::ListLabelsRequest>,
) -> std::result::Result<Plain<proto::ListLabelsResponse>, Status> {
    let entry = shared.accounts.receive(Method::ListLabels);
    match list(&shared, call, received.message).await {
        Ok(response) => Ok(Plain(response, entry)),
        Err(error) => Err(shared.refuse(entry, &error)),
    }
}

async fn get(
    shared: &Shared,
    call: Call,
    message: Result<proto::GetLabelRequest>,
) -> Result<proto::StoredLabel> {
    let message = message?;
    let key = wire::key(&message.robot_id, message.sequence)?;
    let row = shared.path.dedupe.get(&key);
    let pending = row.and_then(|r| wire::pending(&r, &shared.instance_id, &shared.journal_id));
    if let Some(label) = pending {
        return Ok(label);
    }
    match ask(shared, Ask::Get(message), call).await? {
        Answered::Label(label) => Ok(*label),
        other => Err(unexpected(&other)),
    }
}

async fn list(
    shared: &Shared,
    call: Call,
    message: Result<proto::ListLabelsRequest>,
) -> Result<proto::ListLabelsResponse> {
    let mut message = message?;
    let robot_bytes = message.robot_id.len();
    if robot_bytes == 0 || robot_bytes > ROBOT_ID_BYTES_MAX {
        let expected = format!("1 to {ROBOT_ID_BYTES_MAX} bytes");
        return Err(invalid("robot_id", format!("{robot_bytes} bytes"), expected));
    }
    if message.page_size > PAGE_ROWS_MAX {
        return Err(invalid("page_size", message.page_size, format!("0 to {PAGE_ROWS_MAX}")));
    }
    let (from, to) = (message.from_unix_us, message.to_unix_us);
    if from != 0 && to != 0 && to <= from {
        return Err(invalid("to_unix_us", to, format!("above from_unix_us ({from}), or 0")));
    }
    if message.page_size == 0 {
        message.page_size = PAGE_ROWS_DEFAULT;
    }
    match ask(shared, Ask::List(message), call).await? {
        Answered::Labels(response) => Ok(response),
        other => Err(unexpected(&other)),
    }
}

/// Asks the control side within the call's deadline.
pub async fn ask(shared: &Shared, ask: Ask, call: Call) -> Result<Answered> {
    let timeout_us = call.timeout_us.unwrap_or(shared.control_timeout_us).min(DEADLINE_US_MAX);
    shared.control.ask(ask, shared.clock.instant(call.arrived_us + timeout_us)).await
}

/// The control side answered another question.
pub fn unexpected(answer: &Answered) -> Error {
    Error::Internal { part: "control side", reason: format!("an unexpected answer: {answer:?}") }
}
