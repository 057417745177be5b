//! What a server's version says about its promises.

use leasehold_core::Safety;

/// What these servers promise together; `None` stands for one that did not say which it is.
///
/// Up to 3.4.31 and 3.5.12 a leader that was paused for longer than a lease revokes it when it goes on, although its
/// successor extended it meanwhile: a claim can be taken from a holder that did everything right. That is a loss on
/// failover. The fence is not touched by it. A server that does not say its version decides nothing: it is most likely down, and of
/// the version of the others.
pub(crate) fn safety(versions: &[Option<String>]) -> Safety {
    let mut known = versions.iter().flatten().peekable();
    if known.peek().is_some() && known.all(|version| is_sound(version)) {
        Safety::Strict
    } else {
        Safety::LostOnFailover
    }
}

fn is_sound(version: &str) -> bool {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten(), parts.next().flatten()) {
        (Some(3), Some(4), Some(patch)) => patch >= 32,
        (Some(3), Some(5), Some(patch)) => patch >= 14,
        (Some(3), Some(minor), _) => minor >= 6,
        (Some(major), ..) => major > 3,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_with_known_losses_are_not_called_strict() {
        let of = |versions: &[&str]| {
            let versions: Vec<_> = versions.iter().map(|text| Some((*text).to_owned())).collect();
            safety(&versions)
        };
        for sound in ["3.4.32", "3.4.35", "3.5.14", "3.5.21", "3.6.0", "3.6.0-rc.1", "3.7.0-alpha.0", "4.0.0"]
        {
            assert_eq!(of(&[sound]), Safety::Strict, "{sound}");
        }
        for weak in ["3.4.23", "3.4.31", "3.5.0", "3.5.13", "3.3.27", "2.3.8", "", "unknown"] {
            assert_eq!(of(&[weak]), Safety::LostOnFailover, "{weak}");
        }
        assert_eq!(of(&["3.5.14", "3.5.1", "3.5.14"]), Safety::LostOnFailover, "the weakest counts");
        assert_eq!(safety(&[Some("3.6.1".to_owned()), None]), Safety::Strict);
        assert_eq!(safety(&[None, None]), Safety::LostOnFailover);
    }
}
