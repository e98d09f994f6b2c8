//! The plan of a run: one JSON object, every bad value named. It reads no clock and no environment,
//! and nothing after it takes a second opinion.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    schedule::{Shape, Written},
};

/// Robots, and so connections, of one sender.
pub const ROBOTS_MAX: u32 = 1_000_000;
/// What one `LabelBatch` may hold, by the protos.
pub const BATCH_ROWS_MAX: u32 = 1_000;
/// Longest part of a run, seconds: a week.
pub const SECONDS_MAX: f64 = 604_800.0;
/// Longest time limit of a request and of getting ready, ms: an hour.
pub const TIMEOUT_MS_MAX: u64 = 3_600_000;
const WIDTH_MAX: u32 = 100_000;
const THREADS_MAX: u32 = 64;
/// Truths and SKUs are 16-bit indices.
const NAMES_MAX: usize = i16::MAX as usize;
/// What the protos let a robot's name have, less the digits of its number.
const PREFIX_BYTES_MAX: usize = 120;

/// Which call is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Rpc {
    #[default]
    Label,
    LabelStream,
    LabelBatch,
    /// One row by the open inference protocol, to a server that is not labeler.
    KserveInfer,
    /// One row over HTTP/1.1, as JSON or raw, to a server that is not labeler.
    HttpPredict,
    GetLabel,
    ListLabels,
}

/// The level that is asked for; empty is the server's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)]
pub enum Durability {
    #[default]
    #[serde(rename = "")]
    Default,
    Buffered,
    Journaled,
    Stored,
}

/// Who goes first; empty is the server's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)]
pub enum Priority {
    #[default]
    #[serde(rename = "")]
    Default,
    Robot,
    Bulk,
}

/// How the values travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Payload {
    #[default]
    Float,
    Double,
    RawFloat32,
    RawFloat64,
}

/// Where the values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Rows {
    #[default]
    Synthetic,
    Fed,
}

/// A checked plan. Event k goes to robot k % robots, with sequence `first_sequence` + k / robots,
/// and takes row k; of a batch each row counts as one event of this rule.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plan {
    /// `host:port` of the server.
    pub address: String,
    /// Which call.
    pub rpc: Rpc,
    /// Rows in one `label_batch`.
    pub batch_rows: u32,
    /// Robots that take turns.
    pub robots: u32,
    /// Robot i is this and i.
    pub robot_prefix: String,
    /// Robot i uses connection i % connections; 0: 16, or as many as robots where those are fewer.
    pub connections: u32,
    schedule: Written,
    /// When calls are sent: the plan's `schedule`.
    #[serde(skip)]
    pub shape: Shape,
    /// Sent before the measured part, at the schedule's first rate, and left out of all figures.
    pub warmup_s: f64,
    /// The measured part; 0 with `times`: to the last of them.
    pub duration_s: f64,
    /// Of everything random.
    pub seed: u64,
    /// Of one request.
    pub timeout_ms: u64,
    /// How long the server may take until all connections and streams are up.
    pub ready_timeout_ms: u64,
    /// Empty: the server's default.
    pub model: String,
    /// In the place of `model`: robot i asks the one at i % models.
    pub models: Vec<String>,
    /// Empty: the one that serves.
    pub version: String,
    /// The level asked for.
    pub durability: Durability,
    /// Who goes first.
    pub priority: Priority,
    /// How values travel.
    pub payload: Payload,
    /// Values in a row.
    pub width: u32,
    /// Where they come from.
    pub rows: Rows,
    /// Names that truths stand for.
    pub labels: Vec<String>,
    /// Names that SKU indices stand for.
    pub skus: Vec<String>,
    /// 0: from the clock, so above those of earlier runs.
    pub first_sequence: u64,
    /// Where each acknowledged label is written; empty: nowhere.
    pub acks_file: String,
    /// Whose CPU and memory are sampled; 0: nobody's.
    pub server_pid: u32,
    /// The other processes of that server: their CPU and memory count to it.
    pub server_workers: Vec<u32>,
    /// Threads that the sender may use.
    pub threads: u32,
    /// Schedule lag (p99) above which the run is invalid.
    pub lag_limit_ms: f64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            address: String::new(),
            rpc: Rpc::Label,
            batch_rows: BATCH_ROWS_MAX,
            robots: 1,
            robot_prefix: "robot-".into(),
            connections: 0,
            schedule: Written::default(),
            shape: Shape::Saturate { in_flight: 1 },
            warmup_s: 0.0,
            duration_s: 0.0,
            seed: 1,
            timeout_ms: 2_000,
            ready_timeout_ms: 10_000,
            model: String::new(),
            models: Vec::new(),
            version: String::new(),
            durability: Durability::Default,
            priority: Priority::Default,
            payload: Payload::Float,
            width: 24,
            rows: Rows::Synthetic,
            labels: Vec::new(),
            skus: Vec::new(),
            first_sequence: 0,
            acks_file: String::new(),
            server_pid: 0,
            server_workers: Vec::new(),
            threads: 1,
            lag_limit_ms: 2.0,
        }
    }
}

impl Plan {
    /// Reads and checks a plan. Errors: `Invalid` names the field, its value and what was expected.
    pub fn from_json(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| Error::invalid("plan", shown(text), format!("a JSON object: {e}")))?;
        let mut plan: Self = typed(&value)?;
        if plan.connections == 0 {
            plan.connections = plan.robots.min(16);
        }
        plan.shape = std::mem::take(&mut plan.schedule).shape()?;
        if let (Shape::Times { at_us }, true) = (&plan.shape, plan.duration_s == 0.0) {
            // The last one is sent too: the end itself is not part of a run.
            plan.duration_s = (at_us.last().map_or(0, |last| last + 1) as f64) / 1e6;
        }
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<()> {
        if !self.address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        }) {
            return Err(Error::invalid("address", shown(&self.address), "host:port"));
        }
        within("robots", self.robots, 1, ROBOTS_MAX)?;
        within("connections", self.connections, 1, self.robots)?;
        within("batch_rows", self.batch_rows, 1, BATCH_ROWS_MAX)?;
        within("width", self.width, 1, WIDTH_MAX)?;
        within("threads", self.threads, 1, THREADS_MAX)?;
        within("timeout_ms", self.timeout_ms, 1, TIMEOUT_MS_MAX)?;
        within("ready_timeout_ms", self.ready_timeout_ms, 1, TIMEOUT_MS_MAX)?;
        within("warmup_s", self.warmup_s, 0.0, SECONDS_MAX)?;
        within("duration_s", self.duration_s, 1e-6, SECONDS_MAX)?;
        within("lag_limit_ms", self.lag_limit_ms, 0.001, 1e6)?;
        self.shape.check(self.duration_s)?;
        self.check_names()?;
        self.check_http()?;
        self.check_reads()
    }

    fn check_names(&self) -> Result<()> {
        let prefix = &self.robot_prefix;
        if prefix.len() > PREFIX_BYTES_MAX || prefix.contains(char::is_control) {
            let expected = format!("at most {PREFIX_BYTES_MAX} bytes, none a control character");
            return Err(Error::invalid("robot_prefix", shown(prefix), expected));
        }
        if !self.model.is_empty() && !self.models.is_empty() {
            let expected = "absent: `models` names who is asked";
            return Err(Error::invalid("model", shown(&self.model), expected));
        }
        let lists = [("labels", &self.labels), ("skus", &self.skus), ("models", &self.models)];
        for (field, names) in lists {
            if names.len() > NAMES_MAX {
                let got = format!("{} names", names.len());
                return Err(Error::invalid(field, got, format!("at most {NAMES_MAX}")));
            }
            if let Some(at) = names.iter().position(String::is_empty) {
                return Err(Error::invalid(format!("{field}[{at}]"), "empty", "a name"));
            }
        }
        Ok(())
    }

    /// What a body of one row has no place for, and what HTTP/1.1 cannot do.
    fn check_http(&self) -> Result<()> {
        if self.rpc != Rpc::HttpPredict {
            return Ok(());
        }
        if matches!(self.payload, Payload::Double | Payload::RawFloat64) {
            let got = serde_json::json!(self.payload);
            let expected = "\"float\" (JSON) or \"raw_float32\" with http_predict";
            return Err(Error::invalid("payload", got, expected));
        }
        let models = self.models.first().map_or("", String::as_str);
        let named = [("model", &*self.model), ("models", models), ("version", &*self.version)];
        if let Some((field, name)) = named.into_iter().find(|(_, name)| !name.is_empty()) {
            let expected = "nothing: with http_predict the server alone says which model it is";
            return Err(Error::invalid(field, shown(name), expected));
        }
        match self.shape {
            Shape::Saturate { in_flight } if in_flight > self.connections => {
                let expected =
                    format!("at most {}: of each connection, one call", self.connections);
                Err(Error::invalid("schedule.in_flight", in_flight, expected))
            }
            _ => Ok(()),
        }
    }

    fn check_reads(&self) -> Result<()> {
        if !self.labels_rows() && self.rows == Rows::Fed {
            let expected = "\"synthetic\": reading labels back takes no rows";
            return Err(Error::invalid("rows", "\"fed\"", expected));
        }
        if self.rpc == Rpc::GetLabel && self.first_sequence == 0 {
            let expected = "with get_label the sequence that reading begins at, 1 or more";
            return Err(Error::invalid("first_sequence", 0, expected));
        }
        let last = u64::MAX >> 1;
        if self.first_sequence > last {
            let expected = format!("0 to {last}");
            return Err(Error::invalid("first_sequence", self.first_sequence, expected));
        }
        Ok(())
    }

    /// Whether calls carry rows to label, rather than reading labels back.
    pub fn labels_rows(&self) -> bool {
        !matches!(self.rpc, Rpc::GetLabel | Rpc::ListLabels)
    }

    /// All processes of the server; none where nobody is sampled.
    pub fn server_pids(&self) -> Vec<u32> {
        let leader = (self.server_pid != 0).then_some(self.server_pid);
        leader.into_iter().chain(self.server_workers.iter().copied()).collect()
    }

    /// Labels that one call brings, at most.
    pub fn rows_per_call(&self) -> u32 {
        if self.rpc == Rpc::LabelBatch { self.batch_rows } else { 1 }
    }
}

pub(crate) fn within<T>(field: &str, value: T, least: T, most: T) -> Result<()>
where
    T: PartialOrd + std::fmt::Display,
{
    if value >= least && value <= most {
        return Ok(());
    }
    Err(Error::invalid(field, value, format!("{least} to {most}")))
}

/// A value in its type, or the field that is in the way.
fn typed<T: DeserializeOwned>(value: &Value) -> Result<T> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let text = error.into_inner().to_string();
        let field = if path == "." { "plan".to_owned() } else { path };
        let got = at(value, &field).map_or_else(|| shown(&value.to_string()), shown_json);
        let expected = text.rsplit_once("expected ").map_or(&*text, |(_, expected)| expected);
        Error::invalid(field, got, plain(expected))
    })
}

/// What serde calls a type, in words.
fn plain(expected: &str) -> String {
    match expected {
        "u16" | "u32" | "u64" | "usize" => "a whole number from 0 up".to_owned(),
        "f64" => "a number".to_owned(),
        "struct Plan" => "an object, the plan".to_owned(),
        other => other.to_owned(),
    }
}

fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let pointer = path.replace('[', ".").replace(']', "").replace('.', "/");
    value.pointer(&format!("/{pointer}"))
}

fn shown_json(value: &Value) -> String {
    shorten(value.to_string())
}

/// A text as errors show it: quoted, with an end.
pub(crate) fn shown(text: &str) -> String {
    shorten(format!("{text:?}"))
}

fn shorten(text: String) -> String {
    const CHARS_MAX: usize = 80;
    if text.chars().count() <= CHARS_MAX {
        return text;
    }
    text.chars().take(CHARS_MAX).chain("…".chars()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn plan(changes: Value) -> Result<Plan> {
        let mut plan = json!({
            "address": "127.0.0.1:50051", "robots": 10, "duration_s": 5,
            "schedule": {"shape": "constant", "rate_per_s": 10},
        });
        if let (Some(plan), Value::Object(changes)) = (plan.as_object_mut(), changes) {
            plan.extend(changes);
        }
        Plan::from_json(&plan.to_string())
    }

    fn named(changes: Value) -> String {
        match plan(changes.clone()) {
            Err(Error::Invalid { field, .. }) => field,
            other => panic!("{changes}: {other:?}"),
        }
    }

    #[test]
    fn a_plan_has_a_default_for_all_but_whom_when_and_how_long() {
        let found = plan(json!({})).unwrap();
        assert_eq!((found.connections, found.width, found.threads), (10, 24, 1));
        assert_eq!(found.shape, Shape::Constant { rate_per_s: 10.0 });
    }

    #[test]
    fn a_replay_without_a_duration_lasts_to_its_last_call() {
        let schedule = json!({"shape": "times", "at_us": [0, 2_500_000]});
        let found = plan(json!({"duration_s": 0, "schedule": schedule})).unwrap();
        assert_eq!(found.shape.times(0.0, found.duration_s, 1).count(), 2);
    }

    #[test]
    fn every_bad_value_is_named() {
        let times = |at_us: Value| json!({"shape": "times", "at_us": at_us});
        let cases = [
            (json!({"address": "somewhere"}), "address"),
            (json!({"robot": 3}), "robot"),
            (json!({"robots": -1}), "robots"),
            (json!({"robots": 0}), "robots"),
            (json!({"connections": 11}), "connections"),
            (json!({"rpc": "predict"}), "rpc"),
            (json!({"batch_rows": 1001}), "batch_rows"),
            (json!({"duration_s": 0}), "duration_s"),
            (json!({"warmup_s": -1}), "warmup_s"),
            (json!({"timeout_ms": 0}), "timeout_ms"),
            (json!({"durability": "FOREVER"}), "durability"),
            (json!({"payload": "text"}), "payload"),
            (json!({"rows": "fed", "rpc": "list_labels"}), "rows"),
            (json!({"rpc": "get_label"}), "first_sequence"),
            (json!({"rpc": "http_predict", "payload": "double"}), "payload"),
            (json!({"rpc": "http_predict", "model": "m"}), "model"),
            (json!({"rpc": "http_predict", "models": ["m"]}), "models"),
            (json!({"rpc": "http_predict", "version": "1"}), "version"),
            (
                json!({"rpc": "http_predict", "schedule": {"shape": "saturate", "in_flight": 11}}),
                "schedule.in_flight",
            ),
            (json!({"labels": ["a", ""]}), "labels[1]"),
            (json!({"models": ["a", ""]}), "models[1]"),
            (json!({"models": ["a"], "model": "a"}), "model"),
            (json!({"robot_prefix": "a\nb"}), "robot_prefix"),
            (json!({"lag_limit_ms": 0}), "lag_limit_ms"),
            (json!({"threads": 100}), "threads"),
            (json!({"schedule": {"rate_per_s": 1}}), "schedule.shape"),
            (json!({"schedule": {"shape": "sometimes"}}), "schedule.shape"),
            (json!({"schedule": {"shape": "constant"}}), "schedule.rate_per_s"),
            (json!({"schedule": {"shape": "constant", "rate_per_s": "1"}}), "schedule.rate_per_s"),
            (json!({"schedule": {"shape": "constant", "rate_per_s": 0}}), "schedule.rate_per_s"),
            (
                json!({"schedule": {"shape": "poisson", "rate_per_s": 1, "at_s": 1}}),
                "schedule.at_s",
            ),
            (json!({"schedule": times(json!([]))}), "schedule.at_us"),
            (json!({"schedule": times(json!([3, 2]))}), "schedule.at_us[1]"),
            (json!({"schedule": times(json!([3, "x"]))}), "schedule.at_us[1]"),
            (json!({"schedule": {"shape": "saturate", "in_flight": 0}}), "schedule.in_flight"),
            (
                json!({"schedule": {"shape": "step", "rate_per_s": 1, "to_rate_per_s": 2,
                    "at_s": 6}}),
                "schedule.at_s",
            ),
            (
                json!({"schedule": {"shape": "flash_crowd", "rate_per_s": 1, "factor": 2, "at_s": 3,
                    "lasts_s": 3}}),
                "schedule.lasts_s",
            ),
        ];
        for (changes, field) in cases {
            assert_eq!(named(changes.clone()), field, "{changes}");
        }
    }

    #[test]
    fn an_error_shows_the_value_and_what_was_expected() {
        let text = |changes| plan(changes).unwrap_err().to_string();
        assert_eq!(text(json!({"robots": -1})), "robots is -1, expected a whole number from 0 up");
        assert_eq!(text(json!({"connections": 11})), "connections is 11, expected 1 to 10");
        let unknown = text(json!({"robot": 3}));
        assert!(unknown.starts_with("robot is 3, expected one of `address`"), "{unknown}");
    }

    /// Any JSON, such as a program may send by mistake.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z:0-9é]{0,12}".prop_map(Value::from),
        ];
        let keys = prop_oneof![
            Just("address"),
            Just("schedule"),
            Just("shape"),
            Just("rate_per_s"),
            Just("at_us"),
            Just("duration_s"),
            Just("robots"),
            Just("labels"),
            Just("rpc"),
            Just("x"),
        ];
        leaf.prop_recursive(3, 24, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(keys.clone().prop_map(String::from), inner, 0..6)
                    .prop_map(Value::from_iter),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_json_makes_the_plan_panic(
            value in any_json(),
            field in prop::sample::select(vec!["robots", "schedule", "duration_s", "labels"]),
        ) {
            let _ = Plan::from_json(&value.to_string());
            let _ = plan(json!({field: value}));
        }

        #[test]
        fn no_text_makes_the_plan_panic(text in ".{0,40}") {
            prop_assert!(Plan::from_json(&text).is_err());
        }
    }
}
