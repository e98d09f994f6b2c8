//! Inference: one thread a model version, which owns the session from load to drop.
//!
//! Forms a batch, runs it, hands the answered rows on. Never waits for a caller, a disk or a store;
//! a panic fails the rows of its batch and nothing else.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
    vec::Drain,
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

/// Serves `batches` with `session` until they are closed and empty. `answered` takes each batch's
/// rows out, with their answers; it makes them durable and tells the callers.
pub fn serve(
    mut session: Session,
    batches: &impl Batches,
    clock: &Clock,
    answered: impl Fn(Drain<'_, Entry>, Drain<'_, Answer>),
) -> Result<()> {
    let manifest = session.manifest().clone();
    let mut buffers = Buffers::default();
    let mut formed = Formed::default();
    while batches.next(&mut formed) {
        let Formed { rows, expired: late, .. } = &mut formed;
        for entry in late.drain(..) {
            let error = Error::DeadlinePassed { stage: Stage::Queue, label_exists: false };
            entry.row.fail_if_queued(error);
        }
        if rows.is_empty() {
            continue;
        }
        let formed_us = clock.now_us();
        let run = catch_unwind(AssertUnwindSafe(|| buffers.run(&mut session, rows)));
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
        for entry in &*rows {
            entry.row.stamps.formed_us.store(formed_us, Ordering::Relaxed);
            entry.row.stamps.inferred_us.store(inferred_us, Ordering::Relaxed);
        }
        buffers.answer(&manifest, rows);
        answered(rows.drain(..), buffers.answers.drain(..));
    }
    Ok(())
}

/// What a batch needs, kept for its room.
#[derive(Default)]
struct Buffers {
    values: Vec<f32>,
    scores: Vec<f32>,
    answers: Vec<Answer>,
}

impl Buffers {
    fn run(&mut self, session: &mut Session, rows: &[Entry]) -> Result<()> {
        self.values.clear();
        rows.iter().for_each(|entry| self.values.extend_from_slice(&entry.values));
        faults::point("infer");
        session.run(&self.values, rows.len(), &mut self.scores)
    }

    /// The label of each row is its highest score; the first of equals. A row whose scores are no
    /// numbers has no label: it fails alone, and leaves `rows`.
    fn answer(&mut self, manifest: &Manifest, rows: &mut Vec<Entry>) {
        let Self { scores, answers, .. } = self;
        let width = manifest.labels.len();
        assert_eq!(scores.len(), rows.len() * width, "a run gives one score a row and label");
        answers.clear();
        let mut scores = scores.chunks_exact(width);
        rows.retain(|entry| {
            let scores = scores.next().unwrap_or_default();
            let numbers = scores.iter().all(|score| score.is_finite());
            if numbers {
                answers.push(answer(manifest, scores));
            } else {
                let reason = format!("model {} gave scores that are no numbers", manifest.name);
                entry.row.fail(Error::Internal { part: "inference", reason });
            }
            numbers
        });
    }
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
