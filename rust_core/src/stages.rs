//! The stages of the label path.

/// A part of the path with its own histogram, in the order a label meets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Request bytes to domain types.
    Decode,
    /// Deadline, limits, the journal's room.
    Admit,
    /// Dedupe window and label cache.
    Cache,
    /// Waiting for the model.
    Queue,
    /// The model's run.
    Infer,
    /// From the answer to the level of durability that the caller waits for.
    Journal,
    /// Domain types to reply bytes.
    Encode,
}

impl Stage {
    /// All stages in the order of the path.
    pub const ALL: [Stage; 7] = [
        Stage::Decode,
        Stage::Admit,
        Stage::Cache,
        Stage::Queue,
        Stage::Infer,
        Stage::Journal,
        Stage::Encode,
    ];

    /// The name that protos, metrics and docs use.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Decode => "decode",
            Stage::Admit => "admit",
            Stage::Cache => "cache",
            Stage::Queue => "queue",
            Stage::Infer => "infer",
            Stage::Journal => "journal",
            Stage::Encode => "encode",
        }
    }
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
