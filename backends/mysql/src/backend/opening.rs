//! The opening of a client: all that it has to know before its first lock, in one exchange.
//!
//! Ground rules: what the answer lacks, such as a table that is not there, is asked for again by itself, and
//! that error is the one that is reported.

use std::sync::Arc;

use leasehold_core::{Clock, Failure};
use mysql_async::Row;

use crate::config::MySqlConfig;
use crate::net::dial::{Flavour, Question};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::schema;

/// A database that was just connected to, with the tables as they have to be.
pub(crate) struct Opened {
    pub(crate) pool: Pool,
    pub(crate) server: Server,
    pub(crate) flavour: Flavour,
    /// The name by which the server distinguishes the database from others.
    pub(crate) database: String,
}

impl Opened {
    /// Connects, creates what is missing, and asks what the server is.
    pub(crate) async fn open(config: MySqlConfig, clock: Arc<dyn Clock>) -> Result<Opened, Failure> {
        let statements = vec![Server::question(), schema::question(&config)];
        let question = Question { counters: Server::COUNTERS, statements };
        let (pool, answer, (flavour, database)) = Pool::open(Arc::new(config), clock, &question).await?;
        let rows = |n: usize| -> &[Row] { answer.statements.get(n).map_or(&[], Vec::as_slice) };
        let server = match rows(0) {
            [] => Server::inspect(&pool).await?,
            settings => Server::read(settings.iter().chain(&answer.counters))?,
        };
        // What another server of a cluster has confirmed may not have been there yet when this one was asked.
        if !schema::is_settled(rows(1)) || server.is_clustered() {
            schema::ensure(&pool).await?;
        }
        Ok(Opened { pool, server, flavour, database })
    }
}
