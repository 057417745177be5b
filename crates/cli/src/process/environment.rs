//! The variables of what is started: the command, and the hooks of a candidate.
//!
//! Ground rules: this is the only list. No password is in it, and each program that is started finds
//! the store that this process uses.

use leasehold::{Fence, Resource};

use crate::request::Request;
use crate::request::reentry::OWNER_VARIABLE;
use crate::request::store::{SECRET_VARIABLES, URL_VARIABLE};
use crate::system::service_manager::NOTIFY_VARIABLE;

/// The variables to set, and with `None` to remove.
pub(crate) type Variables = Vec<(&'static str, Option<String>)>;

/// Lists the variables to set and to remove. `fences` has the locks, the first one first, and `owner` is the text of
/// the tags.
pub(crate) fn variables(
    request: &Request,
    fences: &[(&Resource, Option<Fence>)],
    owner: String,
) -> Variables {
    let fence = fences.first().and_then(|(_, fence)| *fence);
    let of_each = fences.iter().filter_map(|(name, fence)| Some(format!("{} {name}\n", (*fence)?)));
    let mut variables = vec![
        ("LEASEHOLD_NAME", Some(request.name.to_string())),
        ("LEASEHOLD_FENCE", fence.map(|fence| fence.to_string())),
        ("LEASEHOLD_FENCES", (fences.len() > 1).then(|| of_each.collect())),
        (OWNER_VARIABLE, Some(owner)),
        (URL_VARIABLE, request.store.for_child()),
    ];
    variables.extend(SECRET_VARIABLES.iter().map(|name| (*name, None)));
    if request.report.sd_notify {
        // Two that report to the service manager would contradict each other.
        variables.push((NOTIFY_VARIABLE, None));
    }
    variables
}
