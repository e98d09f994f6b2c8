//! `labeler._core.loadgen`: the sender as Python sees it. It runs on threads of its own, none of
//! which knows Python; every call that waits releases the GIL.

use std::{path::Path, process, sync::Arc, time::Duration};

use pyo3::{exceptions::PyValueError, prelude::*, types::PyModule};
use serde::Serialize;

use crate::{convert, errors};

/// Adds the submodule, so that `import labeler._core.loadgen` finds it too.
pub fn add_to(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    const NAME: &str = "labeler._core.loadgen";
    let py = parent.py();
    let module = PyModule::new(py, NAME)?;
    module.add_class::<Sender>()?;
    parent.add("loadgen", &module)?;
    // An extension is no package, so its submodules are found by name alone.
    py.import("sys")?.getattr("modules")?.set_item(NAME, module)
}

/// One run of the sender.
#[pyclass(frozen, module = "labeler._core.loadgen")]
pub struct Sender {
    inner: Arc<labeler_loadgen::Sender>,
    pid: u32,
}

impl Sender {
    /// The call's result, unless this is a forked child: the sender's threads are not there.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&labeler_loadgen::Sender) -> labeler_loadgen::Result<T> + Send,
    ) -> PyResult<T> {
        if process::id() != self.pid {
            return Err(errors::forked(py));
        }
        py.detach(|| call(&self.inner)).map_err(|e| errors::of_sender(py, &e))
    }
}

fn dict<'py>(py: Python<'py>, figures: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let value = serde_json::to_value(figures).map_err(|e| PyValueError::new_err(e.to_string()))?;
    convert::json(py, &value)
}

#[pymethods]
impl Sender {
    #[new]
    fn new(py: Python<'_>, plan_json: &str) -> PyResult<Self> {
        let made = py.detach(|| labeler_loadgen::Sender::new(plan_json));
        let inner = Arc::new(made.map_err(|e| errors::of_sender(py, &e))?);
        Ok(Self { inner, pid: process::id() })
    }

    fn feed(&self, py: Python<'_>, values: &[u8], truths: &[u8], skus: &[u8]) -> PyResult<()> {
        self.call(py, |sender| sender.feed(values, truths, skus))
    }

    fn end_feed(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, labeler_loadgen::Sender::end_feed)
    }

    fn connect(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, labeler_loadgen::Sender::connect)
    }

    fn fire(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, labeler_loadgen::Sender::fire)
    }

    fn wait(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<bool> {
        self.call(py, |sender| Ok(sender.wait(Duration::from_millis(timeout_ms))))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |sender| {
            sender.stop();
            Ok(())
        })
    }

    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let snapshot = self.call(py, |sender| Ok(sender.snapshot()))?;
        dict(py, &snapshot)
    }

    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let result = self.call(py, labeler_loadgen::Sender::result)?;
        dict(py, &result)
    }

    fn write_histograms(&self, py: Python<'_>, directory: &str) -> PyResult<Vec<String>> {
        self.call(py, |sender| sender.write_histograms(Path::new(directory)))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // A forked child's copy must not touch the parent's run.
        if process::id() != self.pid {
            std::mem::forget(self.inner.clone());
        }
    }
}
