//! The servers to which a message on a channel is carried.

/// The servers that a message reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelScope {
    /// To every server of a cluster, and to every listener there.
    Everywhere,
    /// To the servers of the channel's slot. A server before 7.0 carries it everywhere: it has no such channels.
    Slot,
}

impl ChannelScope {
    /// Returns the end of a channel of this scope. The scripts know by it which servers a channel reaches.
    pub(crate) fn part(self) -> &'static str {
        match self {
            ChannelScope::Everywhere => "wake",
            ChannelScope::Slot => "swake",
        }
    }

    /// Returns the command that publishes a message in this scope.
    pub(crate) fn publish(self) -> &'static str {
        match self {
            ChannelScope::Everywhere => "PUBLISH",
            ChannelScope::Slot => "SPUBLISH",
        }
    }
}
