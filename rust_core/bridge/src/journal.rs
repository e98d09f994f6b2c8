//! The journal's tools: read-only, beside a live process or without one.

use std::path::Path;

use labeler_core::{
    journal::{self, SystemFiles},
    proto::journal::Record,
};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyAny, PyDict},
};

use crate::{convert, errors::to_python};

fn report<'py, R>(
    py: Python<'py>,
    read: impl FnOnce() -> labeler_core::Result<R> + Send,
) -> PyResult<Bound<'py, PyAny>>
where
    R: serde::Serialize + Send,
{
    let report = py.detach(read).map_err(|e| to_python(py, &e))?;
    let value = serde_json::to_value(report).map_err(|e| PyValueError::new_err(e.to_string()))?;
    convert::json(py, &value)
}

/// Reads every group and says what is damaged.
#[pyfunction]
pub fn journal_verify<'py>(py: Python<'py>, directory: &str) -> PyResult<Bound<'py, PyAny>> {
    report(py, || journal::verify(Path::new(directory), &SystemFiles))
}

/// Sizes and counts.
#[pyfunction]
pub fn journal_stat<'py>(py: Python<'py>, directory: &str) -> PyResult<Bound<'py, PyAny>> {
    report(py, || journal::stat(Path::new(directory), &SystemFiles))
}

/// Records from a number on.
#[pyfunction]
pub fn journal_dump<'py>(
    py: Python<'py>,
    directory: &str,
    from_number: u64,
    rows_max: usize,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let read = || journal::dump(Path::new(directory), &SystemFiles, from_number, rows_max);
    let dumped = py.detach(read).map_err(|e| to_python(py, &e))?;
    let mut records = Vec::with_capacity(dumped.len());
    for dumped in dumped {
        let record: Record = labeler_core::journal_record(&dumped.body)
            .map_err(|e| PyValueError::new_err(format!("record {}: {e}", dumped.number)))?;
        let dict = convert::record(py, dumped.number, &record)?;
        dict.set_item("pending", dumped.pending)?;
        records.push(dict);
    }
    Ok(records)
}
