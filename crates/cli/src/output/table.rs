//! Columns that are as wide as their widest cell; those without any text are left out.

use std::io::{self, Write};

/// Rows of cells. The last cell of a row is not padded.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Writes the rows, with columns of equal width.
    ///
    /// # Errors
    /// Of the stream.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let used = row.iter().zip(&widths).filter(|(_, width)| **width > 0);
            let cells = used.map(|(cell, width)| format!("{cell:width$}"));
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::default();
        table.row(["a".into(), String::new(), "long".into(), "x".into()]);
        table.row(["käse".into(), String::new(), String::new(), String::new()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a     long  x\nkäse\n");
    }
}
