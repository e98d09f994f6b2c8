//! The one conversion from the core's errors to gRPC: status code, message, rich details.
//!
//! No catch-all arm: a new variant does not compile until it has a code.

use std::fmt::{Display, Write as _};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status, body::Body};
use tonic_types::pb::{BadRequest, RetryInfo, bad_request::FieldViolation};

use crate::{
    error::{Error, Refusal},
    proto,
};

use super::{unary::Sent, wire};

/// The status code of an error.
pub fn code(error: &Error) -> Code {
    match error {
        Error::Invalid { .. } => Code::InvalidArgument,
        Error::ModelNotFound { .. } | Error::LabelNotFound { .. } => Code::NotFound,
        Error::KeyReused { .. } => Code::AlreadyExists,
        Error::Overloaded { .. } => Code::ResourceExhausted,
        Error::DeadlinePassed { .. } => Code::DeadlineExceeded,
        Error::Refused { kind, .. } => match kind {
            Refusal::NotFound => Code::NotFound,
            Refusal::Invalid => Code::InvalidArgument,
            Refusal::ModelInvalid => Code::FailedPrecondition,
            Refusal::Unavailable => Code::Unavailable,
            Refusal::Internal => Code::Internal,
        },
        Error::Cancelled => Code::Cancelled,
        Error::Unavailable { .. } | Error::Stopped | Error::InUse { .. } => Code::Unavailable,
        Error::ModelInvalid { .. } => Code::FailedPrecondition,
        Error::Internal { .. }
        | Error::RuntimeLibrary { .. }
        | Error::JournalVersion { .. }
        | Error::Disk { .. }
        | Error::Config { .. } => Code::Internal,
    }
}

/// Bytes of a message, and of a value in it, that are told. A status travels in headers: a client
/// that is sent too much of them throws the status away and reports an error of its own.
const MESSAGE_BYTES_MAX: usize = 800;
const VALUE_BYTES_MAX: usize = 200;

/// The begin of a text, and how long it was.
fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let bytes = text.len();
        text.truncate(text.floor_char_boundary(bytes_max));
        let _ = write!(text, "… ({bytes} bytes)");
    }
    text
}

/// The error as the protos carry it, in a row's place or in a status' details.
pub fn to_proto(error: &Error) -> proto::Error {
    let mut message = proto::Error { code: code(error) as u32, ..proto::Error::default() };
    let mut text = error.to_string();
    match error {
        Error::Invalid { field, got, expected } => {
            let got = cut(got.clone(), VALUE_BYTES_MAX);
            message.field = (*field).to_owned();
            message.value = got.clone();
            message.expected = expected.clone();
            // The expectation stands last, and must not be what is cut off.
            text = Error::Invalid { field, got, expected: expected.clone() }.to_string();
        }
        Error::Overloaded { retry_after, .. } => {
            message.retry_after_ms = retry_after.as_millis().clamp(1, u128::from(u32::MAX)) as u32;
        }
        Error::DeadlinePassed { label_exists, .. } => message.label_exists = *label_exists,
        Error::ModelNotFound { model, version, .. } => {
            message.field = if version.is_empty() { "model" } else { "version" }.to_owned();
            message.value = if version.is_empty() { model } else { version }.clone();
        }
        Error::KeyReused { sequence, .. } => {
            message.field = "sequence".to_owned();
            message.value = sequence.to_string();
        }
        _ => {}
    }
    message.message = cut(text, MESSAGE_BYTES_MAX);
    message
}

/// The error as a gRPC status with our own detail beside the standard ones.
pub fn to_status(error: &Error) -> Status {
    let message = to_proto(error);
    let mut details = vec![any("labeler.v1.Error", &message)];
    match error {
        Error::Invalid { field, .. } => {
            let violation = FieldViolation {
                field: (*field).to_owned(),
                description: message.message.clone(),
                ..FieldViolation::default()
            };
            let bad_request = BadRequest { field_violations: vec![violation] };
            details.push(any("google.rpc.BadRequest", &bad_request));
        }
        Error::Overloaded { retry_after, .. } => {
            let retry_delay = prost_types::Duration::try_from(*retry_after).ok();
            details.push(any("google.rpc.RetryInfo", &RetryInfo { retry_delay }));
        }
        _ => {}
    }
    let code = code(error);
    let status =
        proto::StatusDetails { code: code as i32, message: message.message.clone(), details };
    Status::with_details(code, message.message, status.encode_to_vec().into())
}

/// The answer to a request that is no gRPC, in HTTP's own words as the gRPC specification asks, so
/// that no other client takes it for a success.
pub fn not_grpc<B>(request: &Request<B>) -> Option<Response<Sent>> {
    let refused = |code, text: String| {
        let mut response = Response::new(Sent::Other(Body::new(text)));
        *response.status_mut() = code;
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, plain);
        response
    };
    if request.method() != Method::POST {
        let text = format!("method is {}, expected POST\n", request.method());
        let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, cut(text, VALUE_BYTES_MAX));
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return Some(response);
    }
    let found = request.headers().get(header::CONTENT_TYPE);
    if found.is_some_and(|kind| is_grpc(kind.as_bytes())) {
        return None;
    }
    let got = found.map_or_else(|| "missing".to_owned(), |kind| format!("{kind:?}"));
    let got = cut(got, VALUE_BYTES_MAX);
    let text = format!("content-type is {got}, expected application/grpc\n");
    Some(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
}

/// What a call is told whose path names nothing here.
pub fn no_method(path: &str) -> Status {
    let path = cut(path.to_owned(), VALUE_BYTES_MAX);
    Status::unimplemented(format!(
        "no method {path:?}, expected one of labeler.v1.LabelService, labeler.v1.ModelService, \
         grpc.health.v1.Health or server reflection"
    ))
}

/// `application/grpc`, by itself, with protobuf as its format, or with parameters.
fn is_grpc(content_type: &[u8]) -> bool {
    let kind = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    let kind = kind.trim_ascii_end();
    [&b"application/grpc"[..], b"application/grpc+proto"]
        .iter()
        .any(|k| kind.eq_ignore_ascii_case(k))
}

/// A call or stream whose bytes are no whole message.
pub fn not_whole(got: &str) -> Error {
    wire::invalid("message", got, "one whole gRPC message")
}

/// A message above the limit.
pub fn too_large(bytes: impl Display, bytes_max: usize) -> Error {
    let expected = format!("at most {bytes_max} bytes (transport.message_bytes_max)");
    wire::invalid("message", format!("{bytes} bytes"), expected)
}

fn any(name: &str, message: &impl prost::Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic_types::StatusExt as _;

    use super::*;

    #[test]
    fn a_refusal_says_how_long_to_wait_in_the_standard_detail_and_in_ours() {
        let error = Error::Overloaded {
            what: "robot queue",
            bound: "4 rows".into(),
            retry_after: Duration::from_millis(250),
        };
        let status = to_status(&error);
        assert_eq!(status.code(), Code::ResourceExhausted);
        let retry = status.get_details_retry_info().unwrap();
        assert_eq!(retry.retry_delay, Some(Duration::from_millis(250)));
        assert_eq!(to_proto(&error).retry_after_ms, 250);
        assert_eq!(status.message(), "robot queue is full (4 rows); try again in 250 ms");
    }

    #[test]
    fn a_long_value_is_cut_and_what_was_expected_is_told() {
        let got = "ü".repeat(100_000);
        let error = Error::Invalid { field: "page_token", got, expected: "another".into() };
        let status = to_status(&error);
        assert!(status.message().ends_with("ü… (200000 bytes), expected another"));
        assert!(status.details().len() < 2_000, "{}", status.details().len());
        let reason = "long ".repeat(10_000);
        let error = Error::Internal { part: "control side", reason };
        assert!(to_status(&error).message().len() < 900);
    }

    #[test]
    fn what_is_no_grpc_is_told_so_in_http() {
        let request = |method: Method, kind: Option<&str>| {
            let mut request = Request::builder().method(method);
            if let Some(kind) = kind {
                request = request.header("content-type", kind);
            }
            not_grpc(&request.body(()).unwrap()).map(|response| response.status().as_u16())
        };
        for kind in ["application/grpc", "application/grpc+proto", "Application/GRPC; x=1"] {
            assert_eq!(request(Method::POST, Some(kind)), None, "{kind}");
        }
        for kind in ["application/grpc-web", "application/grpc+json", "text/plain", ""] {
            assert_eq!(request(Method::POST, Some(kind)), Some(415), "{kind}");
        }
        assert_eq!(request(Method::POST, None), Some(415));
        assert_eq!(request(Method::GET, Some("application/grpc")), Some(405));
    }

    #[test]
    fn a_bad_field_is_named_with_value_and_expectation() {
        let error = Error::Invalid {
            field: "payload.floats",
            got: "3 values".into(),
            expected: "24 values".into(),
        };
        let status = to_status(&error);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "payload.floats is 3 values, expected 24 values");
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations[0].field, "payload.floats");
    }
}
