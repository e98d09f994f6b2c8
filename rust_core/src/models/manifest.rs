//! `model.toml`: what a version is, which files it has, and what they must hash to.
//!
//! Reads, checks and hashes; never loads a model. Every problem of a manifest is reported at once,
//! each with its field, its value and what was expected.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::Checked;
use super::name::{NAME_EXPECTED, is_file_name, is_safe};
use super::{LABELS_MAX, MANIFEST_BYTES_MAX, MANIFEST_FILE, MANIFEST_FORMAT};
use super::{MODEL_BYTES_MAX, WIDTH_MAX};

/// A version's description, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The model's name, also its folder's.
    pub name: Arc<str>,
    /// The version's name, also its folder's.
    pub version: Arc<str>,
    /// Values in a payload.
    pub width: usize,
    /// The classes, in the order of the scores.
    pub labels: Vec<Arc<str>>,
    /// The graph's input, float32 `[rows, width]`.
    pub input: String,
    /// The graph's output, float32 `[rows, labels]`.
    pub output: String,
    /// Whether NaN and infinities may be given to the model.
    pub accepts_nonfinite: bool,
    /// The values that the model is made for, both ends included.
    pub range: Option<(f32, f32)>,
    /// How far a score may be from its golden value on another machine.
    pub score_tolerance: f32,
    /// The model files, at most one a precision.
    pub files: Vec<ModelFile>,
    /// The golden vectors: rows and the scores that they must give.
    pub golden: PackedFile,
    /// The evaluation report, for people.
    pub report: Option<PackedFile>,
    /// Whose data the model was trained on.
    pub credit: Option<Credit>,
}

/// One ONNX file of a version.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// `fp32` or `int8`.
    pub precision: String,
    /// The file's name in the version's folder.
    pub path: String,
    /// SHA-256 of its bytes, lower-case hex.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
}

/// Another file of a version.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedFile {
    /// The file's name in the version's folder.
    pub path: String,
    /// SHA-256 of its bytes, lower-case hex.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
}

/// Whose data a model was trained on, as its licence asks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credit {
    /// The data set's title.
    pub title: String,
    /// Who made it.
    pub authors: String,
    /// Where it is, such as a DOI.
    pub source: String,
    /// Its licence, with the licence's address.
    pub licence: String,
    /// What was changed on the way to the model.
    pub changes: String,
}

/// The file as it is written, before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// Read before the rest, in `check_format`.
    #[serde(rename = "format")]
    _format: u32,
    name: String,
    version: String,
    width: usize,
    labels: Vec<String>,
    input: String,
    output: String,
    accepts_nonfinite: bool,
    range: Option<(f32, f32)>,
    score_tolerance: f32,
    golden: PackedFile,
    report: Option<PackedFile>,
    credit: Option<Credit>,
    files: Vec<ModelFile>,
}

impl Manifest {
    /// Reads and checks `directory/model.toml`. The error is a sentence for people.
    pub(super) fn read(directory: &Path) -> Checked<Manifest> {
        let bytes = read_bounded(&directory.join(MANIFEST_FILE), MANIFEST_BYTES_MAX)
            .map_err(|reason| format!("{MANIFEST_FILE}: {reason}"))?;
        let text = String::from_utf8(bytes)
            .map_err(|error| format!("{MANIFEST_FILE} is not UTF-8 text: {error}"))?;
        Manifest::parse(&text)
    }

    /// Checks the text of a `model.toml`.
    pub(super) fn parse(text: &str) -> Checked<Manifest> {
        check_format(text)?;
        let written: Written = toml::from_str(text).map_err(|error| one_line(&error))?;
        let problems = problems(&written);
        if problems.is_empty() {
            return Ok(checked(written));
        }
        Err(format!("{MANIFEST_FILE}: {}", problems.join("; ")))
    }

    /// Reads every listed file and compares size and SHA-256; stops at the first that differs.
    pub(super) fn verify(&self, directory: &Path) -> Checked<()> {
        for file in &self.files {
            read_verified(directory, &file.packed())?;
        }
        read_verified(directory, &self.golden)?;
        if let Some(report) = &self.report {
            read_verified(directory, report)?;
        }
        Ok(())
    }
}

impl ModelFile {
    /// The file without its precision.
    pub(super) fn packed(&self) -> PackedFile {
        PackedFile { path: self.path.clone(), sha256: self.sha256.clone(), bytes: self.bytes }
    }
}

/// The bytes of one listed file, if they are the ones that were packaged.
pub(super) fn read_verified(directory: &Path, file: &PackedFile) -> Checked<Vec<u8>> {
    let PackedFile { path, sha256, bytes } = file;
    let content = read_bounded(&directory.join(path), MODEL_BYTES_MAX)
        .map_err(|reason| format!("{path}: {reason}; copy the version's folder again"))?;
    if content.len() as u64 != *bytes {
        return Err(format!(
            "{path} has {} bytes, expected {bytes}; copy the version's folder again",
            content.len()
        ));
    }
    let found = sha256_hex(&content);
    if found != *sha256 {
        return Err(format!(
            "{path} has SHA-256 {found}, expected {sha256}; copy the version's folder again"
        ));
    }
    Ok(content)
}

/// SHA-256 in lower-case hex.
pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes all");
        hex
    })
}

/// A whole regular file, never more than `bytes_max`; a pipe or device would never end.
fn read_bounded(path: &Path, bytes_max: u64) -> Checked<Vec<u8>> {
    let meta = std::fs::metadata(path).map_err(|error| format!("cannot be read: {error}"))?;
    if !meta.is_file() {
        return Err("is not a regular file".into());
    }
    if meta.len() > bytes_max {
        return Err(format!("has {} bytes, expected at most {bytes_max}", meta.len()));
    }
    let mut content = Vec::with_capacity(meta.len() as usize);
    let file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    file.take(bytes_max + 1)
        .read_to_end(&mut content)
        .map_err(|error| format!("cannot be read: {error}"))?;
    Ok(content)
}

/// A manifest of a later format is named as such, not as a list of unknown fields.
fn check_format(text: &str) -> Checked<()> {
    #[derive(Deserialize)]
    struct Format {
        format: Option<u32>,
    }
    let found = toml::from_str::<Format>(text).map_err(|error| one_line(&error))?.format;
    match found {
        Some(MANIFEST_FORMAT) => Ok(()),
        Some(other) => Err(format!(
            "{MANIFEST_FILE}: format is {other}, expected {MANIFEST_FORMAT}; package the model \
             again or use a program of its version"
        )),
        None => Err(format!("{MANIFEST_FILE}: format is missing, expected {MANIFEST_FORMAT}")),
    }
}

/// The parser's message draws the line with a marker below it: kept, but on one line.
fn one_line(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "|");
    format!("{MANIFEST_FILE}: {}", lines.collect::<Vec<_>>().join(" "))
}

fn problems(written: &Written) -> Vec<String> {
    let mut found = Vec::new();
    for (field, text) in [("name", &written.name), ("version", &written.version)] {
        require(&mut found, is_safe(text), field, text, NAME_EXPECTED);
    }
    let width_good = (1..=WIDTH_MAX).contains(&written.width);
    require(&mut found, width_good, "width", &written.width, "1 to 65536 values");
    label_problems(&mut found, &written.labels);
    for (field, text) in [("input", &written.input), ("output", &written.output)] {
        let good = !text.is_empty() && !text.contains('\0');
        require(&mut found, good, field, text, "the name of the graph's tensor");
    }
    let tolerance = written.score_tolerance;
    let good = (0.0..1.0).contains(&tolerance);
    require(&mut found, good, "score_tolerance", &tolerance, "0 or more, below 1");
    if let Some(range) = written.range {
        let good = range.0.is_finite() && range.1.is_finite() && range.0 < range.1;
        require(&mut found, good, "range", &range, "two finite numbers, the lower first");
    }
    file_problems(&mut found, written);
    found
}

fn label_problems(found: &mut Vec<String>, labels: &[String]) {
    let count_good = (1..=LABELS_MAX).contains(&labels.len());
    require(found, count_good, "labels", &labels.len(), "1 to 4096 labels");
    for (index, label) in labels.iter().enumerate() {
        let field = format!("labels[{index}]");
        let good = !label.is_empty() && label.len() <= 128;
        require(found, good, &field, label, "1 to 128 bytes");
    }
    let mut sorted: Vec<_> = labels.iter().collect();
    sorted.sort();
    for pair in sorted.windows(2).filter(|pair| pair[0] == pair[1]) {
        require(found, false, "labels", pair[0], "each label once");
    }
}

fn file_problems(found: &mut Vec<String>, written: &Written) {
    let count = written.files.len();
    require(found, (1..=2).contains(&count), "files", &count, "one fp32, one int8 file or both");
    for (index, file) in written.files.iter().enumerate() {
        let field = format!("files[{index}].precision");
        let known = matches!(file.precision.as_str(), "fp32" | "int8");
        require(found, known, &field, &file.precision, "fp32 or int8");
        let first = written.files.iter().position(|other| other.precision == file.precision);
        require(found, first == Some(index), &field, &file.precision, "each precision once");
        packed_problems(found, &format!("files[{index}]"), &file.packed());
    }
    packed_problems(found, "golden", &written.golden);
    if let Some(report) = &written.report {
        packed_problems(found, "report", report);
    }
}

fn packed_problems(found: &mut Vec<String>, field: &str, file: &PackedFile) {
    let at = |name: &str| format!("{field}.{name}");
    let expected = "a file name without folders";
    require(found, is_file_name(&file.path), &at("path"), &file.path, expected);
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let good = file.sha256.len() == 64 && file.sha256.bytes().all(hex);
    require(found, good, &at("sha256"), &file.sha256, "64 lower-case hex digits");
    let good = (1..=MODEL_BYTES_MAX).contains(&file.bytes);
    require(found, good, &at("bytes"), &file.bytes, "1 to 1073741824");
}

fn require(
    found: &mut Vec<String>,
    good: bool,
    field: &str,
    value: &impl std::fmt::Debug,
    expected: &str,
) {
    if !good {
        found.push(format!("{field} is {value:?}, expected {expected}"));
    }
}

fn checked(written: Written) -> Manifest {
    Manifest {
        name: written.name.into(),
        version: written.version.into(),
        width: written.width,
        labels: written.labels.into_iter().map(Arc::from).collect(),
        input: written.input,
        output: written.output,
        accepts_nonfinite: written.accepts_nonfinite,
        range: written.range,
        score_tolerance: written.score_tolerance,
        files: written.files,
        golden: written.golden,
        report: written.report,
        credit: written.credit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
format = 1
name = "m"
version = "1"
width = 2
labels = ["a", "b"]
input = "input"
output = "scores"
accepts_nonfinite = false
range = [0.0, 9.5]
score_tolerance = 1e-6

[golden]
path = "golden.json"
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
bytes = 10

[[files]]
precision = "fp32"
path = "model.onnx"
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
bytes = 10
"#;

    /// `GOOD` with one line replaced.
    fn altered(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        Manifest::parse(&GOOD.replacen(from, to, 1)).unwrap_err()
    }

    #[test]
    fn a_good_manifest_is_read() {
        let manifest = Manifest::parse(GOOD).unwrap();
        assert_eq!((&*manifest.name, &*manifest.version, manifest.width), ("m", "1", 2));
        assert_eq!(manifest.range, Some((0.0, 9.5)));
        assert_eq!(manifest.files[0].precision, "fp32");
    }

    #[test]
    fn each_error_names_file_field_value_and_expectation() {
        let cases = [
            ("width = 2", "width = 0", "width is 0, expected 1 to 65536 values"),
            ("name = \"m\"", "name = \"../m\"", "name is \"../m\", expected 1 to 64 of a-z"),
            ("version = \"1\"", "version = \"\"", "version is \"\", expected"),
            ("[\"a\", \"b\"]", "[]", "labels is 0, expected 1 to 4096 labels"),
            ("[\"a\", \"b\"]", "[\"a\", \"a\"]", "labels is \"a\", expected each label once"),
            ("[\"a\", \"b\"]", "[\"a\", \"\"]", "labels[1] is \"\", expected 1 to 128 bytes"),
            ("input = \"input\"", "input = \"\"", "input is \"\", expected the name"),
            ("[0.0, 9.5]", "[9.5, 0.0]", "range is (9.5, 0.0), expected two finite"),
            ("[0.0, 9.5]", "[nan, 1.0]", "range is (NaN, 1.0), expected two finite"),
            ("1e-6", "nan", "score_tolerance is NaN, expected 0 or more"),
            ("1e-6", "-1.0", "score_tolerance is -1.0, expected 0 or more"),
            ("\"fp32\"", "\"fp16\"", "files[0].precision is \"fp16\", expected fp32 or int8"),
            ("model.onnx", "../x.onnx", "files[0].path is \"../x.onnx\", expected a file name"),
            ("golden.json", "/etc/passwd", "golden.path is \"/etc/passwd\", expected"),
            ("= \"00", "= \"zz", "golden.sha256 is \"zz0"),
            ("bytes = 10", "bytes = 0", "golden.bytes is 0, expected 1 to"),
        ];
        for (from, to, expected) in cases {
            let reason = altered(from, to);
            assert!(reason.starts_with("model.toml: "), "{reason}");
            assert!(reason.contains(expected), "{reason}\nlacks {expected}");
        }
    }

    #[test]
    fn all_errors_of_a_manifest_come_at_once() {
        let text = GOOD.replace("width = 2", "width = 0").replace("\"fp32\"", "\"fp16\"");
        let reason = Manifest::parse(&text).unwrap_err();
        assert!(reason.contains("width is 0") && reason.contains("\"fp16\""), "{reason}");
    }

    #[test]
    fn an_unknown_or_missing_field_is_named() {
        assert!(altered("width = 2", "width = 2\nwidht = 3").contains("unknown field `widht`"));
        assert!(altered("width = 2", "").contains("missing field `width`"));
        assert!(altered("width = 2", "width = \"2\"").contains("width = \"2\""));
    }

    #[test]
    fn a_manifest_of_a_later_format_is_called_that() {
        let reason = altered("format = 1", "format = 2\nnovelty = true");
        assert!(reason.contains("format is 2, expected 1"), "{reason}");
        assert!(altered("format = 1", "").contains("format is missing, expected 1"));
    }

    #[test]
    fn a_precision_is_listed_once() {
        let twice = GOOD.to_owned() + &GOOD[GOOD.find("[[files]]").unwrap()..];
        let reason = Manifest::parse(&twice).unwrap_err();
        assert!(reason.contains("expected each precision once"), "{reason}");
    }

    #[test]
    fn a_truncated_manifest_is_an_error_at_every_length() {
        for end in 0..GOOD.trim_end().len() {
            let cut = &GOOD[..end];
            // A cut inside the last number is still a manifest: the size it names is then wrong.
            if let Ok(manifest) = Manifest::parse(cut) {
                assert_ne!(manifest.files[0].bytes, 10, "cut at {end}");
            }
        }
    }
}
