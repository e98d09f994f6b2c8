//! The journal without an engine: its read-only tools, and one that a removed process left behind.

use std::{mem, path::Path, process, time::Duration};

use labeler_core::{
    Error,
    handover::Handover,
    journal::{self, SystemFiles},
    proto::journal::Record,
    records::Numbered,
};
use parking_lot::Mutex;
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyAny, PyDict, PyList},
};
use serde_json::json;

use crate::{
    convert,
    errors::{self, to_python},
};

/// A journal whose process is gone, open to be delivered.
#[pyclass(frozen)]
pub struct Journal {
    // Taken out where it must not be dropped: a forked child's copy.
    inner: Option<Box<Handover>>,
    pid: u32,
    /// What was taken last: its room is used again.
    taken: Mutex<Vec<Numbered>>,
}

impl Journal {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Handover) -> labeler_core::Result<T> + Send,
    ) -> PyResult<T> {
        let inner = self.here(py)?;
        py.detach(|| convert::caught(|| call(inner))).map_err(|e| to_python(py, &e))
    }

    fn here(&self, py: Python<'_>) -> PyResult<&Handover> {
        match &self.inner {
            Some(inner) if process::id() == self.pid => Ok(inner),
            _ => Err(errors::forked(py)),
        }
    }
}

#[pymethods]
impl Journal {
    #[staticmethod]
    fn open(py: Python<'_>, config_json: &str, state_dir: &str) -> PyResult<Self> {
        let open = || {
            let config = serde_json::from_str(config_json).map_err(|e| Error::Config {
                setting: "journal".to_owned(),
                reason: e.to_string(),
            })?;
            Handover::open(config, Path::new(state_dir))
        };
        let inner = py.detach(open).map_err(|e| to_python(py, &e))?;
        Ok(Self { inner: Some(Box::new(inner)), pid: process::id(), taken: Mutex::default() })
    }

    fn instance_id(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(&self.here(py)?.instance_id)
    }

    fn journal_id(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(&self.here(py)?.journal_id)
    }

    fn take_records<'py>(
        &self,
        py: Python<'py>,
        rows_max: usize,
        bytes_max: usize,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        let left = self.here(py)?;
        let mut records = mem::take(&mut *self.taken.lock());
        let timeout = Duration::from_millis(timeout_ms);
        let take = |left: &Handover| left.take_records(rows_max, bytes_max, timeout, &mut records);
        let count = self.call(py, take)?;
        let rows = convert::rows(py, &records[..count], [&left.instance_id, &left.journal_id]);
        *self.taken.lock() = records;
        rows
    }

    fn confirm(&self, py: Python<'_>, numbers: Vec<u64>, outcome: &str) -> PyResult<()> {
        let outcome = convert::outcome(outcome)?;
        self.call(py, |left| {
            left.confirm(&numbers, outcome);
            Ok(())
        })
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.call(py, Handover::stats)?;
        let recovery = &self.here(py)?.recovery;
        let value = json!({
            "found": recovery.pending,
            "damage": recovery.quarantined,
            "pending": stats.pending,
            "stored": stats.stored_total,
            "superseded": stats.superseded_total,
            "dead": stats.dead_total,
            "unconfirmed_us": stats.unconfirmed_us,
        });
        convert::json(py, &value)
    }

    fn close(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<()> {
        self.call(py, |left| left.close(Duration::from_millis(timeout_ms)))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // The lock and the files are the parent's.
        if process::id() != self.pid {
            std::mem::forget(self.inner.take());
        }
    }
}

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
