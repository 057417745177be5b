//! Searches through a model: that it holds, or how few steps break it.
//!
//! Ground rules: a model that holds is searched to its last state, and must reach all that it says can
//! be reached. A model that breaks is searched breadth first for one property alone, since the checker
//! keeps the last of several findings, which need not be the shortest.

use std::fmt::{self, Debug};
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, Model, Path, Property};

/// The extent of a complete search.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// States that differ.
    pub states: usize,
    /// Steps that led to them, repetitions included.
    pub steps: usize,
    /// The longest way from the start that the search took.
    pub depth: usize,
    /// The time that it took.
    pub took: Duration,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Extent { states, steps, depth, took } = self;
        write!(f, "{states} states, {steps} steps, depth {depth}, {:.1} s", took.as_secs_f64())
    }
}

/// Searches all states of a model in which everything is to hold.
///
/// # Panics
/// If a property is violated, with the steps that lead there; and if something is never reached that the
/// model says can be.
pub fn holds<M>(model: M) -> Extent
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let began = Instant::now();
    let checker = model.checker().spawn_dfs().join();
    let extent = Extent {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
    };
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        match (property.expectation, found) {
            (Expectation::Sometimes, None) => panic!("never reached: {} ({extent})", property.name),
            (Expectation::Sometimes, Some(_)) | (_, None) => {}
            (_, Some(path)) => panic!("violated: {}\n{}", property.name, story(path)),
        }
    }
    println!("holds: {extent}");
    extent
}

/// Searches for the shortest way to violate one property; the number of its steps.
///
/// # Panics
/// If no way exists, or no such property.
pub fn breaks<M>(model: M, property: &'static str) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + 'static,
{
    let began = Instant::now();
    found(Only::of(model, property).checker().spawn_bfs().join(), property, began)
}

/// Searches for any way to violate one property, and stops at the first; the number of its steps.
///
/// If the shortest way takes long to find, this shows in a moment that one exists.
///
/// # Panics
/// If no way exists, or no such property.
pub fn breaks_somehow<M>(model: M, property: &'static str) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + 'static,
{
    let began = Instant::now();
    found(Only::of(model, property).checker().spawn_dfs().join(), property, began)
}

/// Tells what a search for a violation came upon.
fn found<M>(checker: impl Checker<Only<M>>, property: &str, began: Instant) -> usize
where
    M: Model,
    M::State: Clone + Debug + Hash + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    let states = checker.unique_state_count();
    let Some(path) = checker.discovery(ONLY) else {
        panic!("held after all, in {states} states: {property}");
    };
    let actions = path.into_actions();
    let took = began.elapsed().as_secs_f64();
    println!("breaks `{property}` in {} steps ({states} states, {took:.1} s):", actions.len());
    for (number, action) in actions.iter().enumerate() {
        println!("{:4}  {action:?}", number + 1);
    }
    actions.len()
}

const ONLY: &str = "the one";

/// A model with all properties but one left out.
struct Only<M: Model> {
    model: M,
    property: Property<M>,
}

impl<M: Model> Only<M> {
    fn of(model: M, property: &'static str) -> Self {
        let property = model.property(property);
        Only { model, property }
    }
}

impl<M: Model> Model for Only<M> {
    type State = M::State;
    type Action = M::Action;

    fn init_states(&self) -> Vec<M::State> {
        self.model.init_states()
    }

    fn actions(&self, state: &M::State, actions: &mut Vec<M::Action>) {
        self.model.actions(state, actions);
    }

    fn next_state(&self, last: &M::State, action: M::Action) -> Option<M::State> {
        self.model.next_state(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(ONLY, |only: &Self, state| (only.property.condition)(&only.model, state))]
    }
}

fn story<S: Debug, A: Debug>(path: Path<S, A>) -> String {
    let mut text = String::new();
    for (number, (state, action)) in path.into_vec().into_iter().enumerate() {
        let action = action.map_or(String::from("(end)"), |action| format!("{action:?}"));
        text.push_str(&format!("{:4}  {state:?}\n      {action}\n", number + 1));
    }
    text
}
