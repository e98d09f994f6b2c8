//! `ModelService`: operations that the control side decides and carries out.

use std::{sync::Arc, time::Duration};

use tonic::{Request, Response, Status};

use crate::{
    account::Method,
    control::{Answered, Ask},
    error::{Error, Result},
    proto::{self, model_service_server::ModelService},
};

use super::{Shared, deadline, labels::Call, readback};

/// Loading takes longer than a read: deadline of an operation that names none.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

/// The service.
pub struct Models {
    shared: Arc<Shared>,
}

impl Models {
    /// Over the same queue as the read-back.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn ask<M>(
        &self,
        request: Request<M>,
        ask: impl FnOnce(M) -> Result<Ask>,
    ) -> std::result::Result<Vec<proto::ModelVersion>, Status> {
        let entry = self.shared.accounts.receive(Method::Models);
        match self.models(request, ask).await {
            Ok(models) => {
                entry.answered();
                Ok(models)
            }
            Err(error) => Err(self.shared.refuse(entry, &error)),
        }
    }

    async fn models<M>(
        &self,
        request: Request<M>,
        ask: impl FnOnce(M) -> Result<Ask>,
    ) -> Result<Vec<proto::ModelVersion>> {
        let arrived_us = self.shared.clock.now_us();
        let headers = request.metadata().clone().into_headers();
        let default_us = OPERATION_TIMEOUT.as_micros() as u64;
        let timeout_us = deadline::timeout_us(&headers)?.unwrap_or(default_us);
        let ask = ask(request.into_inner())?;
        let call = Call { arrived_us, timeout_us: Some(timeout_us) };
        match readback::ask(&self.shared, ask, call).await? {
            Answered::Models(models) => Ok(models),
            other => Err(readback::unexpected(&other)),
        }
    }
}

fn named(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(super::wire::invalid("name", "empty", "a model's name"));
    }
    Ok(())
}

#[tonic::async_trait]
impl ModelService for Models {
    async fn load_model(
        &self,
        request: Request<proto::LoadModelRequest>,
    ) -> std::result::Result<Response<proto::LoadModelResponse>, Status> {
        let ask = |m: proto::LoadModelRequest| named(&m.name).map(|()| Ask::LoadModel(m));
        let mut models = self.ask(request, ask).await?;
        Ok(Response::new(proto::LoadModelResponse { model: models.pop() }))
    }

    async fn unload_model(
        &self,
        request: Request<proto::UnloadModelRequest>,
    ) -> std::result::Result<Response<proto::UnloadModelResponse>, Status> {
        let ask = |m: proto::UnloadModelRequest| named(&m.name).map(|()| Ask::UnloadModel(m));
        let unloaded = self.ask(request, ask).await?;
        Ok(Response::new(proto::UnloadModelResponse { unloaded }))
    }

    async fn list_models(
        &self,
        request: Request<proto::ListModelsRequest>,
    ) -> std::result::Result<Response<proto::ListModelsResponse>, Status> {
        let models = self.ask(request, |_| Ok::<_, Error>(Ask::ListModels)).await?;
        Ok(Response::new(proto::ListModelsResponse { models }))
    }
}
