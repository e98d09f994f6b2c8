//! Domain values to Python's and back: plain dicts and tuples, as the stubs say.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use labeler_core::{
    Error,
    journal::Outcome,
    proto::{ModelState, ModelVersion, StoredLabel, journal::Record},
    supervise::panic_message,
};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyList, PyString, PyTuple},
};
use serde_json::Value;

/// What a call returns, or its panic as an error: as an exception of Python's own it would pass by
/// every `except Exception` above.
pub fn caught<T>(call: impl FnOnce() -> labeler_core::Result<T>) -> labeler_core::Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let reason = panic_message(&*panic);
        Err(Error::Internal { part: "call from Python", reason })
    })
}

/// What became of records, by its name.
pub fn outcome(name: &str) -> PyResult<Outcome> {
    match name {
        "stored" => Ok(Outcome::Stored),
        "superseded" => Ok(Outcome::Superseded),
        "dead" => Ok(Outcome::Dead),
        other => Err(PyValueError::new_err(format!("no outcome {other:?}"))),
    }
}

/// Records as a store's rows: exact tuples in the order of `StoredRow`'s fields, `ids` being those
/// of instance and journal. One object a label crosses here, for each label that is made.
pub fn rows<'py>(
    py: Python<'py>,
    records: &[(u64, Record)],
    ids: [&str; 2],
) -> PyResult<Bound<'py, PyList>> {
    let ids = ids.map(|id| PyString::new(py, id));
    let mut names = Names { py, known: HashMap::new() };
    let rows = records.iter().map(|(number, record)| row(&mut names, *number, record, &ids));
    PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}

/// Labels, models and versions repeat in each record: one object of each a group.
struct Names<'a, 'py> {
    py: Python<'py>,
    known: HashMap<&'a str, Bound<'py, PyString>>,
}

impl<'a, 'py> Names<'a, 'py> {
    fn one(&mut self, name: &'a str) -> Bound<'py, PyAny> {
        let known = self.known.entry(name).or_insert_with(|| PyString::new(self.py, name));
        known.clone().into_any()
    }
}

fn row<'a, 'py>(
    names: &mut Names<'a, 'py>,
    number: u64,
    record: &'a Record,
    [instance_id, journal_id]: &[Bound<'py, PyString>; 2],
) -> PyResult<Bound<'py, PyTuple>> {
    let py = names.py;
    let text = |text: &str| PyString::new(py, text).into_any();
    let fields = [
        text(&record.robot_id),
        record.sequence.into_pyobject(py)?.into_any(),
        names.one(&record.label),
        record.index.into_pyobject(py)?.into_any(),
        record.confidence.into_pyobject(py)?.into_any(),
        names.one(&record.model),
        names.one(&record.version),
        record.source.into_pyobject(py)?.into_any(),
        record.labeled_at_unix_us.into_pyobject(py)?.into_any(),
        record.captured_at_unix_us.into_pyobject(py)?.into_any(),
        text(&record.sku),
        instance_id.clone().into_any(),
        journal_id.clone().into_any(),
        number.into_pyobject(py)?.into_any(),
    ];
    PyTuple::new(py, fields)
}

/// A record with its number, as the journal's tools show it.
pub fn record<'py>(py: Python<'py>, number: u64, record: &Record) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("number", number)?;
    dict.set_item("robot_id", &record.robot_id)?;
    dict.set_item("sequence", record.sequence)?;
    dict.set_item("model", &record.model)?;
    dict.set_item("version", &record.version)?;
    dict.set_item("label", &record.label)?;
    dict.set_item("index", record.index)?;
    dict.set_item("confidence", record.confidence)?;
    dict.set_item("scores", &record.scores)?;
    dict.set_item("source", record.source)?;
    dict.set_item("labeled_at_unix_us", record.labeled_at_unix_us)?;
    dict.set_item("captured_at_unix_us", record.captured_at_unix_us)?;
    dict.set_item("sku", &record.sku)?;
    Ok(dict)
}

/// A model version as `ModelInfo`.
pub fn model<'py>(py: Python<'py>, model: &ModelVersion) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let ready = model.state() == ModelState::Ready;
    dict.set_item("name", &model.name)?;
    dict.set_item("version", &model.version)?;
    dict.set_item("state", if ready { "ready" } else { "available" })?;
    dict.set_item("serving", model.serving)?;
    dict.set_item("width", model.width)?;
    dict.set_item("labels", &model.labels)?;
    dict.set_item("precision", &model.precision)?;
    dict.set_item("sha256", &model.sha256)?;
    dict.set_item("problem", &model.problem)?;
    Ok(dict)
}

/// Model versions as a list.
pub fn models<'py>(py: Python<'py>, all: &[ModelVersion]) -> PyResult<Bound<'py, PyList>> {
    let all: Vec<_> = all.iter().map(|m| model(py, m)).collect::<PyResult<_>>()?;
    PyList::new(py, all)
}

/// A `ModelInfo` back.
pub fn model_version(dict: &Bound<'_, PyDict>) -> PyResult<ModelVersion> {
    let state: String = field(dict, "state")?;
    let state = if state == "ready" { ModelState::Ready } else { ModelState::Available };
    Ok(ModelVersion {
        name: field(dict, "name")?,
        version: field(dict, "version")?,
        state: state.into(),
        serving: field(dict, "serving")?,
        width: field(dict, "width")?,
        labels: field(dict, "labels")?,
        precision: field(dict, "precision")?,
        sha256: field(dict, "sha256")?,
        problem: field(dict, "problem")?,
    })
}

/// A stored label of the control side.
pub fn stored_label(dict: &Bound<'_, PyDict>) -> PyResult<StoredLabel> {
    Ok(StoredLabel {
        robot_id: field(dict, "robot_id")?,
        sequence: field(dict, "sequence")?,
        label: field(dict, "label")?,
        index: field(dict, "index")?,
        confidence: field(dict, "confidence")?,
        model: field(dict, "model")?,
        version: field(dict, "version")?,
        source: field(dict, "source")?,
        durability: labeler_core::proto::Durability::Stored.into(),
        labeled_at_unix_us: field(dict, "labeled_at_unix_us")?,
        captured_at_unix_us: field(dict, "captured_at_unix_us")?,
        sku: field(dict, "sku")?,
        instance_id: field(dict, "instance_id")?,
        journal_id: field(dict, "journal_id")?,
        journal_number: field(dict, "journal_number")?,
    })
}

/// A required key, in its type.
pub fn field<'py, T>(dict: &Bound<'py, PyDict>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
    for<'a> <T as FromPyObject<'a, 'py>>::Error: Into<PyErr>,
{
    let value = dict.get_item(name)?.ok_or_else(|| missing(name))?;
    value.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        PyValueError::new_err(format!("{name}: {error}"))
    })
}

fn missing(name: &str) -> PyErr {
    PyValueError::new_err(format!("the answer has no {name:?}"))
}

/// A JSON value as Python's.
pub fn json<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Value::Number(value) => match (value.as_u64(), value.as_i64()) {
            (Some(value), _) => value.into_pyobject(py)?.into_any(),
            (None, Some(value)) => value.into_pyobject(py)?.into_any(),
            (None, None) => value.as_f64().into_pyobject(py)?.into_any(),
        },
        Value::String(value) => value.into_pyobject(py)?.into_any(),
        Value::Array(values) => {
            let list = PyList::empty(py);
            for value in values {
                list.append(json(py, value)?)?;
            }
            list.into_any()
        }
        Value::Object(entries) => {
            let dict = PyDict::new(py);
            for (key, value) in entries {
                dict.set_item(key, json(py, value)?)?;
            }
            dict.into_any()
        }
    })
}
