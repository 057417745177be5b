//! The changes that are derived from short texts, and the texts with all of them.

use super::*;
use crate::insertions::Changed;

/// Returns the changes of a text, without the file, and the text with all of them.
fn derived(text: &str) -> (Vec<String>, String) {
    let derived = derive("a.rs", text, 1, &BTreeSet::new()).unwrap();
    let changed = Changed::new(text, &derived.insertions).text;
    syn::parse_file(&changed).unwrap_or_else(|error| panic!("{error}: {changed}"));
    let names = derived.mutants.iter().map(|mutant| mutant.name.trim_start_matches("a.rs: ").to_owned());
    (names.collect(), changed.replace("crate::leasehold_mutants::on", "on"))
}

fn names(text: &str) -> Vec<String> {
    derived(text).0
}

#[test]
fn a_change_is_a_branch_beside_the_original() {
    let (names, changed) = derived("fn f(a: u8, b: u8) -> E { a < b }");
    assert_eq!(names, ["f: < becomes <=: a < b", "f: < becomes >: a < b"]);
    assert_eq!(
        changed,
        "fn f(a: u8, b: u8) -> E { (if on(1) { (a) <= (b) } else if on(2) { (a) > (b) } else { a < b }) }"
    );
}

#[test]
fn changes_are_nested() {
    let (names, changed) = derived("fn f() -> E { !a && b + c == d }");
    assert_eq!(
        names,
        [
            "f: && becomes ||: !a && b + c == d",
            "f: ! left out: !a",
            "f: == becomes !=: b + c == d",
            "f: + becomes -: b + c"
        ]
    );
    assert_eq!(
        changed,
        "fn f() -> E { (if on(1) { (! a) || (b + c == d) } else { (if on(2) { a } else { !a }) && (if on(3) { (b + c) \
         != (d) } else { (if on(4) { (b) - (c) } else { b + c }) == d }) }) }"
    );
}

#[test]
fn operators_have_others() {
    let of = |operator: &str| {
        let names = names(&format!("fn f() -> E {{ a {operator} b }}"));
        names
            .iter()
            .map(|name| name.split(' ').nth(3).unwrap().trim_end_matches(':').to_owned())
            .collect::<Vec<_>>()
    };
    for (operator, others) in [
        ("==", &["!="][..]),
        ("!=", &["=="]),
        ("<", &["<=", ">"]),
        ("<=", &["<", ">"]),
        (">", &[">=", "<"]),
        (">=", &[">", "<"]),
        ("&&", &["||"]),
        ("||", &["&&"]),
        ("+", &["-"]),
        ("-", &["+"]),
        ("*", &["/"]),
        ("/", &["*"]),
        ("%", &["/"]),
        ("&", &["|"]),
        ("|", &["&"]),
        ("^", &["&"]),
        ("<<", &[">>"]),
        (">>", &["<<"]),
    ] {
        assert_eq!(of(operator), others, "{operator}");
    }
}

#[test]
fn a_condition_is_always_true_or_always_false() {
    let (names, changed) = derived("fn f() -> E { if a() { x } else { y } }");
    assert_eq!(names, ["f: always true: a()", "f: always false: a()"]);
    assert!(
        changed.contains("if (if on(1) { true } else if on(2) { false } else { a() }) { x }"),
        "{changed}"
    );
    // One that is always true would hang.
    assert_eq!(derived("fn f() -> E { while a.is_empty() { x } }").0, ["f: always false: a.is_empty()"]);
    // They have changes of their own, or leave nothing to choose.
    assert_eq!(names_of_condition("a == b"), ["f: == becomes !=: a == b"]);
    assert_eq!(names_of_condition("!a"), ["f: ! left out: !a"]);
    for none in ["true", "let Some(x) = y", "matches!(a, b)"] {
        assert_eq!(names_of_condition(none), [""; 0], "{none}");
    }
}

fn names_of_condition(condition: &str) -> Vec<String> {
    names(&format!("fn f() -> E {{ if {condition} {{ x }} else {{ y }} }}"))
}

#[test]
fn a_chain_with_names_is_changed_in_its_parts() {
    assert_eq!(
        names_of_condition("let Some(x) = y && x > 1"),
        ["f: > becomes >=: x > 1", "f: > becomes <: x > 1"]
    );
    assert_eq!(names_of_condition("a() && let Some(x) = y && !b"), ["f: ! left out: !b"]);
}

#[test]
fn guards_and_arms_of_a_match_are_changed() {
    let (names, changed) = derived("fn f() -> E { match x { A if g(y) => 1, B | C => 2, _ => 3 } }");
    assert_eq!(names, ["f: always true: g(y)", "f: always false: g(y)", "f: arm left out: B | C"]);
    assert!(changed.contains("A if (if on(1) { true }"), "{changed}");
    assert!(changed.contains("B | C if !on(3) => 2"), "{changed}");
    // Without the last arm for the rest each of them is needed. `None` is a variant, and not a variable.
    assert_eq!(derived("fn f() -> E { match x { A => 1, B => 2 } }").0, [""; 0]);
    assert_eq!(derived("fn f() -> E { match x { Some(y) => 1, None => 2 } }").0, [""; 0]);
    assert_eq!(derived("fn f() -> E { match x { A => 1, other => other } }").0, ["f: arm left out: A"]);
}

#[test]
fn calls_and_assignments_are_left_out() {
    let (names, changed) = derived("fn f() -> E { g(a)?; b.h().await; c = 1; d += 2; x }");
    assert_eq!(names, ["g(a)?", "b.h().await", "c = 1", "d += 2"].map(|code| format!("f: left out: {code}")));
    assert!(changed.contains("if !on(1) { g(a)?; } if !on(2) { b.h().await; }"), "{changed}");
    // A variable needs a value, `drop` is what happens anyway, neither a macro nor a return is a call, and a value is used.
    for none in [
        "let a; a = 1; x",
        "let a: u8; a = 1; x",
        "drop(a); x",
        "_ = a; x",
        "assert!(a); x",
        "return x;",
        "g(a)",
    ] {
        assert_eq!(derived(&format!("fn f() -> E {{ {none} }}")).0, [""; 0], "{none}");
    }
}

#[test]
fn a_function_returns_a_fixed_value() {
    let values = |output: &str| {
        let names = names(&format!("fn f() {output} {{ x }}"));
        names
            .iter()
            .map(|name| name.trim_start_matches("f: ").trim_end_matches(": f").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(values(""), ["does nothing"]);
    assert_eq!(values("-> ()"), ["does nothing"]);
    assert_eq!(values("-> bool"), ["returns true", "returns false"]);
    assert_eq!(values("-> Option<X>"), ["returns None"]);
    assert_eq!(values("-> std::time::Duration"), ["returns Default::default()"]);
    assert_eq!(values("-> io::Result<()>"), ["returns Ok(())"]);
    assert_eq!(values("-> Result<bool, Error>"), ["returns Ok(true)", "returns Ok(false)"]);
    assert_eq!(values("-> Result<Option<X>, Error>"), ["returns Ok(None)"]);
    assert_eq!(values("-> Poll<()>").len(), 2);
    for none in ["-> X", "-> &str", "-> impl Future", "-> Poll<X>", "-> Result<X, Error>", "-> Self", "-> !"]
    {
        assert_eq!(values(none), [""; 0], "{none}");
    }
    let (_, changed) = derived("fn f() -> bool {\n    x\n}");
    assert_eq!(changed, "fn f() -> bool { if on(1) { return true; } if on(2) { return false; }\n    x\n}");
    // That is what it does.
    assert_eq!(derived("fn f() {}").0, [""; 0]);
    assert_eq!(derived("fn f() -> Option<X> { None }").0, [""; 0]);
    assert_eq!(derived("fn f() -> bool { true }").0, ["f: returns false: f"]);
}

#[test]
fn a_name_has_the_type_and_a_number_if_it_is_not_the_only_one() {
    let text =
        "impl<T> Show for a::B<T> { fn f() -> E { a == b; a == b } } trait C { fn g() -> E { !x } fn h(); }";
    let expected = ["B::f: == becomes !=: a == b", "B::f: == becomes !=: a == b #2", "C::g: ! left out: !x"];
    assert_eq!(names(text), expected);
    let long = names(&format!("fn f() -> E {{ {}  == b }}", "a".repeat(100)));
    assert_eq!(long, [format!("f: == becomes !=: {}...", "a".repeat(60))]);
}

#[test]
fn constants_macros_and_tests_are_not_changed() {
    for text in [
        "const A: bool = 1 < 2;",
        "static A: bool = 1 < 2;",
        "impl A { const B: bool = 1 < 2; }",
        "trait A { const B: bool = 1 < 2; }",
        "enum A { B = 1 + 1 }",
        "struct A([u8; 1 + 1]);",
        "const fn f() -> bool { a < b }",
        "impl A { const fn f(&self) -> bool { self.a < 1 } }",
        "fn f() -> E { const { 1 < 2 } }",
        "fn f() -> E { const A: bool = 1 < 2; A }",
        "fn f() -> E { [x; 1 + 1] }",
        "fn f() -> E { let x: [u8; 1 + 1] = y; x }",
        "fn f() -> E { g::<{ 1 + 1 }>() }",
        "fn f() -> E { match x { 1..=2 => a, A | B => b } }",
        "fn f() -> E { g!(a < b) }",
        "fn f() -> E { !mutant!(\"a name\") }",
        "macro_rules! f { () => { fn g() -> bool { a < b } } }",
        "#[cfg(test)] fn f() -> bool { a < b }",
        "#[cfg(test)] mod tests { fn f() -> bool { a < b } }",
        "#[cfg(all(test, unix))] mod tests { fn f() -> bool { a < b } }",
        "#[cfg(test)] impl A { fn f() -> bool { a < b } }",
        "#[test] fn f() { assert(a < b); }",
        "impl fmt::Debug for A { fn fmt() -> bool { a < b } }",
        "#[doc = \"a < b\"] struct A;",
    ] {
        assert_eq!(names(text), [""; 0], "{text}");
    }
    assert_eq!(names("#[cfg(not(test))] fn f() -> E { !a }"), ["f: ! left out: !a"]);
    assert_eq!(names("async fn f<T: X>(a: T) -> E { !a.await }"), ["f: ! left out: !a.await"]);
}

#[test]
fn lines_stay_what_they_are() {
    let text = "fn f() -> E {\n    a // one\n        < b\n        && c\n}\n// end\n";
    let (_, changed) = derived(text);
    assert_eq!(changed.matches('\n').count(), text.matches('\n').count());
    assert!(changed.ends_with("\n// end\n"), "{changed}");
    let mutants = derive("a.rs", text, 0, &BTreeSet::new()).unwrap().mutants;
    assert_eq!(mutants.iter().map(|mutant| mutant.line).collect::<Vec<_>>(), [2, 2, 2]);
}

#[test]
fn what_is_refused_is_left_out_and_the_names_stay() {
    let text = "fn f() -> E { a == b; a == b }";
    let refused = BTreeSet::from(["a.rs: f: == becomes !=: a == b".to_owned()]);
    let mutants = derive("a.rs", text, 0, &refused).unwrap().mutants;
    assert_eq!(mutants[0].name, "a.rs: f: == becomes !=: a == b #2");
    assert_eq!(mutants.len(), 1);
}
