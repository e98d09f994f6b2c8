//! Why a label was not answered, as the result counts it.

use h2::Reason;
use labeler_core::proto::CODES;

const UNKNOWN: u32 = 2;

/// A gRPC code, or what the sender itself saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The server's word.
    Code(u32),
    /// The call was cut off, which gRPC maps to this code: what the server made of it is unknown.
    Cut(u32),
    /// The connection broke while it was under way.
    Transport,
    /// Nothing came in time, not even the server's own DEADLINE_EXCEEDED.
    Timeout,
    /// Still under way when the run ended.
    Unanswered,
    /// The feed ended before its row.
    Unfed,
}

impl Kind {
    /// How many there are, OK among them.
    pub const COUNT: usize = CODES.len() + 4;
    /// The robot has no connection, or the server takes no work.
    pub const UNAVAILABLE: Self = Self::Code(14);
    /// What came is no reply.
    pub const INTERNAL: Self = Self::Cut(13);

    /// A code from the wire; one that does not exist is UNKNOWN.
    pub fn code(code: u32) -> Self {
        Self::Code(if (code as usize) < CODES.len() { code } else { UNKNOWN })
    }

    /// The same for a request whose stream ended before its own answer.
    pub fn cut(self) -> Self {
        if let Self::Code(code) = self { Self::Cut(code) } else { self }
    }

    /// Whether the server said so of this request.
    pub fn told(self) -> bool {
        matches!(self, Self::Code(_))
    }

    /// Its place in a table of counts.
    pub fn at(self) -> usize {
        match self {
            Self::Code(code) | Self::Cut(code) => code as usize,
            Self::Transport => CODES.len(),
            Self::Timeout => CODES.len() + 1,
            Self::Unanswered => CODES.len() + 2,
            Self::Unfed => CODES.len() + 3,
        }
    }

    /// The name of what is counted at `at`.
    pub fn name(at: usize) -> &'static str {
        match at - CODES.len().min(at) {
            _ if at < CODES.len() => CODES[at],
            0 => "TRANSPORT",
            1 => "TIMEOUT",
            2 => "UNANSWERED",
            _ => "UNFED",
        }
    }
}

impl From<&h2::Error> for Kind {
    /// As gRPC over HTTP/2 maps reset codes; a connection that broke is no code.
    fn from(error: &h2::Error) -> Self {
        if error.is_io() || error.is_go_away() {
            return Self::Transport;
        }
        match error.reason() {
            Some(Reason::REFUSED_STREAM) => Self::UNAVAILABLE.cut(),
            Some(Reason::CANCEL) => Self::Cut(1),
            Some(Reason::ENHANCE_YOUR_CALM) => Self::Cut(8),
            Some(Reason::INADEQUATE_SECURITY) => Self::Cut(7),
            Some(_) => Self::INTERNAL,
            None => Self::Transport,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_the_name_that_its_number_has_in_the_specification() {
        let name = |code| Kind::name(Kind::code(code).at());
        let cases = [(0, "OK"), (4, "DEADLINE_EXCEEDED"), (8, "RESOURCE_EXHAUSTED")];
        let last = [(14, "UNAVAILABLE"), (15, "DATA_LOSS"), (16, "UNAUTHENTICATED")];
        for (code, expected) in cases.into_iter().chain(last) {
            assert_eq!(name(code), expected);
        }
        assert_eq!(name(17), "UNKNOWN");
    }
}
