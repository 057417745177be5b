//! `sweep`: removes the remains of unused locks.

use crate::support::Place;

#[test]
fn what_is_over_is_swept_and_told() {
    let store = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", store.path().join("locks.db").display());
    let place = Place::on(&url);
    place.end(&["run", "job", "--", "true"]).expect(0);
    let ended = place.end(&["sweep"]).expect(0);
    assert_eq!(ended.out, "1 names seen, 0 removed, 0 kept for their fences and emptied\n");
    let ended = place.end(&["sweep", "--unused-for", "0s", "--json"]).expect(0);
    assert_eq!(ended.out, "{\"seen\":1,\"emptied\":0,\"removed\":0}\n");
}

#[test]
fn a_store_without_rows_says_so() {
    let place = Place::new();
    let ended = place.end(&["sweep"]).expect(78);
    assert!(ended.err.contains("there is nothing to sweep"), "{}", ended.err);
    let ended =
        place.end(&["sweep", "--store", "postgres://app:sesame@127.0.0.1:1/x?method=advisory"]).expect(78);
    assert!(ended.err.contains("only leases in rows are swept"), "{}", ended.err);
    assert!(!ended.err.contains("sesame"), "{}", ended.err);
    place.end(&["sweep", "--unused-for", "7"]).expect(64);
}
