//! The opening of a client: all that it has to know before its first lock, in one exchange.
//!
//! Ground rules: where the answer shows anything out of the ordinary, such as a missing table, each step is
//! taken by itself, and its error is the one that is reported. From then on each statement names the schema that
//! was found.

use std::sync::Arc;

use leasehold_core::Failure;

use crate::config::PostgresConfig;
use crate::error::Refusal;
use crate::net::dial::{GREETED, Sql, only};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::home::Home;
use crate::sql::schema::{self, Form};

/// A database that was just connected to, with the tables as they have to be.
pub(crate) struct Opened {
    pub(crate) pool: Pool,
    pub(crate) server: Server,
}

impl Opened {
    /// Connects, creates what is missing, and asks what the server is.
    pub(crate) async fn open(config: Arc<PostgresConfig>) -> Result<Opened, Failure> {
        let question = format!(
            "SELECT f.*, h.*, s.* FROM ({}) AS f CROSS JOIN ({}) AS h CROSS JOIN ({}) AS s",
            Form::question(&config),
            Home::question(&config),
            Server::question()
        );
        let (mut pool, answer) = Pool::open(config, &question).await?;
        let settled = answer.ok().filter(|row| Form::read(row, GREETED).is_ok_and(|form| form.is_settled()));
        let (row, first) = match settled {
            Some(row) => {
                let first = GREETED + Form::COLUMNS;
                pool.config = Home::read(&row, first)?.settle(&pool.config)?;
                (row, first + Home::COLUMNS)
            }
            None => {
                pool.config = Home::ask(&pool).await?.settle(&pool.config)?;
                schema::ensure(&pool).await?;
                let question = Sql { name: "opening", text: Server::question().to_owned(), types: &[] };
                let rows = pool.query_retrying(&question, &[]).await.map_err(Refusal::into_failure)?;
                (only(rows)?, 0)
            }
        };
        let server = Server::read(&row, first, &pool).await?;
        Ok(Opened { pool, server })
    }
}
