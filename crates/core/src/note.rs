//! The note that a holder shows to observers.

use std::fmt;
use std::sync::Arc;

/// Up to 1 KiB of text that a claim shows to every client that inspects the resource: host, process,
/// command, a leader's address, a trace id. It is information, never part of a decision.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Note(Arc<str>);

impl Note {
    /// The longest note, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Takes `text` as it is.
    ///
    /// # Errors
    /// [`NoteTooLong`] beyond [`Note::MAX_BYTES`].
    pub fn new(text: &str) -> Result<Note, NoteTooLong> {
        if text.len() > Note::MAX_BYTES {
            return Err(NoteTooLong { bytes: text.len() });
        }
        Ok(Note(text.into()))
    }

    /// Takes as much of `text` as fits, cut between two characters.
    pub fn clipped(text: &str) -> Note {
        let mut end = text.len().min(Note::MAX_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Note(text[..end].into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// A note beyond 1 KiB.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a note of {bytes} bytes is too long: at most {max} bytes are shown to others", max = Note::MAX_BYTES)]
pub struct NoteTooLong {
    bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        let long = "é".repeat(600);
        assert!(Note::new(&long).is_err());
        assert!(Note::new(&"x".repeat(1024)).is_ok() && Note::new(&"x".repeat(1025)).is_err());
        let cut = Note::clipped(&long);
        assert_eq!(cut.as_str().len(), 1024);
        assert!(cut.as_str().chars().all(|c| c == 'é'));
        // The limit is within a character.
        assert_eq!(Note::clipped(&format!("x{long}")).as_str().len(), 1023);
        assert_eq!(Note::clipped("short").as_str(), "short");
    }
}
