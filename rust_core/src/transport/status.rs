//! The one conversion from the core's errors to gRPC: status code, message, rich details.
//!
//! No catch-all arm: a new variant does not compile until it has a code.

use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::pb::{BadRequest, RetryInfo, bad_request::FieldViolation};

use crate::{
    error::{Error, Refusal},
    proto,
};

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

/// The error as the protos carry it, in a row's place or in a status' details.
pub fn to_proto(error: &Error) -> proto::Error {
    let mut message = proto::Error {
        code: code(error) as u32,
        message: error.to_string(),
        ..proto::Error::default()
    };
    match error {
        Error::Invalid { field, got, expected } => {
            message.field = (*field).to_owned();
            message.value = got.clone();
            message.expected = expected.clone();
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
