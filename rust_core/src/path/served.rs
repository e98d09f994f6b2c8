//! What is served: loaded versions by name, and which of them answers requests that name none.
//!
//! A request holds its version from here to its reply; a batch holds one version, since each
//! version has its own queue and thread. The table is replaced whole, so that a switch is atomic.

use std::{collections::BTreeMap, mem, sync::Arc};

use parking_lot::{Mutex, RwLock};

use crate::{
    error::{Error, Result},
    label::{Payload, Values},
    models::Manifest,
    stages::Stages,
};

use super::batch::{BatchTotals, Queue};

/// What is counted for a version since the start, over all its loads: a counter never falls.
#[derive(Default)]
pub struct Counts {
    /// Latencies by stage.
    pub stages: Stages,
    /// Batches.
    pub batches: Arc<Mutex<BatchTotals>>,
}

/// A loaded, warm version. Its session is not here: it lives and dies on the version's own thread.
pub struct Version {
    /// What it is.
    pub manifest: Arc<Manifest>,
    /// `fp32` or `int8`, as loaded.
    pub precision: String,
    /// SHA-256 of the loaded file, in hex.
    pub sha256: String,
    /// Its waiting rows.
    pub queue: Queue,
    /// Its latencies and batches since the start, kept over its loads.
    pub counts: Arc<Counts>,
}

impl Version {
    /// The payload as the model takes it, checked on what arrived, before the cast: 1e308 or a NaN
    /// must not turn into a number that a model has an answer for.
    ///
    /// 32-bit values leave the payload; whoever needs them there again puts them back.
    pub fn values(&self, payload: &mut Payload) -> Result<Vec<f32>> {
        let field = payload.field;
        match &mut payload.values {
            Values::F32(values) => {
                self.check(field, values.len(), values.iter().map(|v| f64::from(*v)))?;
                Ok(mem::take(values))
            }
            Values::F64(values) => {
                self.check(field, values.len(), values.iter().copied())?;
                Ok(values.iter().map(|v| *v as f32).collect())
            }
        }
    }

    fn check(
        &self,
        field: &'static str,
        len: usize,
        values: impl Iterator<Item = f64>,
    ) -> Result<()> {
        let manifest = &self.manifest;
        let invalid = |got: String, expected: String| Err(Error::Invalid { field, got, expected });
        if len != manifest.width {
            let expected = format!("{} values for model {}", manifest.width, manifest.name);
            return invalid(format!("{len} values"), expected);
        }
        let (low, high) = manifest.range.unwrap_or((f32::MIN, f32::MAX));
        for (index, value) in values.enumerate() {
            if !value.is_finite() && manifest.accepts_nonfinite {
                continue;
            }
            if !(f64::from(low)..=f64::from(high)).contains(&value) {
                let expected = format!("finite values from {low:?} to {high:?}");
                return invalid(format!("{value:?} at index {index}"), expected);
            }
        }
        Ok(())
    }
}

#[derive(Default, Clone)]
struct Model {
    serving: Option<Arc<Version>>,
    versions: Vec<Arc<Version>>,
}

type Table = BTreeMap<Arc<str>, Model>;

/// The table.
pub struct Served {
    table: RwLock<Arc<Table>>,
    default: Box<str>,
}

impl Served {
    /// Nothing yet; `default` is the model of a request that names none.
    pub fn new(default: &str) -> Self {
        Self { table: RwLock::default(), default: default.into() }
    }

    /// The version that answers a request.
    pub fn resolve(&self, model: &str, version: &str) -> Result<Arc<Version>> {
        let name = if model.is_empty() { &*self.default } else { model };
        let table = self.table.read();
        let found = table.get(name).and_then(|model| match version {
            "" => model.serving.clone(),
            version => model.versions.iter().find(|v| &*v.manifest.version == version).cloned(),
        });
        found.ok_or_else(|| not_found(&table, name, version))
    }

    /// Adds a version; unless on standby it serves from now on.
    pub fn publish(&self, version: Arc<Version>, standby: bool) {
        self.change(|table| {
            let model = table.entry(version.manifest.name.clone()).or_default();
            model.versions.push(version.clone());
            if !standby || model.serving.is_none() {
                model.serving = Some(version);
            }
        });
    }

    /// Makes a loaded version the serving one.
    pub fn promote(&self, version: &Arc<Version>) {
        self.change(|table| {
            table.entry(version.manifest.name.clone()).or_default().serving = Some(version.clone());
        });
    }

    /// Takes a version out (empty: all of the model's). If it was serving, the newest that is left
    /// does.
    pub fn retire(&self, name: &str, version: &str) -> Result<Vec<Arc<Version>>> {
        let mut retired = Vec::new();
        self.change(|table| {
            let Some(model) = table.get_mut(name) else { return };
            let matches = |v: &Arc<Version>| version.is_empty() || &*v.manifest.version == version;
            retired = model.versions.extract_if(.., |v| matches(v)).collect();
            let gone = |v: &Arc<Version>| retired.iter().any(|r| Arc::ptr_eq(r, v));
            if model.serving.as_ref().is_some_and(gone) {
                model.serving = model.versions.last().cloned();
            }
            if model.versions.is_empty() {
                table.remove(name);
            }
        });
        if retired.is_empty() {
            return Err(not_found(&self.table.read(), name, version));
        }
        Ok(retired)
    }

    /// All loaded versions, each with whether it serves.
    pub fn versions(&self) -> Vec<(Arc<Version>, bool)> {
        let table = self.table.read().clone();
        let of = |model: &Model| {
            let serving = model.serving.clone();
            let serves =
                move |v: &Arc<Version>| serving.as_ref().is_some_and(|s| Arc::ptr_eq(s, v));
            model.versions.clone().into_iter().map(move |v| (v.clone(), serves(&v)))
        };
        table.values().flat_map(of).collect()
    }

    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = self.table.write();
        let mut next = Table::clone(&table);
        change(&mut next);
        *table = Arc::new(next);
    }
}

fn not_found(table: &Table, model: &str, version: &str) -> Error {
    let names = table.values().flat_map(|m| &m.versions);
    let names = names.map(|v| format!("{} {}", v.manifest.name, v.manifest.version));
    let loaded = names.collect::<Vec<_>>().join(", ");
    let loaded = if loaded.is_empty() { "none".to_owned() } else { loaded };
    Error::ModelNotFound { model: model.to_owned(), version: version.to_owned(), loaded }
}
