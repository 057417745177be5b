//! `schema`: prints the SQL that creates the lock tables of a database.

use std::io::Write;

use crate::exit::{Exit, Problem};
use crate::request::args::SchemaArgs;
use crate::request::store::StoreUrl;

/// Runs `leasehold schema`.
///
/// # Errors
/// The URL names no database; stdout cannot be written.
pub(crate) fn schema(args: &SchemaArgs) -> Result<Exit, Problem> {
    let statements = StoreUrl::named(args.store.url.as_deref())?.schema()?;
    std::io::stdout().lock().write_all(statements.as_bytes())?;
    Ok(Exit::Done)
}
