//! `sweep`: removes the remains of unused locks.

use crate::support::Sandbox;

#[test]
fn ended_rows_are_swept_and_counted() {
    let store = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", store.path().join("locks.db").display());
    let sandbox = Sandbox::on(&url);
    sandbox.end(&["run", "job", "--", "true"]).expect(0);
    let ended = sandbox.end(&["sweep"]).expect(0);
    assert_eq!(ended.out, "1 names seen, 0 removed, 0 kept for their fences and emptied\n");
    let ended = sandbox.end(&["sweep", "--unused-for", "0s", "--json"]).expect(0);
    assert_eq!(ended.out, "{\"seen\":1,\"emptied\":0,\"removed\":0}\n");
}

#[test]
fn sweep_of_a_store_without_rows_is_an_error() {
    let sandbox = Sandbox::new();
    let ended = sandbox.end(&["sweep"]).expect(78);
    assert!(ended.err.contains("there is nothing to sweep"), "{}", ended.err);
    let ended =
        sandbox.end(&["sweep", "--store", "postgres://app:sesame@127.0.0.1:1/x?method=advisory"]).expect(78);
    assert!(ended.err.contains("only leases in rows are swept"), "{}", ended.err);
    assert!(!ended.err.contains("sesame"), "{}", ended.err);
    sandbox.end(&["sweep", "--unused-for", "7"]).expect(64);
}
