//! Changes to what is served: load, replace, unload, each true when its call returns.
//!
//! A version loads on the thread that will serve it, beside the others; the switch is atomic; its
//! session is dropped on that same thread, after its last batch. Operations run one after the
//! other.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use parking_lot::Mutex;

use crate::{
    clock::Clock,
    error::{Error, Result},
    faults,
    models::{Available, Repository, Session},
    path::{
        batch::{BatchLimits, Queue},
        infer,
        journal::Journaling,
        served::{Counts, Served, Version},
    },
    proto::{ModelState, ModelVersion},
    supervise::{Supervisor, panic_message},
};

/// What a version's thread needs.
pub struct Parts {
    /// Where versions come from.
    pub repository: Repository,
    /// Where they are entered.
    pub served: Arc<Served>,
    /// Bounds of each version's queue.
    pub limits: BatchLimits,
    /// Where answered rows go.
    pub journaling: Journaling,
    /// The engine's clock.
    pub clock: Clock,
    /// Who starts threads.
    pub supervisor: Supervisor,
}

/// The operations.
pub struct Serving {
    parts: Parts,
    threads: Mutex<HashMap<NameAndVersion, JoinHandle<()>>>,
    counts: Mutex<HashMap<NameAndVersion, Arc<Counts>>>,
}

/// Versions whose counts are kept after they were unloaded, at about a megabyte each.
const COUNTED_VERSIONS_MAX: usize = 32;

type NameAndVersion = (Arc<str>, Arc<str>);

impl Serving {
    /// Nothing is loaded yet.
    pub fn new(parts: Parts) -> Self {
        Self { parts, threads: Mutex::default(), counts: Mutex::default() }
    }

    /// Loads what a start names, `NAME` or `NAME@VERSION`. Those that could not be loaded are told
    /// all at once; one that is not there is a matter of configuration.
    pub fn load_all(&self, models: &[String]) -> Result<()> {
        let loaded = models.iter().map(|model| {
            let (name, version) = model.split_once('@').unwrap_or((model, ""));
            self.load(name, version, false)
        });
        let mut refused: Vec<Error> = loaded.filter_map(Result::err).collect();
        let reasons: Vec<String> = refused.iter().map(ToString::to_string).collect();
        let Some(error) = refused.pop() else { return Ok(()) };
        let ours = matches!(error, Error::ModelNotFound { .. } | Error::Invalid { .. });
        if refused.is_empty() && !ours {
            return Err(error);
        }
        Err(Error::Config { setting: "models.load".to_owned(), reason: reasons.join("; ") })
    }

    /// Loads a version (empty: the newest), warms it, then serves it. A version that is loaded
    /// already is made the serving one.
    pub fn load(&self, name: &str, version: &str, standby: bool) -> Result<ModelVersion> {
        let mut threads = self.threads.lock();
        let served = &self.parts.served;
        let available = self.parts.repository.find(name, version)?;
        let loaded = served.versions().into_iter().map(|(v, _)| v);
        let same = |v: &Arc<Version>| {
            *v.manifest.name == *available.name && *v.manifest.version == *available.version
        };
        if let Some(loaded) = loaded.into_iter().find(same) {
            if !standby {
                served.promote(&loaded);
            }
            return Ok(self.described(&loaded));
        }
        let (version, thread) = self.start(available)?;
        let manifest = &version.manifest;
        threads.insert((manifest.name.clone(), manifest.version.clone()), thread);
        served.publish(version.clone(), standby);
        tracing::info!(
            model = %manifest.name, version = %manifest.version, precision = version.precision,
            standby, "model loaded"
        );
        Ok(self.described(&version))
    }

    /// Stops a version (empty: all of the model's) and waits until its thread has ended.
    pub fn unload(&self, name: &str, version: &str) -> Result<Vec<ModelVersion>> {
        let mut threads = self.threads.lock();
        let retired = self.parts.served.retire(name, version)?;
        for version in &retired {
            version.queue.close();
        }
        for version in &retired {
            let manifest = &version.manifest;
            let key = (manifest.name.clone(), manifest.version.clone());
            join(threads.remove(&key));
            tracing::info!(model = %manifest.name, version = %manifest.version, "model unloaded");
        }
        let available = |v: &Arc<Version>| ModelVersion {
            state: ModelState::Available.into(),
            ..described(v, false)
        };
        Ok(retired.iter().map(available).collect())
    }

    /// Loaded versions, then those that could be.
    pub fn list(&self) -> Vec<ModelVersion> {
        let loaded = self.parts.served.versions();
        let mut listed: Vec<_> = loaded.iter().map(|(v, serving)| described(v, *serving)).collect();
        for available in self.parts.repository.list() {
            let is =
                |v: &ModelVersion| v.name == *available.name && v.version == *available.version;
            if !listed.iter().any(is) {
                listed.push(undescribed(&available));
            }
        }
        listed
    }

    /// Ends all threads after the rows that they have.
    pub fn stop(&self) {
        let mut threads = self.threads.lock();
        for (version, _) in self.parts.served.versions() {
            version.queue.close();
        }
        threads.drain().for_each(|(_, thread)| join(Some(thread)));
    }

    fn described(&self, version: &Arc<Version>) -> ModelVersion {
        let all = self.parts.served.versions();
        let serving = all.iter().any(|(v, serving)| *serving && Arc::ptr_eq(v, version));
        described(version, serving)
    }

    /// A version's counts: those of its last load, if they are still known.
    fn counts(&self, available: &Available) -> Arc<Counts> {
        let mut known = self.counts.lock();
        if known.len() >= COUNTED_VERSIONS_MAX {
            known.retain(|_, counts| Arc::strong_count(counts) > 1);
        }
        let key = (available.name.clone(), available.version.clone());
        known.entry(key).or_default().clone()
    }

    fn start(&self, available: Available) -> Result<(Arc<Version>, JoinHandle<()>)> {
        let (limits, clock) = (self.parts.limits, self.parts.clock);
        let journaling = self.parts.journaling.clone();
        let counts = self.counts(&available);
        let (sender, receiver) = mpsc::sync_channel(1);
        let name = format!("infer-{}", available.name);
        let serve = move || {
            let session = match loaded(&available, limits.batch_rows_max) {
                Ok(session) => session,
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return Ok(());
                }
            };
            let version = Arc::new(Version {
                manifest: session.manifest().clone(),
                precision: session.precision().to_owned(),
                sha256: session.sha256().to_owned(),
                queue: Queue::new(limits, counts.batches.clone(), clock),
                counts,
            });
            let _left = Left(version.clone());
            let _ = sender.send(Ok(version.clone()));
            infer::serve(session, &version.queue, &clock, |rows, answers| {
                journaling.append(rows, answers);
            })
        };
        let thread = self.parts.supervisor.spawn("inference", name, serve)?;
        match receiver.recv() {
            Ok(Ok(version)) => Ok((version, thread)),
            Ok(Err(error)) => {
                join(Some(thread));
                Err(error)
            }
            Err(_) => {
                let reason = "the thread ended while it loaded".to_owned();
                Err(Error::Internal { part: "inference", reason })
            }
        }
    }
}

/// A model that makes the loader panic is a bad model; what is served goes on.
fn loaded(available: &Available, rows_max: usize) -> Result<Session> {
    let load = || {
        faults::point("load");
        Session::load(available, rows_max)
    };
    catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
        let (name, reason) = (&available.name, panic_message(&*panic));
        tracing::error!(model = %name, version = %available.version, reason, "a load panicked");
        Err(Error::Internal { part: "model load", reason })
    })
}

/// Held by a version's thread: however that ends, nobody waits for it any longer.
struct Left(Arc<Version>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.queue.abandon();
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    // A panic was reported by the supervisor; there is nothing to add here.
    if let Some(thread) = thread {
        let _ = thread.join();
    }
}

fn described(version: &Arc<Version>, serving: bool) -> ModelVersion {
    let manifest = &version.manifest;
    ModelVersion {
        name: manifest.name.to_string(),
        version: manifest.version.to_string(),
        state: ModelState::Ready.into(),
        serving,
        width: manifest.width as u32,
        labels: manifest.labels.iter().map(|l| l.to_string()).collect(),
        precision: version.precision.clone(),
        sha256: version.sha256.clone(),
        problem: String::new(),
    }
}

fn undescribed(available: &Available) -> ModelVersion {
    let manifest = available.manifest.as_ref();
    let labels = manifest.map(|m| m.labels.iter().map(|l| l.to_string()).collect());
    ModelVersion {
        name: available.name.to_string(),
        version: available.version.to_string(),
        state: ModelState::Available.into(),
        width: manifest.map_or(0, |m| m.width as u32),
        labels: labels.unwrap_or_default(),
        problem: available.problem.clone().unwrap_or_default(),
        ..ModelVersion::default()
    }
}
