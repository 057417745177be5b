//! Serves the console over a store with something to see, for people who change its pages.
//!
//! ```console
//! $ cargo run -p leasehold-serve --example console [URL [PORT]]
//! ```

#![allow(clippy::expect_used, reason = "a sample that cannot be made is of no use")]

#[path = "../tests/console/sample.rs"]
mod sample;

use std::time::Duration;

use leasehold::Client;
use leasehold_serve::{Config, Server};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "mem:console".to_owned());
    let port = args.next().unwrap_or_else(|| "7878".to_owned());
    let _sample = sample::fill(&url, Duration::from_secs(45)).await;
    let mut config = Config::default();
    config.store.clone_from(&url);
    config.listen = vec![format!("127.0.0.1:{port}").parse()?];
    config.allow_actions = true;
    let server = Server::bind(Client::open(&url).await?, config).await?;
    println!("{} with the token in {}", server.urls().join(", "), server.token_path().display());
    server.run(|| Box::pin(std::future::pending())).await;
    Ok(())
}
