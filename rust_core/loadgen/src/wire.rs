//! gRPC on the wire, both ways: requests of each rpc in a reused buffer, replies out of frames.
//!
//! By hand over the `h2` crate, not by the generated clients: those hide when a stream really
//! opens, and put tasks and buffers between the sender and its connection. Source: gRPC over
//! HTTP/2, "Length-Prefixed-Message" and "Status".

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use labeler_core::proto;
use prost::Message;

use crate::{
    error::{Error, Result},
    http1, kserve,
    plan::{Durability, Payload, Plan, Priority, Rpc},
    rows::Row,
};

const FRAME_HEAD_BYTES: usize = 5;
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// The next this many bytes of requests share one allocation.
const BUFFER_BYTES: usize = 64 << 10;

/// Which robot, which of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Number of the robot.
    pub robot: u32,
    /// Of its request.
    pub sequence: u64,
}

/// Makes the requests of one run.
pub struct Requests {
    prefix: String,
    skus: Vec<String>,
    models: Vec<String>,
    payload: Payload,
    label: proto::LabelRequest,
    batch: proto::LabelBatchRequest,
    infer: kserve::InferRequest,
    get: proto::GetLabelRequest,
    list: proto::ListLabelsRequest,
    buffer: BytesMut,
}

impl Requests {
    /// For the plan's rpc.
    pub fn new(plan: &Plan) -> Self {
        let mut label = proto::LabelRequest {
            model: plan.model.clone(),
            version: plan.version.clone(),
            priority: priority(plan.priority).into(),
            durability: durability(plan.durability).into(),
            payload: Some(payload(plan.payload)),
            ..proto::LabelRequest::default()
        };
        if plan.rpc == Rpc::LabelStream {
            label.timeout_us = plan.timeout_ms * 1_000;
        }
        let rows = if plan.rpc == Rpc::LabelBatch { plan.batch_rows as usize } else { 0 };
        Self {
            prefix: plan.robot_prefix.clone(),
            skus: plan.skus.clone(),
            models: plan.models.clone(),
            payload: plan.payload,
            batch: proto::LabelBatchRequest { requests: vec![label.clone(); rows] },
            label,
            infer: kserve::InferRequest::new(plan.model.clone(), plan.version.clone(), plan.width),
            get: proto::GetLabelRequest::default(),
            list: proto::ListLabelsRequest::default(),
            buffer: BytesMut::new(),
        }
    }

    /// One `LabelRequest`, framed.
    pub fn label(&mut self, key: Key, row: &Row) -> Bytes {
        let names = (&*self.prefix, &*self.skus, &*self.models);
        fill(&mut self.label, names, self.payload, (key, row));
        framed(&mut self.buffer, &self.label)
    }

    /// Sets row `at` of the next batch.
    pub fn set_row(&mut self, at: usize, key: Key, row: &Row) {
        let names = (&*self.prefix, &*self.skus, &*self.models);
        fill(&mut self.batch.requests[at], names, self.payload, (key, row));
    }

    /// The batch of all rows set, framed.
    pub fn batch(&mut self) -> Bytes {
        framed(&mut self.buffer, &self.batch)
    }

    /// One row by the open inference protocol, framed.
    pub fn infer(&mut self, key: Key, row: &Row) -> Bytes {
        name(&mut self.infer.id, &self.prefix, key.robot);
        self.infer.set(&row.values);
        framed(&mut self.buffer, &self.infer)
    }

    /// One `GetLabelRequest`, framed.
    pub fn get(&mut self, key: Key) -> Bytes {
        name(&mut self.get.robot_id, &self.prefix, key.robot);
        self.get.sequence = Some(key.sequence);
        framed(&mut self.buffer, &self.get)
    }

    /// One `ListLabelsRequest`, framed.
    pub fn list(&mut self, key: Key) -> Bytes {
        name(&mut self.list.robot_id, &self.prefix, key.robot);
        framed(&mut self.buffer, &self.list)
    }
}

fn fill(
    request: &mut proto::LabelRequest,
    (prefix, skus, models): (&str, &[String], &[String]),
    kind: Payload,
    (key, row): (Key, &Row),
) {
    name(&mut request.robot_id, prefix, key.robot);
    request.sequence = Some(key.sequence);
    if !models.is_empty() {
        request.model.clone_from(&models[key.robot as usize % models.len()]);
    }
    request.sku.clear();
    if let Some(sku) = usize::try_from(row.sku).ok().and_then(|at| skus.get(at)) {
        request.sku.push_str(sku);
    }
    let payload = request.payload.get_or_insert_default();
    let values = row.values.iter();
    match kind {
        Payload::Float => {
            payload.floats.clear();
            payload.floats.extend_from_slice(&row.values);
        }
        Payload::Double => {
            payload.doubles.clear();
            payload.doubles.extend(values.map(|v| f64::from(*v)));
        }
        Payload::RawFloat32 | Payload::RawFloat64 => {
            let data = &mut payload.raw.get_or_insert_default().data;
            data.clear();
            if kind == Payload::RawFloat32 {
                values.for_each(|v| data.put_f32_le(*v));
            } else {
                values.for_each(|v| data.put_f64_le(f64::from(*v)));
            }
        }
    }
}

fn name(robot_id: &mut String, prefix: &str, robot: u32) {
    use std::fmt::Write as _;
    robot_id.clear();
    // Writing to a string does not fail.
    let _ = write!(robot_id, "{prefix}{robot}");
}

fn framed(buffer: &mut BytesMut, message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    if buffer.capacity() < FRAME_HEAD_BYTES + length {
        buffer.reserve(BUFFER_BYTES.max(FRAME_HEAD_BYTES + length));
    }
    buffer.put_u8(0);
    buffer.put_u32(length as u32);
    message.encode_raw(buffer);
    buffer.split().freeze()
}

/// The head of every call of a run. Errors: `Invalid` for an address that is none.
pub fn head(plan: &Plan) -> Result<Request<()>> {
    let call = match plan.rpc {
        Rpc::Label => "/labeler.v1.LabelService/Label",
        Rpc::LabelStream => "/labeler.v1.LabelService/LabelStream",
        Rpc::LabelBatch => "/labeler.v1.LabelService/LabelBatch",
        Rpc::KserveInfer => kserve::PATH,
        Rpc::HttpPredict => return http1::head(plan),
        Rpc::GetLabel => "/labeler.v1.LabelService/GetLabel",
        Rpc::ListLabels => "/labeler.v1.LabelService/ListLabels",
    };
    let uri = format!("http://{}{call}", plan.address);
    let uri: Uri = uri
        .parse()
        .map_err(|e| Error::invalid("address", &plan.address, format!("host:port: {e}")))?;
    let mut head = Request::new(());
    *head.method_mut() = Method::POST;
    *head.uri_mut() = uri;
    let headers = head.headers_mut();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    if plan.rpc != Rpc::LabelStream {
        let timeout = HeaderValue::from_str(&format!("{}m", plan.timeout_ms));
        headers.insert("grpc-timeout", timeout.map_err(Error::machine)?);
    }
    Ok(head)
}

fn durability(level: Durability) -> proto::Durability {
    match level {
        Durability::Default => proto::Durability::Unspecified,
        Durability::Buffered => proto::Durability::Buffered,
        Durability::Journaled => proto::Durability::Journaled,
        Durability::Stored => proto::Durability::Stored,
    }
}

fn priority(who: Priority) -> proto::Priority {
    match who {
        Priority::Default => proto::Priority::Unspecified,
        Priority::Robot => proto::Priority::Robot,
        Priority::Bulk => proto::Priority::Bulk,
    }
}

fn payload(kind: Payload) -> proto::Payload {
    let raw = |dtype: proto::DType| proto::RawValues { dtype: dtype.into(), data: Vec::new() };
    proto::Payload {
        raw: match kind {
            Payload::Float | Payload::Double => None,
            Payload::RawFloat32 => Some(raw(proto::DType::DtypeFloat32)),
            Payload::RawFloat64 => Some(raw(proto::DType::DtypeFloat64)),
        },
        ..proto::Payload::default()
    }
}

/// Takes messages out of a body's chunks.
#[derive(Default)]
pub struct Frames {
    rest: Bytes,
}

impl Frames {
    /// Adds a chunk. One that begins a message, as nearly all do, is not copied.
    pub fn push(&mut self, chunk: Bytes) {
        if self.rest.is_empty() {
            self.rest = chunk;
        } else {
            let mut joined = BytesMut::with_capacity(self.rest.len() + chunk.len());
            joined.put(std::mem::take(&mut self.rest));
            joined.put(chunk);
            self.rest = joined.freeze();
        }
    }

    /// The next whole message; `Err` for what is no message of an uncompressed call.
    pub fn next(&mut self) -> std::result::Result<Option<Bytes>, Malformed> {
        if self.rest.len() < FRAME_HEAD_BYTES {
            return Ok(None);
        }
        let mut head = &self.rest[..FRAME_HEAD_BYTES];
        let (compressed, length) = (head.get_u8(), head.get_u32() as usize);
        if compressed != 0 || length > MESSAGE_BYTES_MAX {
            return Err(Malformed);
        }
        if self.rest.len() < FRAME_HEAD_BYTES + length {
            return Ok(None);
        }
        self.rest.advance(FRAME_HEAD_BYTES);
        Ok(Some(self.rest.split_to(length)))
    }
}

/// What came is no gRPC reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The status code in trailers, or in the headers of a reply without a body.
pub fn status(headers: &HeaderMap) -> Option<u32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// The status' text, for people.
pub fn status_message(headers: &HeaderMap) -> String {
    let text = headers.get("grpc-message").and_then(|value| value.to_str().ok());
    percent_encoding::percent_decode_str(text.unwrap_or_default()).decode_utf8_lossy().into_owned()
}
