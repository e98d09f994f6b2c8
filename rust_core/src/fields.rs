//! Protobuf fields written from what is at hand, without a message that holds copies of it.
//!
//! Fields that have their default are left out, as proto3 does. Reads nothing; for that there is
//! prost.

use bytes::BufMut;
use prost::encoding::{WireType, encode_key, encode_varint};

/// A `string` or `bytes` field.
#[inline]
pub fn bytes(tag: u32, value: &[u8], into: &mut impl BufMut) {
    if !value.is_empty() {
        length_delimited(tag, value, into);
    }
}

/// An integer or enum field.
#[inline]
pub fn number(tag: u32, value: u64, into: &mut impl BufMut) {
    if value != 0 {
        encode_key(tag, WireType::Varint, into);
        encode_varint(value, into);
    }
}

/// A `float` field.
#[inline]
pub fn float(tag: u32, value: f32, into: &mut impl BufMut) {
    if value != 0.0 {
        encode_key(tag, WireType::ThirtyTwoBit, into);
        into.put_f32_le(value);
    }
}

/// A packed `repeated float` field.
#[inline]
pub fn floats(tag: u32, values: &[f32], into: &mut impl BufMut) {
    if !values.is_empty() {
        encode_key(tag, WireType::LengthDelimited, into);
        encode_varint(size_of_val(values) as u64, into);
        values.iter().for_each(|value| into.put_f32_le(*value));
    }
}

/// A field that is there even if it is empty: a message, or an element of a repeated field.
#[inline]
pub fn length_delimited(tag: u32, value: &[u8], into: &mut impl BufMut) {
    encode_key(tag, WireType::LengthDelimited, into);
    encode_varint(value.len() as u64, into);
    into.put_slice(value);
}
