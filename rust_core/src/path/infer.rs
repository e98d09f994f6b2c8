//! Inference: one thread a model version, which owns the session from load to drop.
//!
//! Forms a batch, runs it, hands the answered rows on. Never waits for a caller, a disk or a store;
//! a panic fails the rows of its batch and nothing else.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    sync::atomic::Ordering,
};

use crate::{
    clock::Clock,
    error::{Error, Result},
    faults,
    label::{Answer, Source},
    models::{Manifest, Session},
    stages::Stage,
    supervise::panic_message,
};

use super::{Batches, Entry, Formed};

/// Serves `batches` with `session` until they are closed and empty. `answered` gets each batch's
/// rows with their answers; it makes them durable and tells the callers.
pub fn serve(
    mut session: Session,
    batches: &impl Batches,
    clock: &Clock,
    mut answered: impl FnMut(Vec<Entry>, Vec<Answer>),
) -> Result<()> {
    let manifest = session.manifest().clone();
    let mut buffers = Buffers::default();
    while let Some(Formed { rows, expired: late, .. }) = batches.next() {
        for entry in &late {
            let error = Error::DeadlinePassed { stage: Stage::Queue, label_exists: false };
            entry.row.fail_if_queued(error);
        }
        drop(late);
        if rows.is_empty() {
            continue;
        }
        let formed_us = clock.now_us();
        let run = catch_unwind(AssertUnwindSafe(|| buffers.run(&mut session, &rows)));
        let inferred_us = clock.now_us();
        let outcome = run.unwrap_or_else(|panic| {
            Err(Error::Internal { part: "inference", reason: panic_message(&*panic) })
        });
        if let Err(error) = outcome {
            tracing::error!(model = %manifest.name, rows = rows.len(), %error, "a batch failed");
            rows.iter().for_each(|entry| entry.row.fail(error.clone()));
            continue;
        }
        batches.ran(rows.len(), inferred_us.saturating_sub(formed_us));
        for entry in &rows {
            entry.row.stamps.formed_us.store(formed_us, Ordering::Relaxed);
            entry.row.stamps.inferred_us.store(inferred_us, Ordering::Relaxed);
        }
        let (rows, answers) = answers(&manifest, &buffers.scores, rows);
        answered(rows, answers);
    }
    Ok(())
}

#[derive(Default)]
struct Buffers {
    values: Vec<f32>,
    scores: Vec<f32>,
}

impl Buffers {
    fn run(&mut self, session: &mut Session, rows: &[Entry]) -> Result<()> {
        self.values.clear();
        rows.iter().for_each(|entry| self.values.extend_from_slice(&entry.values));
        faults::point("infer");
        session.run(&self.values, rows.len(), &mut self.scores)
    }
}

/// The label of each row is its highest score; the first of equals. A row whose scores are no
/// numbers has no label: it fails alone.
fn answers(
    manifest: &Arc<Manifest>,
    scores: &[f32],
    rows: Vec<Entry>,
) -> (Vec<Entry>, Vec<Answer>) {
    let width = manifest.labels.len();
    assert_eq!(scores.len(), rows.len() * width, "a run gives one score a row and label");
    let scored = rows.into_iter().zip(scores.chunks_exact(width));
    let labelled = scored.filter_map(|(entry, scores)| {
        if scores.iter().all(|score| score.is_finite()) {
            return Some((entry, answer(manifest, scores)));
        }
        let reason = format!("model {} gave scores that are no numbers", manifest.name);
        entry.row.fail(Error::Internal { part: "inference", reason });
        None
    });
    labelled.unzip()
}

fn answer(manifest: &Manifest, scores: &[f32]) -> Answer {
    let mut best = 0;
    for (index, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = index;
        }
    }
    Answer {
        index: best as u32,
        label: manifest.labels[best].clone(),
        confidence: scores[best],
        scores: scores.into(),
        model: manifest.name.clone(),
        version: manifest.version.clone(),
        source: Source::Model,
    }
}
