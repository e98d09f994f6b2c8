//! `Engine` as Python sees it. Every call first checks that this is the process that started it;
//! every call that waits releases the GIL.

use std::{mem, process, sync::Arc, time::Duration};

use labeler_core::{Error, config::CoreConfig, life::State, records::Numbered, snapshot};
use parking_lot::Mutex;
use pyo3::{
    prelude::*,
    types::{PyDict, PyList},
};

use crate::{control, convert, errors, logs, process as guard};

/// The label path: its threads, sockets, models and journal.
#[pyclass(frozen)]
pub struct Engine {
    inner: Arc<labeler_core::Engine>,
    pid: u32,
    /// What was taken last: its room is used again.
    taken: Mutex<Vec<Numbered>>,
}

impl Engine {
    /// The engine, unless this is a forked child.
    fn here(&self, py: Python<'_>) -> PyResult<&Arc<labeler_core::Engine>> {
        if process::id() == self.pid { Ok(&self.inner) } else { Err(errors::forked(py)) }
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Arc<labeler_core::Engine>) -> labeler_core::Result<T> + Send,
    ) -> PyResult<T> {
        let engine = self.here(py)?;
        py.detach(|| convert::caught(|| call(engine))).map_err(|e| errors::to_python(py, &e))
    }
}

/// Starts an engine; a signal that comes before it may serve ends the process.
fn begin(
    config: CoreConfig,
    taken: &guard::Taken,
) -> labeler_core::Result<Arc<labeler_core::Engine>> {
    let engine = labeler_core::Engine::start(config)?;
    guard::watch(&engine)?;
    let engine = taken.drains(engine);
    engine.open()?;
    Ok(engine.clone())
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[pymethods]
impl Engine {
    #[staticmethod]
    fn start(py: Python<'_>, config_json: &str) -> PyResult<Self> {
        let config: CoreConfig = serde_json::from_str(config_json).map_err(|e| {
            let error = Error::Config { setting: "core".to_owned(), reason: e.to_string() };
            errors::to_python(py, &error)
        })?;
        let budget = ms(config.drain.budget_ms);
        logs::tell_panics();
        let started = py.detach(|| {
            let taken = guard::signals(budget)?;
            begin(config, &taken).inspect_err(|_| taken.give_back())
        });
        let inner = started.map_err(|e: Error| errors::to_python(py, &e))?;
        guard::stop_at_exit(py, &inner)?;
        Ok(Self { inner, pid: process::id(), taken: Mutex::default() })
    }

    fn grpc_address(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |engine| Ok(engine.grpc_address()))
    }

    fn instance_id(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(&self.here(py)?.shared.instance_id)
    }

    fn journal_id(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(&self.here(py)?.shared.journal_id)
    }

    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.here(py)?.life.state().name())
    }

    fn wait_state(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<&'static str> {
        self.call(py, |engine| Ok(engine.life.wait(State::Serving, ms(timeout_ms)).name()))
    }

    fn exit_code(&self, py: Python<'_>) -> PyResult<i32> {
        let life = &self.here(py)?.life;
        Ok(if life.state() == State::Failed {
            guard::exit_code(life.failure().as_ref())
        } else {
            0
        })
    }

    fn take_records<'py>(
        &self,
        py: Python<'py>,
        rows_max: usize,
        bytes_max: usize,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        let shared = &self.here(py)?.shared;
        let mut records = mem::take(&mut *self.taken.lock());
        let timeout = ms(timeout_ms);
        let take = |engine: &Arc<labeler_core::Engine>| {
            engine.take_records(rows_max, bytes_max, timeout, &mut records)
        };
        let count = self.call(py, take)?;
        let rows = convert::rows(py, &records[..count], [&shared.instance_id, &shared.journal_id]);
        *self.taken.lock() = records;
        rows
    }

    fn confirm(&self, py: Python<'_>, numbers: Vec<u64>, outcome: &str) -> PyResult<()> {
        let outcome = convert::outcome(outcome)?;
        self.call(py, |engine| {
            engine.confirm(&numbers, outcome);
            Ok(())
        })
    }

    fn take_control<'py>(
        &self,
        py: Python<'py>,
        rows_max: usize,
        timeout_ms: u64,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let asked = self.call(py, |engine| engine.shared.control.take(rows_max, ms(timeout_ms)))?;
        asked.iter().map(|asked| control::asked(py, asked)).collect()
    }

    fn answer_control(
        &self,
        py: Python<'_>,
        answers: Vec<(u64, Bound<'_, PyDict>)>,
    ) -> PyResult<()> {
        let engine = self.here(py)?;
        for (id, body) in answers {
            let answer = control::answer(&body)?;
            py.detach(|| engine.shared.control.answer(id, answer));
        }
        Ok(())
    }

    fn load_model<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        version: &str,
        standby: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let model = self.call(py, |engine| engine.serving.load(name, version, standby))?;
        convert::model(py, &model)
    }

    fn unload_model<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        version: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let models = self.call(py, |engine| engine.serving.unload(name, version))?;
        convert::models(py, &models)
    }

    fn list_models<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let models = self.call(py, |engine| Ok(engine.serving.list()))?;
        convert::models(py, &models)
    }

    fn stages<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let all = self.call(py, |engine| Ok(snapshot::stages(engine)))?;
        let mut dicts = Vec::with_capacity(all.len());
        for (version, series) in all {
            let dict = PyDict::new(py);
            dict.set_item("stage", series.stage)?;
            dict.set_item("model", &*version.manifest.name)?;
            dict.set_item("version", &*version.manifest.version)?;
            dict.set_item("count", series.count)?;
            dict.set_item("sum_us", series.sum_us)?;
            dict.set_item("counts", series.counts)?;
            dicts.push(dict);
        }
        Ok(dicts)
    }

    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut value = self.call(py, |engine| Ok(snapshot::take(engine)))?;
        value["logs"] = serde_json::json!({ "dropped_total": logs::dropped_total() });
        value["panics_total"] = logs::panics_total().into();
        convert::json(py, &value)
    }

    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |engine| {
            engine.drain();
            Ok(())
        })
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |engine| engine.stop())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A forked child's copy must not touch the parent's journal or sockets; the engine of this
        // process ends by `stop`, and its threads hold it until then.
        if process::id() != self.pid {
            std::mem::forget(self.inner.clone());
        }
    }
}
