//! Definitions that the snippets of the book use without showing them.

pub(crate) use std::sync::Arc;
pub(crate) use std::time::Duration;

pub(crate) use leasehold::fenced::{FenceColumn, FencedFile, SqlDialect};
pub(crate) use leasehold::layer::{Dual, Fault, Mode, Verb};
pub(crate) use leasehold::local::MemoryBackend;
pub(crate) use leasehold::postgres::{PostgresConfig, in_transaction};
pub(crate) use leasehold::{
    Backend, Client, ErrorKind, Fence, FenceGrade, Guard, Owner, Resource, TransferToken,
};

/// The values that a snippet may begin with.
pub(crate) struct Given {
    pub(crate) locks: Client,
    pub(crate) guard: Guard,
    pub(crate) old: Arc<dyn Backend>,
    pub(crate) new: Arc<dyn Backend>,
    pub(crate) parts: Vec<u32>,
    pub(crate) database: Database,
    pub(crate) connection: tokio_postgres::Client,
    pub(crate) url: &'static str,
    pub(crate) text: &'static str,
}

/// Any error.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) struct Database;

impl Database {
    pub(crate) async fn open(&self, _: &str, _: Option<Fence>) -> leasehold::Result<u32> {
        Ok(0)
    }

    pub(crate) async fn write(&self, _: &str, _: u32, _: Option<Fence>) -> leasehold::Result<()> {
        Ok(())
    }
}

macro_rules! work {
    ($($name:ident),*) => { $(pub(crate) async fn $name() {})* };
}

work!(bill, book, export_rows, job, publish_report, rebuild, report, schedule, serve, serve_all, undo);

pub(crate) async fn book_with(_: Guard, _: Guard) {}

pub(crate) fn one_less(old: Option<&[u8]>) -> Vec<u8> {
    old.unwrap_or_default().to_vec()
}

pub(crate) async fn render(_: u32) -> Result<Option<Vec<u8>>, Failure> {
    Ok(None)
}

pub(crate) async fn save(_: String) {}

pub(crate) async fn write(_: u32) {}

pub(crate) fn write_order() {}

pub(crate) async fn write_report(_: Option<Fence>) {}
