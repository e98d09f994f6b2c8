//! An ONNX graph in ONNX Runtime, with one input buffer for each padded shape.
//!
//! The only file that knows `ort` sessions. One thread, no spinning, no memory patterns: each set
//! here, since the library's defaults follow the host. Decides nothing about shapes or files.

use std::fmt::Display;

use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use ort::value::{Outlet, Tensor, TensorElementType, ValueType};

use super::Checked;
use super::manifest::Manifest;
use super::runtime;

/// A graph that is ready to run in some shapes.
pub(super) struct Graph {
    session: Session,
    buckets: Vec<Bucket>,
    output: String,
    width: usize,
    labels: usize,
    /// What padding rows hold: a value that the model is made for.
    padding: f32,
}

/// One padded shape with its own input, made once: nothing is allocated for it in a run.
struct Bucket {
    shape: usize,
    input: Tensor<f32>,
}

impl Graph {
    /// Makes the session of a model file's bytes; checks input and output against `manifest`.
    pub fn open(content: &[u8], manifest: &Manifest) -> Checked<Graph> {
        let session = make_session(content)?;
        let (width, labels) = (manifest.width, manifest.labels.len());
        if session.inputs().len() != 1 {
            return Err(format!("the graph has {} inputs, expected one", session.inputs().len()));
        }
        check_outlet("input", session.inputs(), &manifest.input, width)?;
        check_outlet("output", session.outputs(), &manifest.output, labels)?;
        let padding = manifest.range.map_or(0.0, |(low, high)| 0f32.clamp(low, high));
        let output = manifest.output.clone();
        Ok(Graph { session, buckets: Vec::new(), output, width, labels, padding })
    }

    /// Replaces the shapes that the graph can run in.
    pub fn set_shapes(&mut self, shapes: &[usize]) -> Checked<()> {
        self.buckets.clear();
        for &shape in shapes {
            let values = vec![self.padding; shape * self.width];
            let input = Tensor::from_array(([shape, self.width], values)).map_err(reason)?;
            self.buckets.push(Bucket { shape, input });
        }
        Ok(())
    }

    /// Runs `rows` rows in the smallest shape that holds them; `scores` is then `rows × labels`.
    pub fn run(&mut self, values: &[f32], rows: usize, scores: &mut Vec<f32>) -> Checked<()> {
        scores.clear();
        let (width, wanted) = (self.width, rows * self.width);
        if rows == 0 || values.len() != wanted {
            return Err(format!("{rows} rows with {} values, expected {wanted}", values.len()));
        }
        let bucket = self.buckets.iter_mut().find(|bucket| bucket.shape >= rows);
        let Some(bucket) = bucket else {
            return Err(format!("{rows} rows are more than the largest batch shape"));
        };
        let (_, input) = bucket.input.extract_tensor_mut();
        assert_eq!(input.len(), bucket.shape * width, "a bucket's buffer has its shape");
        let (taken, padded) = input.split_at_mut(values.len());
        taken.copy_from_slice(values);
        padded.fill(self.padding);
        let outputs = self.session.run(ort::inputs![&bucket.input]).map_err(reason)?;
        let output = outputs.get(&self.output).ok_or("the output is missing")?;
        let (_, found) = output.try_extract_tensor::<f32>().map_err(reason)?;
        let expected = bucket.shape * self.labels;
        if found.len() != expected {
            let (shape, count) = (bucket.shape, found.len());
            return Err(format!("a run of {shape} rows gave {count} scores, expected {expected}"));
        }
        // Padding comes last in the input, so it does in the output: cut off, never scattered back.
        scores.extend_from_slice(&found[..rows * self.labels]);
        Ok(())
    }
}

fn make_session(content: &[u8]) -> Checked<Session> {
    let environment = runtime::environment().map_err(|error| error.to_string())?;
    let mut builder = options(&environment).map_err(reason)?;
    builder
        .commit_from_memory(content)
        .map_err(|error| format!("ONNX Runtime refuses the file: {error}"))
}

fn options(environment: &Environment) -> ort::Result<SessionBuilder> {
    let builder = Session::builder(environment)?;
    let builder = builder.with_intra_threads(1)?.with_inter_threads(1)?;
    let builder = builder.with_parallel_execution(false)?.with_memory_pattern(false)?;
    Ok(builder.with_intra_op_spinning(false)?.with_inter_op_spinning(false)?)
}

/// Float32, `[any rows, columns]`, under the manifest's name.
fn check_outlet(kind: &str, outlets: &[Outlet], name: &str, columns: usize) -> Checked<()> {
    let Some(outlet) = outlets.iter().find(|outlet| outlet.name() == name) else {
        let names: Vec<_> = outlets.iter().map(Outlet::name).collect();
        return Err(format!("the graph has no {kind} {name:?}; it has {names:?}"));
    };
    let expected = format!("float32 [any, {columns}]");
    let good = match outlet.dtype() {
        ValueType::Tensor { ty, shape, .. } => {
            let shape: &[i64] = shape;
            // Some exporters leave the output's columns open; each run checks the count.
            let columns_good = |found: i64| found == columns as i64 || found < 0;
            *ty == TensorElementType::Float32
                && shape.len() == 2
                && shape[0] < 0
                && columns_good(shape[1])
        }
        _ => false,
    };
    if good {
        return Ok(());
    }
    Err(format!("the graph's {kind} {name:?} is {}, expected {expected}", outlet.dtype()))
}

fn reason(error: impl Display) -> String {
    error.to_string()
}
