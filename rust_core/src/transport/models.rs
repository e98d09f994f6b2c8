//! `ModelService`: operations that the control side decides and carries out.

use std::{sync::Arc, time::Duration};

use tonic::Status;

use crate::{
    account::{Entry, Method},
    control::{Answered, Ask},
    error::Result,
    limits::MODEL_NAME_BYTES_MAX,
    proto,
};

use super::{
    Shared,
    codec::{Plain, Received},
    labels::Call,
    readback, wire,
};

/// Loading takes longer than a read: deadline of an operation that names none.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

type Answer<M> = std::result::Result<Plain<M>, Status>;

/// Loads a version from the repository.
pub async fn load_model(
    shared: Arc<Shared>,
    call: Call,
    received: Received<proto::LoadModelRequest>,
) -> Answer<proto::LoadModelResponse> {
    let ask = |m: proto::LoadModelRequest| named(&m.name, &m.version).map(|()| Ask::LoadModel(m));
    let (mut models, entry) = asked(&shared, call, received, ask).await?;
    Ok(Plain(proto::LoadModelResponse { model: models.pop() }, entry))
}

/// Stops serving a version.
pub async fn unload_model(
    shared: Arc<Shared>,
    call: Call,
    received: Received<proto::UnloadModelRequest>,
) -> Answer<proto::UnloadModelResponse> {
    let ask =
        |m: proto::UnloadModelRequest| named(&m.name, &m.version).map(|()| Ask::UnloadModel(m));
    let (unloaded, entry) = asked(&shared, call, received, ask).await?;
    Ok(Plain(proto::UnloadModelResponse { unloaded }, entry))
}

/// Lists loaded and available versions.
pub async fn list_models(
    shared: Arc<Shared>,
    call: Call,
    received: Received<proto::ListModelsRequest>,
) -> Answer<proto::ListModelsResponse> {
    let (models, entry) = asked(&shared, call, received, |_| Ok(Ask::ListModels)).await?;
    Ok(Plain(proto::ListModelsResponse { models }, entry))
}

/// The versions that the control side answers with; the entry is closed as they are encoded.
async fn asked<M>(
    shared: &Shared,
    call: Call,
    received: Received<M>,
    ask: impl FnOnce(M) -> Result<Ask>,
) -> std::result::Result<(Vec<proto::ModelVersion>, Entry), Status> {
    let entry = shared.accounts.receive(Method::Models);
    match models(shared, call, received.message, ask).await {
        Ok(models) => Ok((models, entry)),
        Err(error) => Err(shared.refuse(entry, &error)),
    }
}

async fn models<M>(
    shared: &Shared,
    call: Call,
    message: Result<M>,
    ask: impl FnOnce(M) -> Result<Ask>,
) -> Result<Vec<proto::ModelVersion>> {
    let default_us = OPERATION_TIMEOUT.as_micros() as u64;
    let timeout_us = Some(call.timeout_us.unwrap_or(default_us));
    match readback::ask(shared, ask(message?)?, Call { timeout_us, ..call }).await? {
        Answered::Models(models) => Ok(models),
        other => Err(readback::unexpected(&other)),
    }
}

fn named(name: &str, version: &str) -> Result<()> {
    if name.is_empty() {
        return Err(wire::invalid("name", "empty", "a model's name"));
    }
    wire::bounded("name", name, MODEL_NAME_BYTES_MAX)?;
    wire::bounded("version", version, MODEL_NAME_BYTES_MAX)
}
