//! The opening of a client: all that it has to know before its first lock, in one exchange.
//!
//! Ground rules: where the answer shows anything out of the ordinary, such as a missing table, each step is
//! taken by itself, and its error is the one that is reported.

use std::sync::Arc;

use leasehold_core::Failure;
use tokio_postgres::Row;

use crate::config::PostgresConfig;
use crate::error::Refusal;
use crate::net::dial::{GREETED, Sql, only};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::schema::{self, Form};
use crate::wait::calls::{channel, channel_question};

/// A database that was just connected to, with the tables as they have to be.
pub(crate) struct Opened {
    pub(crate) pool: Pool,
    pub(crate) server: Server,
    row: Row,
    /// The column at which the answers begin.
    first: usize,
}

impl Opened {
    /// Connects, creates what is missing, and asks what the server is.
    pub(crate) async fn open(config: Arc<PostgresConfig>) -> Result<Opened, Failure> {
        let question = format!(
            "SELECT f.*, s.*, c.* FROM ({}) AS f CROSS JOIN ({}) AS s LEFT JOIN ({}) AS c ON true",
            Form::question(&config),
            Server::question(),
            channel_question(&config.names)
        );
        let (pool, answer) = Pool::open(config, &question).await?;
        let settled = answer.ok().filter(|row| Form::read(row, GREETED).is_ok_and(|form| form.is_settled()));
        let (row, first) = match settled {
            Some(row) => (row, GREETED),
            None => {
                schema::ensure(&pool).await?;
                let question = Sql { name: "opening", text: question, types: &[] };
                let rows = pool.query_retrying(&question, &[]).await.map_err(Refusal::into_failure)?;
                (only(rows)?, 0)
            }
        };
        let server = Server::read(&row, first + Form::COLUMNS, &pool).await?;
        Ok(Opened { pool, server, row, first })
    }

    /// Returns the channel of the calls about the table of locks, if the method has one.
    pub(crate) fn channel(&self) -> Result<String, Failure> {
        channel(&self.row, self.first + Form::COLUMNS + Server::COLUMNS)
    }
}
