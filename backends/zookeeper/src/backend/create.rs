//! Makes the nodes that claims are the children of, and looks whether they exist.

use leasehold_core::{Effect, Failure};
use zookeeper_client::{CreateOptions, Error};

use crate::backend::acquire::look_failure;
use crate::client::Ensemble;
use crate::net::session::EnsembleSession;
use crate::protocol::layout;

impl Ensemble {
    /// Makes a node, and what is above it.
    pub(crate) async fn create_with_parents(
        &self,
        session: &EnsembleSession,
        path: &str,
        data: &[u8],
        options: &CreateOptions<'_>,
    ) -> Result<(), Failure> {
        if self.create_node(session, path, data, options).await? {
            return Ok(());
        }
        for (above, options) in self.names.ancestors(path) {
            // Without the right to make a node, the servers do not even say that it exists already.
            if !self.exists(session, above).await? {
                self.create_node(session, above, b"", &options).await?;
            }
        }
        self.create_node(session, path, data, options).await.map(drop)
    }

    /// Makes one node, unless it exists; returns `false` where the one above is missing.
    pub(crate) async fn create_node(
        &self,
        session: &EnsembleSession,
        path: &str,
        data: &[u8],
        options: &CreateOptions<'_>,
    ) -> Result<bool, Failure> {
        match session.ask(self.config.timeout, session.client.create(path, data, options)).await {
            Ok(_) | Err(Error::NodeExists) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) => {
                let failure = layout::failure(error, &format!("cannot make {path}"));
                // It does not matter to any claim whether a container was made.
                Err(failure.with_effect(Effect::None))
            }
        }
    }

    pub(crate) async fn exists(&self, session: &EnsembleSession, path: &str) -> Result<bool, Failure> {
        let stat = session.ask(self.config.timeout, session.client.check_stat(path)).await;
        Ok(stat.map_err(look_failure)?.is_some())
    }
}
