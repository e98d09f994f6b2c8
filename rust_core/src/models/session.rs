//! A model version that is loaded, warm and proven: what an inference thread owns.
//!
//! Loading goes manifest ▸ SHA-256 ▸ session ▸ every shape run ▸ rows stand alone ▸ golden vectors,
//! for the int8 file first where there is one, then for fp32. Not shared between threads; `run`
//! allocates nothing of its own.

use std::sync::Arc;

use super::Checked;
use super::RUN_ROWS_MAX;
use super::check::{agreeing_shapes, check_golden, probes};
use super::golden::Golden;
use super::graph::Graph;
use super::manifest::{Manifest, ModelFile, read_verified};
use super::repository::Available;
use crate::error::{Error, Result};

/// A loaded version, owned by one thread.
pub struct Session {
    manifest: Arc<Manifest>,
    file: ModelFile,
    shapes: Vec<usize>,
    graph: Graph,
}

impl Session {
    /// Loads, warms and proves a version for runs of up to `rows_max` rows.
    ///
    /// Takes as long as a thousand runs: never on a transport thread. Errors: `ModelInvalid` with
    /// every file's reason, `RuntimeLibrary` before `load_runtime`, `Config` for `rows_max`.
    pub fn load(available: &Available, rows_max: usize) -> Result<Session> {
        super::runtime::environment()?;
        if !(1..=RUN_ROWS_MAX).contains(&rows_max) {
            return Err(Error::Config {
                setting: "batch_rows_max".into(),
                reason: format!("is {rows_max}, expected 1 to {RUN_ROWS_MAX}"),
            });
        }
        let invalid = |reason: String| Error::ModelInvalid {
            model: available.name.to_string(),
            version: available.version.to_string(),
            reason,
        };
        if let Some(problem) = &available.problem {
            return Err(invalid(problem.clone()));
        }
        // Read again: what was listed may have been replaced since.
        let manifest = Manifest::read(&available.directory).map_err(invalid)?;
        let same = *manifest.name == *available.name && *manifest.version == *available.version;
        if !same {
            return Err(invalid("the folder's manifest has changed; list it again".into()));
        }
        load_first_fit(available, manifest, rows_max).map_err(invalid)
    }

    /// The version's description.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// `fp32` or `int8`: the file that passed on this machine.
    pub fn precision(&self) -> &str {
        &self.file.precision
    }

    /// SHA-256 of the file that is served, lower-case hex.
    pub fn sha256(&self) -> &str {
        &self.file.sha256
    }

    /// The batch shapes that runs are padded to, ascending; the last holds `rows_max` rows or more.
    pub fn shapes(&self) -> &[usize] {
        &self.shapes
    }

    /// Scores of `rows` rows: `values` is `rows × width`, `scores` becomes `rows × labels`.
    ///
    /// A row's scores are the same bit for bit whatever runs beside it. `scores` is cleared first
    /// and is empty after an error. Errors: `Internal` for a wrong number of values, a failed run.
    pub fn run(&mut self, values: &[f32], rows: usize, scores: &mut Vec<f32>) -> Result<()> {
        self.graph
            .run(values, rows, scores)
            .map_err(|reason| Error::Internal { part: "model run", reason })
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("name", &self.manifest.name)
            .field("version", &self.manifest.version)
            .field("precision", &self.file.precision)
            .field("shapes", &self.shapes)
            .finish_non_exhaustive()
    }
}

/// The first file that passes, int8 before fp32; a fallback is said loudly.
fn load_first_fit(available: &Available, manifest: Manifest, rows_max: usize) -> Checked<Session> {
    let directory = &available.directory;
    let content = read_verified(directory, &manifest.golden)?;
    let golden = Golden::parse(&content, &manifest)?;
    let mut files = manifest.files.clone();
    files.sort_by_key(|file| file.precision != "int8");
    let mut refused = Vec::new();
    for file in files {
        let content = read_verified(directory, &file.packed())?;
        match prove(&content, &file, &manifest, &golden, rows_max) {
            Ok((graph, shapes)) => {
                let (name, version) = (&*manifest.name, &*manifest.version);
                if !refused.is_empty() {
                    let (precision, reason) = (&*file.precision, refused.join("; "));
                    tracing::warn!(name, version, precision, reason, "a model file was refused");
                }
                return Ok(Session { manifest: Arc::new(manifest), file, shapes, graph });
            }
            Err(reason) => refused.push(format!("{} ({}): {reason}", file.path, file.precision)),
        }
    }
    Err(refused.join("; "))
}

/// Makes a file's session, runs it in every shape, and keeps the shapes that agree.
fn prove(
    content: &[u8],
    file: &ModelFile,
    manifest: &Manifest,
    golden: &Golden,
    rows_max: usize,
) -> Checked<(Graph, Vec<usize>)> {
    let precision = &file.precision;
    let expected = golden
        .scores(precision)
        .ok_or_else(|| format!("{} has no scores.{precision}", manifest.golden.path))?;
    let mut graph = Graph::open(content, manifest)?;
    let candidates = candidate_shapes(rows_max);
    graph.set_shapes(&candidates)?;
    let labels = manifest.labels.len();
    let mut run =
        |values: &[f32], rows: usize, scores: &mut Vec<f32>| graph.run(values, rows, scores);
    // Golden vectors first: a file that is wrong on this CPU is refused for that, not its shapes.
    check_golden(golden, expected, manifest, candidates[candidates.len() - 1], &mut run)?;
    let rows = probes(golden, manifest);
    let shapes = agreeing_shapes(&candidates, rows_max, &rows, labels, &mut run)?;
    check_golden(golden, expected, manifest, shapes[0], &mut run)?;
    graph.set_shapes(&shapes)?;
    if shapes.len() < candidates.len() {
        let (name, version) = (&*manifest.name, &*manifest.version);
        tracing::info!(name, version, ?shapes, ?candidates, "batch shapes that agree bit for bit");
    }
    Ok((graph, shapes))
}

/// 1, 2, 4 … `rows_max`, then the next power of two as a spare for kernels that go by fours.
fn candidate_shapes(rows_max: usize) -> Vec<usize> {
    let mut shapes: Vec<usize> =
        (0..).map(|power| 1 << power).take_while(|shape| *shape < rows_max).collect();
    shapes.push(rows_max);
    if !rows_max.is_power_of_two() {
        shapes.push(rows_max.next_power_of_two());
    }
    shapes
}

#[cfg(test)]
mod tests {
    use super::super::repository::Repository;
    use super::super::testing::{Noise, Package, counting, find, neighbourly, network};
    use super::super::testing::{runtime_or_skip, write_plain};
    use super::*;

    fn refused(loaded: Result<Session>) -> String {
        match loaded {
            Err(error @ Error::ModelInvalid { .. }) => error.to_string(),
            other => panic!("expected ModelInvalid, got {other:?}"),
        }
    }

    fn bits(scores: &[f32]) -> Vec<u32> {
        scores.iter().map(|score| score.to_bits()).collect()
    }

    #[test]
    fn shapes_are_powers_of_two_up_to_the_largest_batch() {
        assert_eq!(candidate_shapes(1), [1]);
        assert_eq!(candidate_shapes(8), [1, 2, 4, 8]);
        assert_eq!(candidate_shapes(100), [1, 2, 4, 8, 16, 32, 64, 100, 128]);
    }

    #[test]
    fn a_row_alone_and_among_extremes_has_the_same_bits_in_every_shape() {
        if !runtime_or_skip() {
            return;
        }
        let (width, labels) = (24, 4);
        let mut session = Package::of(network(width, 64, labels), width, labels).load(64).unwrap();
        assert_eq!(session.shapes().last(), Some(&64), "{session:?}");
        let mut noise = Noise(3);
        let mut scores = Vec::new();
        for extreme in [0.0, -0.0, f32::MAX, -f32::MAX, 1e-42, 1e30, -1e30] {
            let row = noise.take(width);
            session.run(&row, 1, &mut scores).unwrap();
            let alone = bits(&scores);
            for rows in 1..=64 {
                for place in [0, rows / 2, rows - 1] {
                    let mut values = vec![extreme; rows * width];
                    values[place * width..][..width].copy_from_slice(&row);
                    session.run(&values, rows, &mut scores).unwrap();
                    let found = bits(&scores[place * labels..][..labels]);
                    assert_eq!(found, alone, "place {place} of {rows} beside {extreme}");
                }
            }
        }
    }

    #[test]
    fn a_shape_that_disagrees_is_dropped_and_its_rows_are_padded() {
        if !runtime_or_skip() {
            return;
        }
        let mut session = Package::of(counting(3), 3, 3).load(8).unwrap();
        assert_eq!(session.shapes(), [2, 4, 8]);
        let mut scores = Vec::new();
        session.run(&[1.0, 2.0, 3.0], 1, &mut scores).unwrap();
        assert_eq!(scores, [1.0, 2.0, 3.0]);
    }

    #[test]
    fn a_model_whose_rows_depend_on_their_neighbours_is_refused() {
        if !runtime_or_skip() {
            return;
        }
        // Golden rows share their maximum, so only the measurement can find the dependence.
        let mut rows: Vec<Vec<f32>> = (0..40).map(|row| vec![1.0, row as f32 / 40.0]).collect();
        rows[7][1] = 1.0;
        let scores = vec![("fp32", rows.clone())];
        let files = vec![("fp32", neighbourly(2))];
        let extra = "range = [0.0, 10.0]";
        let package = Package { width: 2, labels: 2, files, rows, scores, extra };
        for rows_max in [2, 8, 256] {
            let reason = refused(package.load(rows_max));
            assert!(reason.contains("depend on the rows beside it"), "{rows_max}: {reason}");
        }
    }

    #[test]
    fn padding_never_scatters_back() {
        if !runtime_or_skip() {
            return;
        }
        let mut session = Package::of(counting(2), 2, 2).load(8).unwrap();
        let mut scores = vec![9.0; 100];
        for rows in [8, 5, 1, 3, 8, 2] {
            let values: Vec<f32> = (0..rows * 2).map(|value| (value * rows) as f32).collect();
            session.run(&values, rows, &mut scores).unwrap();
            assert_eq!(scores, values, "{rows} rows");
        }
    }

    #[test]
    fn a_wrong_number_of_values_is_an_error_and_leaves_no_scores() {
        if !runtime_or_skip() {
            return;
        }
        let mut session = Package::of(counting(2), 2, 2).load(8).unwrap();
        for (count, rows) in [(2, 2), (0, 0), (18, 9), (3, 1)] {
            let mut scores = vec![1.0];
            let error = session.run(&vec![0.0; count], rows, &mut scores).unwrap_err();
            assert!(matches!(error, Error::Internal { .. }), "{error}");
            assert!(scores.is_empty(), "{count} values as {rows} rows");
        }
    }

    #[test]
    fn a_golden_score_beyond_the_tolerance_refuses_the_file() {
        if !runtime_or_skip() {
            return;
        }
        let mut package = Package::of(network(4, 8, 3), 4, 3);
        package.scores[0].1[5][0] += 1e-4;
        let reason = refused(package.load(8));
        assert!(reason.contains("golden row 5 gives score"), "{reason}");
        package.scores[0].1[5] = vec![f32::MAX; 3];
        package.scores[0].1[5][2] = 0.0;
        assert!(refused(package.load(8)).contains("golden row 5"));
    }

    #[test]
    fn another_label_refuses_the_file_also_within_the_tolerance() {
        if !runtime_or_skip() {
            return;
        }
        let mut package = Package::of(counting(2), 2, 2);
        package.rows[3] = vec![0.5, 0.500004];
        package.scores[0].1[3] = vec![0.5, 0.500004];
        package.load(8).unwrap();
        package.scores[0].1[3] = vec![0.500004, 0.5];
        let reason = refused(package.load(8));
        assert!(reason.contains("golden row 3 gives label \"label-1\""), "{reason}");
    }

    #[test]
    fn one_bit_of_a_weight_altered_is_found_by_the_golden_vectors() {
        if !runtime_or_skip() {
            return;
        }
        let mut package = Package::of(network(4, 8, 3), 4, 3);
        let weight = Noise(11).next().to_le_bytes();
        let graph = &mut package.files[0].1;
        let at = graph.windows(4).position(|bytes| bytes == weight).unwrap();
        graph[at + 3] ^= 0x80;
        let reason = refused(package.load(8));
        assert!(reason.contains("golden row"), "{reason}");
    }

    #[test]
    fn int8_is_tried_first_and_fp32_takes_over_where_it_fails() {
        if !runtime_or_skip() {
            return;
        }
        let fp32 = Package::of(network(4, 8, 3), 4, 3);
        let mut both = fp32.clone();
        both.files.push(("int8", both.files[0].1.clone()));
        both.scores.push(("int8", both.scores[0].1.clone()));
        assert_eq!(both.load(8).unwrap().precision(), "int8");
        both.scores[1].1[0] = vec![7.0, 0.0, 0.0];
        let session = both.load(8).unwrap();
        assert_eq!(session.precision(), "fp32");
        assert_eq!(session.sha256(), session.manifest().files[0].sha256);
        both.scores[0].1[0] = vec![7.0, 0.0, 0.0];
        let reason = refused(both.load(8));
        assert!(reason.contains("model.int8.onnx (int8)"), "{reason}");
        assert!(reason.contains("model.onnx (fp32)"), "{reason}");
    }

    #[test]
    fn a_truncated_model_is_refused_even_with_a_fitting_checksum() {
        if !runtime_or_skip() {
            return;
        }
        let whole = Package::of(network(4, 8, 3), 4, 3);
        let length = whole.files[0].1.len();
        for end in [1, length / 2, length - 1] {
            let mut package = whole.clone();
            package.files[0].1.truncate(end);
            refused(package.load(8));
        }
    }

    #[test]
    fn a_file_replaced_after_listing_is_not_loaded() {
        if !runtime_or_skip() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let folder = Package::of(network(4, 8, 3), 4, 3).write(root.path(), "m", "1");
        let available = find(root.path());
        std::fs::write(folder.join("model.onnx"), network(4, 8, 2)).unwrap();
        assert!(refused(Session::load(&available, 8)).contains("model.onnx has"));
    }

    #[test]
    fn a_graph_that_differs_from_its_manifest_is_refused_by_name() {
        if !runtime_or_skip() {
            return;
        }
        let good = Package::of(network(4, 8, 3), 4, 3);
        let other = Package { files: vec![("fp32", network(5, 8, 3))], ..good };
        let reason = refused(other.load(8));
        assert!(reason.contains("input \"input\" is"), "{reason}");
        assert!(reason.contains("expected float32 [any, 4]"), "{reason}");
    }

    #[test]
    fn a_version_with_a_problem_is_never_loaded() {
        if !runtime_or_skip() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        write_plain(root.path(), "m", "1");
        let mut available = find(root.path());
        assert!(refused(Session::load(&available, 8)).contains("ONNX Runtime refuses the file"));
        available.problem = Some("half copied".into());
        assert!(refused(Session::load(&available, 8)).contains("half copied"));
        let limit = Session::load(&available, 0);
        assert!(matches!(limit, Err(Error::Config { .. })));
    }

    /// The packaged models, in the source tree.
    fn packaged(name: &str) -> Available {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/labeler/models/packaged");
        Repository::new(vec![root.into()]).find(name, "").unwrap()
    }

    #[test]
    fn the_packaged_models_load_as_int8_in_every_shape() {
        if !runtime_or_skip() {
            return;
        }
        for name in ["kiva-floor", "wall-following"] {
            let mut session = Session::load(&packaged(name), 256).unwrap();
            assert_eq!(session.precision(), "int8", "{name}");
            assert_eq!(session.shapes(), [1, 2, 4, 8, 16, 32, 64, 128, 256], "{name}");
            let mut scores = Vec::new();
            session.run(&[5.0; 24], 1, &mut scores).unwrap();
            assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{name}: {scores:?}");
        }
    }

    #[test]
    fn one_bit_of_the_packaged_model_altered_is_found() {
        if !runtime_or_skip() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let source = packaged("wall-following").directory;
        let folder = root.path().join("wall-following").join("1");
        std::fs::create_dir_all(&folder).unwrap();
        for entry in std::fs::read_dir(&source).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
        let available =
            Repository::new(vec![root.path().into()]).find("wall-following", "").unwrap();
        Session::load(&available, 8).unwrap();
        let model = folder.join("model.int8.onnx");
        let mut bytes = std::fs::read(&model).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&model, &bytes).unwrap();
        assert!(refused(Session::load(&available, 8)).contains("model.int8.onnx has SHA-256"));
    }

    /// Prints µs a run by shape and the resident memory over 500 reloads; started by hand.
    #[test]
    #[ignore = "a measurement"]
    #[allow(clippy::print_stderr, reason = "its output is its purpose")]
    fn measure_runs_and_reloads() {
        if !runtime_or_skip() {
            return;
        }
        let available = packaged("wall-following");
        let mut session = Session::load(&available, 256).unwrap();
        let network = Package::of(network(24, 64, 4), 24, 4).load(256).unwrap();
        eprintln!("a network's shapes: {:?}", network.shapes());
        let mut scores = Vec::new();
        for rows in session.shapes().to_vec() {
            let values = Noise(5).take(rows * 24).into_iter().map(|value| value.abs() * 5.0);
            let values: Vec<f32> = values.collect();
            let best = (0..40).map(|_| {
                let start = std::time::Instant::now();
                (0..100).for_each(|_| session.run(&values, rows, &mut scores).unwrap());
                start.elapsed().as_secs_f64() * 1e4
            });
            eprintln!("{rows} rows: {:.1} µs", best.fold(f64::MAX, f64::min));
        }
        for round in 0..=500 {
            let start = std::time::Instant::now();
            session = Session::load(&available, 256).unwrap();
            if round % 100 == 0 {
                let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
                let resident = status.lines().find(|line| line.starts_with("VmRSS"));
                eprintln!("reload {round}: {:?}, {resident:?}", start.elapsed());
            }
        }
        assert_eq!(session.precision(), "int8");
    }
}
