//! Test support: version folders, tiny ONNX graphs, and the runtime library if there is one.
//!
//! Graphs are written with a few messages of the ONNX format, so that tests need no Python.

use std::path::{Path, PathBuf};

use prost::Message;

use super::manifest::sha256_hex;
use super::runtime::load_runtime;
use super::{Available, Repository, Session};

/// Loads the library that LABELER_TEST_ORT_LIBRARY names, or says that the test is skipped.
///
/// Panics where LABELER_REQUIRE_ORT=1 and there is none, so that CI cannot skip in silence.
pub(super) fn runtime_or_skip() -> bool {
    let Some(path) = runtime_path() else { return false };
    load_runtime(&path).expect("the library of LABELER_TEST_ORT_LIBRARY loads");
    true
}

/// The path of LABELER_TEST_ORT_LIBRARY; see `runtime_or_skip`.
#[allow(clippy::print_stderr, reason = "a skipped test must be seen")]
pub(super) fn runtime_path() -> Option<PathBuf> {
    let path = std::env::var_os("LABELER_TEST_ORT_LIBRARY").filter(|path| !path.is_empty());
    if path.is_none() {
        let required = std::env::var("LABELER_REQUIRE_ORT").is_ok_and(|value| value == "1");
        assert!(!required, "LABELER_REQUIRE_ORT=1, but LABELER_TEST_ORT_LIBRARY is not set");
        eprintln!("SKIPPED: set LABELER_TEST_ORT_LIBRARY to the path of libonnxruntime");
    }
    path.map(PathBuf::from)
}

/// A seeded sequence in -1 … 1 (xorshift), the same on every machine.
pub(super) struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// A version to write: model files by precision, golden rows and scores, manifest lines.
#[derive(Clone)]
pub(super) struct Package {
    pub width: usize,
    pub labels: usize,
    pub files: Vec<(&'static str, Vec<u8>)>,
    pub rows: Vec<Vec<f32>>,
    pub scores: Vec<(&'static str, Vec<Vec<f32>>)>,
    pub extra: &'static str,
}

impl Package {
    /// A version whose model file is not a model: for the repository alone.
    pub fn plain() -> Package {
        let scores = vec![("fp32", vec![vec![1.0, 0.0]])];
        let files = vec![("fp32", b"no model".to_vec())];
        Package { width: 2, labels: 2, files, rows: vec![vec![0.0, 0.0]], scores, extra: "" }
    }

    /// A version of one fp32 graph; its golden scores are those that the graph gives.
    pub fn of(graph: Vec<u8>, width: usize, labels: usize) -> Package {
        let mut noise = Noise(7);
        let rows: Vec<_> = (0..40).map(|_| noise.take(width)).collect();
        let files = vec![("fp32", graph)];
        let scores = vec![("fp32", vec![vec![0.0; labels]; rows.len()])];
        let package = Package { width, labels, files, rows, scores, extra: "" };
        let scores = package.measured("fp32");
        Package { scores: vec![("fp32", scores)], ..package }
    }

    /// The golden rows' scores, each row run alone, no check made.
    pub fn measured(&self, precision: &str) -> Vec<Vec<f32>> {
        let root = tempfile::tempdir().unwrap();
        self.write(root.path(), "m", "1");
        let manifest = find(root.path()).manifest.unwrap();
        let file = self.files.iter().find(|(name, _)| *name == precision).unwrap();
        let mut graph = super::graph::Graph::open(&file.1, &manifest).unwrap();
        graph.set_shapes(&[2]).unwrap();
        let mut scores = Vec::new();
        let run = |row: &Vec<f32>| {
            graph.run(row, 1, &mut scores).unwrap();
            scores.clone()
        };
        self.rows.iter().map(run).collect()
    }

    /// Writes `root/name/version`, replacing what is there.
    pub fn write(&self, root: &Path, name: &str, version: &str) -> PathBuf {
        let folder = root.join(name).join(version);
        std::fs::create_dir_all(&folder).unwrap();
        let labels: Vec<String> = (0..self.labels).map(|label| format!("label-{label}")).collect();
        let mut toml = format!(
            "format = 1\nname = {name:?}\nversion = {version:?}\nwidth = {}\nlabels = {labels:?}\n\
             input = \"input\"\noutput = \"scores\"\naccepts_nonfinite = false\n\
             score_tolerance = 1e-5\n{}\n",
            self.width, self.extra
        );
        let mut put = |header: &str, file: &str, content: &[u8]| {
            std::fs::write(folder.join(file), content).unwrap();
            let (sha256, bytes) = (sha256_hex(content), content.len());
            toml += &format!("{header}\npath = {file:?}\nsha256 = {sha256:?}\nbytes = {bytes}\n");
        };
        put("[golden]", "golden.json", self.golden().as_bytes());
        put("[report]", "report.json", b"{}");
        for (precision, content) in &self.files {
            let file = if *precision == "int8" { "model.int8.onnx" } else { "model.onnx" };
            put(&format!("[[files]]\nprecision = {precision:?}"), file, content);
        }
        std::fs::write(folder.join("model.toml"), toml).unwrap();
        folder
    }

    fn golden(&self) -> String {
        let scores: serde_json::Map<String, serde_json::Value> = self
            .scores
            .iter()
            .map(|(precision, rows)| ((*precision).to_owned(), serde_json::json!(rows)))
            .collect();
        serde_json::json!({ "rows": self.rows, "scores": scores }).to_string()
    }

    /// Loads the version from a fresh folder.
    pub fn load(&self, rows_max: usize) -> crate::Result<Session> {
        let root = tempfile::tempdir().unwrap();
        self.write(root.path(), "m", "1");
        Session::load(&find(root.path()), rows_max)
    }
}

/// Writes a version whose model file is not a model.
pub(super) fn write_plain(root: &Path, name: &str, version: &str) -> PathBuf {
    Package::plain().write(root, name, version)
}

/// The newest version of model `m`.
pub(super) fn find(root: &Path) -> Available {
    Repository::new(vec![root.to_path_buf()]).find("m", "").unwrap()
}

/// A network `input ▸ Gemm ▸ Relu ▸ Gemm ▸ Softmax ▸ scores` with seeded weights.
pub(super) fn network(width: usize, hidden: usize, labels: usize) -> Vec<u8> {
    let mut noise = Noise(11);
    let weights = vec![
        Tensor::of("w1", &[width, hidden], noise.take(width * hidden)),
        Tensor::of("b1", &[hidden], noise.take(hidden)),
        Tensor::of("w2", &[hidden, labels], noise.take(hidden * labels)),
        Tensor::of("b2", &[labels], noise.take(labels)),
    ];
    let nodes = vec![
        Node::of("Gemm", &["input", "w1", "b1"], "h1"),
        Node::of("Relu", &["h1"], "h2"),
        Node::of("Gemm", &["h2", "w2", "b2"], "logits"),
        Node::of("Softmax", &["logits"], "scores"),
    ];
    model(nodes, weights, width, labels)
}

/// A graph that divides each row by the batch's largest value, as dynamic quantisation does.
pub(super) fn neighbourly(width: usize) -> Vec<u8> {
    let nodes = vec![
        Node::of("ReduceMax", &["input"], "top"),
        Node::of("Div", &["input", "top"], "scores"),
    ];
    model(nodes, vec![], width, width)
}

/// A graph whose row depends on the number of rows: an identity but for one row.
pub(super) fn counting(width: usize) -> Vec<u8> {
    let nodes = vec![
        Node::of("Shape", &["input"], "shape"),
        Node::of("Gather", &["shape", "zero"], "rows"),
        Node::of("Equal", &["rows", "one"], "single"),
        Node::of("Add", &["input", "small"], "other"),
        Node::of("Where", &["single", "other", "input"], "scores"),
    ];
    let weights = vec![
        Tensor::int("zero", 0),
        Tensor::int("one", 1),
        Tensor::of("small", &[width], vec![1e-6; width]),
    ];
    model(nodes, weights, width, width)
}

fn model(nodes: Vec<Node>, weights: Vec<Tensor>, width: usize, labels: usize) -> Vec<u8> {
    let graph = Graph {
        node: nodes,
        name: "test".into(),
        initializer: weights,
        input: vec![ValueInfo::rows_of("input", width)],
        output: vec![ValueInfo::rows_of("scores", labels)],
    };
    let opset_import = vec![Opset { version: 17 }];
    Model { ir_version: 8, graph: Some(graph), opset_import }.encode_to_vec()
}

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<Opset>,
}

#[derive(Clone, PartialEq, Message)]
struct Opset {
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    node: Vec<Node>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "4")]
    op_type: String,
}

impl Node {
    fn of(op_type: &str, input: &[&str], output: &str) -> Node {
        let input = input.iter().map(|name| (*name).to_owned()).collect();
        Node { input, output: vec![output.into()], op_type: op_type.into() }
    }
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(float, repeated, tag = "4")]
    float_data: Vec<f32>,
    #[prost(int64, repeated, tag = "7")]
    int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    name: String,
}

impl Tensor {
    fn of(name: &str, dims: &[usize], float_data: Vec<f32>) -> Tensor {
        let dims = dims.iter().map(|size| *size as i64).collect();
        Tensor { dims, data_type: 1, float_data, int64_data: vec![], name: name.into() }
    }

    fn int(name: &str, value: i64) -> Tensor {
        let (float_data, int64_data) = (vec![], vec![value]);
        Tensor { dims: vec![1], data_type: 7, float_data, int64_data, name: name.into() }
    }
}

#[derive(Clone, PartialEq, Message)]
struct ValueInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<Type>,
}

impl ValueInfo {
    /// Float32 `[rows, columns]` with any number of rows.
    fn rows_of(name: &str, columns: usize) -> ValueInfo {
        let rows = Dim { value: None, param: Some("rows".into()) };
        let columns = Dim { value: Some(columns as i64), param: None };
        let tensor = TypeTensor { elem_type: 1, shape: Some(Shape { dim: vec![rows, columns] }) };
        ValueInfo { name: name.into(), r#type: Some(Type { tensor: Some(tensor) }) }
    }
}

#[derive(Clone, PartialEq, Message)]
struct Type {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TypeTensor>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeTensor {
    #[prost(int32, tag = "1")]
    elem_type: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
struct Dim {
    #[prost(int64, optional, tag = "1")]
    value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    param: Option<String>,
}
