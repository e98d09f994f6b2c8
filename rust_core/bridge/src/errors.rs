//! The one conversion from the core's and the sender's errors to Python exceptions: classes of
//! `labeler.errors`.
//!
//! No catch-all arm: a new variant does not compile until it has a class.

use labeler_core::{Error, error::Refusal};
use pyo3::{exceptions::PyRuntimeError, prelude::*, types::PyDict};

/// An exception of `labeler.errors` for a core error.
pub fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).unwrap_or_else(|failure| failure)
}

/// The exception for an error of the sender.
pub fn of_sender(py: Python<'_>, error: &labeler_loadgen::Error) -> PyErr {
    use labeler_loadgen::Error;
    let fields = PyDict::new(py);
    let class = match error {
        Error::Invalid { field, got, expected } => {
            let set = fields
                .set_item("field", field)
                .and_then(|()| fields.set_item("value", got))
                .and_then(|()| fields.set_item("expected", expected));
            if let Err(failure) = set {
                return failure;
            }
            "InvalidRequestError"
        }
        Error::NotReady { .. } => "UnavailableError",
        Error::Disk { .. } => "DiskError",
        Error::Machine { .. } => "InternalError",
        // The program that calls is wrong, not what it asks for.
        Error::OutOfOrder(reason) => return PyRuntimeError::new_err(*reason),
    };
    raise(py, class, &error.to_string(), &fields).unwrap_or_else(|failure| failure)
}

/// The exception of a process that forked: threads do not survive it.
pub fn forked(py: Python<'_>) -> PyErr {
    let message = "labeler was started before this process was forked, and its threads do not \
                   exist here; start it in the child, or use the spawn start method";
    raise(py, "ForkedError", message, &PyDict::new(py)).unwrap_or_else(|failure| failure)
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let fields = PyDict::new(py);
    let class = match error {
        Error::Invalid { field, got, expected } => {
            fields.set_item("field", field)?;
            fields.set_item("value", got)?;
            fields.set_item("expected", expected)?;
            "InvalidRequestError"
        }
        Error::ModelNotFound { .. } => "ModelNotFoundError",
        Error::LabelNotFound { .. } => "LabelNotFoundError",
        Error::KeyReused { .. } => "KeyReusedError",
        Error::Overloaded { retry_after, .. } => {
            fields.set_item("retry_after_ms", retry_after.as_millis() as u64)?;
            "OverloadedError"
        }
        Error::DeadlinePassed { label_exists, .. } => {
            fields.set_item("label_exists", label_exists)?;
            "DeadlinePassedError"
        }
        Error::Refused { kind, .. } => match kind {
            Refusal::NotFound => "ModelNotFoundError",
            Refusal::Invalid => "InvalidRequestError",
            Refusal::ModelInvalid => "ModelInvalidError",
            Refusal::Unavailable => "UnavailableError",
            Refusal::Internal => "InternalError",
        },
        Error::Cancelled => "RequestCancelledError",
        Error::Unavailable { .. } => "UnavailableError",
        Error::Internal { .. } => "InternalError",
        Error::ModelInvalid { .. } => "ModelInvalidError",
        Error::RuntimeLibrary { .. } => "RuntimeLibraryError",
        Error::InUse { .. } => "InUseError",
        Error::JournalVersion { .. } => "JournalVersionError",
        Error::Disk { .. } => "DiskError",
        Error::Config { .. } => "ConfigError",
        Error::Stopped => "StoppedError",
    };
    raise(py, class, &error.to_string(), &fields)
}

fn raise(
    py: Python<'_>,
    class: &str,
    message: &str,
    fields: &Bound<'_, PyDict>,
) -> PyResult<PyErr> {
    let class = py.import("labeler.errors")?.getattr(class)?;
    Ok(PyErr::from_value(class.call((message,), Some(fields))?))
}
