//! The variables of what is started: the command, and the hooks of a candidate.
//!
//! Ground rules: this is the only list. No password is in it, and each program that is started finds
//! the store that this process uses.

use leasehold::Fence;

use crate::request::Request;
use crate::request::reentry::OWNER_VARIABLE;
use crate::request::store::{SECRET_VARIABLES, URL_VARIABLE};

/// The variables to set, and with `None` to remove.
pub(crate) type Variables = Vec<(&'static str, Option<String>)>;

/// Lists what an environment is to hold, or not to hold, under these tags.
pub(crate) fn variables(request: &Request, fence: Option<Fence>, owner: String) -> Variables {
    let mut variables = vec![
        ("LEASEHOLD_NAME", Some(request.name.to_string())),
        ("LEASEHOLD_FENCE", fence.map(|fence| fence.to_string())),
        (OWNER_VARIABLE, Some(owner)),
        (URL_VARIABLE, request.store.for_child()),
    ];
    variables.extend(SECRET_VARIABLES.iter().map(|name| (*name, None)));
    variables
}
