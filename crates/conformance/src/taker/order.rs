//! The orders of a taker, as lines.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Note, Resource, Share};

use super::escaped_name;

/// One order.
#[derive(Debug)]
pub(super) enum Order {
    /// Take the claim, with patience for this long.
    Contend(Claim, Duration),
    /// Queue the claim, and answer at once.
    Enqueue(Claim),
    Renew(Claim),
    Release(Claim),
    Inspect(Resource),
}

impl Order {
    /// Reads what `to_string` wrote.
    ///
    /// # Errors
    /// Returns an error that says what is wrong with the line.
    pub(super) fn parse(line: &str) -> Result<Order, String> {
        let mut fields = line.split_ascii_whitespace();
        let order = match fields.next() {
            Some("contend") => Order::Contend(claim(&mut fields)?, millis(&mut fields)?),
            Some("stand") => Order::Enqueue(claim(&mut fields)?),
            Some("renew") => Order::Renew(claim(&mut fields)?),
            Some("release") => Order::Release(claim(&mut fields)?),
            Some("inspect") => Order::Inspect(resource(&mut fields)?),
            _ => {
                return Err(format!(
                    "no order begins like {line:?}: contend, stand, renew, release and inspect do"
                ));
            }
        };
        match fields.next() {
            None => Ok(order),
            Some(more) => Err(format!("{more:?} is more than {line:?} needs")),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, claim) = match self {
            Order::Contend(claim, _) => ("contend", claim),
            Order::Enqueue(claim) => ("stand", claim),
            Order::Renew(claim) => ("renew", claim),
            Order::Release(claim) => ("release", claim),
            Order::Inspect(resource) => return write!(f, "inspect {}", escaped_name(resource)),
        };
        let (share, name) = (claim.share, escaped_name(&claim.resource));
        let (id, ttl) = (claim.id.to_hex(), claim.ttl.as_millis());
        write!(f, "{verb} {id} {name} {}/{} {ttl}", share.weight(), share.capacity())?;
        match self {
            Order::Contend(_, wait) => write!(f, " {}", wait.as_millis()),
            _ => Ok(()),
        }
    }
}

fn claim<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Result<Claim, String> {
    let id = fields.next().and_then(ClaimId::from_hex).ok_or("an id is 32 hexadecimal digits")?;
    let resource = resource(fields)?;
    let share = fields.next().and_then(|share| share.split_once('/')).ok_or("a share is weight/capacity")?;
    let share = Share::permits(number(share.0)?, number(share.1)?).map_err(|error| error.to_string())?;
    let ttl = millis(fields)?;
    Ok(Claim::new(id, resource, share, ttl).note(Note::clipped("a taker in a process of its own")))
}

fn resource<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Result<Resource, String> {
    fields
        .next()
        .and_then(Resource::from_escaped)
        .ok_or_else(|| "a name is missing or not escaped".to_owned())
}

fn millis<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Result<Duration, String> {
    Ok(Duration::from_millis(number(fields.next().ok_or("a time in milliseconds is missing")?)?))
}

fn number<N: FromStr>(field: &str) -> Result<N, String> {
    field.parse().map_err(|_| format!("{field:?} is not a number that fits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_read_back() {
        let claim = Claim::new(
            ClaimId::from_bytes([7; 16]),
            Resource::new("a b/ü%\u{1f512}").unwrap(),
            Share::permits(2, 3).unwrap(),
            Duration::from_millis(1500),
        );
        let orders = [
            Order::Contend(claim.clone(), Duration::from_millis(20)),
            Order::Enqueue(claim.clone()),
            Order::Renew(claim.clone()),
            Order::Release(claim.clone()),
            Order::Inspect(claim.resource.clone()),
        ];
        for order in orders {
            let line = order.to_string();
            assert_eq!(Order::parse(&line).unwrap().to_string(), line);
        }
        let line = Order::Contend(claim, Duration::ZERO).to_string();
        assert!(line.ends_with("a%20b%2F%C3%BC%25%F0%9F%94%92 2/3 1500 0"), "{line}");
    }

    #[test]
    fn the_longest_name_is_not_hashed() {
        let resource = Resource::new(&"ü".repeat(256)).unwrap();
        let order = Order::Inspect(resource.clone()).to_string();
        assert!(matches!(Order::parse(&order), Ok(Order::Inspect(read)) if read == resource));
    }

    #[test]
    fn bad_orders_are_refused_with_the_reason() {
        let id = "07".repeat(16);
        for (line, why) in [
            (String::new(), "no order"),
            ("take a".to_owned(), "no order"),
            ("contend 12 a 1/1 5 5".to_owned(), "32 hexadecimal digits"),
            (format!("renew {id}"), "a name is missing"),
            (format!("renew {id} a 1"), "weight/capacity"),
            (format!("renew {id} a 4/3 5"), "cannot be held"),
            (format!("renew {id} a 1/3 x"), "not a number"),
            (format!("contend {id} a 1/3 5"), "milliseconds is missing"),
            (format!("release {id} a 1/3 5 6"), "more than"),
        ] {
            let said = Order::parse(&line).unwrap_err();
            assert!(said.contains(why), "{line:?}: {said}");
        }
    }
}
