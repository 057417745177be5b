#![forbid(unsafe_code)]
#![doc = include_str!("docs.md")]

mod backend;
mod config;
mod connection;
mod keys;
mod login;
mod looking;
mod lookout;
mod refusal;
mod reply;
mod scripts;
mod server;
mod subscriber;
mod waiting;
mod wire;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use server::Server;
