//! The Rust snippets of the book compile as they are printed.
//!
//! They are not run: a snippet shows a few lines of a program, and the rest of it is made up here. What the
//! pages call without showing it, such as `rebuild()`, is a function of `surroundings`.

#![allow(unused, reason = "a snippet shows how a value is made, not what it is used for")]
#![allow(clippy::all, reason = "the snippets are for people to read")]

mod surroundings;

include!(concat!(env!("OUT_DIR"), "/book.rs"));

#[test]
fn snippets_of_the_book_compile() {
    // That this program was built is the test, unless it was built without them.
    assert!(COUNT >= 20, "{COUNT} snippets were found");
}
