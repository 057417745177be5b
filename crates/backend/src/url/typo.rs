//! Guesses of the word that was meant.

/// Returns the nearest of the names, where it is near enough to be the one that was meant.
pub fn meant<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let nearest = names.into_iter().map(|name| (distance(text, name), name)).min()?;
    // In short names every second letter would match.
    (nearest.0 <= 2 && text.len() > 3).then_some(nearest.1)
}

/// Returns the number of letters that have to be added, removed or replaced to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, same) in other.chars().map(|other| other == letter).enumerate() {
            let replaced = diagonal + usize::from(!same);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_a_typo_is_found() {
        let names = ["timeout", "prefix", "ca"];
        for (text, name) in
            [("tiemout", Some("timeout")), ("prefx", Some("prefix")), ("cb", None), ("color", None)]
        {
            assert_eq!(meant(text, names), name, "{text}");
        }
        assert_eq!(meant("timeout", []), None);
    }
}
