//! `labeler._core`: the one place that knows Python. It converts, releases the GIL and calls the
//! core; it decides nothing. Each crossing carries a group, never one label.

mod control;
mod convert;
mod engine;
mod errors;
mod journal;
mod loadgen;
mod logs;
mod process;

use pyo3::prelude::*;

/// The extension module; its typed face is `python/labeler/_core/__init__.pyi`.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<engine::Engine>()?;
    module.add_class::<journal::Journal>()?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    module.add_function(wrap_pyfunction!(build_info, module)?)?;
    module.add_function(wrap_pyfunction!(logs::init_logging, module)?)?;
    module.add_function(wrap_pyfunction!(logs::log_fatal, module)?)?;
    module.add_function(wrap_pyfunction!(journal::journal_verify, module)?)?;
    module.add_function(wrap_pyfunction!(journal::journal_stat, module)?)?;
    module.add_function(wrap_pyfunction!(journal::journal_dump, module)?)?;
    loadgen::add_to(module)
}

/// The extension's version, equal to the package's.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Version, profile and target of this build.
#[pyfunction]
fn build_info(py: Python<'_>) -> PyResult<Bound<'_, pyo3::types::PyDict>> {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let info = pyo3::types::PyDict::new(py);
    info.set_item("version", version())?;
    info.set_item("profile", profile)?;
    info.set_item("target", format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS))?;
    Ok(info)
}
