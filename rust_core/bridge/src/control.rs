//! Control requests across the border: groups up, answers down.

use std::time::Instant;

use labeler_core::{
    Error, Result,
    control::{Answered, Ask, Asked},
    error::Refusal,
    proto::ListLabelsResponse,
};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};

use crate::convert::{field, model_version, stored_label};

/// A request as `ControlRequest`.
pub fn asked<'py>(py: Python<'py>, asked: &Asked) -> PyResult<Bound<'py, PyDict>> {
    let body = PyDict::new(py);
    let kind = match &asked.ask {
        Ask::Get(get) => {
            body.set_item("robot_id", &get.robot_id)?;
            body.set_item("sequence", get.sequence)?;
            "get"
        }
        Ask::List(list) => {
            body.set_item("robot_id", &list.robot_id)?;
            body.set_item("page_size", list.page_size)?;
            body.set_item("page_token", &list.page_token)?;
            body.set_item("from_unix_us", list.from_unix_us)?;
            body.set_item("to_unix_us", list.to_unix_us)?;
            "list"
        }
        Ask::LoadModel(load) => {
            body.set_item("name", &load.name)?;
            body.set_item("version", &load.version)?;
            body.set_item("standby", load.standby)?;
            "load_model"
        }
        Ask::UnloadModel(unload) => {
            body.set_item("name", &unload.name)?;
            body.set_item("version", &unload.version)?;
            "unload_model"
        }
        Ask::ListModels => "list_models",
    };
    let request = PyDict::new(py);
    request.set_item("id", asked.id)?;
    request.set_item("kind", kind)?;
    request.set_item("body", body)?;
    // Now that Python goes on: it may have been busy since the request was taken.
    let left = asked.deadline.saturating_duration_since(Instant::now());
    request.set_item("deadline_ms", left.as_millis() as u64)?;
    Ok(request)
}

/// An answer: `label`, `labels`, `models` or `error`.
pub fn answer(body: &Bound<'_, PyDict>) -> PyResult<Result<Answered>> {
    if body.contains("error")? {
        return Ok(Err(error(body)?));
    }
    if body.contains("label")? {
        let label = stored_label(&field::<Bound<'_, PyDict>>(body, "label")?)?;
        return Ok(Ok(Answered::Label(Box::new(label))));
    }
    if body.contains("labels")? {
        let labels: Vec<Bound<'_, PyDict>> = field(body, "labels")?;
        let labels = labels.iter().map(stored_label).collect::<PyResult<_>>()?;
        let next_page_token = field(body, "next_page_token")?;
        return Ok(Ok(Answered::Labels(ListLabelsResponse { labels, next_page_token })));
    }
    let models: Vec<Bound<'_, PyDict>> = field(body, "models")?;
    let models = models.iter().map(model_version).collect::<PyResult<_>>()?;
    Ok(Ok(Answered::Models(models)))
}

/// Fields that a control request has, as errors name them.
const FIELDS: [&str; 4] = ["page_token", "robot_id", "name", "version"];

fn error(body: &Bound<'_, PyDict>) -> PyResult<Error> {
    let kind: String = field(body, "error")?;
    let message: String = field(body, "message")?;
    let text = |name: &str| field::<String>(body, name).unwrap_or_default();
    if kind == "label_not_found" {
        let sequence = field(body, "sequence")?;
        return Ok(Error::LabelNotFound { robot_id: text("robot_id"), sequence });
    }
    let kind = match kind.as_str() {
        "not_found" => Refusal::NotFound,
        "invalid" => Refusal::Invalid,
        "model_invalid" => Refusal::ModelInvalid,
        "unavailable" => Refusal::Unavailable,
        "internal" => Refusal::Internal,
        other => return Err(PyValueError::new_err(format!("no error of kind {other:?}"))),
    };
    let named = text("field");
    if let (Refusal::Invalid, Some(field)) = (kind, FIELDS.into_iter().find(|f| *f == named)) {
        return Ok(Error::Invalid { field, got: text("value"), expected: text("expected") });
    }
    Ok(Error::Refused { kind, message })
}
