//! `schema`: prints the SQL that creates the lock tables, without a request to the database.

use crate::support::Sandbox;

#[test]
fn the_statements_for_the_tables_of_the_url_are_printed() {
    let sandbox = Sandbox::new();
    // No server listens there, and nothing is sent.
    let url = "postgres://app:sesame@127.0.0.1:1/db?schema=locks&table=jobs";
    let ended = sandbox.end(&["schema", "--store", url]).expect(0);
    for part in ["CREATE SCHEMA IF NOT EXISTS \"locks\"", "\"locks\".\"jobs\" (", "TO \"app\";"] {
        assert!(ended.out.contains(part), "{part} is missing in {}", ended.out);
    }
    assert!(!format!("{}{}", ended.out, ended.err).contains("sesame"));
}

#[test]
fn the_statements_for_mysql_name_the_database() {
    let sandbox = Sandbox::new();
    let ended = sandbox.end(&["schema", "--store", "mysql://app:sesame@127.0.0.1:1/db?table=jobs"]).expect(0);
    for part in ["USE `db`;", "IF NOT EXISTS `jobs` (", "ON `db`.`jobs` TO 'app'@'%';"] {
        assert!(ended.out.contains(part), "{part} is missing in {}", ended.out);
    }
    assert!(!format!("{}{}", ended.out, ended.err).contains("sesame"));
}

#[test]
fn schema_of_a_store_without_tables_is_an_error() {
    let sandbox = Sandbox::new();
    let ended = sandbox.end(&["schema"]).expect(78);
    assert!(ended.err.contains("have no tables"), "{}", ended.err);
    let ended = sandbox.end(&["schema", "--store", "postgres://app@db/x?table=a;b"]).expect(64);
    assert!(ended.err.contains("table=a;b: write"), "{}", ended.err);
}
