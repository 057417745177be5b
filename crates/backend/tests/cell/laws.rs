//! The laws of a store, on the store of these tests: what is shown with it holds for the real ones.

use std::time::Duration;

use leasehold_backend::cell::laws;

use crate::store::{CACHE, Faults, Store, TABLE};

#[tokio::test]
async fn each_write_has_the_outcome_of_its_condition() {
    for kind in [TABLE, CACHE] {
        let backend = Store::new().open(kind, Faults::default());
        laws::writes_are_made_on_their_condition(backend.cells()).await;
        laws::several_writes_are_decided_one_by_one(backend.cells()).await;
        laws::write_on_a_missing_cell_leaves_nothing(backend.cells()).await;
        laws::lapsed_cell_is_free(backend.cells(), Duration::from_secs(2)).await;
    }
    laws::empty_cell_is_free(Store::new().open(TABLE, Faults::default()).cells()).await;
}
