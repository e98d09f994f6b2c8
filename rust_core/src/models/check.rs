//! The proofs a session must give before it serves: golden vectors, and rows that stand alone.
//!
//! ONNX Runtime picks its kernels by the number of rows (matrix products of one row take another
//! one than of many), so a row's scores can differ in the last bits by its company. Here each
//! padded shape is measured with golden rows among extreme neighbours, at every place; shapes that
//! disagree are dropped. Pure decisions on what a `run` closure gives; no session is known here.

use super::Checked;
use super::golden::Golden;
use super::manifest::Manifest;

/// Probe rows: golden rows and extreme ones in turn.
const PROBES_MAX: usize = 64;
/// Runs of a shape that holds all probes at once.
const LARGE_SHAPE_RUNS: usize = 16;

/// Fills `scores` with the scores of `rows` rows of `values`, in exactly the shape of that many.
pub(super) type Run<'a> = dyn FnMut(&[f32], usize, &mut Vec<f32>) -> Checked<()> + 'a;

/// Compares the golden rows' scores with what `run` gives for them in `shape`.
pub(super) fn check_golden(
    golden: &Golden,
    expected: &[f32],
    manifest: &Manifest,
    shape: usize,
    run: &mut Run<'_>,
) -> Checked<()> {
    let (width, labels) = (manifest.width, manifest.labels.len());
    let mut scores = Vec::new();
    let rows: Vec<&[f32]> = golden.values.chunks_exact(width).collect();
    for (group, chunk) in rows.chunks(shape).enumerate() {
        let mut values = chunk.concat();
        values.resize(shape * width, 0.0);
        run(&values, shape, &mut scores)?;
        for (place, got) in scores.chunks_exact(labels).take(chunk.len()).enumerate() {
            let row = group * shape + place;
            let want = &expected[row * labels..][..labels];
            compare_row(row, got, want, manifest)?;
        }
    }
    Ok(())
}

fn compare_row(row: usize, got: &[f32], want: &[f32], manifest: &Manifest) -> Checked<()> {
    let (got_best, want_best) = (best(got), best(want));
    if got_best != want_best {
        let (got, want) = (&manifest.labels[got_best], &manifest.labels[want_best]);
        return Err(format!("golden row {row} gives label {got:?} on this CPU, expected {want:?}"));
    }
    let tolerance = manifest.score_tolerance;
    for (label, (got, want)) in got.iter().zip(want).enumerate() {
        // Written so that NaN is beyond any tolerance.
        let within = (got - want).abs() <= tolerance;
        if !within {
            return Err(format!(
                "golden row {row} gives score {got} for label {:?} on this CPU, expected {want} \
                 within {tolerance}",
                manifest.labels[label]
            ));
        }
    }
    Ok(())
}

/// The index of the highest score, the first of equals.
fn best(scores: &[f32]) -> usize {
    let mut best = 0;
    for (index, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = index;
        }
    }
    best
}

/// Rows to measure with: golden rows, each followed by one with extreme values.
pub(super) fn probes(golden: &Golden, manifest: &Manifest) -> Vec<Vec<f32>> {
    let width = manifest.width;
    let extremes = extremes(manifest);
    let mut probes = Vec::new();
    for index in 0..PROBES_MAX / 2 {
        // Spread over all golden rows: the first ones may be all of one kind.
        let row = index * golden.count / (PROBES_MAX / 2);
        probes.push(golden.values[row * width..][..width].to_vec());
        let pattern = extremes.len();
        let extreme = |place: usize| match index % (pattern + 1) {
            all if all < pattern => extremes[all],
            _ => extremes[(place + index) % pattern],
        };
        probes.push((0..width).map(extreme).collect());
    }
    probes
}

/// The most different values that a request may hold.
fn extremes(manifest: &Manifest) -> Vec<f32> {
    let (low, high) = manifest.range.unwrap_or((-f32::MAX, f32::MAX));
    let mut values = vec![low, high];
    let small = [0.0, -0.0, 1e-42, -1.0, 1e30, -1e30];
    values.extend(small.into_iter().filter(|value| (low..=high).contains(value)));
    if manifest.accepts_nonfinite {
        values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    }
    values
}

/// The shapes among `candidates` in which every probe has the same scores bit for bit, at each
/// place and beside each neighbour. The result holds a shape of at least `rows_max` rows; of
/// several such sets the largest is taken.
pub(super) fn agreeing_shapes(
    candidates: &[usize],
    rows_max: usize,
    probes: &[Vec<f32>],
    labels: usize,
    run: &mut Run<'_>,
) -> Checked<Vec<usize>> {
    let mut measured = Vec::new();
    for &shape in candidates {
        if let Some(bits) = bits_in_shape(shape, probes, labels, run)? {
            measured.push((shape, bits));
        }
    }
    let sets = measured.iter().filter(|(shape, _)| *shape >= rows_max).map(|(full, bits)| {
        let same = measured.iter().filter(|(shape, other)| shape <= full && other == bits);
        same.map(|(shape, _)| *shape).collect::<Vec<_>>()
    });
    // Of equal length the first, so the least padding; `max_by_key` would take the last.
    sets.reduce(|best, set| if set.len() > best.len() { set } else { best }).ok_or_else(|| {
        format!("a row's scores depend on the rows beside it in every batch of {rows_max} or more")
    })
}

/// Each probe's scores in a shape, as bits; `None` where they depend on place or neighbours.
fn bits_in_shape(
    shape: usize,
    probes: &[Vec<f32>],
    labels: usize,
    run: &mut Run<'_>,
) -> Checked<Option<Vec<Vec<u32>>>> {
    let mut known: Vec<Option<Vec<u32>>> = vec![None; probes.len()];
    let mut scores = Vec::new();
    // Moving on by one place a run brings each probe to each place of a shape smaller than all.
    let runs = if shape < probes.len() { probes.len() } else { LARGE_SHAPE_RUNS };
    let mut alone = true;
    // Beside the other kind, beside its own kind only, beside itself only: without the last two a
    // large shape would always hold all probes, and a maximum over the batch would never change.
    for (step, first) in [1, 2, 0].into_iter().flat_map(|step| (0..runs).map(move |at| (step, at)))
    {
        let probe_at = |place: usize| (first + place * step) % probes.len();
        let values: Vec<f32> =
            (0..shape).flat_map(|place| probes[probe_at(place)].iter().copied()).collect();
        run(&values, shape, &mut scores)?;
        for (place, row) in scores.chunks_exact(labels).enumerate() {
            let bits: Vec<u32> = row.iter().map(|score| canonical_bits(*score)).collect();
            let slot = &mut known[probe_at(place)];
            alone &= slot.get_or_insert_with(|| bits.clone()) == &bits;
        }
    }
    Ok(alone.then(|| known.into_iter().flatten().collect()))
}

/// NaN has many forms, and which one comes out says nothing about a label.
fn canonical_bits(score: f32) -> u32 {
    if score.is_nan() { f32::NAN.to_bits() } else { score.to_bits() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 quiet rows and 32 loud ones, one value each.
    fn rows() -> Vec<Vec<f32>> {
        let value = |index: usize| index as f32 * if index % 2 == 1 { 1e30 } else { 1.0 };
        (0..PROBES_MAX).map(|index| vec![value(index)]).collect()
    }

    /// The shapes that agree where a row's score is `score(batch, place)`.
    fn agreeing(
        candidates: &[usize],
        rows_max: usize,
        score: impl Fn(&[f32], usize) -> f32,
    ) -> Checked<Vec<usize>> {
        let mut run = |values: &[f32], rows: usize, scores: &mut Vec<f32>| {
            assert_eq!(values.len(), rows);
            scores.clear();
            scores.extend((0..rows).map(|place| score(values, place)));
            Ok(())
        };
        agreeing_shapes(candidates, rows_max, &rows(), 1, &mut run)
    }

    fn next_up(value: f32) -> f32 {
        f32::from_bits(value.to_bits() + 1)
    }

    #[test]
    fn shapes_that_agree_are_all_kept() {
        let kept = agreeing(&[1, 2, 4, 8], 8, |batch, place| batch[place]);
        assert_eq!(kept.unwrap(), [1, 2, 4, 8]);
    }

    #[test]
    fn one_unit_in_the_last_place_drops_a_shape() {
        let kept = agreeing(&[1, 2, 4, 8], 8, |batch, place| match batch.len() {
            1 => next_up(batch[place]),
            _ => batch[place],
        });
        assert_eq!(kept.unwrap(), [2, 4, 8]);
    }

    #[test]
    fn of_two_sets_the_larger_that_holds_a_full_batch_is_taken() {
        // A kernel by fours with another one for the rest: 6 rows disagree, padded to 8 they agree.
        let kept = agreeing(&[1, 2, 4, 6, 8], 6, |batch, place| match batch.len() % 4 {
            0 => batch[place],
            _ => next_up(batch[place]),
        });
        assert_eq!(kept.unwrap(), [1, 2, 6]);
        let kept = agreeing(&[1, 2, 4, 6, 8], 6, |batch, place| match batch.len() {
            6 => next_up(batch[place]),
            _ => batch[place],
        });
        assert_eq!(kept.unwrap(), [1, 2, 4, 8]);
    }

    #[test]
    fn a_row_that_depends_on_its_place_drops_the_shape() {
        let kept = agreeing(&[1, 2, 4, 8], 8, |batch, place| match (batch.len(), place) {
            (4, 3) => next_up(batch[place]),
            _ => batch[place],
        });
        assert_eq!(kept.unwrap(), [1, 2, 8]);
    }

    #[test]
    fn a_row_that_depends_on_the_batchs_maximum_is_found_in_shapes_of_any_size() {
        let top = |batch: &[f32]| batch.iter().copied().fold(f32::MIN, f32::max);
        for shape in [2, 8, 64, 256, 1024] {
            let kept = agreeing(&[shape], shape, |batch, place| batch[place] / top(batch));
            let reason = kept.unwrap_err();
            assert!(reason.contains("depend on the rows beside it"), "{shape}: {reason}");
        }
    }

    #[test]
    fn a_failed_run_ends_the_measurement() {
        let mut run = |_: &[f32], _: usize, _: &mut Vec<f32>| Err("no memory".to_owned());
        let found = agreeing_shapes(&[1], 1, &rows(), 1, &mut run);
        assert_eq!(found.unwrap_err(), "no memory");
    }
}
