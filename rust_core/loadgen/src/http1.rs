//! HTTP/1.1, for servers that are not labeler: one row to `/predict`, as JSON or as its floats'
//! bytes, one call at a time on a connection, each call on the one that has rested longest.
//!
//! A call that finds none free waits for it, and its latency has that wait, as it would at any
//! client that keeps so many connections. Nothing is sent twice: what breaks under way is counted.

use std::collections::VecDeque;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use labeler_core::proto::LabelResponse;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Duration, Instant, sleep, timeout, timeout_at},
};

use crate::{
    calls::unframed,
    connection::{ATTEMPT_MAX, Dial as _, Tcp},
    error::{Error, Result},
    kinds::Kind,
    plan::{Payload, Plan},
};

type Connection = SendRequest<Full<Bytes>>;

const PATH: &str = "/predict";
const REPLY_BYTES_MAX: usize = 1 << 20;
/// After an attempt that failed, so that a closed loop does not spin at a server that is gone.
const RETRY: Duration = Duration::from_millis(20);

/// The connections of a run.
pub struct Pool {
    tcp: Tcp,
    /// The one that has rested longest first, so that none rests until the server closes it.
    free: Mutex<VecDeque<Connection>>,
    places: Semaphore,
}

/// A connection that a call has to itself.
pub struct Taken<'a> {
    pool: &'a Pool,
    connection: Connection,
    _place: SemaphorePermit<'a>,
}

impl Pool {
    /// Room for `count` connections, none of them made.
    pub fn new(plan: &Plan, count: u32) -> Self {
        let tcp = Tcp { address: plan.address.as_str().into() };
        Self { tcp, free: Mutex::default(), places: Semaphore::new(count as usize) }
    }

    /// Makes all of them. Errors: why not, when `deadline` has passed.
    pub async fn connect(&self, deadline: Instant) -> std::result::Result<(), String> {
        let all = self.places.available_permits();
        let mut why = "no answer".to_owned();
        for up in 0..all {
            let made = async {
                loop {
                    match self.dial().await {
                        Ok(connection) => return connection,
                        Err(failure) => why = failure,
                    }
                    sleep(RETRY).await;
                }
            };
            match timeout_at(deadline, made).await {
                Ok(connection) => self.free.lock().push_back(connection),
                Err(_) => return Err(format!("{up} of {all} connections are up; {why}")),
            }
        }
        Ok(())
    }

    /// A free connection, as soon as there is one; a new one in the place of one that was lost.
    pub async fn take(&self) -> std::result::Result<Taken<'_>, Kind> {
        let _place = self.places.acquire().await.map_err(|_| Kind::UNAVAILABLE)?;
        let rested = self.free.lock().pop_front();
        if let Some(mut connection) = rested
            && connection.ready().await.is_ok()
        {
            return Ok(Taken { pool: self, connection, _place });
        }
        let Ok(connection) = self.dial().await else {
            sleep(RETRY).await;
            return Err(Kind::UNAVAILABLE);
        };
        Ok(Taken { pool: self, connection, _place })
    }

    async fn dial(&self) -> std::result::Result<Connection, String> {
        let stream = timeout(ATTEMPT_MAX, self.tcp.dial()).await;
        let stream = stream.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (connection, driver) = shaken.map_err(|e| e.to_string())?;
        tokio::spawn(driver);
        Ok(connection)
    }
}

impl Taken<'_> {
    /// Sends a body, and returns that of the reply. A call that is given up takes its connection
    /// along.
    pub async fn call(
        mut self,
        head: Request<()>,
        body: Bytes,
    ) -> std::result::Result<Bytes, Kind> {
        let request = head.map(|()| Full::new(body));
        let reply = self.connection.send_request(request).await.map_err(|_| Kind::Transport)?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), REPLY_BYTES_MAX).collect().await;
        let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => Kind::INTERNAL,
            None => Kind::Transport,
        })?;
        // Whether the server closes it now, the next call looks: this one's time is over.
        self.pool.free.lock().push_back(self.connection);
        if status == StatusCode::OK {
            Ok(body.to_bytes())
        } else {
            Err(Kind::code(unframed(status)))
        }
    }
}

/// The head of every call of a run. Errors: `Invalid` for an address that is none.
pub fn head(plan: &Plan) -> Result<Request<()>> {
    let host = HeaderValue::from_str(&plan.address)
        .map_err(|e| Error::invalid("address", &plan.address, format!("host:port: {e}")))?;
    let form = match plan.payload {
        Payload::RawFloat32 => "application/octet-stream",
        _ => "application/json",
    };
    let head = Request::post(PATH).header(header::HOST, host).header(header::CONTENT_TYPE, form);
    head.body(()).map_err(Error::machine)
}

/// The body of a request for one row: `{"values":[0.5,…]}`, or the values little-endian.
pub fn body(values: &[f32], payload: Payload) -> Bytes {
    let mut body = BytesMut::with_capacity(16 + 12 * values.len());
    if payload == Payload::RawFloat32 {
        values.iter().for_each(|value| body.put_f32_le(*value));
        return body.freeze();
    }
    body.put_slice(b"{\"values\":");
    // Numbers into memory: this does not fail.
    let _ = serde_json::to_writer((&mut body).writer(), values);
    body.put_u8(b'}');
    body.freeze()
}

#[derive(Deserialize)]
struct Predicted {
    label: String,
    confidence: f32,
}

/// The label of a reply, `{"label": "stop", "confidence": 0.9}`; `None` for what is none.
pub fn label(reply: &[u8]) -> Option<LabelResponse> {
    let Predicted { label, confidence } = serde_json::from_slice(reply).ok()?;
    Some(LabelResponse { label, confidence, ..LabelResponse::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_a_row_as_json_numbers_that_are_the_same_floats_again() {
        let body = |values: &[f32]| body(values, Payload::Float);
        assert_eq!(&body(&[0.5, -2.0, 0.4])[..], br#"{"values":[0.5,-2.0,0.4]}"#);
        let values = [0.1_f32, 1.0 / 3.0, f32::MAX, f32::MIN_POSITIVE, 16_777_217.0];
        let read: serde_json::Value = serde_json::from_slice(&body(&values)).unwrap();
        let read: Vec<f32> =
            read["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
        assert_eq!(read, values);
    }

    #[test]
    fn a_raw_body_is_the_bytes_of_the_floats() {
        let expected = [1.0_f32.to_le_bytes(), (-2.0_f32).to_le_bytes()].concat();
        assert_eq!(&body(&[1.0, -2.0], Payload::RawFloat32)[..], expected);
    }

    #[test]
    fn a_reply_with_a_name_and_a_score_is_a_label_and_anything_else_is_none() {
        let found = label(br#"{"label": "stop", "confidence": 0.5, "more": 1}"#).unwrap();
        assert_eq!((&*found.label, found.confidence), ("stop", 0.5));
        let none: [&[u8]; 5] =
            [b"", b"stop", br#"{"label": "stop"}"#, br#"{"label": 1, "confidence": 1}"#, b"[1]"];
        for reply in none {
            assert_eq!(label(reply), None);
        }
    }
}
