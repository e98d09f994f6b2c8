//! The messages of a stream, read from its body as gRPC frames them.
//!
//! A message that came in one piece is decoded where it lies; one that did not is put together
//! first, and nothing behind it. What is no message ends the reading, as it does in a call of one
//! message (`unary.rs`).

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use hyper::body::Body;

use super::{
    status,
    unary::{HEADER_BYTES, Unread, length},
};

/// A body and what was read of it.
pub struct Messages<B> {
    body: B,
    bytes_max: usize,
    /// Of the last piece, what nobody has read.
    left: Bytes,
    /// The begin of a message that comes in pieces; empty where none has begun.
    begun: BytesMut,
}

impl<B: Body<Data = Bytes> + Unpin> Messages<B> {
    /// With messages of at most `bytes_max` bytes.
    pub fn new(body: B, bytes_max: usize) -> Self {
        Self { body, bytes_max, left: Bytes::new(), begun: BytesMut::new() }
    }

    /// Lets `read` have the next message; `None` where the body ends behind one. Nothing can be
    /// read behind the end, or behind an error.
    pub fn poll_next<T>(
        &mut self,
        context: &mut Context<'_>,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Poll<Option<Result<T, Unread>>> {
        loop {
            match self.whole() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(read(&message)))),
                Ok(None) => {}
                Err(unread) => return Poll::Ready(Some(Err(unread))),
            }
            let piece = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame.into_data().ok(),
                Some(Err(_)) => return Poll::Ready(Some(Err(Unread::Gone))),
                None => None,
            };
            // Trailers end it too, and say nothing here.
            match piece {
                Some(piece) => self.left = piece,
                None if self.begun.is_empty() => return Poll::Ready(None),
                None => {
                    let cut_short = Unread::Invalid(status::not_whole("cut short"));
                    return Poll::Ready(Some(Err(cut_short)));
                }
            }
        }
    }

    /// The next message, if all of it is here; else all that is here is in `begun`.
    fn whole(&mut self) -> Result<Option<Bytes>, Unread> {
        if self.begun.is_empty() {
            let bytes = HEADER_BYTES + length(&self.left, self.bytes_max)?;
            if self.left.len() >= bytes {
                let mut message = self.left.split_to(bytes);
                message.advance(HEADER_BYTES);
                return Ok(Some(message));
            }
            if self.left.is_empty() {
                return Ok(None);
            }
            self.begin(self.left.len());
        }
        // First to its length, then to its end.
        loop {
            let bytes = HEADER_BYTES + length(&self.begun, self.bytes_max)?;
            if self.begun.len() == bytes {
                let mut message = mem::take(&mut self.begun).freeze();
                message.advance(HEADER_BYTES);
                return Ok(Some(message));
            }
            if self.left.is_empty() {
                return Ok(None);
            }
            self.begin(self.left.len().min(bytes - self.begun.len()));
        }
    }

    fn begin(&mut self, bytes: usize) {
        self.begun.extend_from_slice(&self.left[..bytes]);
        self.left.advance(bytes);
    }
}
