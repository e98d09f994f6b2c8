//! Golden vectors: rows with the scores that each file of a version gave where it was packaged.
//!
//! Reads and checks `golden.json`; comparing with a session is `check.rs`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Checked;
use super::GOLDEN_ROWS_MAX;
use super::manifest::Manifest;

/// The rows and, by precision, their scores.
#[derive(Debug, PartialEq)]
pub(super) struct Golden {
    /// `count × width` values.
    pub values: Vec<f32>,
    /// How many rows.
    pub count: usize,
    /// Per precision `count × labels` scores.
    scores: BTreeMap<String, Vec<f32>>,
}

/// The file as it is written: `scores.PRECISION[row][label]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    rows: Vec<Vec<f32>>,
    scores: BTreeMap<String, Vec<Vec<f32>>>,
}

impl Golden {
    /// Parses the content of `golden.json`. The error is a sentence for people.
    pub fn parse(content: &[u8], manifest: &Manifest) -> Checked<Golden> {
        let path = &manifest.golden.path;
        let written: Written =
            serde_json::from_slice(content).map_err(|error| format!("{path}: {error}"))?;
        let count = written.rows.len();
        if !(1..=GOLDEN_ROWS_MAX).contains(&count) {
            return Err(format!("{path}: rows has {count}, expected 1 to {GOLDEN_ROWS_MAX}"));
        }
        let values = flat(&written.rows, manifest.width, "rows", path)?;
        let labels = manifest.labels.len();
        let mut scores = BTreeMap::new();
        for (precision, rows) in written.scores {
            let field = format!("scores.{precision}");
            if rows.len() != count {
                return Err(format!("{path}: {field} has {}, expected {count}", rows.len()));
            }
            scores.insert(precision, flat(&rows, labels, &field, path)?);
        }
        Ok(Golden { values, count, scores })
    }

    /// The expected scores of one precision, `count × labels`.
    pub fn scores(&self, precision: &str) -> Option<&[f32]> {
        self.scores.get(precision).map(Vec::as_slice)
    }
}

fn flat(rows: &[Vec<f32>], width: usize, field: &str, path: &str) -> Checked<Vec<f32>> {
    let mut values = Vec::with_capacity(rows.len() * width);
    for (index, row) in rows.iter().enumerate() {
        if row.len() != width {
            let len = row.len();
            return Err(format!("{path}: {field}[{index}] has {len} values, expected {width}"));
        }
        if let Some(value) = row.iter().find(|value| !value.is_finite()) {
            return Err(format!("{path}: {field}[{index}] holds {value}, expected finite values"));
        }
        values.extend_from_slice(row);
    }
    Ok(values)
}
