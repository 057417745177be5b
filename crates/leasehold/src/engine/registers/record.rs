//! The binary format of the values that coordination primitives store in registers: fixed-width numbers
//! in big-endian order.
//!
//! Ground rules: the first byte identifies the primitive and its version, so that neither a later version
//! nor another primitive of the same name is misread. A value that cannot be read is refused and left as
//! it is.

use std::collections::HashSet;

use crate::engine::Register;
use crate::error::{Error, ErrorKind};

/// A record under construction.
pub(crate) struct Record(Vec<u8>);

impl Record {
    /// Begins a record of this kind.
    pub(crate) fn of(kind: u8) -> Record {
        Record(vec![kind])
    }

    pub(crate) fn byte(mut self, value: u8) -> Record {
        self.0.push(value);
        self
    }

    pub(crate) fn number(mut self, value: u64) -> Record {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(crate) fn numbers(self, values: &[u64]) -> Record {
        values.iter().fold(self.number(values.len() as u64), |record, value| record.number(*value))
    }

    pub(crate) fn text(self, value: &[u8]) -> Record {
        let mut record = self.number(value.len() as u64);
        record.0.extend_from_slice(value);
        record
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// A reader of a record; each part is `None` where it is missing.
pub(crate) struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    /// Returns the parts of a record of this kind; `None` where the record is of another.
    pub(crate) fn of(kind: u8, record: &'a [u8]) -> Option<Parts<'a>> {
        record.split_first().filter(|(first, _)| **first == kind).map(|(_, rest)| Parts(rest))
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*first))
    }

    pub(crate) fn numbers(&mut self) -> Option<Vec<u64>> {
        let count = usize::try_from(self.number()?).ok()?;
        // The count is checked against the bytes that are left, so that a corrupt one allocates nothing.
        (count <= self.0.len() / 8).then_some(())?;
        (0..count).map(|_| self.number()).collect()
    }

    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }

    /// Returns `true` if nothing is left.
    pub(crate) fn is_read(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns `true` if each number is present once, as the numbers of members are.
pub(crate) fn are_distinct<'n>(numbers: impl IntoIterator<Item = &'n u64>) -> bool {
    let mut seen = HashSet::new();
    numbers.into_iter().all(|number| seen.insert(*number))
}

/// Returns the error for a register whose value this primitive did not write.
pub(crate) fn foreign(register: &Register, what: &str) -> Error {
    let text = format!(
        "the value under this name is not a {what} that this version can read; use another name, or one \
         version everywhere"
    );
    register.error(ErrorKind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_reads_back_and_rejects_truncated_or_other_kinds() {
        let written = Record::of(7).byte(1).number(2).numbers(&[3, 4]).text(b"five").done();
        let read = |record: &[u8]| {
            let mut parts = Parts::of(7, record)?;
            let found = (parts.byte()?, parts.number()?, parts.numbers()?, parts.text()?.to_vec());
            parts.is_read().then_some(found)
        };
        assert_eq!(read(&written), Some((1, 2, vec![3, 4], b"five".to_vec())));
        (0..written.len()).for_each(|length| assert_eq!(read(&written[..length]), None));
        let longer = [&written[..], b"!"].concat();
        assert_eq!(read(&longer), None);
        assert!(Parts::of(8, &written).is_none());
        let huge = Record::of(7).byte(1).number(2).number(u64::MAX).done();
        assert_eq!(read(&huge), None);
    }
}
