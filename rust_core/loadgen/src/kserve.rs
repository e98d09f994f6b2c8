//! The open inference protocol, as far as one row and its scores need it, for servers that are not
//! labeler: `inference.GRPCInferenceService/ModelInfer`.
//!
//! Written down from the public specification, "Open Inference Protocol", its version 2 over gRPC
//! (KServe), with its field numbers. Values travel as raw bytes both ways, which is what it calls
//! the faster form; a server may answer in the other.

use labeler_core::proto::LabelResponse;
use prost::Message;

/// The call.
pub const PATH: &str = "/inference.GRPCInferenceService/ModelInfer";
const INPUT: &str = "input";
const DATATYPE: &str = "FP32";

/// A request for one row.
#[derive(Clone, PartialEq, Message)]
pub struct InferRequest {
    /// The model's name, as the server has it.
    #[prost(string, tag = "1")]
    pub model_name: String,
    /// Empty: the one that serves.
    #[prost(string, tag = "2")]
    pub model_version: String,
    /// Whose request it is.
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(message, repeated, tag = "5")]
    inputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    raw_input_contents: Vec<Vec<u8>>,
}

/// An answer to it.
#[derive(Clone, PartialEq, Message)]
pub struct InferResponse {
    /// As in the request.
    #[prost(string, tag = "1")]
    pub model_name: String,
    /// The version that answered.
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(message, repeated, tag = "5")]
    outputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    raw_output_contents: Vec<Vec<u8>>,
}

/// Input and output alike.
#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    datatype: String,
    #[prost(int64, repeated, tag = "3")]
    shape: Vec<i64>,
    #[prost(message, optional, tag = "5")]
    contents: Option<Contents>,
}

#[derive(Clone, PartialEq, Message)]
struct Contents {
    #[prost(float, repeated, tag = "6")]
    fp32_contents: Vec<f32>,
}

impl InferRequest {
    /// Of a model, for one row of `width` values: the tensor `input`.
    pub fn new(model_name: String, model_version: String, width: u32) -> Self {
        let input = Tensor {
            name: INPUT.into(),
            datatype: DATATYPE.into(),
            shape: vec![1, i64::from(width)],
            contents: None,
        };
        Self {
            model_name,
            model_version,
            inputs: vec![input],
            raw_input_contents: vec![Vec::new()],
            ..Self::default()
        }
    }

    /// Sets the row.
    pub fn set(&mut self, values: &[f32]) {
        let [raw] = &mut self.raw_input_contents[..] else { return };
        raw.clear();
        values.iter().for_each(|value| raw.extend_from_slice(&value.to_le_bytes()));
    }
}

/// The label of a reply's highest score, by its name in `labels` or else by its number. `None` for
/// what holds no scores of one row.
pub fn label(reply: InferResponse, labels: &[String]) -> Option<LabelResponse> {
    let [output] = &reply.outputs[..] else { return None };
    if output.datatype != DATATYPE {
        return None;
    }
    let scores: Vec<f32> = match &reply.raw_output_contents[..] {
        [raw] => {
            raw.chunks_exact(4).map(|le| f32::from_le_bytes([le[0], le[1], le[2], le[3]])).collect()
        }
        _ => output.contents.as_ref()?.fp32_contents.clone(),
    };
    let (index, confidence) =
        scores.iter().copied().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    Some(LabelResponse {
        label: labels.get(index).cloned().unwrap_or_else(|| index.to_string()),
        index: index as u32,
        confidence,
        model: reply.model_name,
        version: reply.model_version,
        ..LabelResponse::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(datatype: &str, fp32_contents: Vec<f32>) -> Tensor {
        let contents = Some(Contents { fp32_contents });
        Tensor { datatype: datatype.into(), shape: vec![1, 3], contents, ..Tensor::default() }
    }

    /// The bytes of a message with one field, by the wire format: its key, its length, its content.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, content.len() as u8], content].concat()
    }

    #[test]
    fn a_request_has_the_bytes_that_the_specification_says() {
        let mut request = InferRequest::new("m".into(), String::new(), 2);
        request.set(&[1.0, -2.0]);
        let input = [field(1, b"input"), field(2, b"FP32"), field(3, &[1, 2])].concat();
        let raw = [1.0_f32.to_le_bytes(), (-2.0_f32).to_le_bytes()].concat();
        let expected = [field(1, b"m"), field(5, &input), field(7, &raw)].concat();
        assert_eq!(request.encode_to_vec(), expected);
        request.set(&[1.0, -2.0]);
        assert_eq!(request.encode_to_vec(), expected, "a row replaces the one before");
    }

    #[test]
    fn a_reply_in_either_form_is_the_label_of_its_highest_score() {
        let names = ["go".to_owned(), "stop".to_owned()];
        let plain = InferResponse {
            outputs: vec![output("FP32", vec![0.1, 0.7, 0.2])],
            ..Default::default()
        };
        let raw = [0.1_f32, 0.2, 0.7].iter().flat_map(|s| s.to_le_bytes()).collect();
        let raw = InferResponse {
            outputs: vec![output("FP32", Vec::new())],
            raw_output_contents: vec![raw],
            ..Default::default()
        };
        let found = |reply| label(reply, &names).map(|found| (found.label, found.index));
        assert_eq!(found(plain), Some(("stop".into(), 1)));
        assert_eq!(found(raw), Some(("2".into(), 2)));
    }

    #[test]
    fn what_holds_no_scores_is_no_label() {
        let none = InferResponse::default();
        let other = InferResponse { outputs: vec![output("BYTES", vec![0.5])], ..none.clone() };
        let empty = InferResponse { outputs: vec![output("FP32", vec![])], ..none.clone() };
        for reply in [none, other, empty] {
            assert_eq!(label(reply, &[]), None);
        }
    }
}
